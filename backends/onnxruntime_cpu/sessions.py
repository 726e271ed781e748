"""ONNX Runtime sessions of units: one for each distinct work with the same weights, kept while they are in use.

A session holds one unit, with NCHW at both ends, since what stands between units is the plan's. Inside it ONNX Runtime
may block the channels of convolutions (NCHWc), which makes wide kernels faster and costs a reordering at both ends; so
there are two algorithms, and which is faster depends on the unit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from functools import cache
from typing import Any

from iossim.base.errors import did_you_mean, first_line
from iossim.execution.backend import BackendError
from iossim.execution.plan import Launch
from iossim.ir.network import Network
from iossim.models.onnx.export import export_merged, export_unit
from iossim.schedule.strategy import Strategy

#: Channels blocked inside the session, and plain: ONNX Runtime's optimisation levels "all" and "extended".
BLOCKED, PLAIN = "nchwc", "nchw"
ALGORITHMS = (BLOCKED, PLAIN)
#: Sessions are dropped, the one unused longest first, once the weights of all pass this.
KEPT_WEIGHT_BYTES = 1 << 30


class Sessions:
    """Makes sessions whose ops run on ``threads`` threads, and keeps them."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._weight_bytes = 0
        #: Sessions made so far: what tests see that nothing is made twice, or while a clock runs.
        self.made = 0

    def session(self, network: Network, launch: Launch) -> Any:
        """The session that runs a launch; its inputs and outputs are those of the launch, in order.

        Equal units share it if they have the same weights. Raises BackendError for an unknown algorithm and for what ONNX
        Runtime does not compute, GraphError for a graph without its weights, ScheduleError for units that do not merge.
        """
        algorithm = launch.algorithm or BLOCKED
        if algorithm not in ALGORITHMS:
            raise BackendError(
                f"algorithm {algorithm!r} of {launch} is not known; {did_you_mean(algorithm, ALGORITHMS)}"
            )
        units = [network.unit_index[name] for name in launch.units]
        constants = network.graph.constants
        weights = tuple(
            constants[value]
            for unit in units
            for node in network.unit_nodes(network.units[unit])
            for value in node.inputs
            if value in constants
        )
        key = (launch.strategy, tuple(network.signatures[unit] for unit in units), weights, algorithm)
        if key not in self._kept:
            made = self._make(network, launch, units, algorithm)
            self._keep(key, made, sum(constant.type.bytes for constant in weights))
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def _make(self, network: Network, launch: Launch, units: Sequence[int], algorithm: str) -> Any:
        import onnxruntime

        if launch.strategy is Strategy.MERGE:
            model = export_merged(network, units)
        else:
            (unit,) = units
            model = export_unit(network, network.units[unit])
        _share_arena()
        self.made += 1
        try:
            return onnxruntime.InferenceSession(
                model.SerializeToString(), self._options(algorithm), providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its exceptions have no base class of their own
            raise BackendError(f"ONNX Runtime cannot run {'+'.join(launch.units)}: {first_line(error)}") from error

    def _options(self, algorithm: str) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        levels = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = (
            levels.ORT_ENABLE_ALL if algorithm == BLOCKED else levels.ORT_ENABLE_EXTENDED
        )
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.log_severity_level = 4
        # A thread that spins while it has nothing to do takes its core from another stream.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        options.add_session_config_entry("session.use_env_allocators", "1")
        return options

    def _keep(self, key: Hashable, session: Any, weight_bytes: int) -> None:
        self._kept[key] = session, weight_bytes
        self._weight_bytes += weight_bytes
        while self._weight_bytes > KEPT_WEIGHT_BYTES and len(self._kept) > 1:
            _, (_, dropped) = self._kept.popitem(last=False)
            self._weight_bytes -= dropped


@cache
def _share_arena() -> None:
    """All sessions of the process work in one memory arena, which grows by what is asked for and no more.

    Hundreds of sessions with an arena each would take several times the memory of the largest.
    """
    import onnxruntime

    kind = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    as_requested = 1
    onnxruntime.create_and_register_allocator(kind, onnxruntime.OrtArenaCfg({"arena_extend_strategy": as_requested}))
