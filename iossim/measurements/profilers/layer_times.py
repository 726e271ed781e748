"""Times of a network's layers from a runtime's or framework's profile, in the order of the run.

ONNX Runtime's profile has nodes by name and every run; ``trtexec --exportProfile`` has layers, named after their fused
nodes, as means; a trace of PyTorch's profiler has the kernels of a GPU, or, without any, operators of
the CPU; Nsight's tables have kernels, with the NVTX ranges around them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import gcd, nan
from statistics import median
from typing import Any

from iossim.base.user_files import LARGEST, read_json
from iossim.measurements.profilers import profile_of
from iossim.measurements.profilers.kernels import Profile, busy_us, check_time, repetitions
from iossim.measurements.profilers.pytorch_trace import (
    NODE_SUFFIX,
    TraceEvent,
    is_chrome_trace,
    onnxruntime_nodes,
    read_trace,
)
from iossim.measurements.text_files import CsvError, text_export

_HEAD = 100_000
#: Prefix of the step of a run in PyTorch's profiler, followed by its number, if it has a schedule.
_STEP = "ProfilerStep#"
ONNXRUNTIME, _TENSORRT = "ONNX Runtime", "TensorRT"
_EXPECTED = "give ONNX Runtime's profile, trtexec's --exportProfile or a trace of PyTorch's profiler"


@dataclass(frozen=True, slots=True)
class TimedLayer:
    """A layer, node, operator or kernel: its name, its type if recorded, and its median over runs.

    ``span_us`` is its time span in the last run, None if not recorded. ``ranges`` are names of
    enclosing ranges. ``shape`` and ``dtype`` are those of its first output (ONNX Runtime) or first input (PyTorch), in
    the file's spelling; empty if not recorded, or if runs differ.
    """

    name: str
    kind: str
    duration_us: float
    span_us: tuple[float, float] | None = None
    ranges: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """The layers of one run in order, over ``runs`` recorded ones, and the recording tool.

    ``product`` is the driver's name of the device, if recorded; ``on_cpu`` whether it is a CPU, None
    if unknown. ``operators`` are those of the framework that are recorded besides kernels.
    """

    source: str
    layers: tuple[TimedLayer, ...]
    runs: int
    product: str = ""
    on_cpu: bool | None = False
    operators: tuple[TimedLayer, ...] = ()

    @property
    def names_nodes(self) -> bool:
        """True where layers have the names of the model's nodes."""
        return self.source in (ONNXRUNTIME, _TENSORRT)

    @property
    def total_us(self) -> float:
        return sum(layer.duration_us for layer in self.layers)

    @property
    def wall_us(self) -> float | None:
        """Time from the start of the last run's first layer to the end of its last; None if starts are unknown."""
        spans = [layer.span_us for layer in self.layers if layer.span_us is not None]
        return max(end for _, end in spans) - min(begin for begin, _ in spans) if spans else None

    @property
    def overlap(self) -> float | None:
        """Mean number of concurrent layers, over the time with at least one; None if starts are unknown."""
        return overlap([layer.span_us for layer in self.layers if layer.span_us is not None])


def overlap(spans_us: Iterable[tuple[float, float]]) -> float | None:
    """Mean number of concurrent spans, over the time with at least one; None without any time."""
    spans = list(spans_us)
    busy = busy_us(spans)
    return sum(until - begin for begin, until in spans) / busy if busy else None


def layer_times(text: str, runs: int | None = None) -> LayerTimes:
    """The layers of a profile of any kind; ``runs`` is the number of the network's runs, if not recorded.

    Raises CsvError for a file that is not one, or cannot be read, or does not consist of that many equal runs; without
    ``runs``, for a repetitive one that does not record their number.
    """
    if text.lstrip()[:1] in ("[", "{"):
        return _of_json(text, runs)
    found = profile_of(text)
    if found is None or not found.kernels:
        what, _, remedy = text_export(text, _EXPECTED).partition("; ") if found is None else ("", "", "")
        reason = f"it is {what}" if what else "its format is not known" if found is None else "it has no kernels"
        raise CsvError(reason, remedy or f"{_EXPECTED}, or CSV of Nsight")
    return replace(_one_run("Nsight", _of_kernels(found), runs), product=found.product)


