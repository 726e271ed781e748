"""Check of a deployment beside ONNX Runtime's defaults: whether the outputs are equal, and which way is fastest.

All sessions exist at once, and rounds are interleaved, so that a slowdown of the machine affects all of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.backends.onnxruntime_cpu.measuring import time_programs
from iossim.backends.onnxruntime_cpu.program import session_program
from iossim.base.errors import Progress, ignore
from iossim.base.threads import usable_cores
from iossim.deploy.folder import Deployment
from iossim.deploy.open_model import shapes_of, spelled
from iossim.deploy.runtime import open_session, session_options
from iossim.execution.backend import Timing
from iossim.execution.made_inputs import made_arrays
from iossim.execution.measured_run import MeasuredRow, measured_rows, ratio_of
from iossim.execution.tolerance import largest_difference, tolerance
from iossim.ir.graph import Graph
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.models.onnx.export import write_onnx

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

#: Names of the ways that are timed.
DEFAULT = "model, default"
PARALLEL = "model, ORT_PARALLEL"
THREADS = "deployed, intra-op threads"
SEQUENTIAL = "deployed, one thread"
STREAMS = "deployed, streams"


@dataclass(frozen=True)
class DeploymentCheck:
    """Ways side by side, speed-ups over the first, and the errors of outputs against the model's own.

    ``errors`` are the largest differences over the largest value, by way; for open sizes the last is at other sizes.
    ``cores`` are those available.
    """

    rows: tuple[MeasuredRow, ...]
    cores: int
    errors: Mapping[str, float]
    tolerance: float

    @property
    def equal(self) -> bool:
        return all(error <= self.tolerance for error in self.errors.values())

    @property
    def best(self) -> MeasuredRow:
        return min(self.rows, key=lambda row: row.samples.median_us)

    @property
    def ties(self) -> tuple[str, ...]:
        """Ways that may be as fast as the best: the interval of their ratio contains 1."""
        best = self.best
        others = (row for row in self.rows if row is not best)
        return tuple(row.name for row in others if ratio_of(row.samples, best.samples).low <= 1)


def check_deployment(
    deployed: Deployment,
    network: Network,
    timing: Timing,
    predicted_us: Mapping[str, float],
    progress: Progress = ignore,
) -> DeploymentCheck:
    """Run and time the folder's model and the network that it was made from, on inputs made from the timing's seed.

    Raises BackendError if ONNX Runtime refuses one of them.
    """
    cores, graph = usable_cores(), network.graph
    width = len(deployed.streams)
    inputs = made_arrays(graph.inputs, graph.types, timing.seed)
    with tempfile.TemporaryDirectory(prefix="iossim-") as folder:
        original = Path(folder) / "given.onnx"
        write_onnx(graph, original)
        ways: dict[str, tuple[Path, SessionOptions]] = {
            DEFAULT: (original, session_options(threads=len(cores))),
            PARALLEL: (original, session_options(max(2, width))),
            THREADS: (deployed.model, session_options(threads=len(cores))),
            SEQUENTIAL: (deployed.model, session_options()),
        }
        if width > 1:
            ways[STREAMS] = (deployed.model, session_options(width, partition=deployed.partition))
        sessions = {
            name: open_session(model, options, deployed.provider, optimised=model == deployed.model)
            for name, (model, options) in ways.items()
        }
        outputs = {name: _outputs(session, inputs) for name, session in sessions.items()}
        programs = [session_program(session, inputs) for session in sessions.values()]
        samples = time_programs(programs, [{}] * len(programs), timing, cores, len(cores), progress)
        expected = outputs.pop(DEFAULT)
        errors = {name: largest_difference(found, expected).relative for name, found in outputs.items()}
        if deployed.opened.others:
            way, other = list(sessions)[-1], deployed.opened.others[0]
            errors[f"{way}, {spelled(shapes_of(other))}"] = _error_at(other, sessions[way], deployed, timing.seed)
    return DeploymentCheck(
        measured_rows(dict(zip(sessions, samples, strict=True)), predicted_us, timing.seed),
        len(cores),
        errors,
        tolerance(network),
    )


def _error_at(graph: Graph, session: InferenceSession, deployed: Deployment, seed: int) -> float:
    """Largest error of the deployed model's session against the given model, at other sizes."""
    inputs = made_arrays(graph.inputs, graph.types, seed)
    with tempfile.TemporaryDirectory(prefix="iossim-") as folder:
        path = Path(folder) / "given.onnx"
        write_onnx(graph, path)
        expected = _outputs(open_session(path, session_options(), deployed.provider), inputs)
    return largest_difference(_outputs(session, inputs), expected).relative


def _outputs(session: InferenceSession, inputs: Mapping[str, Array]) -> dict[str, Array]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))
