"""The files of ``gpu_report`` import each other in one direction; what begins needs the standard library only."""

from __future__ import annotations

import ast
import sys
from graphlib import TopologicalSorter
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
FILES = {path.stem: path for path in sorted(FOLDER.glob("gpu_report*.py"))}


def imported(name: str, top_level: bool = False) -> set[str]:
    """The first part of each name that a file imports, wherever in it unless only at its top level."""
    tree = ast.parse(FILES[name].read_text())
    nodes = tree.body if top_level else ast.walk(tree)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_imports_go_round_in_no_circle() -> None:
    graph = {name: imported(name) & set(FILES) for name in FILES}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert order[-1] == "gpu_report"
    assert not [name for name in FILES if "gpu_report" in graph[name]]


def test_what_begins_needs_the_standard_library_only() -> None:
    left, seen = ["gpu_report"], set[str]()
    while left:
        name = left.pop()
        seen.add(name)
        others = imported(name, top_level=True)
        assert others <= {*sys.stdlib_module_names, *FILES}, name
        left += (others & set(FILES)) - seen
    assert len(seen) > 5
