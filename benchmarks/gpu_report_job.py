"""What every section of ``gpu_report.py`` has: its task, how much is measured, and with what backend, network and device."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_report import append

if TYPE_CHECKING:
    from iossim.ir.network import Network

ENGINES = ("graph", "paper")
#: Backends in the order of preference, with a GPU and without one.
BACKENDS, DRY_BACKENDS = ("cupy_cudnn", "torch_cuda"), ("onnxruntime_cpu", "numpy_reference")
#: Height and width of a dry run's images: small, so that a processor is fast enough.
DRY_SIZE = 64
#: The profile that estimates come from where the device has none of its own.
FALLBACK_DEVICE = "h100-sxm"


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    rounds: int
    stage_rounds: int
    target_us: float
    pairs: int
    stages: int
    #: Measured stages of a search at most; else its seconds count.
    search_measurements: int | None


FULL = Settings(rounds=50, stage_rounds=12, target_us=600.0, pairs=60, stages=60, search_measurements=None)
TINY = Settings(rounds=3, stage_rounds=2, target_us=200.0, pairs=2, stages=2, search_measurements=30)


@dataclass(frozen=True)
class Job:
    """A section's task: where results go, until when it may work, and with what."""

    out: Path
    end_s: float
    models: tuple[str, ...]
    backend: str
    device: str
    dry: bool

    @property
    def settings(self) -> Settings:
        return TINY if self.dry else FULL

    @property
    def left_s(self) -> float:
        return self.end_s - time.monotonic()

    def record(self, kind: str, **fields: Any) -> None:
        append(self.out / "report.jsonl", {"record": kind, **fields})

    @contextmanager
    def told(self, item: str) -> Iterator[None]:
        """An item whose failure is a record, and no more."""
        try:
            yield
        except Exception as error:  # whatever an item of a long measurement dies of, the others go on
            traceback.print_exc()
            self.record("error", item=item, error=f"{type(error).__name__}: {' '.join(str(error).split())}"[:500])


def backend_name(job: Job) -> str:
    """The backend asked for, or the first that can run here. Raises RuntimeError where none can."""
    from iossim.execution.backend import backend_names, missing_for

    wanted = (job.backend,) if job.backend else DRY_BACKENDS if job.dry else BACKENDS
    reasons = []
    for name in wanted:
        reason = missing_for(name) if name in backend_names() else "there is no backend of that name"
        if not reason:
            return name
        reasons.append(f"{name}: {reason}")
    raise RuntimeError(f"no backend can run here: {'; '.join(reasons)}")


def estimate_device(job: Job, own: str) -> str:
    """The profile for estimates: the one asked for, the device's own, or that of an H100."""
    from iossim.devices.load import device_names

    return job.device or (own if own in device_names() else FALLBACK_DEVICE)


def load_network(job: Job, model: str) -> Network:
    """A network by the name or file that names it; in a dry run with small images."""
    from iossim.models.load import load

    network = load(model)
    if not job.dry:
        return network
    shapes = {name: network.graph.types[name].shape for name in network.graph.inputs}
    small = {name: (*shape[:2], *(min(size, DRY_SIZE) for size in shape[2:])) for name, shape in shapes.items()}
    return load(model, shapes=small)
