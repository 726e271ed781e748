"""Chrome traces of the PyTorch profiler (``export_chrome_trace``), plain or gzipped.

Record with shapes, and after a warm-up, so that cuDNN's search has finished::

    with torch.profiler.profile(record_shapes=True) as profiler:
        for _ in range(20):
            model(x)
            torch.cuda.synchronize()
    profiler.export_chrome_trace("trace.json")

The time of an operator's call is the sum of its kernels' durations, excluding gaps. A kernel belongs to the
innermost recorded operator that launched it, by "External id" or by the launch's "correlation", and from there to the
nearest enclosing operator known here: a convolution, a matrix product, a sum, a ReLU, a pooling. Shapes are
in "Input Dims", strides and padding in "Concrete Inputs" (PyTorch 2.1 and later). Calls of equal shape are one
measurement: the median over the calls that launched the most common kernels.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from iossim.ir.types import Precision
from iossim.measurements.formats.format import Call, Format, measurements_of_calls
from iossim.measurements.formats.pytorch_operators import Recorded, operator_of
from iossim.measurements.kinds.kind import RecordError
from iossim.measurements.measurement import (
    SCHEMA,
    Extent,
    Header,
    MeasurementSet,
    device_of,
    device_of_product,
    unusable,
)
from iossim.measurements.operator import Operator
from iossim.measurements.other_exports import MATCH
from iossim.measurements.profilers.pytorch_trace import (
    TraceEvent,
    is_chrome_trace,
    onnxruntime_nodes,
    product_of,
    read_trace,
)
from iossim.measurements.rows import Sieve
from iossim.measurements.text_files import CsvError, read_file

_OPERATOR_CATEGORIES = ("cpu_op", "operator")
_LAUNCH_CATEGORIES = ("cuda_runtime", "cuda_driver", "runtime")
_GPU_CATEGORIES = ("kernel", "gpu_memset", "gpu_memcpy", "memset", "memcpy")
#: Marks in names of kernels that round fp32 operands for tensor cores.
_TF32_MARKS = ("tf32", "s1688")
_OTHERS_NAMED = 4


def _recognises(path: Path, head: str) -> bool:
    return is_chrome_trace(head) and f'"{SCHEMA}"' not in head


def _read(path: Path, device: str | None) -> MeasurementSet:
    try:
        trace, events = read_trace(read_file(path))
    except CsvError as error:
        raise unusable(path, f"{error.reason}; {error.remedy}") from None
    sieve = Sieve(path, place="GPU event")
    operators = [event for event in events if event.category in _OPERATOR_CATEGORIES]
    kernels = [event for event in events if event.category in _GPU_CATEGORIES]
    if onnxruntime_nodes(events):
        raise unusable(path, f"it is ONNX Runtime's profile; {MATCH}")
    if not kernels:
        raise unusable(path, "the trace has no GPU kernels; profile with activity CUDA")
    if not any("input dims" in event.arguments for event in operators):
        raise unusable(path, "the trace has no shapes; record with profile(record_shapes=True)")
    calls, others = _calls(operators, kernels, events, sieve)
    header = Header(
        device=device_of(path, device_of_product(product_of(trace)), device),
        data_set=path.name,
        libraries=_libraries(trace),
        includes_gaps=False,
        source="PyTorch profiler",
    )
    notes = sieve.notes()
    if others:
        named = ", ".join(f"{name} ({count})" for name, count in others.most_common(_OTHERS_NAMED))
        more = f" and {len(others) - _OTHERS_NAMED} more" if len(others) > _OTHERS_NAMED else ""
        notes = (*notes, f"kernels left out that are of no operator known here: {named}{more}")
    return MeasurementSet(header, measurements_of_calls(calls), (), notes)


def _calls(
    operators: list[TraceEvent], kernels: list[TraceEvent], events: list[TraceEvent], sieve: Sieve
) -> tuple[list[Call], Counter[str]]:
    """The calls of known operators, and the names of the launchers of the other kernels."""
    around = _Nesting(operators)
    launches = {event.number("correlation"): event for event in events if event.category in _LAUNCH_CATEGORIES}
    launched: dict[int, list[TraceEvent]] = defaultdict(list)
    made: dict[int, Operator | None] = {}
    others: Counter[str] = Counter()
    for position, kernel in enumerate(sorted(kernels, key=lambda kernel: kernel.begin_us)):
        sieve.total += 1
        if not 0 < kernel.duration_us < math.inf:
            sieve.drop(position + 1, "a kernel's duration is not a positive number")
            continue
        index = around.launcher(kernel, launches)
        if index is None:
            others["no recorded operator"] += 1
            continue
        chain = [*around.outwards(index)]
        recorded = [Recorded(operators[each].name, operators[each].arguments) for each in chain]
        place = _known_place(recorded)
        if place is None:
            others[operators[index].name] += 1
            continue
        called = chain[place]
        launched[called].append(kernel)
        if called not in made:
            try:
                made[called] = operator_of(recorded[place:])
            except RecordError as error:
                made[called] = None
                others[f"{operators[called].name}: {error}"] += 1
    calls = []
    for called, own in launched.items():
        operator = made[called]
        if operator is not None:
            names = tuple(kernel.name for kernel in own)
            if operator.precision is Precision.FP32 and any(mark in name for mark in _TF32_MARKS for name in names):
                operator = replace(operator, precision=Precision.TF32)
            longest = max(own, key=lambda kernel: kernel.duration_us)
            duration_us = math.fsum(kernel.duration_us for kernel in own)
            calls.append(Call(operator, duration_us, names, _extent(longest, "grid"), _extent(longest, "block")))
    return calls, others


def _known_place(chain: list[Recorded]) -> int | None:
    """Position of the called operator in a chain from the innermost outwards."""
    known = [place for place, recorded in enumerate(chain) if recorded.is_known]
    if not known:
        return None
    # A convolution may consist of matrix products; a sum inside one adds its bias, and is a sum.
    around = [place for place in known if chain[place].is_convolution]
    return around[0] if around and chain[known[0]].is_product else known[0]


def _extent(kernel: TraceEvent, name: str) -> Extent | None:
    sizes = kernel.arguments.get(name)
    if isinstance(sizes, list) and len(sizes) == 3 and all(isinstance(size, int) and size > 0 for size in sizes):
        return Extent(*sizes)
    return None


class _Nesting:
    """Nesting of operators, and the launchers of kernels."""

    def __init__(self, operators: list[TraceEvent]) -> None:
        self._operators = operators
        self._outer: dict[int, int] = {}
        self._by_id = {operator.number("external id"): index for index, operator in enumerate(operators)}
        self._of_thread: dict[str, list[int]] = defaultdict(list)
        order = sorted(
            range(len(operators)), key=lambda index: (operators[index].begin_us, -operators[index].duration_us)
        )
        open_of_thread: dict[str, list[int]] = defaultdict(list)
        for index in order:
            operator = operators[index]
            self._of_thread[operator.thread].append(index)
            stack = open_of_thread[operator.thread]
            while stack and _end_us(operators[stack[-1]]) <= operator.begin_us:
                stack.pop()
            if stack:
                self._outer[index] = stack[-1]
            stack.append(index)
        self._begins = {
            thread: [operators[index].begin_us for index in indices] for thread, indices in self._of_thread.items()
        }

    def launcher(self, kernel: TraceEvent, launches: dict[int | None, TraceEvent]) -> int | None:
        """The innermost operator that launched a kernel."""
        index = self._with_id(kernel)
        if index is not None:
            return index
        correlation = kernel.number("correlation")
        launch = None if correlation is None else launches.get(correlation)
        if launch is None:
            return None
        index = self._with_id(launch)
        return index if index is not None else self._innermost(launch)

    def _with_id(self, event: TraceEvent) -> int | None:
        own = event.number("external id")
        return None if own is None else self._by_id.get(own)

    def _innermost(self, launch: TraceEvent) -> int | None:
        place = bisect_right(self._begins.get(launch.thread, []), launch.begin_us) - 1
        index: int | None = self._of_thread[launch.thread][place] if place >= 0 else None
        while index is not None and _end_us(self._operators[index]) < launch.begin_us:
            index = self._outer.get(index)
        return index

    def outwards(self, index: int) -> Iterator[int]:
        """An operator and its enclosing ones."""
        inner: int | None = index
        while inner is not None:
            yield inner
            inner = self._outer.get(inner)


def _end_us(event: TraceEvent) -> float:
    return event.begin_us + event.duration_us


def _libraries(trace: dict[str, Any]) -> dict[str, str]:
    """CUDA's version, encoded in traces as 1000 times the major plus 10 times the minor."""
    versions = {"cuda": trace.get("cuda_runtime_version"), "driver": trace.get("cuda_driver_version")}
    return {
        name: f"{version // 1000}.{version % 1000 // 10}"
        for name, version in versions.items()
        if isinstance(version, int)
    }


FORMAT = Format("PyTorch profiler trace", _recognises, _read)
