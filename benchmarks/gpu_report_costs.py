"""The section of ``gpu_report.py`` that measures the costs of an engine for calibration, one record ``cost`` each.

Device times are of graphs, or of calls that were all issued before; host times are of one call. The host's calls go
through Python's wrappers, as each such record notes: an engine in C++ takes less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from gpu_report_job import Job

if TYPE_CHECKING:
    from gpu_report_probe import Probe

    from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend

CHAINS = (8, 32, 128, 512)
BRANCHES = (2, 3, 4, 6, 8)
#: Numbers of kernels in each branch: several reveal the cost of nodes of concurrent chains to each other.
DEPTHS = (1, 8)
#: Sizes of a copy, relative to the L2: inside it, and far beyond it.
COPIES = (0.125, 1.0, 8.0)
THREADS = 128
#: Blocks of a multiply-add for each multiprocessor, and its steps.
PEAK_BLOCKS, PEAK_STEPS, DRY_STEPS = 8, 50_000, 4
WRAPPERS = "Python"


def section_costs(job: Job) -> None:
    """Measure every cost that is accessible through the backend's own driver."""
    from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend

    backend = job.backend_of("graph")
    if not isinstance(backend, CupyCudnnBackend):
        job.skip("costs of launches", f"backend {backend.context.backend} runs on no driver of CUDA")
        return
    for of, measure in _costs(job, backend).items():
        if job.left_s <= 0:
            job.leave(of)
            continue
        with job.told(of):
            job.record("cost", of=of, **measure())


def _costs(job: Job, backend: CupyCudnnBackend) -> dict[str, Callable[[], Mapping[str, Any]]]:
    """Measurements, by their subject."""
    from gpu_report_probe import Probe

    probe = Probe(backend.driver, backend.library, backend.lane, job.settings.cost_rounds)
    l2_bytes = backend.driver.facts.l2_bytes
    costs: dict[str, Callable[[], Mapping[str, Any]]] = {
        "graph: empty": lambda: {"us": probe.empty_graph_us()},
        "graph: chain": lambda: _chains(probe.graph_chains(CHAINS)),
        "stream: chain": lambda: _chains(probe.stream_chains(CHAINS)),
        "graph: fork and join": lambda: {"beyond_a_chain": _forks(probe)},
        "host: kernel launch": lambda: _by_host(probe.launch_host_us()),
        "host: library call": lambda: _by_host(probe.library_call_host_us(_convolution())),
        "host: graph launch": lambda: _by_host(probe.graph_launch_host_us(CHAINS[0])),
        "host: event record": lambda: _by_host(probe.event_record_host_us()),
        "host: event wait": lambda: _by_host(probe.event_wait_host_us()),
        "host: synchronise": lambda: _by_host(probe.synchronise_host_us()),
        "host: launch and synchronise": lambda: _by_host(probe.launch_and_synchronise_us()),
        "placement": lambda: _placement(probe),
    }
    for share in COPIES:
        size_bytes = max(1, int(share * l2_bytes) // 1024) * 1024
        costs[f"copy: {size_bytes} bytes"] = partial(_copy, probe, size_bytes)
    costs["fp32 peak"] = lambda: _peak(job, probe)
    return costs


def _chains(chains: Any) -> Mapping[str, Any]:
    return {"times_us": chains.times_us, "each_us": chains.each_us, "start_us": chains.start_us}


def _by_host(us: float) -> Mapping[str, Any]:
    return {"us": us, "issued_from": WRAPPERS}


def _forks(probe: Probe) -> list[dict[str, float]]:
    return [
        {"branches": branches, "depth": depth, "us": probe.fork_and_join_us(branches, depth)}
        for branches in BRANCHES
        for depth in DEPTHS
    ]


def _placement(probe: Probe) -> Mapping[str, Any]:
    """Placement of blocks, of grids alone and of two concurrent ones, and the number of multiprocessors."""
    from gpu_report_probe import MANY_BLOCKS

    multiprocessors = len(set(probe.placement(MANY_BLOCKS, THREADS)))
    grids = sorted({1, max(1, multiprocessors // 2), multiprocessors, multiprocessors + 1, 2 * multiprocessors})
    alone = {blocks: probe.placement(blocks, THREADS) for blocks in grids}
    beside = {blocks: probe.placement_beside(blocks, THREADS) for blocks in grids}
    shared = {blocks: len(set(first) & set(second)) for blocks, (first, second) in beside.items()}
    return {"multiprocessors": multiprocessors, "shared": shared, "sms": {"alone": alone, "beside": beside}}


def _copy(probe: Probe, size_bytes: int) -> Mapping[str, Any]:
    return {"bytes": size_bytes, "gbps": probe.copy_gbps(size_bytes)}


def _peak(job: Job, probe: Probe) -> Mapping[str, Any]:
    from gpu_report_probe import MANY_BLOCKS

    multiprocessors = len(set(probe.placement(MANY_BLOCKS, THREADS)))
    steps = DRY_STEPS if job.dry else PEAK_STEPS
    return {"tflops": probe.fp32_tflops(PEAK_BLOCKS * multiprocessors, steps)}


def _convolution() -> Any:
    """A small convolution, so that the host does not wait for the device."""
    from iossim.backends.cupy_cudnn.convolution import Convolution, TensorLayout

    image = TensorLayout((1, 16, 8, 8), (1024, 64, 8, 1))
    weight = TensorLayout((16, 16, 1, 1), (16, 1, 1, 1))
    return Convolution(image, weight, image, (0, 0), (0, 0), (1, 1), (1, 1))
