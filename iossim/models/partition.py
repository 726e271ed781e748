"""The last steps of loading a model: values take the chosen storage type, ops become units, and units blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from iossim.base.errors import ModelError
from iossim.ir.graph import Graph, Node
from iossim.ir.network import Block, Network
from iossim.ir.ops.unary import Cast
from iossim.ir.types import DType, Precision, TensorType
from iossim.models.options import LoadOptions
from iossim.models.passes.batch_norms import LayerScaleFolding
from iossim.models.passes.blocks import cut_blocks, split_blocks
from iossim.models.passes.channels_last import ChannelsLastRegions
from iossim.models.passes.simplification import RetypedConstant
from iossim.models.passes.unit_fusion import MODEL, unit_policy


def retype(graph: Graph, dtype: DType) -> Graph:
    """The graph with floating-point inputs and weights, and with them all computed values, as ``dtype``.

    The graph itself if it already is. Integers stay. For the 16-bit types the graph computes the same up to rounding.
    For int8 it defines the bytes that move and the arithmetic, sufficient for pricing; its weights do not load, since
    scales are not modelled. Ops, edges and names are unchanged, except for the target type of a cast to floating point.
    """
    given = {name: graph.types[name] for name in (*graph.inputs, *graph.constants)}
    changed = {
        name: TensorType(value.shape, dtype)
        for name, value in given.items()
        if value.dtype.is_floating and value.dtype is not dtype
    }
    if not changed:
        return graph

    def recast(node: Node) -> Node:
        is_cast = isinstance(node.op, Cast) and DType(node.op.dtype).is_floating
        return replace(node, op=Cast(str(dtype))) if is_cast else node

    constants = {
        name: RetypedConstant(changed[name], each) if name in changed else each
        for name, each in graph.constants.items()
    }
    inputs = {name: changed.get(name, given[name]) for name in graph.inputs}
    return Graph.create(inputs, graph.outputs, map(recast, graph.nodes), constants)


#: Function of a graph and a precision to a network with its model's units and blocks, or None if it has none.
GivenUnits = Callable[[Graph, Precision], Network | None]

#: Element types that networks compute in.
_PRECISIONS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


def partition_graph(
    graph: Graph, name: str, where: str, options: LoadOptions, given: GivenUnits = lambda graph, precision: None
) -> Network:
    """The network of a canonical graph, cut into blocks; of its own precision by default.

    If the model has units and blocks, ``given`` is the network of those, else None. ``where`` begins the message of a
    ModelError.
    """
    own = _weights_type(graph)
    precision = options.dtype or (Precision(own) if own in _PRECISIONS else Precision.FP32)
    typed = retype(graph, precision.storage)
    if not typed.nodes:
        raise ModelError(f"{where} computes nothing: no op is left once its constants are folded")
    own_units = given(typed, precision)
    if own_units is None and precision.storage.bytes == 2:
        typed = LayerScaleFolding().apply(ChannelsLastRegions().apply(typed))
    network = own_units or network_of(typed, name, precision, options.units)
    if options.strict:
        refuse_foreign(network, where)
    if own not in (DType.FLOAT32, precision.storage):
        network = replace(network, reading=(f"The model is in {own}; it is read here as {precision} (--dtype).",))
    return split_blocks(network if own_units else cut_blocks(network), options.max_block)


def network_of(graph: Graph, name: str, precision: Precision = Precision.FP32, units: str = MODEL) -> Network:
    """A graph as a network of one block, its ops fused by a unit policy; raises OptionError for an unknown one."""
    fused = unit_policy(units)(graph)
    return Network(name, graph, fused, (Block("all", tuple(range(len(fused)))),), precision)


def refuse_foreign(network: Network, where: str | Path) -> None:
    """Raise ModelError, beginning with ``where``, for a network with operators that iossim does not know."""
    if network.foreign:
        raise ModelError(
            f"{where} has operators that iossim does not know: {network.foreign_listed}; "
            "leave out `strict` to price them"
        )


def _weights_type(graph: Graph) -> DType:
    """The floating-point type that most of a graph's weights are in; without weights that of most of its values."""
    sizes: Counter[DType] = Counter()
    for names in (graph.constants, graph.types):
        for name in names:
            if graph.types[name].dtype.is_floating:
                sizes[graph.types[name].dtype] += graph.types[name].elements
        if sizes:
            break
    return max(sorted(sizes), key=sizes.__getitem__, default=DType.FLOAT32)
