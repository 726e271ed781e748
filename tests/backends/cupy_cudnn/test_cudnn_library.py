"""Which cuDNN is used: libraries that stand for it are made with the host's compiler, and really loaded."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from iossim.backends.cupy_cudnn import cudnn_library
from iossim.execution.backend import BackendError

ROOT = Path(__file__).resolve().parents[3]
#: In a process of its own, since what is loaded stays; says what was found, or the error.
SCRIPT = """
import ctypes, json, sys, sysconfig
from iossim.backends.cupy_cudnn import cudnn_library
from iossim.base.errors import IossimError
sysconfig.get_path = lambda name: "/nowhere"  # what is installed beside the tests does not count
sys.path[:0] = json.loads(sys.argv[1])
for path in json.loads(sys.argv[2]):
    ctypes.CDLL(path)
cudnn_library.make_findable()
try:
    print(cudnn_library.the_only())
except IossimError as error:
    print("error:", error)
"""


def made(folder: Path, version: int) -> Path:
    """A library that says that it is cuDNN of this version, where a wheel would have it."""
    compiler = shutil.which("gcc")
    if compiler is None or not Path("/proc/self/maps").exists():
        pytest.skip("no C compiler, or no /proc")
    place = folder / "nvidia" / "cudnn" / "lib"
    place.mkdir(parents=True)
    for package in (place.parent, place.parents[1]):
        (package / "__init__.py").touch()  # before any other package of the name
    source = place / "cudnn.c"
    source.write_text(f"unsigned long cudnnGetVersion(void) {{ return {version}; }}")
    library = place / "libcudnn.so.9"
    command = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcudnn.so.9", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return library


def said(paths: list[Path], loaded: list[Path]) -> str:
    arguments = [json.dumps([str(path) for path in given]) for given in (paths, loaded)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=False, env={"PATH": ""}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_package_that_the_front_end_does_not_see_is_made_findable(tmp_path: Path) -> None:
    """One on ``PYTHONPATH``, as of an environment that lies on top of another."""
    library = made(tmp_path / "wheels", 92800)
    assert said([tmp_path / "wheels"], []) == f"9.28.0 of {library}"


def test_one_that_is_loaded_already_is_used(tmp_path: Path) -> None:
    theirs = made(tmp_path / "torch", 92101)
    made(tmp_path / "wheels", 92800)
    assert said([tmp_path / "wheels"], [theirs]) == f"9.21.1 of {theirs}"


def test_two_copies_of_one_version_get_along(tmp_path: Path) -> None:
    libraries = [made(tmp_path / name, 92800) for name in ("one", "two")]
    assert said([], libraries) == f"9.28.0 of {libraries[0]}"


def test_two_versions_are_refused_in_one_line(tmp_path: Path) -> None:
    """Even where they differ in the last digit alone: the parts of cuDNN find each other by name."""
    libraries = [made(tmp_path / name, version) for name, version in (("one", 92800), ("two", 92801))]
    found = said([], libraries)
    assert found.startswith("error: two versions of cuDNN are loaded in this process, 9.28.0 of ")
    assert str(libraries[1]) in found
    assert "\n" not in found


def test_cublas_of_a_package_is_loaded_before_cudnn_asks_for_it(tmp_path: Path) -> None:
    """Where the loader does not find it, cuDNN ends the process."""
    made(tmp_path / "wheels", 92800)
    place = tmp_path / "wheels" / "nvidia" / "cublas" / "lib"
    place.mkdir(parents=True)
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcublasLt.so.12", "-x", "c", "/dev/null"]
    subprocess.run([*command, "-o", str(place / "libcublasLt.so.12")], check=True)
    script = f"{SCRIPT}\nctypes.CDLL('libcublasLt.so.12')\nprint('found by its name')"
    arguments = [json.dumps([str(tmp_path / "wheels")]), "[]"]
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["found by its name"], done.stderr


@pytest.fixture
def _untried() -> Iterator[None]:
    cudnn_library.begins_here.cache_clear()
    yield
    cudnn_library.begins_here.cache_clear()


@pytest.mark.usefixtures("_untried")
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("import os, sys\nprint('no libcublasLt', file=sys.stderr, flush=True)\nos.abort()", "ends the process with SIGABRT: no libcublasLt"),
        ("raise RuntimeError('CUDNN_STATUS_NOT_INITIALIZED')", "CUDNN_STATUS_NOT_INITIALIZED"),
        ("def create_handle(): pass", ""),
    ],
)  # fmt: skip
def test_a_cudnn_that_ends_the_process_is_told_in_one_line(
    body: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cudnn.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = cudnn_library.begins_here()
    assert reason in said
    assert bool(said) is bool(reason)
    assert "\n" not in said


@pytest.mark.parametrize(
    ("library", "good", "bad"),
    [
        ("cupy", ("13.6.0", "14.2.0"), ("13.5.1",)),
        ("nvidia-cudnn", ("9.10.0", "9.28.1"), ("9.9.0",)),
        ("nvidia-cudnn-frontend", ("1.24.1", "1.28.0"), ("1.23.0", "1.29.0", "2.0")),
    ],
)
def test_versions_that_the_backend_is_not_written_for_are_refused(
    library: str, good: Sequence[str], bad: Sequence[str]
) -> None:
    for version in good:
        cudnn_library.check_version(library, version)
    for version in bad:
        with pytest.raises(BackendError, match=rf"{library} {version} is installed, and >=.* is needed; install that$"):
            cudnn_library.check_version(library, version)


def test_versions_are_those_of_the_extra() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["gpu-cuda12"]
    asked = {re.sub(r"-(cuda12x|cu12)$", "", line.partition(">")[0]): line.partition(";")[0] for line in extra}
    for library, (least, before) in cudnn_library.VERSIONS.items():
        assert asked[library].endswith(f">={least}{f',<{before}' if before else ''}")
