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

Rows that cannot be of their device are dropped and noted; a file with more than a tenth of them, or too few rows, is
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iossim.base.errors import OptionError
from iossim.base.user_files import write_atomically
from iossim.hardware.load import device
from iossim.hardware.lowering.step import ConvolutionShape
from iossim.hardware.names import device_names
from iossim.hardware.profile import DeviceProfile
from iossim.ir.ops.conv import Conv
from iossim.ir.types import Precision
from iossim.measurements.formats import Format, formats
from iossim.measurements.formats.json_lines import to_json_lines
from iossim.measurements.measured_networks import measured_network_files
from iossim.measurements.measurement import Measurement, MeasurementError, MeasurementSet, Operator, unusable
from iossim.measurements.text_files import FEWEST_ROWS, binary_export, read_file, require_rows, text_export

# Generous lower bounds of a call's time: its arithmetic at the datasheet's peak, its bytes beyond L2 at that of DRAM,
# all bytes at several times that, and a fraction of a microsecond. Winograd's F(4x4, 3x3) needs a fourth of the
# multiplications of a direct convolution (Lavin and Gray 2016, section 4.3) and transforms around them: the fastest of
# 17,000 recorded 3x3 kernels appears 2.4 times as fast as the peak. FFT and larger tiles need even less. A set in a
# wrong unit violates these almost everywhere, a faster device's set in its largest rows.

#: Ratio by which boards may exceed the datasheet's clock.
CLOCK_MARGIN = 1.25
#: Apparent arithmetic of convolutions by fast algorithms, over the peak: for windows up to that size, and for larger.
SMALL_WINDOW, SMALL_WINDOW_GAIN, LARGE_WINDOW_GAIN = 3, 2.5, 5.0
#: Bandwidth of L2 over that of DRAM.
L2_GAIN = 12.0
SHORTEST_KERNEL_US = 0.5
#: Above this fraction of impossible rows the set is refused; up to it they are dropped.
LARGEST_IMPOSSIBLE_PART = 0.02

#: A call beyond both of these is far slower than with any library.
SLOWEST_RATIO = 300.0
SLOWEST_OVERHEAD_US = 5_000.0


def check_plausible(measured: MeasurementSet, profile: DeviceProfile) -> MeasurementSet:
    """The set without its few impossible rows, which are noted; raises MeasurementError if they are many, or if
    nearly all rows are far slower than the device could be.
    """
    measurements = measured.measurements
    if not measurements:
        return measured
    latency_us = np.array([measurement.latency_us for measurement in measurements])
    fastest_us = np.array([fastest_possible_us(measurement.operator, profile) for measurement in measurements])
    impossible = latency_us < fastest_us
    where = f"measurements {measured.name}"
    if impossible.mean() > LARGEST_IMPOSSIBLE_PART:
        worst = int(np.argmin(latency_us / fastest_us))
        row = measurements[worst]
        precision = possible_precision([row.operator], row.latency_us, profile)
        asked = f"did they run in {precision}? then say so in its precision" if precision else "is this the precision?"
        raise MeasurementError(
            f"{where}: {int(impossible.sum()):,} of {len(measurements):,} rows are faster than {profile.name} can "
            f"be in {row.operator.precision}, as {_described(row, fastest_us[worst])}; is the unit us, is this the "
            f"device, {asked}"
        )
    reference_us = np.array([_roofline_us(measurement.operator, profile) for measurement in measurements])
    slow: NDArray[np.bool_] = latency_us > SLOWEST_OVERHEAD_US + SLOWEST_RATIO * reference_us
    if slow.mean() > 0.5:
        worst = int(np.argmax(latency_us / reference_us))
        raise MeasurementError(
            f"{where}: {int(slow.sum()):,} of {len(measurements):,} rows are hundreds of times slower than "
            f"{profile.name} is, as {_described(measurements[worst], reference_us[worst])}; "
            "is the unit us, is this the device?"
        )
    if not impossible.any():
        return measured
    first = int(np.argmax(impossible))
    note = (
        f"{measured.name}: {int(impossible.sum()):,} of {len(measurements):,} rows dropped: faster than "
        f"{profile.name} can be (first: {_described(measurements[first], fastest_us[first])})"
    )
    kept = tuple(row for row, is_impossible in zip(measurements, impossible, strict=True) if not is_impossible)
    return replace(measured, measurements=kept, notes=(*measured.notes, note))