def _of_json(text: str, runs: int | None) -> LayerTimes:
    try:
        document = read_json(text)
    except ValueError as error:
        raise CsvError(f"it is not complete JSON ({error})", "record it again") from None
    rows = [row for row in document if isinstance(row, dict)] if isinstance(document, list) else []
    if any("averageMs" in row for row in rows):
        return _of_tensorrt(rows)
    if not is_chrome_trace(text[:_HEAD]):
        what, _, remedy = text_export(text, _EXPECTED).partition("; ")
        raise CsvError(f"it is {what}", remedy)
    _, events = read_trace(text)
    if nodes := onnxruntime_nodes(events):
        return _of_onnxruntime(nodes)
    found = profile_of(text)
    steps = len({event.name for event in events if event.name.startswith(_STEP)})
    operators = [
        _stated(_timed(one.name, one.begin_us, one.duration_us), one.arguments) for one in _outer(events, "cpu_op")
    ]
    if found is not None and found.kernels:
        times = _one_run("PyTorch (kernels)", _of_kernels(found), runs, steps)
        return replace(times, product=found.product, operators=tuple(operators))
    if not operators:
        raise CsvError("it has no kernels and no operators", "record with ProfilerActivity.CPU or CUDA")
    return replace(_one_run("PyTorch (operators)", [operators], runs, steps), on_cpu=True)


def _stated(layer: TimedLayer, told: Mapping[str, object]) -> TimedLayer:
    """A layer with the shape and the dtype that are recorded for its event."""
    listed = (told.get(name) for name in ("output_type_shape", "input dims", "input type"))
    outputs, shape, dtype = (each[0] if isinstance(each, list) and each else None for each in listed)
    if isinstance(outputs, dict) and outputs:  # ONNX Runtime: {"float": [8, 16, 64, 64]}
        dtype, shape = next(iter(outputs.items()))
    if not isinstance(shape, list) or not all(type(size) is int for size in shape):
        return layer
    return replace(layer, shape=tuple(shape), dtype=str(dtype or ""))


def _of_kernels(found: Profile) -> list[list[TimedLayer]]:
    """The kernels by queue, in the order of their starts; for kernels that ran one by one times are unknown."""
    queues: dict[tuple[str, ...], list[TimedLayer]] = {}
    for one in sorted(found.kernels, key=lambda kernel: (kernel.start_us, kernel.place)):
        layer = _timed(one.cells["name"], one.start_us, one.duration_us, one.ranges)
        queue = () if found.one_by_one else (one.device, *one.queue)
        queues.setdefault(queue, []).append(replace(layer, span_us=None) if found.one_by_one else layer)
    return list(queues.values())


def _timed(name: str, start_us: float, duration_us: float, ranges: tuple[str, ...] = (), kind: str = "") -> TimedLayer:
    _check_times(name, start_us, duration_us)
    return TimedLayer(name, kind, duration_us, (start_us, start_us + duration_us), ranges)


def _check_times(name: str, start_us: float, duration_us: float) -> None:
    """Raise CsvError for an impossible time."""
    check_time(f"the start of {name!r}", start_us, -LARGEST, LARGEST)
    check_time(f"the time of {name!r}", duration_us)


def _of_onnxruntime(nodes: Sequence[TraceEvent]) -> LayerTimes:
    """Each node's median over its runs, without the first if there are more; in the order of the last run.

    A node inside another is in the body of a loop or a branch, whose time includes it.
    """
    times: dict[str, list[TimedLayer]] = {}
    for node in _outer(nodes, "node"):
        name, kind = node.name.removesuffix(NODE_SUFFIX), str(node.arguments.get("op_name", ""))
        one = _stated(_timed(name, node.begin_us, node.duration_us, kind=kind), node.arguments)
        times.setdefault(name, []).append(one)
    varying = [name for name, taken in times.items() if len({one.shape for one in taken}) > 1]
    if 2 * len(varying) > len(times):
        raise CsvError(f"its runs are of several shapes, as those of {varying[0]!r}", "record one shape in a file")
    layers = []
    for name, taken in times.items():
        kept = taken[1:] or taken
        shape = () if name in varying else kept[-1].shape
        layers.append(replace(kept[-1], duration_us=median(one.duration_us for one in kept), shape=shape))
    runs = max(len(taken) for taken in times.values())
    providers = {str(node.arguments.get("provider", "")) for node in nodes}
    on_cpu = providers <= {"CPUExecutionProvider"} if providers != {""} else None
    return LayerTimes(ONNXRUNTIME, tuple(sorted(layers, key=_begin)), runs, on_cpu=on_cpu)


