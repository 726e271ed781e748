"""What each layer of a network took, as the profile of a runtime or a framework says it, in the order of the run.

ONNX Runtime's profile tells nodes by name and every run; ``trtexec --exportProfile`` layers by the names of the nodes
that are fused in them, as means; a trace of PyTorch's profiler the kernels of a GPU, or, without any, operators of
the CPU; Nsight's tables kernels, with the ranges of NVTX around them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import gcd, isnan
from statistics import median
from typing import Any

from iossim.measurements.profilers import profile_of
from iossim.measurements.profilers.kernels import Profile
from iossim.measurements.profilers.pytorch_trace import TraceEvent, is_chrome_trace, read_trace
from iossim.measurements.text_files import CsvError

_NODE_SUFFIX = "_kernel_time"
_HEAD = 100_000
#: What PyTorch's profiler calls the step of a run, with its number, where it has a schedule.
_STEP = "ProfilerStep#"
_ONNXRUNTIME, _TENSORRT = "ONNX Runtime", "TensorRT"


@dataclass(frozen=True, slots=True)
class TimedLayer:
    """A layer, node, operator or kernel: its name, what it is where the file says so, and its median over runs.

    ``span_us`` is from when to when it ran in the last run, None where the file does not tell. ``ranges`` are names of
    what is around it.
    """

    name: str
    kind: str
    duration_us: float
    span_us: tuple[float, float] | None = None
    ranges: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """The layers of one run in order, over ``runs`` that were recorded, and who recorded them."""

    source: str
    layers: tuple[TimedLayer, ...]
    runs: int

    @property
    def names_nodes(self) -> bool:
        """Whether layers have the names of the model's nodes."""
        return self.source in (_ONNXRUNTIME, _TENSORRT)

    @property
    def total_us(self) -> float:
        return sum(layer.duration_us for layer in self.layers)

    @property
    def wall_us(self) -> float | None:
        """From the start of the first layer of the last run to the end of its last; None where starts are unknown."""
        spans = [layer.span_us for layer in self.layers if layer.span_us is not None]
        return max(end for _, end in spans) - min(begin for begin, _ in spans) if spans else None

    @property
    def overlap(self) -> float | None:
        """How many layers ran at a time, on the average of the time in which any did; None where starts are unknown."""
        return overlap([layer.span_us for layer in self.layers if layer.span_us is not None])


def overlap(spans_us: Iterable[tuple[float, float]]) -> float | None:
    """How many spans there are at a time, on the average of the time in which there is any; None without any time."""
    total, busy, end = 0.0, 0.0, float("-inf")
    for begin, until in sorted(spans_us):
        total += until - begin
        busy += max(0.0, until - max(begin, end))
        end = max(end, until)
    return total / busy if busy else None


def layer_times(text: str, runs: int | None = None) -> LayerTimes:
    """The layers of a profile of any kind; ``runs`` is how often the network ran, where the file does not tell.

    Raises CsvError for a file that is none, or cannot be read, or does not hold so many equal runs; without ``runs``,
    for one that does not tell them and is a repetition.
    """
    if text.lstrip()[:1] in ("[", "{"):
        return _of_json(text, runs)
    found = profile_of(text)
    if found is None or not found.kernels:
        raise CsvError(
            "its format is not known" if found is None else "it has no kernels",
            "give ONNX Runtime's or trtexec's JSON, a trace of PyTorch's profiler, or CSV of Nsight",
        )
    return _one_run("Nsight", _of_kernels(found), runs)


def _of_json(text: str, runs: int | None) -> LayerTimes:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise CsvError(f"it is not complete JSON ({error})", "record it again") from None
    rows = [row for row in document if isinstance(row, dict)] if isinstance(document, list) else []
    try:
        if any("averageMs" in row for row in rows):
            return _of_tensorrt(rows)
    except (TypeError, ValueError) as error:
        raise CsvError(f"it is not complete ({type(error).__name__}: {error})", "record it again") from None
    if not is_chrome_trace(text[:_HEAD]):
        raise CsvError("its format is not known", "give ONNX Runtime's, trtexec's, or a trace of PyTorch's profiler")
    _, events = read_trace(text)
    if nodes := [one for one in events if one.category == "node" and one.name.endswith(_NODE_SUFFIX)]:
        return _of_onnxruntime(nodes)
    found = profile_of(text)
    steps = len({event.name for event in events if event.name.startswith(_STEP)})
    if found is not None and found.kernels:
        return _one_run("PyTorch (kernels)", _of_kernels(found), runs, steps)
    operators = [_timed(one.name, one.begin_us, one.duration_us) for one in _outer(events, "cpu_op")]
    if not operators:
        raise CsvError("it has no kernels and no operators", "record with ProfilerActivity.CPU or CUDA")
    return _one_run("PyTorch (operators)", [operators], runs, steps)


