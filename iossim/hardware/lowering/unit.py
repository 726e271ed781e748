"""A unit's kernels: its ops fused into steps, and the candidates of each step.

Inside a unit, element-wise ops after a convolution or a matrix product are fused into its epilogue, as is the bias: an
activation, and a residual sum, which the epilogue reads; element-wise ops before a normalisation or
softmax are computed while it loads its input. Other adjacent element-wise ops are one kernel, whatever their
number, which may read one value through a lookup that permutes it, as rotary positions do; a concat is a kernel per
term, and an element-wise chain of the unit that makes a term writes it in place; views cost nothing. So Relu-SepConv is
an element-wise kernel, a depthwise call and a pointwise call. A unit that is only an identity is a copy.

An attention in several ops is one step, run by a fused kernel, or one kernel for each of its ops.

Consumers of a merged convolution read their slices of its channels in place, through strided tensor descriptors:
neither the merged convolution nor its consumers pay for the split. A runtime without views copies the parts instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from iossim.hardware.lowering.kernel import Candidate
from iossim.hardware.lowering.step import Operand, Step
from iossim.hardware.lowering.target import copy_candidates, step_candidates, target_of
from iossim.hardware.profile import DeviceProfile
from iossim.ir.graph import Node
from iossim.ir.merging import merged_convolution
from iossim.ir.network import BATCH_VIEW, Network, Unit, once_a_network
from iossim.ir.op import Op, Role
from iossim.ir.ops.unary import Identity
from iossim.ir.types import Precision, TensorType

if TYPE_CHECKING:
    from iossim.ir.attention import SpeltAttention

StepCandidates = tuple[tuple[Candidate, ...], ...]


def lower_unit(network: Network, unit: Unit, profile: DeviceProfile) -> StepCandidates:
    """The candidates of each step of a unit, in execution order; none for a unit of views."""
    return tuple(step_candidates(step, profile) for step in unit_steps(network, unit))


def lower_merged(
    network: Network, units: Sequence[int], profile: DeviceProfile, is_split: bool = False
) -> StepCandidates:
    """The candidates of several units as one stacked convolution, and of the copies of its parts if it ``is_split``.

    Raises ScheduleError if the units do not merge.
    """
    step = merged_step(network, units)
    copies = [copy_candidates(step.outputs[0], profile)] * (is_split * target_of(profile).split_copies)
    return (step_candidates(step, profile), *copies)


def merged_step(network: Network, units: Sequence[int]) -> Step:
    """Several units as one stacked convolution; raises ScheduleError if they do not merge."""
    merged = merged_convolution(network, units)
    x = network.graph.types[merged.input]
    extra = merged.output.elements * (bool(merged.activation) + merged.has_bias)
    flops = merged.op.flops((x, merged.weight), (merged.output,)) + extra
    operands = Operand(x), Operand(merged.weight, is_weight=True)
    return Step(merged.op, operands, (merged.output,), flops, network.precision)


def copy_step(moved: TensorType, precision: Precision) -> Step:
    """A copy of a tensor."""
    return Step(Identity(), (Operand(moved),), (moved,), 0, precision)


def unit_steps(network: Network, unit: Unit) -> list[Step]:
    """The steps of a unit, in execution order; none for one that only views slices of the batch."""
    if unit.kind == BATCH_VIEW:
        return []
    return list(_unit_steps(network, unit.name))


@once_a_network
def _unit_steps(network: Network, name: str) -> tuple[Step, ...]:
    return tuple(Fusion(network, network.unit_nodes(network.unit(name))).steps())


def main_kind(network: Network, unit: Unit) -> str:
    """The kind of a unit's op with the most work, to which the unit's time is attributed."""
    steps = unit_steps(network, unit)
    most = max(steps, key=lambda step: (step.flops, step.activation_bytes + step.bytes_written), default=None)
    return unit.kind if most is None else most.op.kind


def unit_bytes(network: Network, unit: Unit) -> int:
    """Compulsory traffic of a unit: each external input once, weights included, and each external output."""
    touched = {*unit.inputs, *unit.outputs, *network.constants_of(unit)}
    return sum(network.graph.types[name].bytes for name in touched)


#: A kernel of element-wise ops: its last op, and the value that it computes for another op.
Chain = tuple[str, str]


class Fusion:
    """Assignment of a unit's ops to steps; element-wise are those without ``apart``, ops that a backend computes alone.

    ``chain_of`` has for each element-wise op the kernel that it is part of; ``epilogue_of`` for each product the
    chain in its epilogue.
    """

    def __init__(self, network: Network, nodes: Sequence[Node], spells_out: bool = False, *apart: str) -> None:
        self.network, self.graph, self.nodes = network, network.graph, nodes
        self.joins = {node.name for node in nodes if node.op.is_elementwise}.difference(apart)
        self.position = {node.name: index for index, node in enumerate(nodes)}
        self.attentions: dict[str, SpeltAttention] = {}
        if not spells_out and any(node.op.kind == "softmax" for node in nodes):
            from iossim.ir.attention import attentions_in  # other units hold none

            self.attentions = attentions_in(self.graph, nodes)
        self.in_attention = {node.name for one in self.attentions.values() for node in one.nodes[1:]}
        self.after_product: set[str] = set()
        for node in nodes:
            if any(self._flows_from_product(node, value) for value in node.inputs):
                self.after_product.add(node.name)
        # Element-wise ops may read through the only lookup that permutes.
        permuting = [node for node in nodes if node.op.permutes(self.graph.input_types(node))]
        self.lookup = permuting[0] if len(permuting) == 1 else None
        self.chain_of: dict[str, Chain] = {}
        for node in reversed(nodes):
            if node.name in self.joins:
                chains = {self._chain_through(node, reader) for reader in self._readers(node)}
                self.chain_of[node.name] = chains.pop() or (node.name, "") if len(chains) == 1 else (node.name, "")
            elif node is self.lookup and len(readers := self._readers(node)) == 1:
                last, value = self.chain_of.get(readers[0].name, ("", ""))
                if last and not value:
                    self.chain_of[node.name] = last, value
        taken = {chain: node for node in nodes if (chain := self._epilogue(node)) is not None}  # the last product's
        self.epilogue_of = {node.name: chain for chain, node in taken.items()}

    def steps(self) -> Iterator[Step]:
        """The steps in order."""
        graph = self.graph
        in_epilogues = set(self.epilogue_of.values())
        for node in self.nodes:
            if node.name in self.in_attention or (node is self.lookup and node.name in self.chain_of):
                continue
            if node.name in self.attentions:
                yield self._attention(node)
            elif node.op.role is Role.ANCHOR:
                yield self._anchor(node)
            elif node.name in self.joins:
                chain = (node.name, "")
                if self.chain_of[node.name] == chain and chain not in in_epilogues:
                    flops, read = self._computed(chain, node.outputs)
                    yield self._step(node.op, read, graph.output_types(node), flops)
            elif node.op.role is Role.CONCAT:
                for value in node.inputs:
                    flops, read = self._computed((node.name, value), (value,))
                    yield self._step(node.op, read, [graph.types[value]], flops)
        if all(node.op.kind == "identity" for node in self.nodes):
            first = self.nodes[0]
            yield self._step(first.op, first.inputs, graph.output_types(first), 0)

    def _anchor(self, node: Node) -> Step:
        """An anchor as a separate call, with the chains fused before and after it."""
        graph = self.graph
        flops, outputs = graph.work(node).flops, node.outputs
        operands, fused_reads = list(node.inputs), []
        if node.name in self.epilogue_of:
            chain = self.epilogue_of[node.name]
            outputs = self.nodes[self.position[chain[0]]].outputs
            more, read = self._computed(chain, outputs)
            flops += more
            fused_reads = [value for value in read if value not in node.outputs]
        if node.op.has_prologue:
            more, read = self._computed((node.name, node.inputs[0]), node.inputs[:1])
            flops += more
            operands[0] = max(read, key=lambda value: graph.types[value].elements)
            fused_reads += [value for value in read if value != operands[0]]
        written = [graph.types[value] for value in outputs]
        return self._step(node.op, operands, written, flops, fused_reads)

    def _attention(self, node: Node) -> Step:
        """An attention in several ops, as one op, with the chain after it; ``parts`` are these ops."""
        spelt, step = self.attentions[node.name], self._anchor(node)
        flops = spelt.flops + step.flops - self.graph.work(node).flops
        chain = self.epilogue_of.get(node.name)
        inside = {one.name for one in spelt.nodes} | {name for name, one in self.chain_of.items() if one == chain}
        moves = spelt.types[0].shape[0] > 1  # products take the heads of one sequence where they lie
        nodes = [one for one in self.nodes if one.name in inside and (moves or one.op.kind != "transpose")]
        parts = tuple(Fusion(self.network, nodes, spells_out=True).steps())
        return replace(step, op=spelt.op, operands=tuple(map(Operand, spelt.types)), flops=flops, parts=parts)

    def _computed(self, chain: Chain, values: Sequence[str]) -> tuple[int, list[str]]:
        """The arithmetic of a chain that makes ``values``, and its inputs, each once."""
        graph, flops = self.graph, 0
        members: set[str] = set()
        read: dict[str, None] = {}
        pending = list(reversed(values))
        while pending:
            value = pending.pop()
            producer = graph.producer.get(value)
            if producer is None or self.chain_of.get(producer.name) != chain:
                read[value] = None
            elif producer.name not in members:
                members.add(producer.name)
                flops += graph.work(producer).flops
                pending.extend(reversed(producer.inputs))
        return flops, list(read)

    def _flows_from_product(self, node: Node, value: str) -> bool:
        """True if an element-wise op reads, in its own shape, the result of a product, or of a chain after one."""
        producer = self.graph.producer.get(value)
        if node.name not in self.joins or producer is None or producer.name not in self.position:
            return False
        (made,) = self.graph.output_types(node)
        from_product = producer.op.has_epilogue or producer.name in self.after_product
        return from_product and self.graph.types[value].shape == made.shape

    def _readers(self, node: Node) -> list[Node]:
        """The consumers of a node's single output; none if something outside the unit reads it."""
        if len(node.outputs) != 1 or node.outputs[0] in self.graph.returned:
            return []
        readers = self.graph.consumers[node.outputs[0]]
        return list(readers) if all(reader.name in self.position for reader in readers) else []

    def _chain_through(self, node: Node, reader: Node) -> Chain | None:
        """The chain of an element-wise op whose only consumer is ``reader``: the reader's, or None."""
        if reader.name in self.joins and reader.name not in self.in_attention:
            return self.chain_of[reader.name]
        (value,) = node.outputs
        if reader.name in self.in_attention:
            return None
        takes = reader.op.role is Role.CONCAT or (reader.op.has_prologue and reader.inputs[0] == value)
        takes = takes and reader.inputs.count(value) == 1 and node.name not in self.after_product
        return (reader.name, value) if takes else None

    def _epilogue(self, node: Node) -> Chain | None:
        """The chain that a product can compute in its epilogue: all its consumers, in its shape."""
        readers = self._readers(node) if node.op.has_epilogue else []
        chains = {self.chain_of.get(reader.name) for reader in readers}
        chain = chains.pop() if len(chains) == 1 else None
        if chain is None or chain[1] or (self.lookup and chain == self.chain_of.get(self.lookup.name)):
            return None
        last = self.nodes[self.position[chain[0]]]
        if self.graph.output_types(last)[0].shape != self.graph.output_types(node)[0].shape:
            return None
        _, read = self._computed(chain, last.outputs)
        before = {value for other in self.nodes[: self.position[node.name] + 1] for value in other.outputs}
        inside = {value for other in self.nodes for value in other.outputs}
        return chain if before.issuperset(inside.intersection(map(self._viewed, read))) else None

    def _viewed(self, value: str) -> str:
        """The source of a view in the unit, with which the view is available."""
        producer = self.graph.producer.get(value)
        while producer is not None and producer.name in self.position and producer.op.role is Role.VIEW:
            value = producer.inputs[0]
            producer = self.graph.producer.get(value)
        return value

    def _step(
        self, op: Op, read: Iterable[str], written: Iterable[TensorType], flops: int, fused_reads: Iterable[str] = ()
    ) -> Step:
        operands, fused = (
            tuple(Operand(self.graph.types[value], value in self.graph.constants) for value in values)
            for values in (read, fused_reads)
        )
        types, own = (one.type.dtype for one in operands), self.network.precision
        precision = own.of_type(next((one for one in types if one.is_floating), own.storage))
        return Step(op, operands, tuple(written), flops, precision, fused)
