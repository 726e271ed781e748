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
from statistics import median
from typing import Any

from iossim.measurements.profilers import profile_of
from iossim.measurements.profilers.kernels import Profile
from iossim.measurements.profilers.pytorch_trace import TraceEvent, is_chrome_trace, read_trace
from iossim.measurements.text_files import CsvError

_NODE_SUFFIX = "_kernel_time"
_HEAD = 100_000
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


def layer_times(text: str, runs: int = 1) -> LayerTimes:
    """The layers of a profile of any kind; ``runs`` is how often the network ran, where the file does not tell.

    Raises CsvError for a file that is none, or cannot be read, or does not hold so many equal runs.
    """
    if text.lstrip()[:1] in ("[", "{"):
        return _of_json(text, runs)
    found = profile_of(text)
    if found is None or not found.kernels:
        raise CsvError(
            "its format is not known" if found is None else "it has no kernels",
            "give ONNX Runtime's or trtexec's JSON, a trace of PyTorch's profiler, or CSV of Nsight",
        )
    layers = _of_kernels(found)
    return LayerTimes("kernels", _one_run(layers, runs), runs)


def _of_json(text: str, runs: int) -> LayerTimes:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise CsvError(f"it is not complete JSON ({error})", "record it again") from None
    rows = [row for row in document if isinstance(row, dict)] if isinstance(document, list) else []
    nodes = [row for row in rows if row.get("cat") == "Node" and str(row.get("name", "")).endswith(_NODE_SUFFIX)]
    try:
        if nodes:
            return _of_onnxruntime(nodes)
        if any("averageMs" in row for row in rows):
            return _of_tensorrt(rows)
    except (KeyError, TypeError, ValueError) as error:
        raise CsvError(f"it is not complete ({type(error).__name__}: {error})", "record it again") from None
    if not is_chrome_trace(text[:_HEAD]):
        raise CsvError("its format is not known", "give ONNX Runtime's, trtexec's, or a trace of PyTorch's profiler")
    found = profile_of(text)
    if found is not None and found.kernels:
        return LayerTimes("PyTorch, kernels", _one_run(_of_kernels(found), runs), runs)
    _, events = read_trace(text)
    operators = [_timed(one.name, one.begin_us, one.duration_us) for one in _outer(events)]
    if not operators:
        raise CsvError("it has no kernels and no operators", "record with ProfilerActivity.CPU or CUDA")
    return LayerTimes("PyTorch, operators", _one_run(operators, runs), runs)


def _of_kernels(found: Profile) -> list[TimedLayer]:
    """The kernels in the order in which they started; of those that ran one by one no times are known."""
    ordered = sorted(found.kernels, key=lambda kernel: (kernel.start_us, kernel.place))
    layers = [_timed(one.cells["name"], one.start_us, one.duration_us, one.ranges) for one in ordered]
    return [replace(layer, span_us=None) for layer in layers] if found.one_by_one else layers


def _timed(name: str, start_us: float, duration_us: float, ranges: tuple[str, ...] = (), kind: str = "") -> TimedLayer:
    return TimedLayer(name, kind, duration_us, (start_us, start_us + duration_us), ranges)


def _of_onnxruntime(nodes: Sequence[Mapping[str, Any]]) -> LayerTimes:
    """Each node's median over its runs, the first left out where there are more; in the order of the last run."""
    times: dict[str, list[Mapping[str, Any]]] = {}
    for row in nodes:
        times.setdefault(str(row["name"]), []).append(row)
    layers = []
    for name, taken in times.items():
        kept = taken[1:] or taken
        last = kept[-1]
        one = _timed(
            name.removesuffix(_NODE_SUFFIX), float(last["ts"]), float(last["dur"]), kind=str(last["args"]["op_name"])
        )
        layers.append(replace(one, duration_us=float(median(float(row["dur"]) for row in kept))))
    runs = max(len(taken) for taken in times.values())
    return LayerTimes(_ONNXRUNTIME, tuple(sorted(layers, key=lambda one: one.span_us or (0.0, 0.0))), runs)


def _of_tensorrt(rows: Sequence[Mapping[str, Any]]) -> LayerTimes:
    """The layers in the order of the file, which is that of the engine; a row without a name says how many runs."""
    runs = next((int(row["count"]) for row in rows if "count" in row and "name" not in row), 1)
    timed = [row for row in rows if "averageMs" in row and "name" in row]
    layers = [TimedLayer(str(row["name"]), "", 1e3 * float(row.get("medianMs", row["averageMs"]))) for row in timed]
    return LayerTimes(_TENSORRT, tuple(layers), runs)


def _outer(events: Sequence[TraceEvent]) -> list[TraceEvent]:
    """The operators that no other operator of their thread called, in order."""
    operators = sorted(
        (event for event in events if event.category == "cpu_op"),
        key=lambda event: (event.thread, event.begin_us, -event.duration_us),
    )
    found: list[TraceEvent] = []
    for _, own in groupby(operators, key=lambda event: event.thread):
        end = float("-inf")
        for event in own:
            if event.begin_us >= end:
                found.append(event)
                end = event.begin_us + event.duration_us
    return sorted(found, key=lambda event: event.begin_us)


def _one_run(layers: Sequence[TimedLayer], runs: int) -> tuple[TimedLayer, ...]:
    """The last of several equal runs, with medians over all but the first, which is left out where there are more."""
    if runs < 1 or len(layers) % runs:
        raise CsvError(f"its {len(layers)} rows are not {runs} equal runs", "say with `runs` how often the network ran")
    size = len(layers) // runs
    if [layer.name for layer in layers] != [layer.name for layer in layers[:size]] * runs:
        raise CsvError(f"its {runs} runs are not of the same kernels", "leave warm-up out of the recording")
    kept = range(1, runs) if runs > 1 else range(1)
    return tuple(
        replace(layer, duration_us=median(layers[run * size + place].duration_us for run in kept))
        for place, layer in enumerate(layers[-size:])
    )
