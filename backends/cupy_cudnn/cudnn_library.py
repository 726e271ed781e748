"""Which cuDNN this process uses: there may be one of PyTorch's, one of a wheel, one of the system.

The front end takes what ``LD_LIBRARY_PATH`` names, else what is installed in Python's own folder of packages, else what the
loader finds. Packages elsewhere (a folder on ``PYTHONPATH``, one environment on top of another) it does not see: for those
the library is loaded here first, and then found by its name.

cuDNN is a family of libraries that load each other by name, and refuse to work where their versions differ, even in the
last digit. Two copies of one version get along, two versions do not, whatever part of the process each serves.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from iossim.execution.backend import BackendError

NAME = "libcudnn.so.9"
_SPELLING = re.compile(r"libcudnn\.so(\.\d+)*")
_MAPS = Path("/proc/self/maps")


class Copy(NamedTuple):
    """One cuDNN: its version (``9.19.0``) and its file."""

    version: str
    path: str

    def __str__(self) -> str:
        return f"{self.version} of {self.path}"


def make_findable() -> None:
    """Load the cuDNN of a package that the front end would not find; does nothing where it finds one by itself."""
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    seen = [*map(Path, folders), Path(sysconfig.get_path("purelib"), "nvidia", "cudnn", "lib")]
    if loaded() or any((folder / NAME).exists() for folder in seen):
        return
    for folder in _package_folders():
        if (folder / NAME).exists():
            try:
                ctypes.CDLL(str(folder / NAME))
            except OSError:
                continue  # whoever asks for it next is told why
            return


def the_only() -> Copy | None:
    """The cuDNN that is loaded, None where the system does not tell; raises BackendError where there are two versions."""
    found = loaded()
    if len({copy.version for copy in found}) > 1:
        raise BackendError(
            f"two versions of cuDNN are loaded in this process, {' and '.join(map(str, found))}, and do not work together; "
            "install the same version for PyTorch and for iossim, or run without the other"
        )
    return next(iter(found), None)


def loaded() -> list[Copy]:
    """Every cuDNN in this process, in the order of their files; none where the system does not tell."""
    try:
        lines = _MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    paths = {parts[5] for line in lines if len(parts := line.split(maxsplit=5)) == 6}
    return [Copy(_version_of(path), path) for path in sorted(paths) if _SPELLING.fullmatch(Path(path).name)]


def version_text(number: int) -> str:
    """``91900`` as ``9.19.0``."""
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


def _version_of(path: str) -> str:
    """What a library that is loaded says of itself."""
    library = ctypes.CDLL(path)
    library.cudnnGetVersion.restype = ctypes.c_size_t
    return version_text(int(library.cudnnGetVersion()))


def _package_folders() -> Sequence[Path]:
    """Where package ``nvidia.cudnn`` has its libraries, wherever it is installed."""
    try:
        found = importlib.util.find_spec("nvidia.cudnn")
    except ModuleNotFoundError:
        return []
    places = () if found is None else found.submodule_search_locations or ()
    return [Path(place) / "lib" for place in places]
