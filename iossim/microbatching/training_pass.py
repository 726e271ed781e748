"""Training as one graph: a network with the gradients of its activations (backward data) and weights (backward filter).

Reverse-mode differentiation, op by op from the outputs, whose gradients are inputs ``grad:OUTPUT``. The graph returns
the network's outputs, and ``grad:WEIGHT`` of every weight. The blocks are followed by those of the gradients,
``BLOCK.backward``, in reverse order. The two gradients of a layer are independent: a scheduler may
run them concurrently.

Batch norms of imported graphs use statistics of the batch. The file's running mean and variance are neither read nor
updated: that is for the training loop.
"""

from __future__ import annotations

from dataclasses import replace

import iossim.microbatching.elementwise_gradients  # noqa: F401  (importing it registers its rules)
from iossim.base.errors import ModelError
from iossim.ir.graph import Graph, Names, Node
from iossim.ir.network import Network
from iossim.ir.ops.functions import Nary
from iossim.ir.ops.nary import Mul
from iossim.ir.ops.normalization import BatchNorm
from iossim.ir.ops.reshape import Reshape
from iossim.ir.ops.unary import Identity
from iossim.microbatching.gradients import Tape, gradients, mean_of_batch
from iossim.models.passes.blocks import split_blocks
from iossim.models.passes.graph_pass import with_nodes

#: Prefix of the name of a value's gradient.
PREFIX = "grad:"


def training_network(network: Network, max_block: int | None = None) -> Network:
    """The network with its gradients; raises ModelError for an op without gradient, and if there is no weight."""
    graph = network.graph
    tape = Tape(graph, network.weights_to_learn)
    of_block = {unit: index for index, block in enumerate(network.blocks) for unit in block.units}
    contributions: dict[str, list[str]] = {}
    inputs = {name: graph.types[name] for name in graph.inputs}
    for value in graph.outputs:
        if tape.needed(value):
            name = f"{PREFIX}{value}"
            inputs[name] = tape.types[name] = graph.types[value]
            contributions.setdefault(value, []).append(name)
    unit_of_node = {graph.nodes[index].name: place for place, unit in enumerate(network.units) for index in unit.nodes}
    for node in reversed(graph.nodes):
        tape.node, tape.at_block = node, of_block[unit_of_node[node.name]]
        if contributions.keys().isdisjoint(node.outputs) or not any(map(tape.needed, node.inputs)):
            continue
        grads = [
            tape.total(value, contributions[value])
            if value in contributions
            else tape.filled(tape.types[value].shape, 0.0)  # nothing differentiable reads it
            for value in node.outputs
        ]
        for value, grad in gradients(tape, node, grads):
            contributions.setdefault(value, []).append(grad)
    learnt = [name for name in tape.weights if name in contributions]
    if not learnt:
        raise ModelError(f"network {network.name!r} has no weight that its outputs depend on; leave out `training`")
    renamed = {}
    for name in learnt:
        tape.at_block = max(tape.blocks.get(each, len(network.blocks) - 1) for each in contributions[name])
        total = tape.total(name, contributions[name])
        # That of an output, or of another weight, has its name already.
        renamed[tape.add(Identity(), total) if total in inputs or total in renamed else total] = f"{PREFIX}{name}"
    return split_blocks(tape.extended(network, inputs, renamed), max_block)


def with_batch_statistics(graph: Graph) -> Graph:
    """The graph that computes batch mean and (biased) variance for each batch norm with constant ones.

    The outputs change: they are those of a network in training.
    """
    free = Names({*graph.types, *(node.name for node in graph.nodes)})
    nodes: list[Node] = []
    for node in graph.nodes:
        if isinstance(node.op, BatchNorm) and graph.constants.keys() >= set(node.inputs[3:]):
            mean, *others, variance = _statistics(graph, node, free)
            norm = replace(node, inputs=(*node.inputs[:3], *mean.outputs, *variance.outputs))
            nodes += [mean, *others, variance, norm]
        else:
            nodes.append(node)
    return with_nodes(graph, nodes, graph.constants)


def _statistics(graph: Graph, node: Node, free: Names) -> list[Node]:
    """The ops that compute the mean of the batch (first) and its variance (last)."""
    x, shape = node.inputs[0], graph.types[node.inputs[0]].shape
    mean = mean_of_batch(len(shape))
    parts = ("mean", "broadcast_mean", "centred", "squares", "variance")
    average, broadcast, centred, squares, variance = (free.fresh(f"{node.name}.{part}") for part in parts)
    per_channel = Reshape((1, shape[1], *[1] * (len(shape) - 2)))
    return [
        Node(average, mean, (x,), (average,)),
        Node(broadcast, per_channel, (average,), (broadcast,)),
        Node(centred, Nary("sub"), (x, broadcast), (centred,)),
        Node(squares, Mul(), (centred, centred), (squares,)),
        Node(variance, mean, (squares,), (variance,)),
    ]
