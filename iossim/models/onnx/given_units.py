"""Units and blocks recorded in an ONNX file, so that an exported network is read again unchanged.

ONNX knows only ops. Scheduling is by units in blocks; if a file has none, they are formed anew, and may differ
from those of the exported network. They are recorded in the metadata of a model, by the names of its nodes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from operator import index

import onnx

from iossim.base.errors import GraphError
from iossim.ir.graph import Graph
from iossim.ir.network import BATCH_VIEW, Block, Network, Unit, make_unit
from iossim.ir.types import Precision

#: The metadata key.
KEY = "iossim.units"


def note_units(model: onnx.ModelProto, network: Network, names: Mapping[str, Sequence[str]]) -> None:
    """Record units and blocks in a model; ``names`` are those of the nodes of each op. Micro-batches, whose units have
    more properties, are not recorded.
    """
    if any(unit.kind == BATCH_VIEW for unit in network.units):
        return
    units = [
        (unit.name, unit.kind, [name for node in network.unit_nodes(unit) for name in names[node.name]])
        for unit in network.units
    ]
    noted = {"units": units, "blocks": [(block.name, block.units) for block in network.blocks]}
    model.metadata_props.add(key=KEY, value=json.dumps(noted, separators=(",", ":")))


def has_units(model: onnx.ModelProto) -> bool:
    return any(entry.key == KEY for entry in model.metadata_props)


def given_units(model: onnx.ModelProto, graph: Graph, name: str, precision: Precision) -> Network | None:
    """The network of a graph with the units and blocks recorded in its model; None if there are none that fit."""
    text = next((entry.value for entry in model.metadata_props if entry.key == KEY), "")
    try:
        noted = json.loads(text)
        units = tuple(_unit(graph, *unit) for unit in noted["units"])
        blocks = tuple(Block(_named(block), tuple(map(index, inside))) for block, inside in noted["blocks"])
        network = Network(name, graph, units, blocks, precision)
    except (ValueError, TypeError, KeyError, RecursionError, GraphError):
        return None
    return network if _in_order(network) else None


def _unit(graph: Graph, name: object, kind: object, nodes: Sequence[str]) -> Unit:
    """The recorded unit; raises KeyError, TypeError or ValueError if it is invalid."""
    if not nodes or kind == BATCH_VIEW:
        raise ValueError(name)
    return make_unit(graph, _named(name), _named(kind), [graph.position[node] for node in nodes])


def _named(name: object) -> str:
    if not isinstance(name, str) or not name.isprintable():
        raise ValueError(name)
    return name


def _in_order(network: Network) -> bool:
    """Whether units and blocks are in topological order, and no block is empty."""
    block_of = {unit: place for place, block in enumerate(network.blocks) for unit in block.units}
    return all(block.units and list(block.units) == sorted(block.units) for block in network.blocks) and all(
        before < unit and block_of[before] <= block_of[unit]
        for unit, read in enumerate(network.predecessors)
        for before in read
    )