def fastest_possible_us(operator: Operator, profile: DeviceProfile) -> float:
    """Lower bound of the operator's time with any library on this device."""
    return max(SHORTEST_KERNEL_US, fastest_arithmetic_us(operator, profile), fastest_transfer_us(operator, profile))


def fastest_arithmetic_us(operator: Operator, profile: DeviceProfile, precision: Precision | None = None) -> float:
    """Lower bound of its arithmetic's time in a precision, by default its own."""
    precision = precision or operator.precision
    accumulation = profile.datasheet.fp16_accumulation_tflops if precision is Precision.FP16 else None
    reduced = accumulation.value if accumulation else profile.reduced_precision_tflops(precision)
    peak_tflops = max(profile.fp32_tflops, reduced or 0.0)
    window = max(operator.inputs[1].shape[2:]) if operator.kind == "conv" else 1
    gain = 1.0 if window == 1 else SMALL_WINDOW_GAIN if window <= SMALL_WINDOW else LARGE_WINDOW_GAIN
    return operator.flops / (peak_tflops * 1e6 * CLOCK_MARGIN * gain)


def fastest_transfer_us(operator: Operator, profile: DeviceProfile) -> float:
    """Lower bound of its memory time: bytes beyond L2 from DRAM, all bytes from L2."""
    bandwidth = profile.dram_bandwidth_gbps * 1e3 * CLOCK_MARGIN
    moved = _moved_bytes(operator)
    beyond_l2 = max(0, moved - profile.datasheet.l2_bytes.value)
    return max(beyond_l2 / bandwidth, moved / (bandwidth * L2_GAIN))


def possible_precision(operators: Sequence[Operator], latency_us: float, profile: DeviceProfile) -> Precision | None:
    """The device's first precision in which the arithmetic of operators takes no longer than that."""
    for precision in (Precision.TF32, Precision.FP16, Precision.BF16, Precision.INT8):
        least_us = sum(fastest_arithmetic_us(operator, profile, precision) for operator in operators)
        if profile.reduced_precision_tflops(precision) and least_us <= latency_us:
            return precision
    return None


def _moved_bytes(operator: Operator) -> int:
    """Bytes that must be moved: for a convolution's input, those under its windows."""
    if not isinstance(operator.op, Conv):
        return operator.bytes
    shape = ConvolutionShape.of(operator.step())
    return shape.input_bytes + shape.weight_bytes + shape.output_bytes


def _roofline_us(operator: Operator, profile: DeviceProfile) -> float:
    return max(operator.flops / (profile.fp32_tflops * 1e6), operator.bytes / (profile.dram_bandwidth_gbps * 1e3))


def _described(measurement: Measurement, limit_us: float) -> str:
    row = "" if measurement.row is None else f"row {measurement.row}: "
    return f"{row}{measurement.operator.key} in {measurement.latency_us:g} us, against {limit_us:.3g} us"


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


def read_measurement_sets(
    path: Path, others: Sequence[Format] = (), device: str | None = None
) -> tuple[MeasurementSet, ...]:
    """The same for a file that may have several devices; sets of too few rows are left out if others remain."""
    path = Path(path)
    known = _format_of(path, others)
    if known.read_sets is None:
        return (read_measurements(path, device, others=others),)
    sets = known.read_sets(path)
    enough = [one for one in sets if len(one.measurements) >= FEWEST_ROWS]
    return tuple(_checked(one, path, FEWEST_ROWS) for one in enough or sets[:1])


