"""Cuts against their definition, on random graphs; and the splitting of blocks that are too large."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_networks import random_inputs

import iossim
from iossim.backends.numpy_reference.backend import evaluate_graph as evaluate
from iossim.base.errors import OptionError
from iossim.cost.random import RandomCostModel
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Block, Network
from iossim.ir.ops.nary import Add
from iossim.ir.ops.unary import Relu
from iossim.models.load import load, load_source
from iossim.models.passes.block_parts import single_block
from iossim.models.passes.blocks import cut_blocks, narrow_blocks, split_blocks
from iossim.models.random_graphs import seeded_network
from iossim.schedule.problem import ScheduleProblem
from iossim.search.ios import solve
from iossim.search.options import SearchOptions, StageSpace

Edges = list[set[int]]


def network_of(predecessors: Edges, outputs: set[int] | None = None, small: frozenset[int] = frozenset()) -> Network:
    """A unit a node; one without predecessors reads a graph input of its own; sinks are graph outputs.

    A node that reads one other, or an input, is a convolution, or an activation if it is one of ``small``.
    """
    b = GraphBuilder("random")
    for unit, before in enumerate(predecessors):
        values = [f"u{other}" for other in sorted(before)] or [b.input(f"in{unit}", (1, 2, 1, 1))]
        if len(values) == 1 and unit not in small:
            b.conv(values[0], 2, name=f"u{unit}")
        else:
            b.add(Relu() if len(values) == 1 else Add(), *values, name=f"u{unit}")
    read = set().union(*predecessors)
    sinks = set(range(len(predecessors))) - read
    return b.network([f"u{unit}" for unit in sorted(sinks | (outputs or set()))])


@st.composite
def dags(draw: st.DrawFn) -> Edges:
    """Random graphs with few and mostly short edges, so that there are cuts to find."""
    count = draw(st.integers(1, 12))
    reach = draw(st.integers(1, 4))
    return [
        draw(st.sets(st.integers(max(0, unit - reach), unit - 1), min_size=draw(st.integers(0, 1)), max_size=3))
        if unit
        else set()
        for unit in range(count)
    ]


def blocks_by_definition(network: Network) -> list[set[int]]:
    """Straight from the text of iossim.models.passes.blocks."""
    predecessors = [set(before) for before in network.predecessors]
    units = range(len(predecessors))
    ancestors: list[set[int]] = []
    for before in predecessors:
        ancestors.append(before.union(*(ancestors[other] for other in before)))
    descendants = [{other for other in units if unit in ancestors[other]} for unit in units]
    dead_ends = {unit for unit in units if not descendants[unit]}
    no_products = {unit for unit in units if all(network.units[u].kind != "Conv" for u in ancestors[unit] | {unit})}
    small = no_products - dead_ends
    products = set(units) - no_products - dead_ends
    preparations = {unit for unit in small if not products <= descendants[unit]}
    in_order = set(units) - dead_ends - preparations
    cuts = [v for v in in_order if in_order <= ancestors[v] | descendants[v] | {v}]
    place = {unit: sum(unit in descendants[v] for v in cuts) for unit in in_order}
    for unit in dead_ends:
        place[unit] = max((sum(v == other or v in ancestors[other] for v in cuts)
                           for other in ancestors[unit] & in_order), default=0)  # fmt: skip
    for unit in sorted(preparations, reverse=True):
        place[unit] = min(place[reader] for reader in units if unit in predecessors[reader])
    found = [{unit for unit in units if place[unit] == index} for index in range(len(cuts) + 1)]
    return [block for block in found if block]


@given(dags(), st.frozensets(st.integers(0, 11)), st.sets(st.integers(0, 11), max_size=2))
def test_cuts_are_those_of_the_definition(predecessors: Edges, small: frozenset[int], outputs: set[int]) -> None:
    """Nodes that make outputs inside a network prevent no cut."""
    network = cut_blocks(network_of(predecessors, outputs & {*range(len(predecessors))}, small))
    assert [set(block.units) for block in network.blocks] == blocks_by_definition(network)
    assert all(block.units == tuple(sorted(block.units)) for block in network.blocks)
    assert network.notes == ()


@given(dags(), st.integers(0, 99))
def test_the_best_schedule_block_by_block_is_the_best_of_all(predecessors: Edges, seed: int) -> None:
    """With one output, and a group that takes what its units take one by one."""
    sinks = set(range(len(predecessors))) - set().union(*predecessors)
    network = network_of([*predecessors, sinks])
    whole = network.with_blocks([Block("whole", tuple(range(len(network.units))))])
    cost_model = RandomCostModel(seed, spread=0.0)
    best_us = []
    for cut in (whole, cut_blocks(network)):
        problems = [ScheduleProblem.of_block(cut, block) for block in cut.blocks]
        best_us.append(solve(problems, cost_model, SearchOptions(StageSpace(merge=False))).cost_us)
    assert best_us[1] == pytest.approx(best_us[0], rel=1e-9)


def test_zoo_networks_cut_at_least_where_their_authors_did() -> None:
    for name in ("squeezenet", "inception_v3", "resnet50"):
        network = load(name)
        exits = {network.units[block.units[-1]].name for block in network.blocks}
        again = cut_blocks(network)
        assert exits <= {again.units[block.units[-1]].name for block in again.blocks}


MASKED = [set(), {0}, set(), {1, 2}, {0}, {3, 4}, {5}, {6}]
SCALED = [set(), {0}, {0}, {1, 2}, {3}, {4}]


@pytest.mark.parametrize(
    ("predecessors", "small", "blocks"),
    [
        # A mask and positions: units 0 and 1 prepare what layer 3 reads, units 0 and 4 what layer 5 reads.
        (MASKED, {0, 1, 4}, [(2,), (0, 1, 3), (4, 5), (6,), (7,)]),
        (MASKED, set(), [(0, 1, 2, 3, 4, 5), (6,), (7,)]),
        # Unit 4 prepares output 5 from unit 1, which the convolutions 2 and 3 depend on as well.
        ([set(), {0}, {1}, {2}, {1}, {4}], {0, 1, 4}, [(0,), (1,), (2, 4, 5), (3,)]),
        # The image is scaled and shifted before the first convolution, in two branches; then nothing multiplies.
        (SCALED, {0, 1, 2, 3}, [(0,), (1, 2, 3), (4,), (5,)]),
        (SCALED, set(range(6)), [(0,), (1, 2, 3), (4,), (5,)]),
    ],
)
def test_preparations_stand_in_the_way_of_no_cut(
    predecessors: Edges, small: set[int], blocks: list[tuple[int, ...]]
) -> None:
    """A unit that all others depend on is not a preparation."""
    network = network_of(predecessors, small=frozenset(small))
    assert [block.units for block in cut_blocks(network).blocks] == blocks


@pytest.mark.slow
def test_a_long_network_is_cut_in_linear_time() -> None:
    """20,000 units in diamonds, every one bypassed by a value from its beginning: a quadratic search would take minutes."""
    count = 20_000
    predecessors: Edges = [set()]
    for unit in range(1, count):
        corner = (unit - 1) // 3 * 3
        predecessors.append({corner} if unit - corner < 3 else {corner, unit - 2, unit - 1})
    network = cut_blocks(network_of(predecessors))
    assert len(network.blocks) == 2 + (count - 2) // 3


@given(dags(), st.integers(1, 5))
def test_parts_are_few_even_and_in_order(predecessors: Edges, max_block: int) -> None:
    whole = cut_blocks(network_of(predecessors))
    split = split_blocks(whole, max_block)
    assert [unit for block in split.blocks for unit in block.units] == [u for b in whole.blocks for u in b.units]
    for block in whole.blocks:
        parts = [part for part in split.blocks if set(part.units) <= set(block.units)]
        needed = -(-len(block.units) // max_block)
        assert len(parts) == needed
        assert all(max(1, len(block.units) // needed // 2) <= len(part.units) <= max_block for part in parts)
    large = [block for block in whole.blocks if len(block.units) > max_block]
    assert len(split.notes) == len(large)
    for note, block in zip(split.notes, large, strict=True):
        assert repr(block.name) in note
        assert f"{len(block.units)} units" in note


def test_a_split_prefers_few_crossing_values() -> None:
    # Two bundles of three parallel units, joined by one unit in the middle, side by side with a long edge over all.
    predecessors = [set(), {0}, {0}, {0}, {1, 2, 3}, {4}, {4}, {4}, {5, 6, 7}, {0, 8}]
    network = network_of(predecessors)
    whole = network.with_blocks([network.blocks[0].__class__("whole", tuple(range(10)))])
    split = split_blocks(whole, 7)
    assert [block.units for block in split.blocks] == [(0, 1, 2, 3, 4), (5, 6, 7, 8, 9)]
    assert [block.name for block in split.blocks] == ["whole.part1", "whole.part2"]
    assert split.notes == ("Block 'whole' has 10 units, more than 7: it is scheduled in 2 parts of 5, 5 units.",)


def test_narrow_blocks_are_those_of_the_same_model_loaded_again() -> None:
    network = load("randwire", units="none")
    assert max(len(block.units) for block in network.blocks) > 64, "nothing is split unless it is asked for"
    assert not network.notes
    narrow = narrow_blocks(network)
    assert any("'stage3'" in note for note in narrow.notes)
    assert [block.units for block in load_source(narrow.source).blocks] == [block.units for block in narrow.blocks]
    assert max(len(block.units) for block in narrow.blocks) <= 64
    assert narrow_blocks(narrow) is narrow


@pytest.mark.parametrize("max_block", [0, -1])
def test_a_limit_that_cannot_be(max_block: int) -> None:
    with pytest.raises(OptionError, match="give 1 or more, or leave it out"):
        split_blocks(network_of([set()]), max_block)


@pytest.mark.parametrize("seed", range(4))
def test_a_block_computes_what_it_does_within_the_network(seed: int) -> None:
    network = seeded_network(seed, units=7, blocks=3)
    image = random_inputs(network, seed)
    values = dict(image)
    for number, block in enumerate(network.blocks, 1):
        alone = single_block(network, number)
        assert [unit.name for unit in alone.units] == [network.units[index].name for index in block.units]
        assert list(alone.signatures) == [network.signatures[index] for index in block.units]
        values |= evaluate(alone.graph, {name: values[name] for name in alone.graph.inputs})
    for name, value in evaluate(network.graph, image).items():
        np.testing.assert_array_equal(values[name], value)


def test_blocks_are_found_by_name_and_by_number_from_either_end() -> None:
    network = load("squeezenet")
    names = [block.name for block in network.blocks]
    for asked, found in ((1, names[0]), (-1, names[-1]), ("-2", names[-2])):
        assert single_block(network, asked).blocks[0].name == found
    fire = single_block(network, "fire3")
    assert (fire.name, len(fire.units), fire.blocks[0].name) == ("squeezenet.fire3", 5, "fire3")
    assert fire.graph.types[fire.graph.inputs[0]].shape[1] == 128
    for wrong, words in (
        ("fire33", "did you mean 'fire3'"),
        (0, "none has the number 0; give 1 to"),
        (99, "-1 for the last"),
    ):
        with pytest.raises(OptionError, match=f"squeezenet.*{words}"):
            single_block(network, wrong)


def test_a_block_is_loaded_again_from_its_source() -> None:
    network = load("squeezenet", batch=4, block="fire3")
    assert load_source(network.source).graph.hash == network.graph.hash
    assert load_source(load("squeezenet", block=-2).source).blocks[0].name == "fire9"


def test_a_block_takes_what_it_takes_in_the_network() -> None:
    whole = iossim.optimize("squeezenet", "v100-sxm2")
    alone = iossim.optimize(load("squeezenet", block="fire3"), "v100-sxm2")
    (block,) = [block for block in whole.blocks if block.name == "fire3"]
    assert [stage.groups for stage in alone.blocks[0].stages] == [stage.groups for stage in block.stages]
    assert alone.latency_us <= sum(stage.latency_us + stage.boundary_us for stage in block.stages) * (1 + 1e-9)
