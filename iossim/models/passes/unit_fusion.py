"""Unit policies: rules by which the ops of a graph are fused into schedule units.

A policy is a function from a graph to units. Every unit it makes drains into one of its ops, its *last*: the outputs
of all others are read only inside the unit. Such units never form a cycle, since whatever reaches a unit
reaches its last op, so that a cycle of units would be a cycle of last ops; and the order of their
last ops in the graph is a topological order of the units.
"""

from __future__ import annotations

from collections.abc import Callable

from iossim.base.registry import Group
from iossim.ir.graph import Graph
from iossim.ir.network import Network, Unit
from iossim.models.passes.blocks import in_blocks
from iossim.models.passes.engine_units import fused
from iossim.models.passes.joins import joins_apart
from iossim.models.passes.unit_patterns import conv_relu, no_fusion, relu_sepconv

UnitPolicy = Callable[[Graph], tuple[Unit, ...]]
#: The units given by the model's author; an ONNX file without units is fused by ``fused``.
MODEL = "model"


def apart(graph: Graph) -> tuple[Unit, ...]:
    """The same as ``fused``, except that joins of branches that a product would have to wait for are separate units."""
    return joins_apart(graph, fused(graph))


#: A bare graph has no units of its own: ``model`` then means ``fused``.
_POLICIES: dict[str, UnitPolicy] = {
    MODEL: fused,
    "conv-relu": conv_relu,
    "relu-sepconv": relu_sepconv,
    "fused": fused,
    "apart": apart,
    "none": no_fusion,
}
#: Names known to :func:`unit_policy` and :func:`with_units`.
UNIT_POLICIES: tuple[str, ...] = tuple(_POLICIES)
_GROUP: Group[UnitPolicy] = Group("unknown unit policy {!r}", lambda: _POLICIES, _POLICIES.get)


def unit_policy(name: str) -> UnitPolicy:
    """The policy of that name, ``model`` being ``fused`` for a bare graph; raises OptionError for an unknown one."""
    return _GROUP.find(name)


def with_units(network: Network, policy: str) -> Network:
    """The network fused by another policy; a unit belongs to the block of its last op."""
    if policy == MODEL:
        return network
    return in_blocks(network, unit_policy(policy)(network.graph))
