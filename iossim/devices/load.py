"""Find and read device profiles: a name of ``hw_profiles``, this machine's processor, or a file."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.devices.compute_capability import PROCESSOR
from iossim.errors import DeviceError, did_you_mean
from iossim.user_files import read_text

if TYPE_CHECKING:
    from iossim.devices.profile import DeviceProfile

_FOLDER = "iossim.hw_profiles"


def device_names() -> list[str]:
    """The devices that iossim ships, sorted, and this machine's processor if its profile is there."""
    from iossim.devices.host_processor import host_processor_path

    return [*shipped_names(), *[PROCESSOR] * host_processor_path().exists()]


def shipped_names() -> list[str]:
    """The devices that iossim ships, sorted."""
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in resources.files(_FOLDER).iterdir()
        if entry.name.endswith(".yaml")
    )


def device(name_or_path: str) -> DeviceProfile:
    """The profile of a shipped device, of this machine's processor (``cpu``), or of a YAML file.

    Raises DeviceError naming the file and the field at fault.
    """
    if not isinstance(name_or_path, str | Path):
        raise DeviceError(f"device {name_or_path!r} is no name; {did_you_mean(name_or_path, device_names())}")
    path = Path(name_or_path)
    is_path = path.suffix in (".yaml", ".yml") or len(path.parts) > 1
    if is_path:
        return parse(
            read_text(path, "device profile", "give a YAML file or the name of a device", DeviceError), str(path)
        )
    if name_or_path == PROCESSOR:
        from iossim.devices.host_processor import load_host_processor

        return load_host_processor()
    names = device_names()
    if name_or_path not in names:
        raise DeviceError(
            f"unknown device {name_or_path!r}; {did_you_mean(name_or_path, names)}; or give a .yaml file"
        )
    entry = resources.files(_FOLDER) / f"{name_or_path}.yaml"
    return parse(entry.read_text(encoding="utf-8"), entry.name)


def parse(text: str, where: str) -> DeviceProfile:
    """A profile from YAML text; ``where`` names it in errors."""
    import yaml
    from pydantic import ValidationError

    from iossim.devices.profile import DeviceProfile
    from iossim.validation import first_problem

    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise DeviceError(f"device profile {where} is not YAML: {reason}; correct the file") from None
    if not isinstance(data, dict):
        raise DeviceError(f"device profile {where} is not a mapping of fields; start from one of hw_profiles/")
    try:
        return DeviceProfile.model_validate(data)
    except ValidationError as error:
        raise DeviceError(f"device profile {where} is not valid: {first_problem(error)}; correct the file") from None
