"""The notebooks of examples run from top to bottom, and what each cell shows can be shown."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from documents import ROOT

FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.py"))


def cells(text: str) -> list[str]:
    """The code cells of the percent format."""
    parts = re.split(r"^# %%(.*)\n", text, flags=re.MULTILINE)
    return [code for kind, code in zip(parts[1::2], parts[2::2], strict=True) if "[markdown]" not in kind]


def shown(cell: str, namespace: dict[str, object], name: str) -> object:
    """Run a cell as a notebook does: the value of its last expression."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), namespace)
    return None if last is None else eval(compile(ast.Expression(last.value), name, "eval"), namespace)


def test_all_three_are_there() -> None:
    assert NOTEBOOKS == ["calibration.py", "study.py", "tutorial.py"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_cell_runs_and_shows_something(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("vl_convert")
    monkeypatch.chdir(FOLDER)
    before = sorted(Path.cwd().iterdir())
    namespace: dict[str, object] = {"__name__": "notebook"}
    for number, cell in enumerate(cells((FOLDER / name).read_text(encoding="utf-8")), 1):
        value = shown(cell, namespace, f"{name}, cell {number}")
        display = getattr(value, "_repr_html_", None) or getattr(value, "_repr_svg_", None)
        assert display() if display is not None else value, f"{name}: cell {number} shows nothing"
    assert sorted(Path.cwd().iterdir()) == before, "a notebook leaves nothing beside itself"