def _of_tensorrt(rows: Sequence[Mapping[str, Any]]) -> LayerTimes:
    """The layers in the order of the file, which is the engine's; a row without a name has the number of runs."""
    runs = next((row["count"] for row in rows if type(row.get("count")) is int and "name" not in row), 1)
    layers = []
    for row in rows:
        if "averageMs" in row and "name" in row:
            taken_ms = row.get("medianMs", row["averageMs"])
            taken_us = 1e3 * taken_ms if type(taken_ms) in (int, float) else nan
            layers.append(replace(_timed(str(row["name"]), 0.0, taken_us), span_us=None))
    return LayerTimes(_TENSORRT, tuple(layers), runs)


def _outer(events: Sequence[TraceEvent], category: str) -> list[TraceEvent]:
    """The outermost events of a category per thread, in order, without those that an operator calls.

    Raises CsvError for impossible times, also of nested events.
    """
    for event in events:
        if event.category == category:
            _check_times(event.name, event.begin_us, event.duration_us)
    ordered = sorted(
        (event for event in events if event.category == category),
        key=lambda event: (event.thread, event.begin_us, -event.duration_us),
    )
    found: list[TraceEvent] = []
    for _, own in groupby(ordered, key=lambda event: event.thread):
        end = float("-inf")
        for event in own:
            if event.begin_us >= end:
                found.append(event)
                end = event.begin_us + event.duration_us
    return sorted(found, key=lambda event: event.begin_us)


def _one_run(source: str, queues: Sequence[Sequence[TimedLayer]], runs: int | None, steps: int = 0) -> LayerTimes:
    """The last of several equal runs, with medians over all but the first, which is left out if there are more.

    Runs are equal by queue, whose kernels may interleave differently with those of others, or as a whole. Their number
    is ``steps``, if the file has any and ``runs`` is not given.
    """
    whole = sorted((layer for queue in queues for layer in queue), key=_begin)
    divided = (queues, [whole])
    if runs is None and steps:
        runs = steps
    elif runs is None:
        runs = max(gcd(*(repetitions([layer.name for layer in part]) for part in parts)) for parts in divided)
        if runs > 1:
            raise CsvError(
                f"its {len(whole)} rows are {runs} times the same {len(whole) // runs}",
                f"give `runs` {runs}, or 1 if the network ran once and repeats itself",
            )
    if runs < 1 or len(whole) % runs:
        remedy = f"say with `runs` how often the network ran{f', if not once a {_STEP}' if steps else ''}"
        raise CsvError(f"its {len(whole)} rows are not {runs} equal runs", remedy)
    for parts in divided:
        if all(repetitions([layer.name for layer in part]) % runs == 0 for part in parts):
            layers = sorted((layer for part in parts for layer in _last_of(part, runs)), key=_begin)
            return LayerTimes(source, tuple(layers), runs)
    raise CsvError(f"its {runs} runs are not of the same kernels", "leave warm-up out of the recording")


def _last_of(layers: Sequence[TimedLayer], runs: int) -> list[TimedLayer]:
    size = len(layers) // runs
    kept = range(1, runs) if runs > 1 else range(1)
    return [
        replace(layer, duration_us=median(layers[run * size + place].duration_us for run in kept))
        for place, layer in enumerate(layers[-size:])
    ]


def _begin(layer: TimedLayer) -> tuple[float, float]:
    """Sort key of layers; those without times keep their order."""
    return layer.span_us or (0.0, 0.0)
