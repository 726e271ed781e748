"""Names of edge devices: recognised by their profiles' text, so that listing names parses no profile."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from pathlib import Path

from iossim.base.errors import DeviceError
from iossim.base.shipped_yaml import shipped_files
from iossim.base.user_folders import user_data

#: The ``kind`` of such a profile.
EDGE = "edge"
FOLDER = "iossim.hw_profiles"
_IS_EDGE = re.compile(r"^kind:\s*['\"]?edge\b", re.MULTILINE)


def is_edge_profile(text: str) -> bool:
    """Whether a profile's text is that of an edge device."""
    return _IS_EDGE.search(text) is not None


def edge_names() -> list[str]:
    """The shipped edge devices, then those of the user's folder."""
    shipped = shipped_edge_names()
    folder = user_data() / "devices"
    own = sorted(path.stem for path in folder.glob("*.yaml") if _file_is_edge(path)) if folder.is_dir() else []
    taken = shipped_files(FOLDER)
    return [*shipped, *(name for name in own if name not in taken)]


@cache
def shipped_edge_names() -> tuple[str, ...]:
    """The shipped edge devices, sorted."""
    folder = resources.files(FOLDER)
    return tuple(
        name for name in shipped_files(FOLDER) if is_edge_profile((folder / f"{name}.yaml").read_text(encoding="utf-8"))
    )


def refusal(name: str) -> DeviceError:
    """The error of a command that needs another kind of device."""
    return DeviceError(f"device {name!r} is an edge device, which this cannot take; give it to 'iossim dataflow'")


def _file_is_edge(path: Path) -> bool:
    try:
        return is_edge_profile(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return False  # using it by name reports the error
