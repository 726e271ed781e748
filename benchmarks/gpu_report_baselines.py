"""Sections of ``gpu_report.py`` that run networks by PyTorch: eager, as a CUDA graph, and compiled.

They have their own processes: PyTorch brings a cuDNN that may differ from the backend's. Code compiled by Inductor and
Triton is kept in the folder of results, so that a section that ran out of time can continue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from gpu_report_job import Job, load_network, probe_torch
from gpu_report_plan import PLAIN_DTYPE
from gpu_report_runs import keep_run, kept_reference, timing_of_networks

if TYPE_CHECKING:
    from iossim.ir.network import Network
    from iossim.ir.op import Array

PLAIN = ("torch-eager", "torch-cuda-graph")
COMPILED = ("torch-compile", "torch-compile-cuda-graph")
#: These are compiled in their own sections, which are ended at their limit: compilation tries kernels for minutes.
AUTOTUNED = ("torch-max-autotune",)
#: With less time left it is not begun.
AUTOTUNE_S = 120.0


def section_baselines(job: Job) -> None:
    """PyTorch's eager mode and CUDA graph of every network, and the reference outputs of its schedules."""
    from iossim.backends.torch_cuda.backend import missing
    from iossim.execution.made_inputs import made_arrays

    if "not installed" in (reason := missing()):
        job.skip("baselines of PyTorch", reason)
        return
    import torch

    from iossim.backends.torch_cuda.program import input_tensors, torch_module
    from iossim.backends.torch_cuda.tensors import arithmetic, to_array

    if not job.dry:
        job.probes.append(probe_torch)
    with job.told("facts of PyTorch"):
        job.record("torch", **_facts(torch))

    def torch_outputs(network: Network, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        with arithmetic(network.precision):
            made = torch_module(network.graph)(*input_tensors(network.graph, inputs, "cpu"))
        return dict(zip(network.graph.outputs, map(to_array, made), strict=True))

    for dtype, model in product(job.dtypes, job.models):
        item = model if dtype == PLAIN_DTYPE else f"{model} in {dtype}"
        if job.left_s <= 0:
            job.leave(f"baselines of {item}")
            continue
        network = load_network(job, model, dtype)
        if network.precision.storage.bytes > 2:  # 16-bit outputs are compared with NumPy's, which rounds as often
            with job.told(f"reference outputs of {item}"):
                kept_reference(job, torch_outputs)(network, made_arrays(network.graph.inputs, network.graph.types))
        measure_together(job, model, network, PLAIN)


def section_compile(job: Job, model: str, names: Sequence[str]) -> None:
    """PyTorch's compiled baselines, which take longest to prepare; a dry run omits them."""
    from iossim.backends.torch_cuda.backend import missing

    what = f"{' and '.join(names)} of {model}"
    if job.dry:
        job.skip(what, "compiling for a CPU takes a minute")
    elif "not installed" in (reason := missing()):
        job.skip(what, reason)
    elif names == AUTOTUNED and job.left_s <= AUTOTUNE_S:
        job.leave(f"{what}: of {AUTOTUNE_S:.0f} s {max(0.0, job.left_s):.0f} are left")
    else:
        job.probes.append(probe_torch)
        measure_together(job, model, load_network(job, model), names)


def measure_together(job: Job, model: str, network: Network, names: Sequence[str]) -> None:
    """Baselines in one call, so that shared parts are compiled once, and their rounds alternate."""
    from iossim.backends.torch_cuda.backend import create
    from iossim.backends.torch_cuda.baselines import baseline_names, measure_baselines
    from iossim.execution.engine import Engine

    place = "cpu" if job.dry else "cuda"
    here = [name for name in names if name in baseline_names(place)]
    with job.told(f"{' and '.join(here)} of {model}"):
        taken = measure_baselines(network, here, timing_of_networks(job), place)
        context = create(network.precision, Engine.PAPER, {"device": place}).context
        for name, samples in taken.items():
            keep_run(job, context, model, network, name, samples, None)


def _facts(torch: Any) -> dict[str, Any]:
    cuda = bool(torch.cuda.is_available())
    facts: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "usable": cuda}
    if cuda:
        seen = torch.cuda.get_device_properties(0)
        facts |= {
            "cudnn": torch.backends.cudnn.version(),
            "name": seen.name,
            "multiprocessors": seen.multi_processor_count,
            "memory_bytes": seen.total_memory,
            "l2_bytes": getattr(seen, "L2_cache_size", None),
        }
    return facts
