"""Joins of branches, fused into products or apart: whose units those are, and that either way it is the same network."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.op import Role
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.unary import Relu, Sigmoid
from iossim.models.layers import conv_relu
from iossim.models.load import load
from iossim.models.partition import network_of
from iossim.models.passes.blocks import cut_blocks
from iossim.models.passes.joins import joins_of, with_joins
from iossim.models.passes.unit_fusion import with_units
from iossim.models.random_graphs import seeded_network


def partition(network: Network) -> set[tuple[int, ...]]:
    return {unit.nodes for unit in network.units}


def in_order(network: Network) -> bool:
    block_of = {unit: place for place, block in enumerate(network.blocks) for unit in block.units}
    pairs = [(before, unit) for unit, reads in enumerate(network.predecessors) for before in reads]
    return all(before < unit and block_of[before] <= block_of[unit] for before, unit in pairs)


def residual(b: GraphBuilder, x: str) -> str:
    """A sum of two branches: a long one, and a convolution that may run beside it."""
    return b.add(Relu(), b.add(Add(), b.conv(conv_relu(b, "long", x, 4), 4, name="deep"), b.conv(x, 4, name="short")))


def identity(b: GraphBuilder, x: str) -> str:
    """The other branch is what the whole block reads: no convolution waits for it."""
    return b.add(Add(), b.conv(conv_relu(b, "long", x, 4), 4, name="deep"), x)


def gate(b: GraphBuilder, x: str) -> str:
    return b.add(Mul(), b.conv(x, 4, name="value"), b.add(Sigmoid(), b.conv(x, 4, name="gate")))


def read_twice(b: GraphBuilder, x: str) -> str:
    """Both products are read twice: one of them can be one with all that reads it, the other cannot."""
    deep, short = b.conv(x, 4, name="deep"), b.conv(x, 4, name="short")
    return b.add(Add(), b.add(Add(), deep, short), b.add(Mul(), deep, short))


@pytest.mark.parametrize(
    ("branches", "fused_units", "apart_units", "counted"),
    [
        (residual, 3, 4, "1 add"),
        (identity, 2, 2, "0 adds"),
        (gate, 2, 3, "1 join of branches"),
        (read_twice, 2, 3, "1 add"),
    ],
)
def test_a_product_need_not_wait_for_another_branch(
    branches: Callable[[GraphBuilder, str], str], fused_units: int, apart_units: int, counted: str
) -> None:
    b = GraphBuilder("g")
    graph = b.graph([branches(b, conv_relu(b, "stem", b.input("x", (1, 3, 8, 8)), 4))])
    fused, apart = (cut_blocks(network_of(graph, "g", units=policy)) for policy in ("fused", "apart"))
    assert (len(fused.units) - 1, len(apart.units) - 1) == (fused_units, apart_units)  # but for the stem
    joins = joins_of(fused)
    assert (joins.counted(len(joins)), joins.products) == (counted, "convolutions")
    made = with_joins(fused, apart=joins.fused)
    assert partition(made) == partition(apart)
    assert made.blocks == apart.blocks
    # Apart, the branches are of one block; fused the add again is where it was.
    again = with_joins(made, fused=joins_of(made).apart)
    assert (partition(again), again.blocks) == (partition(fused), fused.blocks)


@pytest.mark.parametrize(("name", "count"), [("squeezenet", 4), ("resnet18", 8), ("centernet", 8)])
def test_the_zoo_with_its_adds_fused_has_the_units_of_an_engine(name: str, count: int) -> None:
    network = load(name)
    assert (len(joins_of(network).fused), len(joins_of(network).apart)) == (0, count)
    fused = with_joins(network, fused=joins_of(network).apart)
    assert len(network.units) - len(fused.units) == count
    views = {(index,) for index, node in enumerate(network.graph.nodes) if node.op.role is Role.VIEW}
    differ = partition(fused) ^ partition(with_units(network, "fused"))  # by a view and the product behind it
    assert (len(differ), len(differ & views)) in ((0, 0), (3, 1))


@given(st.integers(0, 400), st.sampled_from(["model", "fused"]), st.data())
def test_any_choice_of_joins_is_a_network_in_order(seed: int, units: str, data: st.DataObject) -> None:
    network = with_units(seeded_network(seed, blocks=1), units)
    joins = joins_of(network)
    fused, apart = (
        data.draw(st.sets(st.sampled_from(sorted(names)))) if names else set() for names in (joins.apart, joins.fused)
    )
    made = with_joins(network, fused, apart)  # Network checks that each op is in one unit
    assert in_order(made)
    assert len(made.units) == len(network.units) - len(fused) + len(apart)
    assert all(len(unit.outputs) == 1 for unit in made.units)
    assert with_joins(network, {"no such"}).units == network.units
