"""Engines by name."""

from __future__ import annotations

import pytest

from iossim.errors import OptionError
from iossim.execution.engine import Engine


@pytest.mark.parametrize("engine", Engine)
def test_names(engine: Engine) -> None:
    assert Engine.named(engine.value) is engine


@pytest.mark.parametrize("name", ["", "graphs", "Paper"])
def test_unknown_names(name: str) -> None:
    with pytest.raises(OptionError, match=rf"unknown engine '{name}'; .*known: graph, paper"):
        Engine.named(name)
