"""Engines by name."""

from __future__ import annotations

import pytest

from iossim.base.errors import OptionError
from iossim.execution.backend import create_backend
from iossim.execution.engine import Engine


@pytest.mark.parametrize("engine", Engine)
def test_names(engine: Engine) -> None:
    assert Engine.named(engine.value) is engine


@pytest.mark.parametrize("name", ["", "graphs", "Paper"])
def test_unknown_names(name: str) -> None:
    with pytest.raises(OptionError, match=rf"unknown engine '{name}'; .*known: graph, paper, partition"):
        Engine.named(name)


def test_backends_that_cannot_divide_a_device_say_so() -> None:
    with pytest.raises(
        OptionError, match="backend onnxruntime_cpu cannot run `engine` partition; give paper or graph"
    ):
        create_backend("onnxruntime_cpu", engine=Engine.PARTITION)
    assert create_backend("numpy_reference", engine=Engine.PARTITION).context.engine == "partition"
