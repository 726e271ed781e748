"""Operators in recordings of Nsight Compute, identified by the NVTX ranges around their kernels.

Nsight Compute records kernels, not operators: name an NVTX range after the operator around each call, in the syntax
of ``operator_kinds.describe``, and profile with ``--nvtx``::

    torch.cuda.nvtx.range_push("conv batch=1 in_channels=64 out_channels=64 in_size=56 kernel=3 stride=1 padding=1")
    torch.nn.functional.conv2d(x, w, padding=1)
    torch.cuda.nvtx.range_pop()

    ncu --nvtx --csv --page raw --metrics gpu__time_duration.sum,launch__grid_size python script.py > kernels.csv

The range may be inside other ranges; a word ``precision=fp16`` sets the precision. The time of an operator's call is
the sum of its kernels' durations. If kernels of equal ranges are consecutive, each repetition of their names is one
call. Profile with ``--clock-control none``: otherwise Nsight Compute locks the clocks to their base. It flushes the
caches before each kernel, and the rows are interpreted accordingly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from iossim.hardware.lowering.kernel import Issue
from iossim.ir.types import Precision
from iossim.measurements.formats.format import Call, Format, measurements_of_calls
from iossim.measurements.kinds.kind import RecordError
from iossim.measurements.measurement import Extent, Header, MeasurementSet, device_of, unusable
from iossim.measurements.operator import Operator
from iossim.measurements.operator_kinds import ALIASES, KINDS, parse_description
from iossim.measurements.profilers.kernels import DURATION, ProfiledKernel, repetitions
from iossim.measurements.profilers.nsight_compute import is_header, profile
from iossim.measurements.rows import Sieve
from iossim.measurements.text_files import CsvError, read_file

_RANGE = re.compile(rf"(?<![\w.])({'|'.join([*KINDS, *ALIASES])})((?:[ ,]+[a-z_]+=\w+)+)")
_PRECISION = re.compile(r"[ ,]+precision=(\w+)")
_EXTENT = re.compile(r"\(?\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)?")


def _recognises(path: Path, head: str) -> bool:
    return any(is_header(line) for line in head.splitlines())


def _read(path: Path, device: str | None) -> MeasurementSet:
    try:
        profiled = profile(read_file(path)).kernels
    except CsvError as error:
        line = "" if error.line is None else f"line {error.line}: "
        raise unusable(path, f"{line}{error.reason}; {error.remedy}") from None
    if not any(kernel.ranges for kernel in profiled):
        raise unusable(path, "no NVTX ranges say which operator a kernel is of; name them and profile with --nvtx")
    sieve = Sieve(path)
    kernels = [(_range_of(kernel), kernel) for kernel in profiled if _is_timed(kernel, sieve)]
    operators: dict[str, Operator | None] = {"": None}
    for name, kernel in kernels:
        if name not in operators:
            operators[name] = _operator(name)
        if name and operators[name] is None:
            sieve.drop(kernel.place, f"the NVTX range {name!r} names no operator")
    outside = sum(not name for name, _ in kernels)
    calls = []
    for name, run in groupby(kernels, key=lambda named: named[0]):
        operator = operators[name]
        if operator is not None:
            calls += [_call(operator, own) for own in _repetitions([kernel for _, kernel in run])]
    notes = sieve.notes()
    if outside:
        notes = (*notes, f"{outside:,} of {len(kernels):,} kernels left out: in no NVTX range of an operator")
    header = Header(
        device=device_of(path, None, device),
        data_set=path.name,
        includes_gaps=False,
        issue=Issue.PROFILER,
        source="Nsight Compute",
    )
    return MeasurementSet(header, measurements_of_calls(calls), (), notes)


def _is_timed(kernel: ProfiledKernel, sieve: Sieve) -> bool:
    """Whether the duration of a kernel can be read; failures are reported to the sieve."""
    sieve.total += 1
    if 0 < kernel.duration_us < math.inf:
        return True
    fault = kernel.faults.get(DURATION)
    remedy = "" if fault is None else f"; {fault.remedy}"
    sieve.drop(kernel.place, f"the duration is not a positive number{remedy}")
    return False


def _range_of(kernel: ProfiledKernel) -> str:
    """The innermost (last) range that names an operator; empty if there is none."""
    found = [match.group(0) for cell in kernel.ranges for match in _RANGE.finditer(cell)]
    return found[-1].replace(",", " ") if found else ""


def _operator(name: str) -> Operator | None:
    """The operator that a range is named after; None if its columns name none."""
    match = _PRECISION.search(name)
    try:
        precision = Precision(match.group(1)) if match else Precision.FP32
        return parse_description(_PRECISION.sub("", name), precision)
    except (RecordError, ValueError):
        return None


def _repetitions(run: list[ProfiledKernel]) -> Iterator[list[ProfiledKernel]]:
    """The calls in a run of kernels of one operator: the shortest sequence of names whose repetition is the run."""
    period = len(run) // repetitions([kernel.cells["name"] for kernel in run])
    return (run[start : start + period] for start in range(0, len(run), period))


def _call(operator: Operator, kernels: list[ProfiledKernel]) -> Call:
    longest = max(kernels, key=lambda kernel: kernel.duration_us)
    return Call(
        operator,
        math.fsum(kernel.duration_us for kernel in kernels),
        tuple(kernel.cells["name"] for kernel in kernels),
        _extent(longest.cells["blocks"]),
        _extent(longest.cells["threads"]),
    )


def _extent(text: str) -> Extent | None:
    match = _EXTENT.fullmatch(text.strip())
    return Extent(*map(int, match.groups())) if match else None


FORMAT = Format("CSV of Nsight Compute", _recognises, _read)
