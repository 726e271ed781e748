"""Names of devices: those that ship, a user's, and those of plugins; edge devices apart.

Edge devices are recognised by their profiles' text, so that listing names parses no profile.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.base.errors import DeviceError, did_you_mean, warn_once
from iossim.base.registry import plugins_of
from iossim.base.shipped_yaml import read_shipped, shipped_files
from iossim.base.user_files import read_text
from iossim.base.user_folders import user_data

#: Name of this machine's CPU.
HOST_CPU = "cpu"
#: The entry points of devices of other packages: functions that return the YAML text of a profile of their name.
ENTRY_POINTS = "iossim.devices"
#: The ``kind`` of such a profile.
EDGE = "edge"
FOLDER = "iossim.hw_profiles"
_IS_EDGE = re.compile(r"^kind:\s*['\"]?edge\b", re.MULTILINE)


def shipped_text(name: str) -> str:
    """The text of the shipped profile of that name."""
    return (resources.files(FOLDER) / f"{name}.yaml").read_text(encoding="utf-8")


def is_edge_profile(text: str) -> bool:
    """True if a profile's text is that of an edge device."""
    return _IS_EDGE.search(text) is not None


def edge_names() -> list[str]:
    """The shipped edge devices, then those of the user's folder."""
    shipped = shipped_edge_names()
    own = sorted(path.stem for path in user_folder().glob("*.yaml") if _file_is_edge(path))
    return [*shipped, *(name for name in own if name not in shipped_files(FOLDER))]


@cache
def shipped_edge_names() -> tuple[str, ...]:
    """The shipped edge devices, sorted."""
    return tuple(name for name in shipped_files(FOLDER) if is_edge_profile(shipped_text(name)))


def refusal(name: str) -> DeviceError:
    """The error of a command that needs another kind of device."""
    return DeviceError(f"device {name!r} is an edge device, which this cannot take; give it to 'iossim dataflow'")


def _file_is_edge(path: Path) -> bool:
    try:
        return is_edge_profile(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return False  # using it by name reports the error


def device_names() -> list[str]:
    """The GPUs and processors by name: shipped ones, the user's, those of plugins, and last this machine's CPU."""
    added = {*user_names(), *plugins_of(ENTRY_POINTS)} - set(own_names())
    return [*shipped_names(), *sorted(added), *[HOST_CPU] * host_cpu_path().exists()]


def own_names() -> list[str]:
    """Names reserved from users and plugins: the shipped ones, and that of this machine's CPU."""
    return [*shipped_names(), HOST_CPU]


def check_name(name: str) -> None:
    """Raise DeviceError for a name that is no valid file name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise DeviceError(f"device name {name!r}: use letters, digits, dots, dashes and underscores")


def shipped_names() -> list[str]:
    """The shipped GPUs, sorted; edge devices are :func:`edge_names`."""
    return [name for name in shipped_files(FOLDER) if name not in shipped_edge_names()]


def user_folder() -> Path:
    """The folder of a user's own profiles, each found by its file name; it may not exist yet."""
    return user_data() / "devices"


def user_names() -> list[str]:
    """The devices of the user's folder, sorted; a name of a shipped device is left out with a warning."""
    folder = user_folder()
    found = sorted(path.stem for path in folder.glob("*.yaml"))
    for name in set(found) & set(shipped_files(FOLDER)):
        warn_once(f"device profile {folder / name}.yaml is not used: {name!r} is a device that ships; rename the file")
    return [name for name in found if name not in own_names() and name not in edge_names()]


def origin(name: str) -> str:
    """The origin of the device of that name: ``shipped``, the file of a user, or the package of a plugin."""
    if name == HOST_CPU or name in user_names():
        return str(user_folder() / f"{name}.yaml")
    if name in edge_names():
        return "shipped" if name in shipped_edge_names() else str(user_folder() / f"{name}.yaml")
    added = plugins_of(ENTRY_POINTS).get(name)
    return "shipped" if added is None or name in shipped_names() else added.package


def unknown(name: str) -> DeviceError:
    """The error for a name that no device has."""
    if (beside := Path(f"{name}.yaml")).is_file():
        return DeviceError(f"unknown device {name!r}; for the file that is here give {beside}")
    return DeviceError(f"unknown device {name!r}; {did_you_mean(name, device_names())}; or give a .yaml file")


def file_beside(name: str) -> str:
    """``NAME.yaml`` if that is a file of this folder and NAME is no device; else the name unchanged."""
    path = Path(f"{name}.yaml")
    known = [*device_names(), *edge_names(), *(other for others in aliases().values() for other in others)]
    return str(path) if name not in known and path.is_file() else name


@cache
def aliases() -> dict[str, list[str]]:
    """The short names of the shipped devices, from their profiles."""
    return {name: read_shipped(shipped_text(name)).get("aliases", []) for name in shipped_names()}


if TYPE_CHECKING:
    from iossim.hardware.profile import DeviceProfile


def host_cpu_path() -> Path:
    """Path of the profile of this machine's CPU."""
    return user_folder() / f"{HOST_CPU}.yaml"


def load_host_cpu() -> DeviceProfile:
    """The saved profile; raises DeviceError with the command that makes it if there is none."""
    from iossim.hardware.profile import parse

    path = host_cpu_path()
    if not path.exists():
        raise DeviceError(
            f"device {HOST_CPU!r}: this machine's CPU has no profile at {path}; make one with "
            "iossim profile MODEL --backend onnxruntime_cpu, or in seconds with iossim compare MODEL --device cpu"
        )
    return parse(read_text(path, "device profile", "make it again with iossim profile", DeviceError), str(path))
