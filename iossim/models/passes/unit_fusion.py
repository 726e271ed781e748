"""Unit policies: how the ops of a graph are fused into schedule units.

A policy is a function from a graph to units. Every unit it makes drains into one of its ops, its *last*: the outputs
of all others are read inside the unit alone. Such units never wait for one another in a circle, since whatever
reaches a unit reaches its last op, so that a circle of units would be a circle of last ops; and the order of their
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
#: The units that the model's author gave; what an ONNX file that gives none is fused by is ``fused``.
MODEL = "model"


def apart(graph: Graph) -> tuple[Unit, ...]:
    """The same as ``fused``, but for joins of branches that a product would have to wait for: they are units."""
    return joins_apart(graph, fused(graph))


#: A bare graph has no units of its own: ``model`` is ``fused`` then.
_POLICIES: dict[str, UnitPolicy] = {
    MODEL: fused,
    "conv-relu": conv_relu,
    "relu-sepconv": relu_sepconv,
    "fused": fused,
    "apart": apart,
    "none": no_fusion,
}
#: The names that :func:`unit_policy` and :func:`with_units` know.
UNIT_POLICIES: tuple[str, ...] = tuple(_POLICIES)
_GROUP: Group[UnitPolicy] = Group("unknown unit policy {!r}", lambda: _POLICIES, _POLICIES.get)


def unit_policy(name: str) -> UnitPolicy:
    """The policy of that name, ``model`` being ``fused`` for a bare graph; raises OptionError for an unknown one."""
    return _GROUP.find(name)


def with_units(network: Network, policy: str) -> Network:
    """The network fused by another policy; a unit belongs to the block that its last op was in."""
    if policy == MODEL:
        return network
    return in_blocks(network, unit_policy(policy)(network.graph))
