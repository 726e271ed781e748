"""A unit's kernels: its ops fused into steps, and the candidates of each step.

Inside a unit, an activation behind a convolution or a matrix product is part of its epilogue, as the bias is;
neighbouring element-wise ops are one kernel, whatever their number; a concat is a kernel per term, and a term that an
element-wise chain of the unit makes is written to its place by that chain; views cost nothing. So Relu-SepConv is an
element-wise kernel (a sum included), a depthwise call and a pointwise call. A unit that is only an identity is a copy.

Consumers of a merged convolution read their slices of its channels in place, through strided tensor descriptors:
neither the merged convolution nor they pay for the separation.
"""

from __future__ import annotations

from collections.abc import Sequence

from iossim.ir.graph import Graph, Node
from iossim.ir.merging import merged_convolution
from iossim.ir.network import Network, Unit
from iossim.ir.types import TensorType
from iossim.lowering.candidates import step_candidates
from iossim.lowering.kernel import Candidate
from iossim.lowering.step import Operand, Role, Step, family

_ELEMENTWISE = (Role.ELEMENTWISE, Role.ACTIVATION)

StepCandidates = tuple[tuple[Candidate, ...], ...]


def lower_unit(network: Network, unit: Unit) -> StepCandidates:
    """For each step of a unit, in execution order, the candidates that it may run as; none for a unit of views."""
    return tuple(tuple(step_candidates(step)) for step in unit_steps(network, unit))


def lower_merged(network: Network, units: Sequence[int]) -> StepCandidates:
    """The candidates of several units as one stacked convolution; raises ScheduleError where they do not merge."""
    step = merged_step(network, units)
    return (tuple(step_candidates(step)),)


def merged_step(network: Network, units: Sequence[int]) -> Step:
    """Several units as one stacked convolution; raises ScheduleError where they do not merge."""
    merged = merged_convolution(network, units)
    x = network.graph.types[merged.input]
    extra = merged.output.elements * (bool(merged.activation) + merged.has_bias)
    return Step(
        merged.op,
        (Operand(x), Operand(merged.weight, is_weight=True)),
        (merged.output,),
        merged.op.flops((x, merged.weight), (merged.output,)) + extra,
        network.precision,
    )


def unit_steps(network: Network, unit: Unit) -> list[Step]:
    """The steps of a unit, in execution order."""
    graph = network.graph
    nodes = network.unit_nodes(unit)
    inside = {node.name: node for node in nodes}
    fused: set[str] = set()  # activations in the epilogue of a product
    steps: list[Step] = []
    for node in nodes:
        if node.name in fused:
            continue
        role = family(node.op.kind).role
        if role is Role.ANCHOR:
            steps.append(_anchor(network, node, inside, fused))
        elif role in _ELEMENTWISE:
            if _absorbing_reader(graph, node, inside) is None:
                steps.append(_chain(network, node, node.inputs, inside, fused, graph.output_types(node)))
        elif role is Role.CONCAT:
            for value in node.inputs:
                steps.append(_chain(network, node, (value,), inside, fused, [graph.types[value]]))
    if not steps and all(node.op.kind == "identity" for node in nodes):
        steps = [_chain(network, node, node.inputs, inside, fused, graph.output_types(node)) for node in nodes[:1]]
    return steps


def _anchor(network: Network, node: Node, inside: dict[str, Node], fused: set[str]) -> Step:
    """A call of its own, with the activations behind it where it has an epilogue; marks those as fused."""
    graph = network.graph
    flops = graph.work(node).flops
    outputs = graph.output_types(node)
    last = node
    while family(node.op.kind).has_epilogue:
        reader = _only_reader(graph, last, inside)
        if reader is None or family(reader.op.kind).role is not Role.ACTIVATION:
            break
        fused.add(reader.name)
        flops += graph.work(reader).flops
        outputs = graph.output_types(reader)
        last = reader
    return Step(node.op, _operands(graph, node.inputs), tuple(outputs), flops, network.precision)


def _chain(
    network: Network,
    sink: Node,
    values: Sequence[str],
    inside: dict[str, Node],
    fused: set[str],
    outputs: Sequence[TensorType],
) -> Step:
    """One kernel from ``values`` of ``sink`` and the element-wise ops of the unit that only feed it."""
    graph = network.graph
    flops = graph.work(sink).flops if family(sink.op.kind).role in _ELEMENTWISE else 0
    external: list[str] = []
    pending = list(reversed(values))
    while pending:
        value = pending.pop()
        producer = graph.producer.get(value)
        if producer is not None and producer.name not in fused and _is_absorbed(graph, producer, inside):
            flops += graph.work(producer).flops
            pending.extend(reversed(producer.inputs))
        else:
            external.append(value)
    return Step(sink.op, _operands(graph, external), tuple(outputs), flops, network.precision)


def _is_absorbed(graph: Graph, node: Node, inside: dict[str, Node]) -> bool:
    if node.name not in inside or family(node.op.kind).role not in _ELEMENTWISE:
        return False
    return _absorbing_reader(graph, node, inside) is not None


def _absorbing_reader(graph: Graph, node: Node, inside: dict[str, Node]) -> Node | None:
    """The element-wise op or concat of the unit that takes this element-wise op into its kernel, if there is one."""
    reader = _only_reader(graph, node, inside)
    if reader is None or family(reader.op.kind).role not in (*_ELEMENTWISE, Role.CONCAT):
        return None
    return reader


def _only_reader(graph: Graph, node: Node, inside: dict[str, Node]) -> Node | None:
    """The one node that reads a node's one output, once, if it is in the same unit."""
    if len(node.outputs) != 1 or node.outputs[0] in graph.outputs:
        return None
    readers = graph.consumers[node.outputs[0]]
    if len(readers) != 1 or readers[0].name not in inside or readers[0].inputs.count(node.outputs[0]) != 1:
        return None
    return readers[0]


def _operands(graph: Graph, values: Sequence[str]) -> tuple[Operand, ...]:
    return tuple(Operand(graph.types[value], value in graph.constants) for value in values)
