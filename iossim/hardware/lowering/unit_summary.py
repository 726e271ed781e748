"""A unit in two numbers for reports: the kind of its most work, and its traffic."""

from __future__ import annotations

from iossim.hardware.lowering.unit import unit_steps
from iossim.ir.network import Network, Unit


def main_kind(network: Network, unit: Unit) -> str:
    """The kind of a unit's op with the most work, to which the unit's time is attributed."""
    steps = unit_steps(network, unit)
    most = max(steps, key=lambda step: (step.flops, step.activation_bytes + step.bytes_written), default=None)
    return unit.kind if most is None else most.op.kind


def unit_bytes(network: Network, unit: Unit) -> int:
    """Compulsory traffic of a unit: each external input once, weights included, and each external output."""
    graph, nodes = network.graph, network.unit_nodes(unit)
    made = {name for node in nodes for name in node.outputs}
    read = {name for node in nodes for name in node.inputs if name and name not in made}
    inside = {node.name for node in nodes}
    written = {
        name
        for name in made
        if name in graph.returned or any(reader.name not in inside for reader in graph.consumers[name])
    }
    return sum(graph.types[name].bytes for name in read | written)
