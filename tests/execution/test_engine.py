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


@pytest.mark.parametrize("name", ["cupy_cudnn", "onnxruntime_cpu", "torch_cuda"])
def test_backends_that_cannot_divide_a_device_say_so_before_what_else_they_lack(name: str) -> None:
    with pytest.raises(
        OptionError, match=r"cannot run `engine` partition, which is simulated only; give paper or graph$"
    ):
        create_backend(name, engine=Engine.PARTITION)


def test_the_reference_computes_the_values_of_a_divided_plan() -> None:
    assert create_backend("numpy_reference", engine=Engine.PARTITION).context.engine == "partition"
