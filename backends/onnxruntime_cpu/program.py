"""A plan bound for execution: memory laid out, launches bound to sessions and addresses, commands by stream.

All values are in one arena of bytes at the plan's offsets. ONNX Runtime reads and writes them in place through raw
addresses if a buffer is contiguous: whole storages, images of a batch, and channel slices of a single image. Other
boxes (channels of several images, rows, columns) have gaps, which ONNX Runtime cannot handle: they are copied from and
to memory outside the arena, in the stream and in the time of their launch.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from iossim.base.errors import ScheduleError, first_line
from iossim.execution.backend import BackendError
from iossim.execution.made_inputs import check_graph, launch_graph
from iossim.execution.memory import arrays_in
from iossim.execution.plan import ALIGNMENT_BYTES, Copy, Launch, Plan, Record, Synchronize, Wait
from iossim.ir.graph import Graph
from iossim.ir.network import Network
from iossim.ir.onnx_spelling import onnx_code
from iossim.ir.op import Array
from iossim.ir.types import FP8
from iossim.models.onnx.export import export_graph

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

#: Channels blocked inside the session, and plain: ONNX Runtime's optimisation levels "all" and "extended".
BLOCKED, PLAIN = "nchwc", "nchw"
ALGORITHMS = (BLOCKED, PLAIN)
#: Limit of the total weights of cached sessions, above which the least recently used are dropped.
KEPT_WEIGHT_BYTES = 1 << 30


class Sessions:
    """Makes sessions whose ops run on ``threads`` threads, and caches them."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._kept: OrderedDict[Hashable, tuple[InferenceSession, int]] = OrderedDict()
        self._weight_bytes = 0
        #: Number of sessions made, for tests that none is made twice, or during timing.
        self.made = 0

    def session(self, network: Network, launch: Launch) -> InferenceSession:
        """The session that runs a launch; its inputs and outputs are those of the launch, in order.

        Equal units share it if they have the same weights. Raises BackendError for ops that ONNX Runtime does not
        support, GraphError for missing weights, ScheduleError for units that do not merge.
        """
        algorithm = launch.algorithm or BLOCKED
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
            _share_arena()
            self.made += 1
            made = open_session(launch_graph(network, launch), self._options(algorithm), "+".join(launch.units))
            self._keep(key, made, sum(constant.type.bytes for constant in weights))
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def _options(self, algorithm: str) -> SessionOptions:
        import onnxruntime

        options = session_options(self._threads)
        levels = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if algorithm == BLOCKED else levels.ORT_ENABLE_EXTENDED
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        options.add_session_config_entry("session.use_env_allocators", "1")
        return options

    def _keep(self, key: Hashable, session: InferenceSession, weight_bytes: int) -> None:
        self._kept[key] = session, weight_bytes
        self._weight_bytes += weight_bytes
        while self._weight_bytes > KEPT_WEIGHT_BYTES and len(self._kept) > 1:
            _, (_, dropped) = self._kept.popitem(last=False)
            self._weight_bytes -= dropped


def session_options(threads: int) -> SessionOptions:
    """Options of a session whose ops run on ``threads`` threads, one op at a time."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    # A thread that spins while idle takes its core from another stream.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def open_session(graph: Graph, options: SessionOptions, name: str) -> InferenceSession:
    """A session of a graph on the CPU; raises BackendError as :func:`opened`."""
    # ONNX Runtime drops a ReLU before fp8 with a zero point of 0, as if that were the least number (1.32).
    off = ["ReluQuantRewrite"] if any(value.dtype in FP8 for value in graph.types.values()) else []
    model = export_graph(graph, name=name).SerializeToString()
    return opened(model, options, name, "CPUExecutionProvider", off=off)


def opened(
    model: bytes | str, options: SessionOptions, name: str, provider: str, remedy: str = "", off: Sequence[str] = ()
) -> InferenceSession:
    """A session of a model, or of the file at that path, without the optimisers that are ``off``.

    Raises BackendError where ONNX Runtime refuses it, by name.
    """
    import onnxruntime

    try:
        return onnxruntime.InferenceSession(model, options, providers=[provider], disabled_optimizers=list(off))
    except Exception as error:  # its exceptions have no base class of their own
        raise BackendError(f"ONNX Runtime cannot run {name}: {first_line(error)}{remedy}") from error


@cache
def _share_arena() -> None:
    """Let all sessions of the process use one memory arena, which grows by exactly the requested sizes.

    Hundreds of sessions with separate arenas would take several times the memory of the largest.
    """
    import onnxruntime

    kind = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    as_requested = 1
    onnxruntime.create_and_register_allocator(kind, onnxruntime.OrtArenaCfg({"arena_extend_strategy": as_requested}))


#: One step of a thread: run a session, copy, release the locks of an event or acquire one.
Step = Callable[[], object]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Segment:
    """Commands between two synchronisations: those of the host's stream, and of others by number."""

    own: tuple[Step, ...]
    others: tuple[tuple[int, tuple[Step, ...]], ...]


@dataclass(frozen=True, eq=False)
class SessionProgram:
    """A plan bound to memory, or steps that bring their own; run it with a pool of ``streams``.

    ``inputs`` and ``outputs`` are views of the arena by buffer name. ``locks`` are those of all events: one for each
    wait, held until the event is recorded. ``labels`` names steps. ``staged`` is the number of copied operands.
    """

    segments: tuple[Segment, ...]
    streams: int
    inputs: Mapping[str, Array] = field(default_factory=dict)
    outputs: Mapping[str, Array] = field(default_factory=dict)
    locks: tuple[threading.Lock, ...] = ()
    labels: Mapping[Step, str] = field(default_factory=dict)
    staged: int = 0


