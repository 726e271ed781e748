"""The house stands: every module imports only rooms on lower floors, those of ARCHITECTURE.md, and no module imports itself
by way of others. Imports inside functions count as all others.
"""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Where the packages stand, by what they install as.
PACKAGES = {"iossim": ROOT / "iossim", "iossim.backends": ROOT / "backends"}


@cache
def modules() -> dict[str, Path]:
    """Every module of the package, by name; a package by its ``__init__``."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join([package, *parts]).removesuffix(".__init__")] = path
    return found


def imports(path: Path) -> Iterator[str]:
    """The modules of the package that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules() else node.module for name in whole]
        else:
            continue
        yield from (name for name in names if name in modules())


@cache
def import_graph() -> dict[str, frozenset[str]]:
    return {name: frozenset(imports(path)) - {name} for name, path in modules().items()}


@cache
def floors() -> list[list[str]]:
    """The rooms of each floor, the lowest first: the indented lines of the section of ARCHITECTURE.md."""
    (section,) = re.findall(
        r"^## The floors\n(.*?)^## ", (ROOT / "ARCHITECTURE.md").read_text(), re.DOTALL | re.MULTILINE
    )
    return [line.split() for line in reversed(section.splitlines()) if line.startswith("    ")]


def room(module: str) -> str:
    """The part of the house that a module is of: a folder, or a module that stands in none."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "iossim"


def test_every_room_has_one_floor() -> None:
    named = [name for floor in floors() for name in floor]
    assert len(named) == len(set(named))
    assert {room(module) for module in modules()} == set(named)


def test_no_import_of_a_higher_floor() -> None:
    """Nor of another room of the same floor."""
    height = {name: number for number, floor in enumerate(floors()) for name in floor}
    wrong = [
        f"{module} imports {other}"
        for module, others in import_graph().items()
        for other in sorted(others)
        if room(module) != room(other) and height[room(other)] >= height[room(module)]
    ]
    assert wrong == []


def test_no_import_circle() -> None:
    # A package is imported with any of its modules; what its __init__ imports of itself is no circle of theirs.
    graph = {name: others for name, others in import_graph().items() if modules()[name].name != "__init__.py"}
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names the modules
