"""Evaluates a graph op by op, in order: what the graph means, against which everything else is checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from iossim.base.errors import GraphError
from iossim.execution.made_inputs import check_inputs
from iossim.ir.graph import Graph
from iossim.ir.network import Network
from iossim.ir.op import Array


def evaluate_graph(
    graph: Graph, inputs: Mapping[str, Array], values: Sequence[str] | None = None
) -> dict[str, Array]:
    """The arrays of ``values`` (the graph's outputs, if not given) by name, from arrays for its inputs.

    Weights are loaded when they are read and not kept; other values are dropped after their last reader. Raises
    GraphError where ``inputs`` or ``values`` are not the graph's.
    """
    wanted = graph.outputs if values is None else tuple(values)
    for name in wanted:
        if name not in graph.types:
            raise GraphError(f"the graph has no value {name!r}")
    check_inputs(inputs, {name: graph.types[name] for name in graph.inputs})
    known: dict[str, Array] = {name: inputs[name] for name in graph.inputs}
    readers_left = Counter(name for node in graph.nodes for name in set(node.inputs))
    readers_left.update(wanted)
    for node in graph.nodes:
        arrays = [known[name] if name in known else graph.constants[name].load() for name in node.inputs]
        known.update(zip(node.outputs, node.op.evaluate(arrays), strict=True))
        readers_left.subtract(set(node.inputs))
        for name in (*node.inputs, *node.outputs):
            if not readers_left[name]:
                known.pop(name, None)
    return {name: known[name] if name in known else graph.constants[name].load() for name in wanted}


def numpy_outputs(network: Network, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """A network's outputs, as a :data:`~iossim.execution.measured_run.Reference`."""
    return evaluate_graph(network.graph, inputs)
