"""Write device profiles as YAML for people: facts as the vendor prints them, then chosen or fitted parameters; and a
profile to fill in, with every fact's meaning, its unit, and where to find it.
"""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from iossim.base.errors import DeviceError
from iossim.base.user_files import write_atomically
from iossim.hardware.compute_capability import LIMITS
from iossim.hardware.kind import GPU
from iossim.hardware.names import check_name, host_cpu_path, own_names
from iossim.hardware.profile import DeviceProfile
from iossim.hardware.provenance import Provenance

if TYPE_CHECKING:
    from yaml import SafeDumper, ScalarNode

#: Columns of a line, and what begins the tags of YAML's own types.
_WIDTH, _TAG = 118, "tag:yaml.org,2002"


def write_profile(profile: DeviceProfile, path: Path) -> None:
    """Write a profile, completely or not at all; raises DeviceError if the file cannot be written."""
    write_atomically(path, profile_yaml(profile), "device profile", DeviceError)


def save_host_cpu(profile: DeviceProfile) -> Path:
    """Save the profile of this machine's CPU, completely or not at all; returns its path.

    Raises DeviceError if it cannot be written.
    """
    path = host_cpu_path()
    make_folder(path.parent)
    write_profile(profile, path)
    return path


def write_template(name: str, path: Path, folder: Path) -> None:
    """Write the template of a device ``name`` to ``path``, which must not exist yet; ``folder`` is the user's.

    Raises DeviceError for an invalid name, or that of a shipped device, and if the file cannot be written.
    """
    check_name(name)
    if name in own_names():
        raise DeviceError(f"device name {name!r} is that of a device that iossim has; choose another name")
    template = Template((resources.files("iossim.hardware") / "template.yaml").read_text(encoding="utf-8"))
    text = template.substitute(name=name, file=path, folder=folder, capabilities=", ".join(LIMITS))
    if path.absolute().parent == folder.absolute():
        make_folder(folder)  # the template names it, and it does not exist before the first profile does
    check_writable(path)
    try:
        # 'x' refuses an existing file, even one created meanwhile.
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise DeviceError(f"device profile {path} is there already; choose another file with `out`") from None
    except OSError as error:
        raise DeviceError(f"cannot write device profile {path}: {error.strerror}; choose another file") from None


def make_folder(folder: Path) -> None:
    """Make the folder of the user's profiles; raises DeviceError if it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        remedy = "set IOSSIM_DATA_DIR to a folder that can be written"
        raise DeviceError(f"cannot make the folder {folder}: {error.strerror}; {remedy}") from None


def check_writable(path: Path) -> None:
    """Raise DeviceError if a profile cannot be written to ``path``, before long work rather than after it."""
    if path.suffix not in (".yaml", ".yml"):
        raise DeviceError(f"device profile {path}: the name must end in .yaml, for `device` to take it as a file")
    if path.is_dir():
        raise DeviceError(f"cannot write device profile {path}: it is a folder; choose another file")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        reason = "no such folder" if not path.parent.exists() else "its folder is not writable"
        raise DeviceError(f"cannot write device profile {path}: {reason}; choose another file")


def profile_yaml(profile: DeviceProfile) -> str:
    """The text of a profile's file, which ``devices.load.parse`` reads back as the same profile.

    It contains the fitted parameters, and those that differ from the defaults of the architecture.
    """
    import yaml

    from iossim.base.located_yaml import Dumper

    class ProfileDumper(Dumper):
        """Short collections on one line, long text folded."""

    ProfileDumper.add_representer(_Line, lambda dumper, data: dumper.represent_sequence(f"{_TAG}:seq", data, True))
    ProfileDumper.add_representer(_Row, lambda dumper, data: dumper.represent_mapping(f"{_TAG}:map", data, True))
    ProfileDumper.add_representer(str, _represent_text)
    return yaml.dump(_document(profile), Dumper=ProfileDumper, sort_keys=False, width=_WIDTH, allow_unicode=True)


class _Line(list[object]):
    """A list to be written on one line."""


class _Row(dict[str, object]):
    """A mapping to be written on one line."""


def _represent_text(dumper: SafeDumper, text: str) -> ScalarNode:
    # Folding would lose line ends and spaces at the ends.
    folds = len(text) > 80 and text == " ".join(text.split())
    # Line ends that only YAML knows are escaped, or they would become others.
    escapes = any(end in text for end in "\x85\u2028\u2029")
    return dumper.represent_scalar(f"{_TAG}:str", text, style='"' if escapes else ">" if folds else None)


def _document(profile: DeviceProfile) -> dict[str, object]:
    facts = {
        name: _Row(value=fact.value, source=fact.source)
        for name in type(profile.datasheet).model_fields
        if (fact := getattr(profile.datasheet, name)) is not None
    }
    document: dict[str, object] = {
        "name": profile.name,
        **({"kind": profile.kind} if profile.kind != GPU else {}),
        "title": profile.title,
        **({"aliases": _Line(profile.aliases)} if profile.aliases else {}),
        "sources": dict(profile.sources),
        "datasheet": facts,
    }
    fitted = profile.provenance.spread
    for name, values, defaults in (
        ("parameters", profile.parameters, profile.device_kind.default_parameters(profile.compute_capability)),
        ("engine", profile.engine, profile.device_kind.engine_costs(profile.compute_capability).values),
    ):
        own = {key: value for key, value in values if key in fitted or value != getattr(defaults, key)}
        if own:
            document[name] = own
    # Always written: parameters of a file without a provenance may be filled in from other devices.
    document["provenance"] = _provenance(profile.provenance)
    return document


def _provenance(provenance: Provenance) -> dict[str, object]:
    """Non-empty fields, one line per record."""
    data = provenance.model_dump()
    lines: dict[str, object] = {
        "data_sets": [_Row({k: v for k, v in each.items() if v not in (None, {})}) for each in data["data_sets"]],
        "held_out": [_Row(each) for each in data["held_out"]],
        "cross_validated": [_Row(each) for each in data["cross_validated"]],
        "bands": {
            kind: [_Row({k: v for k, v in band.items() if v is not None}) for band in bands]
            for kind, bands in data["bands"].items()
        },
        "unidentified": _Line(data["unidentified"]),
        "at_bounds": _Line(data["at_bounds"]),
        "left_out": {name: _Row(values) for name, values in data["left_out"].items()},
        "borrowed": [_Row(each) for each in data["borrowed"]],
    }
    return {name: lines.get(name, value) for name, value in data.items() if value not in (None, [], {})}
