"""Measurement sets in files and folders: in iossim's own format, or any other readable one.

The format is JSON lines (``.jsonl``). The first line is the header, an object of the fields of
:class:`~iossim.measurements.measurement.Header` and the counts of the following lines::

    {"schema": "iossim-measurements", "version": 1, "device": "v100-sxm2", "data_set": "lab-1",
     "libraries": {"cudnn": "7.6.5"}, "host": "dgx1", "precision": "fp32", "time_unit": "us",
     "includes_host_overhead": false, "host_overhead_drifts": false, "includes_gaps": true,
     "issue": "calls", "clock_ghz": null, "resolution_us": 0.0, "date": "2026-11-21", "source": "...",
     "measurements": 2, "stages": 1}

Then a line for each measurement: the operator (``op`` and the columns of its kind, see ``operator_kinds``),
``latency_us``, and further known properties::

    {"op": "conv", "batch": 1, "in_channels": 3, "out_channels": 64, "in_h": 224, "in_w": 224, "kernel_h": 3,
     "kernel_w": 3, "stride_h": 2, "stride_w": 2, "pad_h": 1, "pad_w": 1, "latency_us": 41.2, "spread_us": 0.8,
     "samples": 20, "algorithm": "IMPLICIT_GEMM", "kernels": ["..."], "grid": [7, 7, 1], "block": [256, 1, 1],
     "is_cold": false, "precision": "fp16", "row": 0}

and a line for each stage of concurrent groups, one stream per group::

    {"stage": [[{"op": "conv", ...}, {"op": "relu", "rows": 64, "cols": 784}], [{"op": "conv", ...}]],
     "latency_us": 61.0, "serial_us": 80.4}

The same as CSV (``.csv``): the header as comment lines ``# key: value``, the schema first, the values JSON; then a
table with the union of the columns, ``grid_x`` ... ``block_z`` for the extents, ``;`` between kernels. A ``stage`` is
text: ``conv batch=1 in_channels=3 ...;relu rows=64 cols=784|conv ...``.

Impossible rows are dropped and noted; a file with more than a tenth of them, or too few rows, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from iossim.base.errors import OptionError
from iossim.base.user_files import write_atomically
from iossim.hardware.load import device
from iossim.hardware.names import device_names
from iossim.hardware.profile import DeviceProfile
from iossim.measurements.formats import formats
from iossim.measurements.formats.csv_table import to_csv
from iossim.measurements.formats.format import Format
from iossim.measurements.formats.json_lines import to_json_lines
from iossim.measurements.measured_networks import measured_network_files
from iossim.measurements.measurement import MeasurementError, MeasurementSet, unusable
from iossim.measurements.other_exports import text_export
from iossim.measurements.plausibility import check_plausible
from iossim.measurements.rows import FEWEST_ROWS, require_rows
from iossim.measurements.text_files import read_file

_HEAD_CHARACTERS = 65_536


def read_measurements(
    path: Path, device: str | None = None, fewest: int = FEWEST_ROWS, others: Sequence[Format] = ()
) -> MeasurementSet:
    """The measurements in a file of any known format; ``others`` are tried first.

    ``device`` is the default if the file does not name one; ``fewest`` usable rows are needed. Raises
    MeasurementError naming the file, the line and the remedy.
    """
    path = Path(path)
    return _checked(_format_of(path, others).read(path, device), path, fewest)


def read_measurement_sets(path: Path, others: Sequence[Format] = ()) -> tuple[MeasurementSet, ...]:
    """The same for a file that may have several devices; sets of too few rows are left out if others remain."""
    path = Path(path)
    known = _format_of(path, others)
    if known.read_sets is None:
        return (read_measurements(path, others=others),)
    sets = known.read_sets(path)
    enough = [one for one in sets if len(one.measurements) >= FEWEST_ROWS]
    return tuple(_checked(one, path, FEWEST_ROWS) for one in enough or sets[:1])


def _format_of(path: Path, others: Sequence[Format]) -> Format:
    if path.is_dir():
        raise unusable(path, "a folder; give the files in it")
    text = read_file(path)
    for known in (*others, *formats()):
        if known.recognises(path, text[:_HEAD_CHARACTERS]):
            return known
    titles = f"known: {'; '.join(known.title for known in formats())}"
    other = text_export(text, titles)
    raise unusable(path, f"it is {other}" if other else f"the format is none of those known; {titles}")


def _checked(measured: MeasurementSet, path: Path, fewest: int) -> MeasurementSet:
    require_rows(path, len(measured.measurements) + len(measured.stages), fewest)
    return replace(measured, notes=tuple(f"{path}: {note}" for note in measured.notes), path=path)


def write_measurements(measured: MeasurementSet, path: Path) -> None:
    """Write a set as CSV if the path ends in ``.csv``, else as JSON lines; completely or not at all."""
    path = Path(path)
    try:
        write_atomically(path, to_csv(measured) if path.suffix == ".csv" else to_json_lines(measured))
    except OSError as error:
        raise MeasurementError(f"cannot write measurements {path}: {error.strerror}; choose another file") from None


_SUFFIXES = (".csv", ".jsonl", ".json", ".csv.gz", ".jsonl.gz", ".json.gz")


@dataclass(frozen=True)
class DataSets:
    """Measurement sets, each with the profile of its device, and what was omitted, a line each."""

    sets: tuple[tuple[MeasurementSet, DeviceProfile], ...]
    notes: tuple[str, ...] = ()


def read_data_sets(
    places: Sequence[Path], profiles: Sequence[DeviceProfile] | None = None, others: Sequence[Format] = ()
) -> DataSets:
    """All sets in files and folders, including subfolders, of the known formats; ``others`` are tried first.

    Only sets of ``profiles`` are kept, if given; otherwise each set belongs to the shipped device named in its header.
    Other files of a folder are skipped. Raises MeasurementError for measurements that cannot be read or cannot be
    of their device, and OptionError for a missing file or folder.
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
    if chosen is not None:
        return chosen.get(name)
    if name not in shipped and name in device_names():
        shipped[name] = device(name)
    return shipped.get(name)


def _files(place: Path, others: Sequence[Format]) -> list[Path]:
    """The file itself, or the files of a folder that look like measurements, by path; no measured networks."""
    if not place.is_dir():
        return [] if measured_network_files([place]) else [place]
    files = [path for path in sorted(place.rglob("*")) if path.is_file() and path.name.endswith(_SUFFIXES)]
    return [path for path in files if _is_measurements(path, others)]


def _is_measurements(path: Path, others: Sequence[Format]) -> bool:
    head = read_file(path)[:_HEAD_CHARACTERS]
    return any(known.recognises(path, head) for known in (*others, *formats()))
