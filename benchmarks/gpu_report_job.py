"""State shared by every section of ``gpu_report.py``: its task, settings, backends, networks and device."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_report_plan import FUSED_UNITS, PLAIN_DTYPE
from gpu_report_records import REPORT, append

if TYPE_CHECKING:
    from iossim.execution.backend import Backend
    from iossim.ir.network import Network

ENGINES = ("graph", "paper")
#: Share of each engine in the time of searches and profiles: schedules are found for the graph engine.
ENGINE_PART = {"graph": 0.75, "paper": 0.25}
#: Backends in the order of preference, with a GPU and without one.
BACKENDS, DRY_BACKENDS = ("cupy_cudnn", "torch_cuda"), ("onnxruntime_cpu", "numpy_reference")
#: The backend that chooses algorithms, which is slow: its choices are kept for all sections.
CHOOSES = "cupy_cudnn"
#: Number of cuDNN's plans timed for each convolution: building them dominates the time of a network.
PLANS = "4"
#: Height and width of a dry run's images: small, so that a CPU is fast enough.
DRY_SIZE = 64
#: Profile for estimates if the device has none of its own.
FALLBACK_DEVICE = "h100-sxm"


@dataclass(frozen=True)
class Settings:
    """Amounts of measurements."""

    rounds: int
    stage_rounds: int
    target_us: float
    pairs: int
    stages: int
    #: Most measured stages of a search; otherwise its seconds count.
    search_measurements: int | None
    #: Rounds for single costs of the device and the host.
    cost_rounds: int


FULL = Settings(
    rounds=50, stage_rounds=12, target_us=600.0, pairs=40, stages=40, search_measurements=None, cost_rounds=15
)
TINY = Settings(rounds=3, stage_rounds=2, target_us=200.0, pairs=2, stages=2, search_measurements=30, cost_rounds=2)


@dataclass
class Item:
    """Outcome of an item: the reason of its failure, empty if it succeeded."""

    error: str = ""


@dataclass
class Job:
    """A section's task: folder of results, deadline, and settings; then failed and omitted items."""

    section: str
    out: Path
    end_s: float
    models: tuple[str, ...]
    backend: str
    device: str
    dry: bool
    #: Precision of the section; and all of the report's, for sections that cover each.
    dtype: str = PLAIN_DTYPE
    dtypes: tuple[str, ...] = (PLAIN_DTYPE,)
    failures: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    #: True where the device is unusable in this process.
    lost: bool = False
    #: Each raises if the device is lost, for libraries whose errors do not show it.
    probes: list[Callable[[], object]] = field(default_factory=list)
    #: Seconds by item.
    spent_s: dict[str, float] = field(default_factory=dict)
    _backends: dict[str, Backend] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        return TINY if self.dry else FULL

    @property
    def left_s(self) -> float:
        return self.end_s - time.monotonic()

    def record(self, kind: str, **fields: Any) -> None:
        append(self.out / REPORT, {"record": kind, **fields})

    @contextmanager
    def told(self, item: str) -> Iterator[Item]:
        """An item whose failure is recorded as one of the section's failures, while the others continue.

        Raises DeviceLostError if the failure left the device unusable, since then no other item can succeed.
        """
        from iossim.execution.backend import DeviceLostError

        found = Item()
        try:
            with self.timed(item):
                yield found
        except Exception as error:  # whatever error an item of a long measurement raises, the others continue
            if self.lost:
                raise  # reported by the item inside this one
            traceback.print_exc()
            found.error = one_line(error)
            self.fail(item, found.error)
            self.lost = isinstance(error, DeviceLostError)
            if self.lost:
                raise
            for probe in self.probes:
                try:
                    probe()
                except Exception as gone:  # whatever the probe raises, the device is unusable
                    self.lost = True
                    raise DeviceLostError(f"the device is lost since {item}: {one_line(gone)}") from error

    @contextmanager
    def timed(self, item: str) -> Iterator[None]:
        """Log the time of an item, and add it to the section's record."""
        begin_s = time.monotonic()
        try:
            yield
        finally:
            self.spent_s[item] = round(self.spent_s.get(item, 0.0) + time.monotonic() - begin_s, 2)
            print(f"{item}: {self.spent_s[item]:.1f} s; {self.left_s:.0f} s are left", flush=True)

    def fail(self, item: str, error: str) -> None:
        """Record an item that failed."""
        self.failures.append(f"{item}: {error}")
        self.record("error", section=self.section, item=item, error=error)

    def leave(self, item: str) -> None:
        """Record an item that there is no time for."""
        self.left.append(item)
        self.record("left", section=self.section, item=item)

    def skip(self, item: str, reason: str) -> None:
        """Record an item that this machine can never do."""
        self.record("skipped", section=self.section, item=item, reason=reason)

    @property
    def remark(self) -> str:
        """Failed and omitted items, in one line; empty if all is done."""
        said = [f"{len(self.failures)} failed, the first: {self.failures[0]}"] if self.failures else []
        said += [f"{len(self.left)} left to do, the first: {self.left[0]}"] if self.left else []
        return "; ".join(said)

    def backend_of(self, engine: str, dtype: str = "") -> Backend:
        """Backend of an engine: one for the whole section, since choosing algorithms and planning are slow.

        It computes in ``dtype``, by default that of the section.

        Raises RuntimeError if none can run here.
        """
        from iossim.execution.backend import create_backend
        from iossim.execution.engine import Engine
        from iossim.ir.types import Precision

        dtype = dtype or self.dtype
        key = engine if dtype == PLAIN_DTYPE else f"{engine}@{dtype}"
        if key not in self._backends:
            name = backend_name(self)
            options = {"choices": str(self.out / "choices.json"), "plans": PLANS} if name == CHOOSES else {}
            if name == "torch_cuda":
                self.probes.append(probe_torch)
            with self.timed(f"making backend {name}, {key}"):
                self._backends[key] = create_backend(name, Precision(dtype), Engine.named(engine), options)
        return self._backends[key]

    @property
    def backends(self) -> dict[str, Backend]:
        """Requested backends, by engine."""
        return dict(self._backends)

    def record_counts(self) -> None:
        """Record the choices of algorithms in this section: plans of cuDNN, choices timed and recalled, refusals."""
        from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend

        for engine, backend in self._backends.items():
            if isinstance(backend, CupyCudnnBackend):
                algorithms, timing = backend.chooser, backend.chooser.timing
                counts = {
                    "convolutions": len(algorithms.known),
                    "plans_built": timing.lane.library.built,
                    "candidates_timed": timing.timed,
                    "chosen_by_timing": len(algorithms.known) - algorithms.recalled,
                    "recalled": algorithms.recalled,
                    "refused": len(timing.refusals),
                    "first_refusal": next(iter(timing.refusals), ""),
                }
                self.record("counts", section=self.section, engine=engine, **counts)


