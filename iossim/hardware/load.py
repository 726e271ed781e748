"""Find and read device profiles: shipped ones, a user's, a plugin's, this machine's CPU, or a file's."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iossim.base.errors import DeviceError, did_you_mean, note_once, public, warn_once
from iossim.base.registry import Extension, Group, Plugin
from iossim.base.shipped_yaml import read_shipped, shipped_files
from iossim.base.user_files import read_text
from iossim.base.user_folders import user_data
from iossim.hardware.edge_names import edge_names, is_edge_profile, refusal, shipped_edge_names
from iossim.hardware.host_cpu import HOST_CPU, host_cpu_path, load_host_cpu

if TYPE_CHECKING:
    from iossim.hardware.profile import DeviceProfile

_FOLDER = "iossim.hw_profiles"


def device_names() -> list[str]:
    """The GPUs and processors by name: shipped ones, the user's, those of plugins, and last this machine's CPU."""
    added = {*user_names(), *DEVICES.plugins()} - set(own_names())
    return [*shipped_names(), *sorted(added), *[HOST_CPU] * host_cpu_path().exists()]


def own_names() -> list[str]:
    """Names reserved from users and plugins: the shipped ones, and that of this machine's CPU."""
    return [*shipped_names(), HOST_CPU]


def check_name(name: str) -> None:
    """Raise DeviceError for a name that is no valid file name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise DeviceError(f"device name {name!r}: use letters, digits, dots, dashes and underscores")


def shipped_names() -> list[str]:
    """The shipped GPUs, sorted; edge devices are :func:`~iossim.hardware.edge_names.edge_names`."""
    return [name for name in shipped_files(_FOLDER) if name not in shipped_edge_names()]


def user_folder() -> Path:
    """The folder of a user's own profiles, each found by its file name; it may not exist yet."""
    return user_data() / "devices"


def user_names() -> list[str]:
    """The devices of the user's folder, sorted; a name of a shipped device is left out with a warning."""
    folder = user_folder()
    found = sorted(path.stem for path in folder.glob("*.yaml")) if folder.is_dir() else []
    for name in set(found) & set(shipped_files(_FOLDER)):
        warn_once(f"device profile {folder / name}.yaml is not used: {name!r} is a device that ships; rename the file")
    return [name for name in found if name not in own_names() and name not in edge_names()]


def origin(name: str) -> str:
    """The origin of the device of that name: ``shipped``, the file of a user, or the package of a plugin."""
    if name == HOST_CPU or name in user_names():
        return str(user_folder() / f"{name}.yaml")
    if name in edge_names():
        return "shipped" if name in shipped_edge_names() else str(user_folder() / f"{name}.yaml")
    added = DEVICES.plugins().get(name)
    return "shipped" if added is None or name in shipped_names() else added.package


@public
def device(name_or_path: str | Path | DeviceProfile, *, checked: bool = True) -> DeviceProfile:
    """The profile of a device by ``name_or_path``: shipped, in the user's folder, of a plugin, of this machine's CPU
    (``cpu``), or of a YAML file; ``+NAME=VALUE,NAME=VALUE`` after it replaces values (:mod:`iossim.hardware.override`).

    The name of a family (``v100``) selects the board that has it among its ``aliases``, with a notice on standard
    error. A profile is returned unchanged.

    Raises DeviceError naming the file and the invalid field, and, unless ``checked`` is False, for an impossible fact,
    such as a clock in MHz.
    """
    if not isinstance(name_or_path, str | Path):
        from iossim.hardware.profile import DeviceProfile

        if isinstance(name_or_path, DeviceProfile):
            return name_or_path
        raise DeviceError(f"device {name_or_path!r} is no name; {did_you_mean(name_or_path, device_names())}")
    path, name_or_path = Path(name_or_path), str(name_or_path)
    if "=" in str(path).partition("+")[2] and not path.exists():
        from iossim.hardware.override import changes_of, overridden

        base, changes = changes_of(str(path))
        made = overridden(device(base), changes)
        return _possible(made, f"device {str(path)!r}") if checked else made
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return _read(path, checked)
    if name_or_path not in own_names() and name_or_path in user_names():
        own = user_folder() / f"{name_or_path}.yaml"
        return _named(_read(own, checked), name_or_path, str(own))
    if name_or_path in edge_names():
        raise refusal(name_or_path)
    if (found := DEVICES.get(name_or_path)) is not None:
        return found
    for name, others in aliases().items():
        if name_or_path.lower() in others:
            note_once(
                f"{name_or_path!r} is taken as {name}; give another board by its own name ('iossim devices list')"
            )
            return device(name)
    raise _unknown(name_or_path)


