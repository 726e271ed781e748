"""Find and read device profiles: shipped ones, a user's, a plugin's, this machine's CPU, or a file's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.base.errors import DeviceError, did_you_mean, note_once, public
from iossim.base.registry import Extension, Group, Plugin
from iossim.base.shipped_yaml import read_shipped, shipped_files

if TYPE_CHECKING:
    from iossim.hardware.profile import DeviceProfile

_FOLDER = "iossim.hw_profiles"


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
        from iossim.hardware.names import device_names

        raise DeviceError(f"device {name_or_path!r} is no name; {did_you_mean(name_or_path, device_names())}")
    path, name_or_path = Path(name_or_path), str(name_or_path)
    if "=" in str(path).partition("+")[2] and not path.exists():
        from iossim.hardware.override import changes_of, overridden

        base, changes = changes_of(str(path))
        made = overridden(device(base), changes)
        return _possible(made, f"device {str(path)!r}") if checked else made
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return _read(path, checked)
    if (found := _own(name_or_path)) is not None:
        return found
    from iossim.hardware import names  # reads the texts of all profiles

    if name_or_path in names.user_names():
        own = names.user_folder() / f"{name_or_path}.yaml"
        return _named(_read(own, checked), name_or_path, str(own))
    if name_or_path in names.edge_names():
        raise names.refusal(name_or_path)
    if (found := DEVICES.get(name_or_path)) is not None:
        return found
    for name, others in names.aliases().items():
        if name_or_path.lower() in others:
            note_once(
                f"{name_or_path!r} is taken as {name}; give another board by its own name ('iossim devices list')"
            )
            return device(name)
    raise names.unknown(name_or_path)


def check_known(name_or_path: str) -> None:
    """Raise DeviceError for a name that no device has; no profile of another name is read."""
    path = Path(name_or_path)
    if "+" in name_or_path or path.suffix in (".yaml", ".yml") or len(path.parts) > 1 or _text(name_or_path):
        return
    from iossim.hardware import names

    known = {*names.own_names(), *names.device_names(), *names.edge_names()}
    if name_or_path not in known and not any(name_or_path.lower() in others for others in names.aliases().values()):
        raise names.unknown(name_or_path)


def _own_names() -> Iterable[str]:
    from iossim.hardware.names import own_names

    return own_names()


def _own(name: str) -> DeviceProfile | None:
    """A shipped device, or this machine's CPU."""
    if (found := _shipped(name)) is not None:
        return found
    from iossim.hardware.names import HOST_CPU, load_host_cpu

    return load_host_cpu() if name == HOST_CPU else None


def _text(name: str) -> str:
    """The text of the shipped profile of that name; empty if there is none."""
    if name not in shipped_files(_FOLDER):
        return ""
    return (resources.files(_FOLDER) / f"{name}.yaml").read_text(encoding="utf-8")


@cache
def _shipped(name: str) -> DeviceProfile | None:
    """A shipped device that is no edge device."""
    if not (text := _text(name)):
        return None
    from iossim.hardware.profile import DeviceProfile, device_of  # imports pydantic, which lists of names do not need

    values = read_shipped(text)
    return None if values.get("kind") == "edge" else device_of(values, f"{name}.yaml", DeviceProfile)


def _of_plugin(added: Plugin, found: Callable[[], object]) -> DeviceProfile:
    text = added.guarded(found)()
    if not isinstance(text, str):
        raise added.error(f"returns {type(text).__name__}, not YAML")
    from iossim.hardware.profile import parse

    return _named(parse(text, f"of {added}"), added.name, f"of {added}")


#: Devices that users cannot replace; entry points are functions that return the YAML text of a profile of their name.
DEVICES: Group[DeviceProfile] = Group(
    "unknown device {!r}",
    _own_names,
    _own,
    Extension("iossim.devices", "a function that returns a profile's YAML", _of_plugin),
    DeviceError,
)


def _read(path: Path, checked: bool) -> DeviceProfile:
    from iossim.base.user_files import read_text
    from iossim.hardware.names import is_edge_profile, refusal
    from iossim.hardware.profile import parse

    text = read_text(path, "device profile", "give a YAML file or the name of a device", DeviceError)
    if is_edge_profile(text):
        raise refusal(str(path))
    profile = parse(text, str(path))
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
