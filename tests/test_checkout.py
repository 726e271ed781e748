"""A plain checkout imports whole and by itself, with nothing but its dependencies or beside another copy of iossim."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
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