def probe_torch() -> None:
    """Raise if this process has lost CUDA."""
    import torch

    torch.cuda.synchronize()


def one_line(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


def backend_name(job: Job) -> str:
    """The requested backend, or the first that can run here. Raises RuntimeError if none can."""
    from iossim.execution.backend import backend_names, missing_for

    wanted = (job.backend,) if job.backend else DRY_BACKENDS if job.dry else BACKENDS
    reasons = []
    for name in wanted:
        reason = missing_for(name) if name in backend_names() else "there is no backend of that name"
        if not reason:
            if reasons:
                job.skip(f"backend {wanted[0]}", reasons[0])
            return name
        reasons.append(f"{name}: {reason}")
    raise RuntimeError(f"no backend can run here: {'; '.join(reasons)}")


def estimate_device(job: Job, own: str) -> str:
    """Profile for estimates: the requested one, the device's own, or that of an H100."""
    from iossim.hardware.names import device_names

    return job.device or (own if own in device_names() else FALLBACK_DEVICE)


def load_network(job: Job, model: str, dtype: str = "") -> Network:
    """A network by its name (``hrnet_w18`` is built, too) or file, in the section's precision; in a dry run with small
    images.
    """
    from large_networks import BUILDS
    from large_networks import network as built

    from iossim.models.load import load

    dtype = dtype or job.dtype
    if model in BUILDS:
        return built(model, dtype=dtype)
    options = {"units": "fused"} if model in FUSED_UNITS else {}
    network = load(model, dtype=dtype, **options)
    if not job.dry:
        return network
    shapes = {name: network.graph.types[name].shape for name in network.graph.inputs}
    small = {name: (*shape[:2], *(min(size, DRY_SIZE) for size in shape[2:])) for name, shape in shapes.items()}
    return load(model, shapes=small, dtype=dtype, **options)
