"""The first section of ``gpu_report.py``, some seconds: whether a convolution runs, and facts of the machine.

One convolution with bias and activation runs in each available way: by one call of the library and with its epilogue
apart, captured as a graph and call by call; then, in 16 bits, one attention. The backend fills the memory of a plan
with NaNs before the run whose outputs are read, so that only that run can have made them. Each way is recorded at once.
"""

from __future__ import annotations

import json
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
#: Tokens, heads and features of a head of the attention; a dry run has fewer tokens and heads, since a CPU is slow.
TOKENS, HEADS, FEATURES = 128, 12, 64
DRY_TOKENS, DRY_HEADS = 16, 2


def section_first(job: Job) -> None:
    """Facts of the machine, one convolution in every way, one attention, then what backends lack (imports PyTorch)."""
    with job.told("facts"):
        _facts(job)
    for dtype in job.dtypes:
        item = CONVOLUTION if dtype == PLAIN_DTYPE else f"{CONVOLUTION} in {dtype}"
        _in_every_way(job, "convolution", item, one_convolution(dtype), dtype)
    for dtype in job.dtypes:
        network = one_attention(dtype, *((DRY_TOKENS, DRY_HEADS) if job.dry else ()))
        if network.precision.storage.bytes == 2:
            _in_every_way(job, "attention", f"attention in {dtype}", network, dtype)
    with job.told("what backends lack"):
        _backends(job)


def _in_every_way(job: Job, kind: str, item: str, network: Network, dtype: str) -> None:
    """A network of one unit on both engines, in the ways found by the first engine's backend."""
    from iossim.backends.numpy_reference.backend import numpy_outputs
    from iossim.execution.made_inputs import made_arrays

    if job.left_s <= 0:
        job.leave(item)
        return
    inputs = made_arrays(network.graph.inputs, network.graph.types)
    expected = numpy_outputs(network, inputs)
    ways: dict[str, Choice] = {}
    for engine in ENGINES:
        with job.told(f"{item}, {engine} engine"):
            backend = job.backend_of(engine, dtype)
            ways = ways or _ways(backend, network)
            for way, choice in ways.items():
                with job.told(f"{item}, {way}, {engine} engine"):
                    _run(job, kind, item, network, backend, way, choice, inputs, expected)


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


def one_attention(dtype: str, length: int = TOKENS, heads: int = HEADS) -> Network:
    """The attention of a layer of BERT, whose heads are side by side in its tokens."""
    from iossim.ir.builder import GraphBuilder
    from iossim.ir.ops.matmul import MatMul
    from iossim.ir.ops.nary import Mul
    from iossim.ir.ops.reshape import Reshape, Transpose
    from iossim.ir.ops.softmax import Softmax
    from iossim.ir.types import Precision

    builder = GraphBuilder("one_attention", Precision(dtype))
    tokens = [builder.input(name, (1, length, heads * FEATURES)) for name in ("queries", "keys", "values")]
    with builder.block("only"), builder.unit("attention", "Attention"):
        apart = [builder.add(Reshape((1, length, heads, FEATURES)), each) for each in tokens]
        moved = ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
        q, k, v = (builder.add(Transpose(axes), each) for axes, each in zip(moved, apart, strict=True))
        scores = builder.add(Mul(), builder.add(MatMul(), q, k), builder.constant("scale", (1,), value=FEATURES**-0.5))
        y = builder.add(Transpose((0, 2, 1, 3)), builder.add(MatMul(), builder.add(Softmax(), scores), v))
    return builder.network([y])


def _ways(backend: Backend, network: Network) -> dict[str, Choice]:
    """Fastest way of each kind; the backend's own if it knows only one."""
    from iossim.execution.backend import Choice, TimesAlgorithms

    if not isinstance(backend, TimesAlgorithms):
        return {"own": Choice()}
    kinds: dict[str, Choice] = {}
    for found in backend.algorithms(network, network.units[0].name):  # fastest first
        kinds.setdefault(found.name.partition(":")[0], Choice(found.name, found.workspace_bytes))
    return kinds


def _run(
    job: Job,
    kind: str,
    item: str,
    network: Network,
    backend: Backend,
    way: str,
    choice: Choice,
    inputs: Any,
    expected: Any,
) -> None:
    from iossim.execution.backend import context_of
    from iossim.execution.lower import lower_stage
    from iossim.execution.measured_run import largest_difference, tolerance
    from iossim.execution.memory import plan_memory
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
        kind, engine=engine, dtype=backend.context.precision, layout=context_of(backend, network).layout, way=way,
        algorithm=choice.algorithm, right=error <= most, **known
    )  # fmt: skip
    if error > most:
        job.fail(f"{item}, {way}, {engine} engine", f"outputs are wrong by {error:.1e} of the largest value: {found}")


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
    job.record("device", **facts)


def _backends(job: Job) -> None:
    """Missing parts of backends, in a separate process: a check of PyTorch's backend loads its own cuDNN."""
    asked = "import json; from iossim.cli import doctor; print(json.dumps(doctor.backends()))"
    command, most_s = [sys.executable, "-P", "-c", asked], max(5.0, job.left_s)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=most_s)
    if done.returncode:
        raise RuntimeError(f"backends cannot be asked what they lack: {done.stderr.strip().splitlines()[-1]}")
    found = json.loads(done.stdout.splitlines()[-1])
    job.record("backends", backends=found)
    for backend in found:
        print(f"{backend['name']}: {backend['missing'] or 'usable'}")


def _commit() -> str:
    """The checkout's commit, if git is available."""
    try:
        command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
