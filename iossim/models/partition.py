"""The last step of loading a model: ops become units, and units blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from iossim.base.errors import ModelError, OptionError
from iossim.ir.graph import Graph
from iossim.ir.network import Block, ModelSource, Network
from iossim.ir.types import DType, Precision
from iossim.models.options import LoadOptions
from iossim.models.passes.blocks import cut_blocks, split_blocks
from iossim.models.passes.retype import retype
from iossim.models.passes.unit_fusion import MODEL, unit_policy, with_units

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
    typed = retype(graph, precision)
    if not typed.nodes:
        raise ModelError(f"{where} computes nothing: no op is left once its constants are folded")
    own_units = given(typed, precision)
    network = own_units or network_of(typed, name, precision, options.units)
    if options.strict:
        refuse_foreign(network, where)
    if own not in (DType.FLOAT32, precision.storage):
        network = replace(network, reading=(f"The model is in {own}; it is read here as {precision} (--dtype).",))
    return split_blocks(network if own_units else cut_blocks(network), options.max_block)


def partition_network(network: Network, model: str, options: LoadOptions) -> Network:
    """A network of units and blocks, with those that the options ask for instead; raises OptionError for passes."""
    if options.passes:
        listed = ", ".join(options.passes)
        raise OptionError(f"passes {listed} are for ONNX files, whose ops have no units yet, not {model}")
    found = split_blocks(with_units(network, options.units), options.max_block)
    return replace(found, source=ModelSource(model))


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
