"""The house stands: every module imports only rooms on lower floors, those of ARCHITECTURE.md, and no module imports itself
by way of others. Imports inside functions count as all others. A plain checkout imports whole and by itself.
"""

import ast
import graphlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

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


def extends_studies(module: str, other: str) -> bool:
    """Whether a guest's module ``NAME_study`` or ``NAME_plots``, which studies find by its name, imports them."""
    return module.endswith(("_study", "_plots")) and room(other) == "study"


def test_no_import_of_a_higher_floor() -> None:
    """Nor of another room of the same floor."""
    height = {name: number for number, floor in enumerate(floors()) for name in floor}
    wrong = [
        f"{module} imports {other}"
        for module, others in import_graph().items()
        for other in sorted(others)
        if room(module) != room(other)
        and height[room(other)] >= height[room(module)]
        and not extends_studies(module, other)
    ]
    assert wrong == []


def test_the_reading_path_is_there_and_short() -> None:
    text = (ROOT / "docs" / "reading_the_code.md").read_text()
    files = re.findall(r"^\| \d+ \| `(.+?)` \|", text, re.MULTILINE)
    lines = sum(len((ROOT / file).read_text().splitlines()) for file in files)
    assert f"{len(files)} files" in text
    assert 20 <= len(files) <= 25
    assert lines <= 4500


def test_no_import_circle() -> None:
    # A package is imported with any of its modules; what its __init__ imports of itself is no circle of theirs.
    graph = {name: others for name, others in import_graph().items() if modules()[name].name != "__init__.py"}
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names the modules


#: Rooms of one feature each, which commands find by looking; without one's folder the rest works.
GUESTS = ("calibration", "deploy", "edge", "microbatching", "profiles", "proving", "serving", "study")


def test_nothing_imports_a_guest() -> None:
    """But the package's own __init__, which loads a name when it is first used."""
    wrong = [
        f"{module} imports {other}"
        for module, others in import_graph().items()
        for other in others
        if (
            room(other) in GUESTS and room(module) not in (room(other), "iossim") and not extends_studies(module, other)
        )
        or other.endswith(("_study", "_plots"))
    ]
    assert wrong == []


def _run_without(rooms: Sequence[str], folder: Path, code: str) -> str:
    """The output of a Python process in a copy of the package that lacks rooms, made of links."""
    (folder / "iossim").mkdir()
    for path in (ROOT / "iossim").iterdir():
        if path.name not in rooms:
            (folder / "iossim" / path.name).symlink_to(path)
    for name in ("backends", "hw_profiles", "scenarios"):
        (folder / name).symlink_to(ROOT / name)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


_COMPARES = """
from iossim.cli.main import main
import iossim
assert iossim.__file__.startswith({folder!r})
assert main(["--help"]) == 0
assert main(["compare", "squeezenet", "-d", "t4", "--schedulers", "sequential,greedy"]) == 0
"""


def test_without_any_guest_the_rest_works(tmp_path: Path) -> None:
    asked = {"--micro-batch=2": 2, "--training": 2, "--rewrite": 0}  # rules by the verdicts that ship
    line = 'assert main(["compare", "ios_sample", "-d", "t4", "--schedulers=sequential", "{}"]) == {}\n'
    without = "".join(line.format(*each) for each in asked.items())
    out = _run_without(GUESTS, tmp_path, _COMPARES.format(folder=str(tmp_path)) + without)
    assert all(word in out for word in (" optimize ", "greedy"))
    assert not any(word in out for word in (" coschedule ", " study ", " rules ", " calibrate ", " microbatch "))


@pytest.mark.slow
@pytest.mark.parametrize("guest", GUESTS)
def test_without_a_guest_all_others_import(guest: str, tmp_path: Path) -> None:
    others = [name for name in modules() if room(name) not in (guest, "backends", "testing", "torch")]
    left_out = ("__main__", "_study", "_plots") if guest == "study" else "__main__"
    names = [name for name in others if not name.endswith(left_out)]
    code = f"from importlib import import_module\nfor name in {names!r}: import_module(name)\n"
    _run_without([guest], tmp_path, code + _COMPARES.format(folder=str(tmp_path)))


DEPENDENCIES = Path(np.__file__).parents[1]
TELL = """
import json, sys
from importlib import resources
import iossim.backends.simulator, iossim.base.errors, iossim.scenarios
places = {name: module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "iossim"}
print(json.dumps(places | {"t4": str(resources.files("iossim.hw_profiles") / "t4.yaml")}))
"""


def checkout(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in ("iossim", "backends", "hw_profiles", "scenarios"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def installation(folder: Path) -> Path:
    """A copy as the wheel installs it, with all subpackages inside."""
    (folder / "iossim").mkdir(parents=True)
    inside = [*(ROOT / "iossim").iterdir(), *(ROOT / name for name in ("backends", "hw_profiles", "scenarios"))]
    for path in inside:
        (folder / "iossim" / path.name).symlink_to(path)
    return folder


def printed(code: str, folder: Path, *places: Path, bare: bool = True) -> str:
    """Output of Python in a folder; without site-packages no finder of an editable install is there, and packages are
    those of ``places`` alone.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    command = [sys.executable, *(["-S"] if bare else []), "-c", code]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, env=environment).stdout


@pytest.mark.parametrize("starts_in", ["parent", "checkout", "elsewhere"])
@pytest.mark.parametrize("beside", ["nothing", "checkout", "installation", "environment"])
def test_all_modules_are_of_the_checkout(tmp_path: Path, starts_in: str, beside: str) -> None:
    own = checkout(tmp_path / "own" / "iossim")
    copies = {"checkout": checkout, "installation": installation}
    other = [copies[beside](tmp_path / "other")] if beside in copies else []
    (tmp_path / "elsewhere").mkdir()
    folder = {"parent": own.parent, "checkout": own, "elsewhere": tmp_path / "elsewhere"}[starts_in]
    found = json.loads(printed(TELL, folder, own, *other, DEPENDENCIES, bare=beside != "environment"))
    assert {"iossim", "iossim.backends.simulator", "iossim.scenarios", "t4"} <= found.keys()
    assert [name for name, place in found.items() if not Path(place).is_relative_to(own)] == []


def test_an_installation_takes_nothing_from_beside_it(tmp_path: Path) -> None:
    """A package of others may be named as one of the three folders."""
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends" / "__init__.py").write_text("raise AssertionError")
    found = json.loads(printed(TELL, tmp_path, installation(tmp_path), DEPENDENCIES))
    assert all(Path(place).is_relative_to(tmp_path / "iossim") for place in found.values())


@pytest.mark.slow
def test_an_editable_install_is_found_from_the_folder_above_the_checkout(tmp_path: Path) -> None:
    """There a folder ``iossim`` is no package, and must not hide the one inside it."""
    pytest.importorskip("setuptools")
    own = checkout(tmp_path / "iossim")
    for name in ("pyproject.toml", "setup.py", "build_backend.py", "README.md", "LICENSE"):
        (own / name).symlink_to(ROOT / name)
    printed(f"from setuptools import build_meta; build_meta.build_editable({str(tmp_path)!r})", own, bare=False)
    (wheel,) = tmp_path.glob("*.whl")
    site = f"import site, zipfile; zipfile.ZipFile({str(wheel)!r}).extractall('site'); site.addsitedir('site')"
    tell = "import iossim; print(iossim.device('t4').name, iossim.__file__)"
    assert printed(f"{site}\n{tell}", tmp_path, DEPENDENCIES).split() == ["t4", str(own / "iossim" / "__init__.py")]
