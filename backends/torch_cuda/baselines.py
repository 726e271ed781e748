"""PyTorch without iossim: named baselines of a whole network on one stream.

Compiled is ``torch.compile`` with Inductor's default options; captured is one CUDA graph of all that the module
issues, replayed. Max-autotune is compiled by Inductor's own search, channels last, and captured. Each is the same
module, at the same inputs, with the same arithmetic; of 16 bits, all are channels last. torch is imported when
something is asked for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from iossim.backends.torch_cuda.backend import usable_device
from iossim.base.errors import OptionError, Progress, did_you_mean, ignore
from iossim.base.user_folders import code_folder
from iossim.execution.backend import BackendError, Samples, Timing
from iossim.execution.layouts import prefers_channels_last
from iossim.execution.made_inputs import made_arrays
from iossim.ir.network import Network


@dataclass(frozen=True, slots=True)
class Baseline:
    """A way in which PyTorch runs a module."""

    compiled: bool
    captured: bool
    autotuned: bool = False


BASELINES = {
    "torch-eager": Baseline(False, False),
    "torch-cuda-graph": Baseline(False, True),
    "torch-compile": Baseline(True, False),
    "torch-compile-cuda-graph": Baseline(True, True),
    "torch-max-autotune": Baseline(True, True, autotuned=True),
}


def baseline_names(device: str) -> list[str]:
    """The baselines that run on a device, ``cpu`` or ``cuda``; raises BackendError for one that cannot be used."""
    place = usable_device(device)
    return [name for name, baseline in BASELINES.items() if place == "cuda" or not baseline.captured]


def measure_baselines(
    network: Network, names: Sequence[str], timing: Timing, device: str, progress: Progress = ignore
) -> dict[str, Samples]:
    """Prepare each baseline, then time all in interleaved rounds.

    What is captured is timed by events and ends with its last kernel; all else by the host's clock, until it has
    waited. ``conditions`` of each say how many seconds its preparation took (``prepare_s``: compiling, cuDNN's
    search, capture). Raises OptionError for an unknown name, BackendError for one that the device cannot run, for an
    op that torch does not cover, and where compiling fails.
    """
    place = usable_device(device)
    if (folder := code_folder("inductor")) is not None:  # by default it stands where anybody may have put another
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
    import torch

    from iossim.backends.torch_cuda.program import input_tensors, torch_module
    from iossim.backends.torch_cuda.tensors import arithmetic, as_channels_last
    from iossim.backends.torch_cuda.timing import Run, prepared, time_rounds

    for name in names:
        if name not in BASELINES:
            raise OptionError(f"baseline {name!r} is not known; {did_you_mean(name, BASELINES)}")
        if name not in baseline_names(place):
            raise BackendError(
                f"{name} needs CUDA, which torch cannot use here; known: {', '.join(baseline_names(place))}"
            )
    module = torch_module(network.graph, place)
    graph = network.graph
    inputs = input_tensors(graph, made_arrays(graph.inputs, graph.types, timing.seed), place)
    if prefers_channels_last(network.precision):
        module, inputs = as_channels_last(module, inputs)
    runs: dict[str, Run] = {}
    prepare_s: dict[str, float] = {}
    with arithmetic(network.precision):
        compiled = cache(lambda: torch.compile(module, fullgraph=True, dynamic=False))
        for name in names:
            baseline = BASELINES[name]
            start_s = time.perf_counter()
            body, given = module, inputs
            if baseline.autotuned:
                body, given = as_channels_last(torch_module(graph, place), inputs)
                body = torch.compile(body, fullgraph=True, dynamic=False, mode="max-autotune-no-cudagraphs")
            elif baseline.compiled:
                body = compiled()
            runs[name] = prepared(name, body, given, baseline.captured)
            prepare_s[name] = time.perf_counter() - start_s
        samples = time_rounds(list(runs.values()), timing, place, progress)
    return {
        name: replace(found, conditions={**found.conditions, "prepare_s": prepare_s[name]})
        for name, found in zip(runs, samples, strict=True)
    }