def check_known(name_or_path: str) -> None:
    """Raise DeviceError for a name that no device has; no profile is read."""
    path = Path(name_or_path)
    if "+" in name_or_path or path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return
    known = name_or_path in own_names() or name_or_path in device_names() or name_or_path in edge_names()
    if not known and not any(name_or_path.lower() in others for others in aliases().values()):
        raise _unknown(name_or_path)


def _unknown(name: str) -> DeviceError:
    if (beside := Path(f"{name}.yaml")).is_file():
        return DeviceError(f"unknown device {name!r}; for the file that is here give {beside}")
    return DeviceError(f"{DEVICES.refusal(name, device_names())}; or give a .yaml file")


def file_beside(name: str) -> str:
    """``NAME.yaml`` if that is a file of this folder and NAME is no device; else the name unchanged."""
    path = Path(f"{name}.yaml")
    known = [*device_names(), *edge_names(), *(other for others in aliases().values() for other in others)]
    return str(path) if name not in known and path.is_file() else name


def _own(name: str) -> DeviceProfile | None:
    """A shipped device, or this machine's CPU."""
    if name == HOST_CPU:
        return load_host_cpu()
    return _shipped(name) if name in shipped_names() else None


@cache
def _shipped(name: str) -> DeviceProfile:
    entry = resources.files(_FOLDER) / f"{name}.yaml"
    return _parse(entry.read_text(encoding="utf-8"), entry.name, read_shipped)


def _of_plugin(added: Plugin, found: Callable[[], Any]) -> DeviceProfile:
    text = added.guarded(found)()
    if not isinstance(text, str):
        raise added.error(f"returns {type(text).__name__}, not YAML")
    return _named(_parse(text, f"of {added}"), added.name, f"of {added}")


#: Devices that users cannot replace; entry points are functions that return the YAML text of a profile of their name.
DEVICES: Group[DeviceProfile] = Group(
    "unknown device {!r}",
    own_names,
    _own,
    Extension("iossim.devices", "a function that returns a profile's YAML", _of_plugin),
    DeviceError,
)


@cache
def aliases() -> dict[str, list[str]]:
    """The short names of the shipped devices, from their profiles."""
    texts = {name: (resources.files(_FOLDER) / f"{name}.yaml").read_text(encoding="utf-8") for name in shipped_names()}
    return {name: read_shipped(text).get("aliases", []) for name, text in texts.items()}


def _parse(text: str, where: str, read: Callable[[str], Any] | None = None) -> DeviceProfile:
    from iossim.hardware.profile import parse  # imports pydantic, which lists of names do not need

    return parse(text, where, read)


def _read(path: Path, checked: bool) -> DeviceProfile:
    text = read_text(path, "device profile", "give a YAML file or the name of a device", DeviceError)
    if is_edge_profile(text):
        raise refusal(str(path))
    profile = _parse(text, str(path))
    return _possible(profile, f"device profile {path}") if checked else profile


def _possible(profile: DeviceProfile, what: str) -> DeviceProfile:
    """The profile; raises DeviceError if a fact is of another order of magnitude than for any device."""
    from iossim.hardware.plausibility import impossible

    if problem := next(iter(impossible(profile)), None):
        raise DeviceError(f"{what}: {problem}; 'iossim devices validate' says what can be")
    return profile


def _named(profile: DeviceProfile, name: str, where: str) -> DeviceProfile:
    """The profile, if its name is the one that it is found by: schedules and stores record the name inside."""
    if profile.name != name:
        raise DeviceError(
            f"device profile {where} is found as {name!r} and has the name {profile.name!r}; make them one"
        )
    return profile
