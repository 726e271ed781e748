"""What a user of PyTorch gets without iossim: named baselines of a whole network, on one stream.

Compiled is ``torch.compile`` with Inductor's default options; captured is one CUDA graph of all that the module issues,
replayed, which takes the host out of the time. Each is the same module, at the same inputs, with the same arithmetic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from iossim.backends.torch_cuda.module import torch_module
from iossim.backends.torch_cuda.tensors import arithmetic, device_of, to_tensor
from iossim.backends.torch_cuda.timing import Run, time_rounds
from iossim.errors import OptionError, did_you_mean
from iossim.execution.backend import BackendError, Samples, Timing
from iossim.ir.graph import Graph
from iossim.ir.network import Network
from iossim.ir.types import TensorType

#: Runs before a capture: lazy initialisation and cuDNN's search for algorithms may not happen inside one.
_RUNS_BEFORE_CAPTURE = 3


@dataclass(frozen=True, slots=True)
class Baseline:
    """How PyTorch runs a module."""

    compiled: bool
    captured: bool


BASELINES = {
    "torch-eager": Baseline(False, False),
    "torch-cuda-graph": Baseline(False, True),
    "torch-compile": Baseline(True, False),
    "torch-compile-cuda-graph": Baseline(True, True),
}


def baseline_names(device: str | None = None) -> list[str]:
    """The baselines that run on a device (``cpu`` or ``cuda``; by default CUDA where it can be used).

    Raises BackendError for a device that cannot be used.
    """
    place = device_of(device)
    return [name for name, baseline in BASELINES.items() if place == "cuda" or not baseline.captured]


def measure_baselines(
    network: Network,
    names: Sequence[str] | None = None,
    timing: Timing | None = None,
    device: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Samples]:
    """Prepare each baseline, then time all in interleaved rounds; by default every one that runs on the device.

    ``conditions`` of each say how many seconds its preparation took (``prepare_s``: compiling, cuDNN's search, capture).
    Raises OptionError for an unknown name, BackendError for one that the device cannot run, for an op that torch does
    not cover, and where compiling fails.
    """
    place = device_of(device)
    chosen = baseline_names(place) if names is None else list(dict.fromkeys(names))
    for name in chosen:
        if name not in BASELINES:
            raise OptionError(f"baseline {name!r} is not known; {did_you_mean(name, BASELINES)}")
        if name not in baseline_names(place):
            raise BackendError(
                f"{name} needs CUDA, which torch cannot use here; known: {', '.join(baseline_names(place))}"
            )
    module = torch_module(network.graph, place)
    inputs = made_inputs(network.graph, place)
    runs: dict[str, Run] = {}
    prepare_s: dict[str, float] = {}
    with arithmetic(network.precision):
        compiled = torch.compile(module, fullgraph=True, dynamic=False)
        for name in chosen:
            baseline = BASELINES[name]
            start_s = time.perf_counter()
            runs[name] = _prepared(name, compiled if baseline.compiled else module, inputs, baseline.captured)
            prepare_s[name] = time.perf_counter() - start_s
        samples = time_rounds(list(runs.values()), timing or Timing(), place, progress)
    return {
        name: replace(found, conditions={**found.conditions, "prepare_s": prepare_s[name]})
        for name, found in zip(runs, samples, strict=True)
    }


def made_inputs(graph: Graph, device: str) -> list[torch.Tensor]:
    """Made tensors for the graph's inputs, in order."""
    return [made_noise(graph.types[name], number).to(device) for number, name in enumerate(graph.inputs)]


def made_noise(value: TensorType, seed: int) -> torch.Tensor:
    """Normal noise of a type; zeros where it is no floating-point type."""
    noise = np.random.default_rng(seed).standard_normal(value.shape, dtype=np.float32)
    return to_tensor((noise if value.dtype.is_floating else 0 * noise).astype(value.dtype.numpy))


def _prepared(name: str, module: Callable[..., object], inputs: Sequence[torch.Tensor], captured: bool) -> Run:
    """The module on fixed inputs, run once so that what happens at a first run is done."""

    def run() -> None:
        module(*inputs)

    try:
        run()
        return _captured(run) if captured else run
    except RuntimeError as error:
        # What torch.compile raises holds the whole log of a compiler.
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise BackendError(f"{name} cannot run here: {reason[0]}; leave it out") from error


def _captured(run: Run) -> Run:
    """A replay of one CUDA graph of all that ``run`` issues."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_RUNS_BEFORE_CAPTURE):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    replay: Run = graph.replay
    return replay