def session_program(session: InferenceSession, inputs: Mapping[str, Array]) -> SessionProgram:
    """A session as one step of one stream, on arrays in the memory of the host."""
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_cpu_input(name, array)
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return SessionProgram((Segment((partial(session.run_with_iobinding, binding),), ()),), 1)


def make_arena(size_bytes: int) -> Bytes:
    """Memory aligned so that any offset of a plan stays aligned, with its pages allocated."""
    memory = np.zeros(size_bytes + ALIGNMENT_BYTES, dtype=np.uint8)
    memory.fill(0)  # the kernel allocates pages at their first write, not for zeros
    begin = -memory.ctypes.data % ALIGNMENT_BYTES
    return memory[begin : begin + size_bytes]


def bind(plan: Plan, network: Network, sessions: Sessions, arena: Bytes) -> SessionProgram:
    """Prepare ``plan`` (its memory planned) to run in ``arena``, which has at least its size.

    Raises ScheduleError for another graph, or a wait for an event not recorded before.
    """
    check_graph(plan, network)
    return _Binder(plan, network, sessions, arrays_in(plan, arena)).program()


@dataclass
class _Binder:
    plan: Plan
    network: Network
    sessions: Sessions
    views: Mapping[str, Array]
    locks: list[threading.Lock] = field(default_factory=list)
    labels: dict[Step, str] = field(default_factory=dict)
    #: Steps of equal launches: a plan repeated many times binds each once.
    launches: dict[Launch, tuple[Step, ...]] = field(default_factory=dict)
    staged: int = 0

    def program(self) -> SessionProgram:
        # A queue without launches may still forward an event between queues with launches.
        queues = {command.queue for command in self.plan.commands if not isinstance(command, Synchronize)}
        streams = {queue: stream for stream, queue in enumerate(sorted(queues))}
        releases, takes = self._events()
        segments: list[Segment] = []
        steps: defaultdict[int, list[Step]] = defaultdict(list)
        for index, command in enumerate(self.plan.commands):
            match command:
                case Synchronize():
                    segments += _segment(steps)
                    steps.clear()
                case Launch():
                    steps[streams[command.queue]] += self._launch(command)
                case Copy():
                    steps[streams[command.queue]].append(self._copy(command))
                case Record():
                    steps[streams[command.queue]] += releases[command.event]
                case Wait():
                    steps[streams[command.queue]].append(takes[index])
        segments += _segment(steps)
        return SessionProgram(
            tuple(segments),
            max(1, len(streams)),
            {name: self.views[name] for name in self.plan.inputs},
            {name: self.views[name] for name in self.plan.outputs},
            tuple(self.locks),
            self.labels,
            self.staged,
        )

    def _events(self) -> tuple[defaultdict[int, list[Step]], dict[int, Step]]:
        """The steps of each event's record, and the step of each wait by the command's index.

        Each wait has a separate lock, free only between the record and the wait.
        """
        releases: defaultdict[int, list[Step]] = defaultdict(list)
        takes: dict[int, Step] = {}
        recorded: set[int] = set()
        for index, command in enumerate(self.plan.commands):
            if isinstance(command, Record):
                recorded.add(command.event)
            elif isinstance(command, Wait):
                if command.event not in recorded:
                    raise ScheduleError(
                        f"queue {command.queue} waits for event {command.event}, which is recorded nowhere before; "
                        "record it first"
                    )
                lock = threading.Lock()
                lock.acquire()
                self.locks.append(lock)
                releases[command.event].append(lock.release)
                takes[index] = lock.acquire
        return releases, takes

    def _launch(self, launch: Launch) -> tuple[Step, ...]:
        """Run a session on its buffers, with copies before and after for those that are not contiguous."""
        if launch in self.launches:
            return self.launches[launch]
        session = self.sessions.session(self.network, launch)
        binding = session.io_binding()
        before: list[Step] = []
        after: list[Step] = []
        for slot, name in zip(session.get_inputs(), launch.reads, strict=True):
            view = self.views[name]
            operand = self._operand(view)
            if operand is not view:
                before.append(partial(np.copyto, operand, view))
            binding.bind_input(slot.name, "cpu", 0, self._element(name), operand.shape, operand.ctypes.data)
        for slot, name in zip(session.get_outputs(), launch.writes, strict=True):
            view = self.views[name]
            operand = self._operand(view)
            if operand is not view:
                after.append(partial(np.copyto, view, operand))
            binding.bind_output(slot.name, "cpu", 0, self._element(name), operand.shape, operand.ctypes.data)
        run: Step = partial(session.run_with_iobinding, binding)
        steps = (*before, run, *after)
        self.labels.update(dict.fromkeys(steps, str(launch)))
        self.launches[launch] = steps
        return steps

    def _operand(self, view: Array) -> Array:
        """The view itself if it is contiguous, else memory of its shape."""
        if view.flags.c_contiguous:
            return view
        self.staged += 1
        return np.zeros(view.shape, view.dtype)

    def _element(self, name: str) -> int | np.dtype[np.generic]:
        """A buffer's element type: as NumPy has it, or by ONNX's number."""
        dtype = self.plan.buffers[name].type.dtype
        return onnx_code(dtype) if dtype in FP8 else dtype.numpy

    def _copy(self, copy: Copy) -> Step:
        step: Step = partial(np.copyto, self.views[copy.target], self.views[copy.source])
        self.labels[step] = str(copy)
        return step


def _segment(steps: Mapping[int, Sequence[Step]]) -> list[Segment]:
    """The segment of the commands collected by stream; empty if there are none."""
    if not any(steps.values()):
        return []
    others = tuple((stream, tuple(steps[stream])) for stream in sorted(steps) if stream and steps[stream])
    return [Segment(tuple(steps.get(0, ())), others)]
