"""A network as a ``torch.nn.Module``, what a user of PyTorch would run, and an oracle besides NumPy's; and a plan bound
to torch: its memory as one arena, each launch such a module, its queues as CUDA streams.

A graph is traced once into a ``torch.fx.GraphModule``: its ``forward`` is plain generated Python of torch's own
functions, without any work of ours between two ops. Every value is dropped after its last reader; what depends on
weights alone is computed once, while tracing.

Channel slices are torch views of the storages. Where the last op of a launch can write into given memory it does; the
result of any other (a convolution without activation) is copied there. What torch has no function for is computed on
the host inside the run, as the op's definition has it; no CUDA graph can hold that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import torch
from torch import fx

from iossim.backends.torch_cuda.operators import OnHost, Operand, apply, covers
from iossim.backends.torch_cuda.tensors import as_channels_last, dtype_of, to_tensor
from iossim.backends.torch_cuda.timing import Run
from iossim.execution.backend import remarks
from iossim.execution.layouts import ImageLayout
from iossim.execution.made_inputs import check_inputs
from iossim.execution.memory import arena_of, with_memory
from iossim.execution.plan import Copy, Launch, Plan, Queue, Queued, Record, Wait, segments
from iossim.ir.constants import Constant
from iossim.ir.graph import Graph
from iossim.ir.network import Network
from iossim.ir.op import Array

#: Tensors on the device that stand for constants of a network.
Weights = Mapping[Constant, torch.Tensor]
#: torch's functions that can write into given memory, by what does so with the same arguments.
_INTO_MEMORY: dict[object, Callable[..., torch.Tensor]] = {
    function: function
    for function in (torch.add, torch.mul, torch.sigmoid, torch.clamp, torch.cat, torch.addmm, torch.mm, torch.matmul)
} | {torch.relu: lambda x, out: torch.clamp(x, min=0, out=out)}


def torch_module(graph: Graph, device: str = "cpu", weights: Weights = MappingProxyType({})) -> fx.GraphModule:
    """The module whose ``forward`` takes the graph's inputs in order and returns a tuple of its outputs.

    Weights are buffers on ``device``: the tensor that ``weights`` has for one, else a copy. Raises BackendError naming
    a value whose element type torch does not have.
    """
    tracer = fx.Tracer()  # it makes a buffer of every tensor that is at hand where a traced function reads one
    tracer.root, tracer.graph, tracer.tensor_attrs = torch.nn.Module(), fx.Graph(), {}
    values: dict[str, Operand] = {
        name: tracer.create_proxy("placeholder", f"input{index}", (), {}) for index, name in enumerate(graph.inputs)
    }
    for name, constant in graph.constants.items():
        dtype_of(name, constant.type)
        values[name] = weights[constant].detach() if constant in weights else to_tensor(constant.load(), device)
    for node in graph.nodes:
        for name, value in zip(node.outputs, graph.output_types(node), strict=True):
            dtype_of(name, value)
        made = apply(node.op, [values[name] for name in node.inputs], graph.input_types(node))
        values.update(zip(node.outputs, made, strict=True))
    tracer.graph.output(tuple(tracer.create_arg(values[name]) for name in graph.outputs))
    return fx.GraphModule(tracer.root, tracer.graph).to(device).eval()


def on_host(network: Network) -> Iterator[str]:
    """Remarks on the ops that torch does not cover."""
    reasons = ((node, covers(node.op, network.graph.input_types(node))) for node in network.graph.nodes)
    told = ((node.name, getattr(node.op, "op_type", node.op.kind), reason) for node, reason in reasons if reason)
    return remarks(network.name, told)


def input_tensors(graph: Graph, inputs: Mapping[str, Array], device: str) -> list[torch.Tensor]:
    """Tensors for the graph's inputs, in order; raises GraphError where ``inputs`` are not the graph's."""
    check_inputs(inputs, {name: graph.types[name] for name in graph.inputs})
    return [to_tensor(inputs[name], device) for name in graph.inputs]


def launch_module(
    graph: Graph, device: str, channels_last: bool = False, weights: Weights = MappingProxyType({})
) -> fx.GraphModule:
    """The module of a launch: ``forward`` takes its inputs, then a tensor for each output, which it fills.

    With ``channels_last`` its filters are copies with their channels innermost. Other weights are those of
    :func:`torch_module`.
    """
    module = torch_module(graph, device, weights)
    if channels_last:
        module, _ = as_channels_last(module)
    traced = module.graph
    (end,) = (node for node in traced.nodes if node.op == "output")
    first = next(node for node in traced.nodes if node.op != "placeholder")
    with traced.inserting_before(first):
        targets = [traced.placeholder(f"target{index}") for index in range(len(graph.outputs))]
    filled: set[fx.Node] = set()
    for value, target in zip(end.args[0], targets, strict=True):
        into = _INTO_MEMORY.get(value.target)
        if into is not None and value not in filled:
            value.target, value.kwargs = into, {**value.kwargs, "out": target}
            filled.add(value)
        else:
            with traced.inserting_before(end):
                traced.call_method("copy_", (target, value))
    end.args = ((),)
    module.recompile()
    return module


#: Issues one command.
Step = Callable[[], object]


class TorchProgram:
    """A plan with memory of its own on ``device``, ready to run any number of times.

    ``module_of`` gives the module of a launch, so that plans share weights. ``tensors`` holds each buffer, of images
    as ``layout`` says.
    """

    def __init__(
        self, plan: Plan, device: str, module_of: Callable[[Launch], fx.GraphModule], layout: ImageLayout
    ) -> None:
        plan = with_memory(plan)
        self.plan = plan
        self.on_cuda = device == "cuda"
        arena = torch.zeros(max(1, plan.arena_bytes), dtype=torch.uint8, device=device)
        self.tensors = dict(views(plan, arena, layout))
        self._streams = {queue: torch.cuda.Stream() for queue in plan.queues} if self.on_cuda else {}
        recorded = [command.event for command in plan.commands if isinstance(command, Record)]
        self._events = {event: torch.cuda.Event() for event in recorded} if self.on_cuda else {}
        self._waits_inside = False
        self._segments = [[self._step(command, module_of) for command in segment] for segment in segments(plan)]
        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self) -> None:
        """Issue all commands, and wait where the plan does; a graph is issued to the current stream, without a wait."""
        if self._graph is not None:
            self._graph.replay()
            return
        if self.on_cuda and self._waits_inside:  # no graph in the caller's stream, in which inputs are written
            torch.cuda.synchronize()
        for segment in self._segments:
            for step in segment:
                step()
            if self.on_cuda:
                torch.cuda.synchronize()

    @property
    def timed(self) -> Run:
        """The run that is timed: where it is one CUDA graph a replay, without the host."""
        return Run(self.run) if self._graph is None else Run(self._graph.replay, replay=True)

    def capture(self) -> None:
        """From now on :meth:`run` replays one CUDA graph, which a plan of the graph engine is; not with host ops."""
        self.run()  # lazy initialisation and cuDNN's search may not happen in a capture
        if self._waits_inside:
            return
        (steps,) = self._segments
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on asking for memory meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            # All streams of the plan are part of the capture: they fork off its own, and join it at the end.
            captured = torch.cuda.current_stream()
            for stream in self._streams.values():
                stream.wait_stream(captured)
            for step in steps:
                step()
            for stream in self._streams.values():
                captured.wait_stream(stream)
        self._graph = graph

    def _step(self, command: Queued, module_of: Callable[[Launch], fx.GraphModule]) -> Step:
        match command:
            case Launch():
                module = module_of(command)
                self._waits_inside |= any(isinstance(part, OnHost) for part in module.children())
                forward = module.forward
                operands = [self.tensors[name] for name in (*command.reads, *command.writes)]
                return self._on(command.queue, lambda: forward(*operands))
            case Copy():
                source, target = self.tensors[command.source], self.tensors[command.target]
                return self._on(command.queue, lambda: target.copy_(source))
            case Record() | Wait() if self.on_cuda:
                event, stream = self._events[command.event], self._streams.get(command.queue)
                if stream is None:  # a queue that runs nothing
                    return lambda: None
                waits = isinstance(command, Wait)
                return (lambda: stream.wait_event(event)) if waits else (lambda: event.record(stream))
            case _:
                return lambda: None  # in the order of issue nothing is left to wait for

    def _on(self, queue: Queue, work: Step) -> Step:
        """``work`` on the stream of a queue; without streams as it is."""
        if not self.on_cuda:
            return work
        stream = self._streams[queue]

        def issue() -> None:
            with torch.cuda.stream(stream):
                work()

        return issue


def views(plan: Plan, arena: torch.Tensor, layout: ImageLayout) -> Iterator[tuple[str, torch.Tensor]]:
    """A tensor for each buffer: storages in the arena (bytes), views in storages."""
    storages: dict[str, torch.Tensor] = {}
    for storage in plan.storages:
        flat, shape = arena[arena_of(plan, storage)].view(dtype_of(storage.name, storage.type)), storage.type.shape
        if layout.storage(plan, storage.name):
            storages[storage.name] = torch.movedim(flat.view((shape[0], *shape[2:], shape[1])), -1, 1)
        else:
            storages[storage.name] = flat.view(shape)
    for name in plan.buffers:
        region = plan.region(name)
        yield name, storages[region.storage][region.box.selection]
