"""Chrome traces of the PyTorch profiler (Kineto), ``profiler.export_chrome_trace``: complete events, and kernels.

They have no bytes and no arithmetic of a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from iossim.base.user_files import read_json
from iossim.measurements.profilers.kernels import Profile, ProfiledKernel
from iossim.measurements.text_files import CsvError, remedy

#: The suffix that ONNX Runtime gives to the names of nodes.
NODE_SUFFIX = "_kernel_time"
#: Marks of a trace in a file's initial letters.
_MARKS = ('"traceEvents"', '"ph"', '"deviceProperties"')


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """A complete event of a trace; names of arguments are in lower case, as their spelling differs between versions."""

    name: str
    category: str
    thread: str
    begin_us: float
    duration_us: float
    arguments: dict[str, object]


def is_chrome_trace(head: str) -> bool:
    """True where a file that begins with this text is a trace."""
    begin = head.lstrip()
    return begin.startswith(("{", "[")) and any(mark in begin for mark in _MARKS)


def read_trace(text: str) -> tuple[dict[str, object], list[TraceEvent]]:
    """The document, and its complete events in order; raises CsvError for a truncated trace."""
    try:
        trace = read_json(text)
        document = trace if isinstance(trace, dict) else {"traceEvents": trace}
        return document, list(_complete_events(document))
    except ValueError as error:
        raise CsvError(f"is no whole trace: {error}", "it may be cut short, record it again") from None


def onnxruntime_nodes(events: Iterable[TraceEvent]) -> list[TraceEvent]:
    """The nodes that ONNX Runtime timed, which writes the same events."""
    return [one for one in events if one.category == "node" and one.name.endswith(NODE_SUFFIX)]


def profile(text: str) -> Profile:
    """The kernels of a trace; raises CsvError."""
    document, events = read_trace(text)
    on_device = [event for event in events if event.category in ("kernel", "gpu_memcpy", "gpu_memset")]
    kernels = [_kernel(event, place) for place, event in enumerate(on_device, 1) if event.category == "kernel"]
    if not kernels and onnxruntime_nodes(events):
        raise CsvError("it is ONNX Runtime's profile, of nodes and not of kernels", remedy("match"))
    product = product_of(document, kernels[0].device if kernels else "0")
    return Profile(tuple(kernels), "GPU event", len(on_device) - len(kernels), product=product)


def product_of(document: Mapping[str, object], device: str = "0") -> str:
    """Driver's name of the GPU of a number, or the first if there is none; empty if the trace names none."""
    listed = document.get("deviceProperties")
    known = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    own = [one for one in known if str(one.get("id")) == device] or known
    name = own[0].get("name") if own else None
    return name.strip() if isinstance(name, str) else ""


def _kernel(event: TraceEvent, place: int) -> ProfiledKernel:
    told = event.arguments
    device, context, stream = (str(told.get(name, "")) for name in ("device", "context", "stream"))
    cells = {
        "name": event.name,
        "blocks": _extent(told.get("grid")),
        "threads": _extent(told.get("block")),
        "registers_per_thread": str(told.get("registers per thread", "")),
        "shared_bytes": str(told.get("shared memory", "")),
    }
    return ProfiledKernel(place, event.begin_us, event.duration_us, device, (context, stream), cells)


def _extent(sizes: object) -> str:
    return "x".join(map(str, sizes)) if isinstance(sizes, list) else ""


def _complete_events(trace: dict[str, object]) -> Iterator[TraceEvent]:
    """The events with a begin and a duration; raises ValueError if there is no list of them."""
    records = trace.get("traceEvents")
    if not isinstance(records, list):
        raise ValueError("the trace has no list 'traceEvents'")
    for record in records:
        if not isinstance(record, dict) or record.get("ph") != "X":
            continue
        arguments = record.get("args")
        yield TraceEvent(
            str(record.get("name", "")),
            str(record.get("cat", "")).lower(),
            f"{record.get('pid')} {record.get('tid')}",
            _microseconds(record.get("ts")),
            _microseconds(record.get("dur")),
            {str(key).lower(): value for key, value in arguments.items()} if isinstance(arguments, dict) else {},
        )


def _microseconds(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
