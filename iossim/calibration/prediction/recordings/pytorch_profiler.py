"""Chrome traces of the PyTorch profiler (Kineto): ``profiler.export_chrome_trace("trace.json")``.

They tell no bytes and no arithmetic.
"""

from __future__ import annotations

from iossim.calibration.prediction.recordings.recording import Recorded, Recording, recording
from iossim.measurements.chrome_trace import TraceEvent, complete_events, parse_trace
from iossim.measurements.text_files import CsvError


def read(text: str) -> Recording:
    """The kernels of a trace; raises CsvError."""
    try:
        events = list(complete_events(parse_trace(text)))
    except ValueError as error:
        raise CsvError(f"is no whole trace: {error}", "it may be cut short, record it again") from None
    on_device = [event for event in events if event.category in ("kernel", "gpu_memcpy", "gpu_memset")]
    kernels = [
        Recorded(number, event.begin_us, event.duration_us, *_place_of(event), _cells_of(event))
        for number, event in enumerate(on_device, 1)
        if event.category == "kernel"
    ]
    return recording(kernels, "GPU event", len(on_device) - len(kernels), [])


def _place_of(event: TraceEvent) -> tuple[str, tuple[str, str]]:
    told = {name: str(event.arguments.get(name, "")) for name in ("device", "context", "stream")}
    return told["device"], (told["context"], told["stream"])


def _cells_of(event: TraceEvent) -> dict[str, str]:
    told = event.arguments
    return {
        "name": event.name,
        "blocks": _extent(told.get("grid")),
        "threads": _extent(told.get("block")),
        "registers_per_thread": str(told.get("registers per thread", "")),
        "shared_bytes": str(told.get("shared memory", "")),
    }


def _extent(sizes: object) -> str:
    return "x".join(map(str, sizes)) if isinstance(sizes, list) else ""
