"""The last steps of loading a model: values take the chosen storage type, ops become units, and units blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from iossim.base.errors import ModelError
from iossim.ir.graph import Graph
from iossim.ir.network import Block, Network
from iossim.ir.ops.unary import Cast
from iossim.ir.types import DType, Precision
from iossim.models.options import LoadOptions
from iossim.models.passes.batch_norms import layer_scale_folding
from iossim.models.passes.blocks import cut_blocks, split_blocks
from iossim.models.passes.channels_last import channels_last_regions
from iossim.models.passes.simplification import RetypedConstant
from iossim.models.passes.unit_fusion import MODEL, unit_policy


def retype(graph: Graph, dtype: DType, changing: Iterable[DType] = DType) -> Graph:
    """The graph with floating-point inputs and weights, and with them all computed values, as ``dtype``; those of
    other types than ``changing`` stay.

    The graph itself if nothing changes. Integers stay. For the 16-bit types the graph computes the same up to rounding.
    For int8 it defines the bytes that move and the arithmetic, sufficient for pricing; its weights do not load, since
    scales are not modelled. Ops, edges and names are unchanged, except for the target type of a cast to floating point.
    """
    old = {one for one in changing if one.is_floating and one is not dtype}
    given = {name: graph.types[name] for name in (*graph.inputs, *graph.constants)}
    changed = {name: replace(value, dtype=dtype) for name, value in given.items() if value.dtype in old}
    casts = {node.name for node in graph.nodes if isinstance(node.op, Cast) and DType(node.op.dtype) in old}
    if not changed and not casts:
        return graph
    constants = {
        name: RetypedConstant(changed[name], each) if name in changed else each
        for name, each in graph.constants.items()
    }
    inputs = {name: changed.get(name, given[name]) for name in graph.inputs}
    nodes = [replace(node, op=Cast(str(dtype))) if node.name in casts else node for node in graph.nodes]
    return Graph.create(inputs, graph.outputs, nodes, constants)


#: Function of a graph and a precision to a network with its model's units and blocks, or None if it has none.
GivenUnits = Callable[[Graph, Precision], Network | None]


def partition_graph(
    graph: Graph, name: str, where: str, options: LoadOptions, given: GivenUnits = lambda graph, precision: None
) -> Network:
    """The network of a canonical graph, cut into blocks; of its own precision by default.

    If the model has units and blocks, ``given`` is the network of those, else None. ``where`` begins the message of a
    ModelError.
    """
    own = _weights_type(graph)
    precision = options.dtype or Precision.FP32.of_type(own)
    # A model in the precision itself keeps the types between its casts, except for fp64, which no device here has.
    is_own = own is precision.storage
    typed = retype(graph, DType.FLOAT32, (DType.FLOAT64,)) if is_own else retype(graph, precision.storage)
    if not typed.nodes:
        raise ModelError(f"{where} computes nothing: no op is left once its constants are folded")
    own_units = given(typed, precision)
    if own_units is None and precision.storage.bytes == 2:
        typed = layer_scale_folding(channels_last_regions(typed))
    network = own_units or network_of(typed, name, precision, options.units)
    if options.strict:
        refuse_foreign(network, where)
    reading = f"The model is in {own}; it is read here as {precision} (--dtype)." if own is not DType.FLOAT32 else ""
    if is_own:
        reading = _other_types(network.graph, own)
    network = replace(network, reading=(reading,) if reading else ())
    return split_blocks(network if own_units else cut_blocks(network), options.max_block)


def network_of(graph: Graph, name: str, precision: Precision = Precision.FP32, units: str = MODEL) -> Network:
    """A graph as a network of one block, its ops fused by a unit policy; raises OptionError for an unknown one."""
    fused = unit_policy(units)(graph)
    return Network(name, graph, fused, Block.of_all(fused), precision)


def refuse_foreign(network: Network, where: str | Path) -> None:
    """Raise ModelError, beginning with ``where``, for a network with operators that iossim does not know."""
    if network.foreign:
        raise ModelError(
            f"{where} has operators that iossim does not know: {network.foreign_listed}; "
            "leave out `strict` to price them"
        )


def _other_types(graph: Graph, own: DType) -> str:
    """A remark on the ops that compute in other floating-point types than most weights are in, if there are any."""
    made = Counter(value.dtype for node in graph.nodes for value in graph.output_types(node)[:1])
    others = [f"{made[dtype]} in {dtype}" for dtype in made if dtype.is_floating and dtype is not own]
    return f"Of its {len(graph.nodes)} ops the model has {' and '.join(others)}, the rest in {own}." if others else ""


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
