"""``.ci/package_contents.py``: a file of data that was forgotten, and one that came along, are named."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / ".ci" / "package_contents.py"
TRACKED = ("iossim/a.py", "iossim/page/a.css", "backends/b.py", "hw_profiles/t4.yaml", "tests/test_a.py")
INSTALLED = (
    "iossim/a.py",
    "iossim/page/a.css",
    "iossim/backends/b.py",
    "iossim/hw_profiles/t4.yaml",
    "iossim-1.dist-info/RECORD",
    "iossim/base/native/shipped/iossim.a-0123456789abcdef.so",
)
BUILDS = ("README.md", "LICENSE", "pyproject.toml", "setup.py", "build_backend.py")


def judged(tmp_path: Path, wheel: tuple[str, ...], sdist: tuple[str, ...]) -> tuple[int, list[str]]:
    source, dist = tmp_path / "source", tmp_path / "dist"
    dist.mkdir()
    for name in TRACKED:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("")
    for command in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *command], cwd=source, check=True)
    with zipfile.ZipFile(dist / "iossim-1-py3-none-any.whl", "w") as archive:
        for name in wheel:
            archive.writestr(name, "")
    with tarfile.open(dist / "iossim-1.tar.gz", "w:gz") as archive:
        for name in sdist:
            archive.add(source / TRACKED[0], f"iossim-1/{name}")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(source), str(dist)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr.splitlines()


def test_what_is_complete_passes(tmp_path: Path) -> None:
    assert judged(tmp_path, INSTALLED, (*TRACKED[:4], *BUILDS)) == (0, [])


@pytest.mark.parametrize(
    ("wheel", "sdist", "said"),
    [
        ((INSTALLED[0], *INSTALLED[2:]), TRACKED[:4], ["the wheel lacks iossim/page/a.css"]),
        (
            (*INSTALLED, "tests/test_a.py"),
            TRACKED[:4],
            ["the wheel holds tests/test_a.py, which is no file of the product"],
        ),
        (INSTALLED, TRACKED[:3], ["the sdist lacks hw_profiles/t4.yaml"]),
    ],
)
def test_what_is_missing_or_came_along_is_named(
    wheel: tuple[str, ...], sdist: tuple[str, ...], said: list[str], tmp_path: Path
) -> None:
    assert judged(tmp_path, wheel, (*sdist, *BUILDS)) == (1, said)
