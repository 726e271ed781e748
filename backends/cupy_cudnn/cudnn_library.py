"""Choice of the cuDNN that this process uses: PyTorch, a wheel and the system may each bring one.

The front end takes the one that ``LD_LIBRARY_PATH`` names, else one installed in Python's own folder of packages, else
the one that the loader finds. A cuDNN of packages elsewhere (on ``PYTHONPATH``, say) is loaded here first.

cuDNN is a family of libraries that load each other by name, and refuse to work where their versions differ, even in
the last digit. Where the loader does not find cuBLASLt by name, cuDNN ends the process: so that is loaded first too,
and whether cuDNN begins at all is tried in a process of its own.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from iossim.execution.backend import BackendError

NAME = "libcudnn.so.9"
#: Of CUDA 13 and 12: cuDNN asks for the one that it was built with.
CUBLAS_NAMES = ("libcublasLt.so.13", "libcublasLt.so.12")
#: The versions of the extra ``gpu-cuda12``, the wider of the two: from the first on, and before the second. Front
#: ends before the one named here ignore ``LD_LIBRARY_PATH``, and load another cuDNN than it names.
VERSIONS = {"cupy": ("13.6", ""), "nvidia-cudnn": ("9.10", ""), "nvidia-cudnn-frontend": ("1.24.1", "1.29")}
_SPELLING = re.compile(r"libcudnn\.so(\.\d+)*")
_MAPS = Path("/proc/self/maps")


def make_findable() -> None:
    """Load what would not be found: a package's cuDNN by the front end, its cuBLASLt by cuDNN."""
    packaged = _package_folders("nvidia", "*/lib")
    for name in CUBLAS_NAMES:
        # Else the loader would map hundreds of MiB for nothing.
        if any((folder / name).exists() for folder in packaged):
            load_package(name)
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    seen = [*map(Path, folders), Path(sysconfig.get_path("purelib"), "nvidia", "cudnn", "lib")]
    if loaded() or any((folder / NAME).exists() for folder in seen):
        return
    _load([str(folder / NAME) for folder in _package_folders("nvidia.cudnn", "lib")])


@cache
def begins_here() -> str:
    """Why cuDNN and its front end do not begin on this machine's GPU, tried in another process; else empty."""
    trial = f"from {__name__} import make_findable; make_findable(); import cudnn; cudnn.create_handle()"
    # A checkout's own folder iossim, where that is the current one, would hide the whole package: -P keeps it out.
    done = subprocess.run([sys.executable, "-P", "-c", trial], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    said = done.stderr.strip().splitlines()[-1:] or ["it says nothing"]
    if done.returncode < 0:
        return f"it ends the process with {signal.Signals(-done.returncode).name}: {said[0]}"
    return said[0]


def check_version(library: str, version: str) -> None:
    """Raises BackendError for a version of a library that the backend is not written for."""
    least, before = VERSIONS[library]
    if _numbers(version) < _numbers(least) or (before and _numbers(version) >= _numbers(before)):
        wanted = f">={least}{f',<{before}' if before else ''}"
        raise BackendError(f"{library} {version} is installed, and {wanted} is needed; install that")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def the_only() -> str:
    """The cuDNN that is loaded, ``9.19.0 of FILE``, or empty if unknown; raises BackendError for two versions."""
    found = loaded()
    copies = [f"{version} of {path}" for path, version in found.items()]
    if len({*found.values()}) > 1:
        raise BackendError(
            f"two versions of cuDNN are loaded in this process, {' and '.join(copies)}, and do not work "
            "together; install the same version for PyTorch and for iossim, or run without the other"
        )
    return copies[0] if copies else ""


def loaded() -> dict[str, str]:
    """The version of every cuDNN in this process, by its file, in their order; none where the system does not tell."""
    try:
        lines = _MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    paths = {parts[5] for line in lines if len(parts := line.split(maxsplit=5)) == 6}
    return {path: _version_of(path) for path in sorted(paths) if _SPELLING.fullmatch(Path(path).name)}


def version_text(number: int) -> str:
    """``91900`` as ``9.19.0``."""
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


def _version_of(path: str) -> str:
    """The version that a loaded library gives of itself."""
    library = ctypes.CDLL(path)
    library.cudnnGetVersion.restype = ctypes.c_size_t
    return version_text(int(library.cudnnGetVersion()))


def load_package(name: str) -> ctypes.CDLL | None:
    """A library of CUDA, where the loader finds it or a package has it; None where none does."""
    return _load([name, *(str(folder / name) for folder in _package_folders("nvidia", "*/lib"))])


def _load(places: Iterable[str]) -> ctypes.CDLL | None:
    """The first of these that loads; whoever asks for one that does not is told why."""
    for place in places:
        with suppress(OSError):
            return ctypes.CDLL(place)
    return None


def _package_folders(package: str, pattern: str) -> Sequence[Path]:
    """The folders of a package's libraries, wherever it is installed."""
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return []
    places = () if found is None else found.submodule_search_locations or ()
    return [folder for place in places for folder in sorted(Path(place).glob(pattern))]
