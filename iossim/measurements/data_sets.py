"""Measurement sets in files and folders, each with the profile of its device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from iossim.base.errors import OptionError
from iossim.hardware.load import device, device_names
from iossim.hardware.profile import DeviceProfile
from iossim.measurements.formats import formats
from iossim.measurements.formats.format import Format
from iossim.measurements.measured_networks import measured_network_files
from iossim.measurements.measurement import MeasurementSet
from iossim.measurements.measurement_set import read_measurement_sets
from iossim.measurements.plausibility import check_plausible
from iossim.measurements.text_files import read_file

_SUFFIXES = (".csv", ".jsonl", ".json", ".csv.gz", ".jsonl.gz", ".json.gz")
_HEAD_CHARACTERS = 65_536


@dataclass(frozen=True)
class DataSets:
    """Measurement sets, each with the profile of its device, and what was left out, a line each."""

    sets: tuple[tuple[MeasurementSet, DeviceProfile], ...]
    notes: tuple[str, ...] = ()


def read_data_sets(
    places: Sequence[Path], profiles: Sequence[DeviceProfile] | None = None, others: Sequence[Format] = ()
) -> DataSets:
    """All sets in files and folders, subfolders included, of the known formats; ``others`` are tried first.

    Only sets of ``profiles`` are kept, if they are given; otherwise each set is of the shipped device that its header
    names. Files of a folder that are no measurements are passed over. Raises MeasurementError for measurements that
    cannot be read or cannot be of their device, and OptionError for a place that is not there.
    """
    notes: list[str] = []
    chosen = None if profiles is None else {profile.name: profile for profile in profiles}
    shipped: dict[str, DeviceProfile] = {}
    sets: list[tuple[MeasurementSet, DeviceProfile]] = []
    for place in places:
        if not place.exists():
            raise OptionError(f"`data` {place}: there is no such file or folder; give one with measurements")
        files = _files(place, others)
        for path in files:
            several = read_measurement_sets(path, others)
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
        if not files and not measured_network_files([place]):
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


def _files(place: Path, others: Sequence[Format]) -> list[Path]:
    """The file itself, or the files of a folder that look like measurements, by path; none of measured networks."""
    if not place.is_dir():
        return [] if measured_network_files([place]) else [place]
    files = [path for path in sorted(place.rglob("*")) if path.is_file() and path.name.endswith(_SUFFIXES)]
    return [path for path in files if _is_measurements(path, others)]


def _is_measurements(path: Path, others: Sequence[Format]) -> bool:
    head = read_file(path)[:_HEAD_CHARACTERS]
    return any(known.recognises(path, head) for known in (*others, *formats()))