def _of_kernels(found: Profile) -> list[list[TimedLayer]]:
    """The kernels by queue, in the order in which they started; of those that ran one by one no times are known."""
    queues: dict[tuple[str, ...], list[TimedLayer]] = {}
    for one in sorted(found.kernels, key=lambda kernel: (kernel.start_us, kernel.place)):
        layer = _timed(one.cells["name"], one.start_us, one.duration_us, one.ranges)
        queue = () if found.one_by_one else (one.device, *one.queue)
        queues.setdefault(queue, []).append(replace(layer, span_us=None) if found.one_by_one else layer)
    return list(queues.values())


def _timed(name: str, start_us: float, duration_us: float, ranges: tuple[str, ...] = (), kind: str = "") -> TimedLayer:
    return TimedLayer(name, kind, duration_us, (start_us, start_us + duration_us), ranges)


def _of_onnxruntime(nodes: Sequence[TraceEvent]) -> LayerTimes:
    """Each node's median over its runs, the first left out where there are more; in the order of the last run.

    A node inside another is in the body of a loop or a branch, whose time holds its own.
    """
    if any(isnan(node.begin_us + node.duration_us) for node in nodes):
        raise CsvError("it has nodes without times", "record it again")
    times: dict[str, list[TraceEvent]] = {}
    for node in _outer(nodes, "node"):
        times.setdefault(node.name.removesuffix(_NODE_SUFFIX), []).append(node)
    layers = []
    for name, taken in times.items():
        kept = taken[1:] or taken
        one = _timed(name, kept[-1].begin_us, kept[-1].duration_us, kind=str(kept[-1].arguments.get("op_name", "")))
        layers.append(replace(one, duration_us=median(node.duration_us for node in kept)))
    runs = max(len(taken) for taken in times.values())
    return LayerTimes(_ONNXRUNTIME, tuple(sorted(layers, key=_begin)), runs)


def _of_tensorrt(rows: Sequence[Mapping[str, Any]]) -> LayerTimes:
    """The layers in the order of the file, which is that of the engine; a row without a name says how many runs."""
    runs = next((int(row["count"]) for row in rows if "count" in row and "name" not in row), 1)
    timed = [row for row in rows if "averageMs" in row and "name" in row]
    layers = [TimedLayer(str(row["name"]), "", 1e3 * float(row.get("medianMs", row["averageMs"]))) for row in timed]
    return LayerTimes(_TENSORRT, tuple(layers), runs)


def _outer(events: Sequence[TraceEvent], category: str) -> list[TraceEvent]:
    """The events of a category that no other of their thread holds, in order: not what an operator calls."""
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
    """The last of several equal runs, with medians over all but the first, which is left out where there are more.

    Runs are equal by queue, whose kernels may start in another order beside those of others, or as a whole. There are
    as many as ``steps``, if the file tells any and ``runs`` are not given.
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


def repetitions(names: Sequence[str]) -> int:
    """How often the shortest sequence stands in ``names`` that makes them by repetition."""
    sizes = (size for size in range(1, len(names) + 1) if len(names) % size == 0)
    return next(len(names) // size for size in sizes if list(names) == list(names[:size]) * (len(names) // size))


def _last_of(layers: Sequence[TimedLayer], runs: int) -> list[TimedLayer]:
    size = len(layers) // runs
    kept = range(1, runs) if runs > 1 else range(1)
    return [
        replace(layer, duration_us=median(layers[run * size + place].duration_us for run in kept))
        for place, layer in enumerate(layers[-size:])
    ]


def _begin(layer: TimedLayer) -> tuple[float, float]:
    """What layers are ordered by; those without times stay as they are."""
    return layer.span_us or (0.0, 0.0)
