"""Unit policies: rules by which the ops of a graph are fused into schedule units.

A policy is a function from a graph to units. Every unit it makes drains into one of its ops, its *last*: the outputs
of all others are read only inside the unit. Such units never form a cycle, since whatever reaches a unit
reaches its last op, so that a cycle of units would be a cycle of last ops; and the order of their
last ops in the graph is a topological order of the units.
"""

from __future__ import annotations

from collections.abc import Callable

from iossim.base.registry import Group, Places
from iossim.ir.graph import Graph
from iossim.ir.network import Network, Unit
from iossim.models.passes.blocks import in_blocks

UnitPolicy = Callable[[Graph], tuple[Unit, ...]]
#: The units given by the model's author; an ONNX file without units is fused by ``fused``.
MODEL = "model"


#: A bare graph has no units of its own: ``model`` then means ``fused``.
_POLICIES = Places[UnitPolicy](
    "iossim.models.passes",
    {
        "unit_policies:fused": f"{MODEL} fused",
        "unit_policies:apart": "apart",
        "unit_policies:conv_relu": "conv-relu",
        "unit_policies:relu_sepconv": "relu-sepconv",
        "unit_policies:no_fusion": "none",
    },
)
#: Names known to :func:`unit_policy` and :func:`with_units`.
UNIT_POLICIES: tuple[str, ...] = (MODEL, "conv-relu", "relu-sepconv", "fused", "apart", "none")
_GROUP: Group[UnitPolicy] = Group("unknown unit policy {!r}", lambda: UNIT_POLICIES, _POLICIES.get)


def unit_policy(name: str) -> UnitPolicy:
    """The policy of that name, ``model`` being ``fused`` for a bare graph; raises OptionError for an unknown one."""
    return _GROUP.find(name)


def check_policy(name: str) -> None:
    """Raise OptionError for an unknown policy; none is imported."""
    if name not in UNIT_POLICIES:
        raise _GROUP.refusal(name, UNIT_POLICIES)


def with_units(network: Network, policy: str) -> Network:
    """The network fused by another policy; a unit belongs to the block of its last op."""
    if policy == MODEL:
        return network
    return in_blocks(network, unit_policy(policy)(network.graph))
