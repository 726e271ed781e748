"""The measurement sets that accuracy is judged by, and the device profile that each is of."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from iossim.devices.load import device, device_names
from iossim.devices.profile import DeviceProfile
from iossim.errors import OptionError
from iossim.measurements.formats import formats
from iossim.measurements.measured_networks import measured_network_files
from iossim.measurements.measurement import MeasurementSet
from iossim.measurements.measurement_set import read_measurement_sets
from iossim.measurements.plausibility import check_plausible
from iossim.measurements.text_files import read_file

_SUFFIXES = (".csv", ".jsonl", ".json", ".csv.gz", ".jsonl.gz", ".json.gz")
_HEAD_CHARACTERS = 65_536
_OPERATOR_FOLDERS = ("framework_operators", "operators")


@dataclass(frozen=True)
class DataSets:
    """Measurement sets, each with the profile of its device, and what was left out, a line each."""

    sets: tuple[tuple[MeasurementSet, DeviceProfile], ...]
    notes: tuple[str, ...] = ()


def shared_data() -> Path:
    """The folder of the shared tables, at ``$IOSSIM_SHARED`` or in ``../shared``, whether it is there or not."""
    return Path(os.environ.get("IOSSIM_SHARED", Path("..") / "shared")) / "data"


def default_places() -> list[Path]:
    """Where measurements are looked for: with the shipped profiles, and in :func:`shared_data` where that is there, in its
    folders of isolated kernels and of operators."""
    shared = shared_data()
    own = Path(str(resources.files("iossim.hw_profiles"))) / "measurements"
    others = [folder for name in _OPERATOR_FOLDERS if (folder := shared / name).is_dir()]
    return [own, *(sorted(shared.glob("kernels*")) or [shared / "kernels"]), *others]


def read_data_sets(places: Sequence[Path] | None = None, profiles: Sequence[DeviceProfile] | None = None) -> DataSets:
    """All sets in files and folders, subfolders included; by default in :func:`default_places`, where they are there.

    Only sets of ``profiles`` are kept, if they are given; otherwise each set is of the shipped device that its header
    names. Files of a folder that are no measurements are passed over. Raises MeasurementError for measurements that
    cannot be read or cannot be of their device, and OptionError for a place that is not there.
    """
    notes: list[str] = []
    chosen = None if profiles is None else {profile.name: profile for profile in profiles}
    shipped: dict[str, DeviceProfile] = {}
    sets: list[tuple[MeasurementSet, DeviceProfile]] = []
    for place in default_places() if places is None else places:
        if not place.exists():
            if places is not None:
                raise OptionError(f"`data` {place}: there is no such file or folder; give one with measurements")
            notes.append(f"no measurements at {place}")
            continue
        found = 0
        for path in _files(place):
            found += 1
            several = read_measurement_sets(path)
            if not several:
                notes.append(f"{path}: passed over: its rows are of no operators that could be predicted")
            for recorded in several:
                profile = _profile(recorded.device, chosen, shipped)
                if profile is not None:
                    measured = check_plausible(recorded, profile)
                    notes += measured.notes
                    sets.append((measured, profile))
                elif chosen is None:
                    notes.append(
                        f"{path}: of {recorded.device}, which has no profile; give one with `device` FILE.yaml"
                    )
        if not found and places is not None and not measured_network_files([place]):
            raise OptionError(f"`data` {place}: no file in the folder is of measurements; give another")
    return DataSets(tuple(sets), tuple(notes))


def _profile(
    name: str, chosen: Mapping[str, DeviceProfile] | None, shipped: dict[str, DeviceProfile]
) -> DeviceProfile | None:
    """The profile of a device, None if it is not among those chosen or does not ship."""
    if chosen is not None:
        return chosen.get(name)
    if name not in shipped and name in device_names():
        shipped[name] = device(name)
    return shipped.get(name)


def _files(place: Path) -> list[Path]:
    """The file itself, or the files of a folder that look like measurements, by path; none of measured networks."""
    if not place.is_dir():
        return [] if measured_network_files([place]) else [place]
    files = [path for path in sorted(place.rglob("*")) if path.is_file() and path.name.endswith(_SUFFIXES)]
    return [path for path in files if _is_measurements(path)]


def _is_measurements(path: Path) -> bool:
    head = read_file(path)[:_HEAD_CHARACTERS]
    return any(known.recognises(path, head) for known in formats())
