"""The first section of ``gpu_report.py``, some seconds: does a convolution run at all, and what machine is this?

One convolution with bias and activation runs in each way that there is: by one call of the library and with its
epilogue apart, captured as a graph and call by call. The backend fills the memory of a plan with NaNs before the run
whose outputs are read, so that nothing but that run can have made them.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gpu_report_job import ENGINES, Job
from gpu_report_package import ROOT
from gpu_report_plan import PLAIN_DTYPE

if TYPE_CHECKING:
    from iossim.execution.backend import Backend, Choice
    from iossim.ir.network import Network

#: Channels, height and width of the convolution.
CHANNELS, SIZE = 64, 28
CONVOLUTION = "conv"


def section_first(job: Job) -> None:
    """One convolution in every way, then the facts of the machine; what imports PyTorch comes last."""
    from iossim.backends.numpy_reference.execute import numpy_outputs
    from iossim.execution.made_inputs import made_arrays

    for dtype in job.dtypes:
        network = one_convolution(dtype)
        inputs = made_arrays(network.graph.inputs, network.graph.types)
        expected = numpy_outputs(network, inputs)
        for engine in ENGINES:
            item = CONVOLUTION if dtype == PLAIN_DTYPE else f"{CONVOLUTION} in {dtype}"
            with job.told(f"{item}, {engine} engine"):
                backend = job.backend_of(engine, dtype)
                for kind, choice in _ways(backend, network).items():
                    with job.told(f"{item}, {kind}, {engine} engine"):
                        _run(job, item, network, backend, kind, choice, inputs, expected)
    with job.told("facts"):
        _facts(job)


def one_convolution(dtype: str = PLAIN_DTYPE) -> Network:
    """A Conv-Relu of usual size."""
    from iossim.ir.builder import GraphBuilder
    from iossim.ir.ops.unary import Relu
    from iossim.ir.types import Precision

    builder = GraphBuilder("one_convolution", Precision(dtype))
    x = builder.input("x", (1, CHANNELS, SIZE, SIZE))
    with builder.block("only"), builder.unit(CONVOLUTION, "Conv-Relu"):
        x = builder.add(Relu(), builder.conv(x, CHANNELS, kernel=3, padding=1))
    return builder.network([x])


def _ways(backend: Backend, network: Network) -> dict[str, Choice]:
    """The fastest way of each kind; the backend's own where it knows but one."""
    from iossim.execution.backend import Choice, TimesAlgorithms

    if not isinstance(backend, TimesAlgorithms):
        return {"own": Choice()}
    kinds: dict[str, Choice] = {}
    for found in backend.algorithms(network, CONVOLUTION):  # the fastest first
        kinds.setdefault(found.algorithm.partition(":")[0], Choice(found.algorithm, found.workspace_bytes))
    return kinds


def _run(
    job: Job, item: str, network: Network, backend: Backend, kind: str, choice: Choice, inputs: Any, expected: Any
) -> None:
    from iossim.execution.backend import context_of
    from iossim.execution.lower import lower_stage
    from iossim.execution.memory import plan_memory
    from iossim.execution.tolerance import largest_difference, tolerance
    from iossim.schedule.batch import Strategy

    engine = backend.context.engine
    plan = lower_stage(
        network, [[0]], Strategy.CONCURRENT, engine, in_place=True, choices=lambda units, strategy, variant="": choice
    )
    found, most = largest_difference(backend.execute(network, plan_memory(plan), inputs), expected), tolerance(network)
    error = found.relative
    # JSON has no infinity: outputs that are not finite have no error.
    known = {"output_error": error} if error < float("inf") else {}
    job.record(
        "convolution", engine=engine, dtype=backend.context.precision, layout=context_of(backend, network).layout, way=kind,
        algorithm=choice.algorithm, right=error <= most, **known
    )  # fmt: skip
    if error > most:
        job.fail(f"{item}, {kind}, {engine} engine", f"outputs are wrong by {error:.1e} of the largest value: {found}")


def _facts(job: Job) -> None:
    from iossim.cli import doctor

    libraries = doctor.libraries()
    facts: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": doctor.machine(),
        "gpus": doctor.gpus(),
        "libraries": libraries,
        "missing": [name for name, version in libraries.items() if version is None],
        "commit": _commit(),
    }
    # In a process of its own: asking for PyTorch's backend loads a cuDNN that need not be the other's.
    asked = "import json; from iossim.cli import doctor; print(json.dumps(doctor.backends()))"
    done = subprocess.run([sys.executable, "-P", "-c", asked], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"backends cannot be asked what they lack: {done.stderr.strip().splitlines()[-1]}")
    import json

    facts["backends"] = json.loads(done.stdout.splitlines()[-1])
    job.record("device", **facts)
    for backend in facts["backends"]:
        print(f"{backend['name']}: {backend['missing'] or 'usable'}")


def _commit() -> str:
    """The checkout's commit, where git tells it."""
    try:
        command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