def _format_of(path: Path, others: Sequence[Format]) -> Format:
    if path.is_dir():
        raise unusable(path, "a folder; give the files in it")
    text = read_file(path)
    if (known := _recognised(path, text, others)) is not None:
        return known
    titles = f"give one of: {'; '.join(known.title for known in formats())}; 'iossim profile-report' reads profiles"
    other, begin = text_export(text, titles), text.lstrip().partition("\n")[0][:40]
    raise unusable(path, f"it is {other}" if other else f"{begin!r} begins no format that is known; {titles}")


def kind_of_file(path: Path, expected: str) -> str:
    """Description of a file, with the commands that read it, or else the remedy ``expected``; empty if unknown."""
    try:
        text = read_file(path)
    except MeasurementError:
        return binary_export(path, path.read_bytes())
    known = _recognised(path, text, ())
    return f"{known.title}; {known.readers}" if known else text_export(text, expected)


def _checked(measured: MeasurementSet, path: Path, fewest: int) -> MeasurementSet:
    require_rows(path, len(measured.measurements) + len(measured.stages), fewest)
    return replace(measured, notes=tuple(f"{path}: {note}" for note in measured.notes), path=path)


def write_measurements(measured: MeasurementSet, path: Path) -> None:
    """Write a set as JSON lines, completely or not at all; raises MeasurementError for a path of a table."""
    if Path(path).suffix == ".csv":
        raise unusable(path, "a set is written as JSON lines; name it .jsonl")
    write_atomically(Path(path), to_json_lines(measured), "measurements", MeasurementError)


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

    Only sets of ``profiles`` are kept, if given, a single one being the default of files that name no device; otherwise
    each set belongs to the shipped device in its header. Other files of a folder are skipped. Raises MeasurementError
    for measurements that cannot be read or be of their device, and OptionError for a missing file or folder.
    """
    notes: list[str] = []
    sets: list[tuple[MeasurementSet, DeviceProfile]] = []
    default = profiles[0].name if profiles and len(profiles) == 1 else None
    for place in places:
        if not place.exists():
            raise OptionError(f"`data` {place}: there is no such file or folder; give one with measurements")
        files = _files(place, others)
        for path in files:
            several = read_measurement_sets(path, others, default)
            if not several:
                notes.append(f"{path}: passed over: its rows are of no operators that could be predicted")
            for recorded in several:
                profile = profile_named(recorded.device, profiles)
                if profile is not None:
                    measured = check_plausible(recorded, profile)
                    notes += measured.notes
                    sets.append((measured, profile))
                elif profiles is None:
                    notes.append(
                        f"{path}: of {recorded.device}, which has no profile; give one with `device` FILE.yaml"
                    )
        if not files and not measured_network_files([place]):
            raise OptionError(f"`data` {place}: no file in the folder is of measurements; give another")
    return DataSets(tuple(sets), tuple(notes))


def profile_named(name: str, profiles: Sequence[DeviceProfile] | None) -> DeviceProfile | None:
    """The profile of that name among those given, or where none are, of the known devices; None if there is none."""
    if profiles is None:
        return device(name) if name in device_names() else None
    return next((profile for profile in profiles if profile.name == name), None)


def _files(place: Path, others: Sequence[Format]) -> list[Path]:
    """The file itself, or the files of a folder that look like measurements, by path; no measured networks."""
    if not place.is_dir():
        return [] if measured_network_files([place]) else [place]
    files = [path for path in sorted(place.rglob("*")) if path.is_file() and path.name.endswith(_SUFFIXES)]
    return [path for path in files if _recognised(path, read_file(path), others)]


def _recognised(path: Path, text: str, others: Sequence[Format]) -> Format | None:
    return next((known for known in (*others, *formats()) if known.recognises(path, text[:_HEAD_CHARACTERS])), None)
