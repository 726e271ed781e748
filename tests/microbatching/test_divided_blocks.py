"""Blocks in micro-batches: the same outputs bit for bit, plans that are proved, an optimum that the order of copies leaves as it is."""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from brute_force import ScrambledTable, cheapest
from checked_execution import execute
from command_line import printed, printed_json, refused
from divided import divided
from graph_builders import builder_with
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_networks import random_inputs, random_network

import iossim
from iossim import api
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import GraphError, OptionError
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import check_happens_before, plan_memory
from iossim.ir.network import BATCH_VIEW
from iossim.ir.ops.softmax import Softmax
from iossim.microbatching.divided_blocks import divide_blocks, divided_units, part_name
from iossim.microbatching.divisible import divisible
from iossim.schedule.batch import Strategy
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.schedule.schedule import Schedule
from iossim.search.ios import solve
from iossim.search.lattice import build_lattice
from iossim.search.options import SearchOptions, StageSpace
from iossim.transforms.replay import network_of


@settings(max_examples=25)
@given(st.integers(0, 2**20), st.sampled_from(["all", "first", "last"]), st.booleans())
def test_outputs_are_the_same_bit_for_bit_and_plans_free_of_races(seed: int, which: str, in_place: bool) -> None:
    network = random_network(seed, blocks=3, units=3, movers=True)
    assume(network.graph.types["x"].shape[0] == 2)
    names = [block.name for block in network.blocks if divisible(network, block, 2)]
    chosen = {"all": names, "first": names[:1], "last": names[-1:]}[which]
    assume(chosen)
    divided = divide_blocks(network, dict.fromkeys(chosen, 2))
    assert divided.graph.outputs == network.graph.outputs
    assert {id(each.origin) for each in divided.graph.constants.values()} == {
        id(each.origin) for each in network.graph.constants.values()
    }
    assert set(divided_units(network, dict.fromkeys(chosen, 2))) < {"", *(unit.name for unit in network.units)}
    inputs = random_inputs(network)
    expected = evaluate_graph(network.graph, inputs)
    # Without merging, which is another algorithm.
    found = api.optimize(divided, "v100-sxm2", scheduler="ios-parallel")
    plan = plan_memory(lower_schedule(found, divided, in_place=in_place))
    check_happens_before(plan)
    made = execute(plan, divided, inputs)
    for name, value in expected.items():
        np.testing.assert_array_equal(made[name], value)


@dataclass(frozen=True)
class OfCopies(ScrambledTable):
    """Prices that are equal for copies of a unit: unit ``i`` is a copy of operator ``i // parts``."""

    parts: int = 2

    def price(self, problem: ScheduleProblem, mask: int, strategy: Strategy) -> float:
        groups = sorted(tuple(sorted(unit // self.parts for unit in bits(group))) for group in problem.groups(mask))
        digest = hashlib.sha256(f"{self.seed} {groups}".encode()).digest()
        return int.from_bytes(digest[:6], "little") / 2**48 * 30 * mask.bit_count() ** 0.7


def copies(operators: int, edges: list[tuple[int, int]], parts: int, ordered: int) -> ScheduleProblem:
    """A block in so many micro-batches, operator by operator, the copies of one of them ordered."""
    pairs = [(u * parts + index, v * parts + index) for u, v in edges for index in range(parts)]
    problem = ScheduleProblem.of_edges(operators * parts, pairs)
    not_before = np.zeros(len(problem), dtype=np.uint64)
    for unit in range(ordered * parts + 1, ordered * parts + parts):
        not_before[unit] = np.uint64(1 << unit - 1)
    return replace(problem, not_before=not_before)


@settings(max_examples=40)
@given(st.data(), st.sampled_from([(1, 4), (2, 2), (2, 3), (3, 2)]), st.integers(0, 999))
def test_the_order_of_copies_leaves_the_optimum_as_it_is(data: st.DataObject, size: tuple[int, int], seed: int) -> None:
    operators, parts = size
    possible = [(u, v) for v in range(operators) for u in range(v)]
    edges = [edge for edge in possible if data.draw(st.booleans())]
    problem = copies(operators, edges, parts, data.draw(st.integers(0, operators - 1)))
    prices = OfCopies(seed, parts=parts)
    whole = replace(problem, not_before=None)
    found = solve([problem], prices, SearchOptions(StageSpace(merge=False)))
    assert found.cost_us == pytest.approx(cheapest(whole, prices, StageSpace(), True, False), rel=1e-12)
    small, large = build_lattice(problem, 10**6), build_lattice(whole, 10**6)
    assert small is not None
    assert large is not None
    assert len(small) < len(large)


@pytest.mark.parametrize(("parts", "states"), [(2, 3), (4, 5), (8, 9)])
def test_of_one_operator_states_count_how_many_copies_are_done(parts: int, states: int) -> None:
    ordered = build_lattice(copies(1, [], parts, 0), 10**6)
    unordered = build_lattice(replace(copies(1, [], parts, 0), not_before=None), 10**6)
    assert ordered is not None
    assert unordered is not None
    assert (len(ordered), len(unordered)) == (states, 2**parts)


def test_the_operator_that_orders_copies_leaves_out_most_states() -> None:
    network = iossim.load("vgg16", batch=2)
    block = network.blocks[2]
    divided = divide_blocks(network, {block.name: 2})
    (names,) = divided.interchangeable
    assert names in {("conv3_3.1of2", "conv3_3.2of2"), ("conv3_2.1of2", "conv3_2.2of2")}
    own = next(each for each in divided.blocks if each.name == f"{block.name} in 2")
    lattice = build_lattice(ScheduleProblem.of_block(divided, own), 10**6)
    assert lattice is not None
    # Four operators in a row: 5 x 5 states less the 2 x 3 in which the second copy is ahead, and one for each join.
    joins = sum(divided.units[unit].kind == BATCH_VIEW for unit in own.units)
    assert len(lattice) == 25 - 6 + joins


def test_what_combines_images_is_not_divided() -> None:
    b, x = builder_with("mixing", x=(4, 3, 4, 4))
    with b.block("rows"):
        y = b.conv(x, 4, 3, padding=1, name="conv")
    with b.block("mixes"):
        z = b.add(Softmax(0), y, name="over_images")
    with b.block("again"):
        b.conv(z, 4, 1, name="last")
    network = b.network(["last"])
    assert [divisible(network, block, 2) for block in network.blocks] == [True, False, True]
    assert not divisible(network, network.blocks[0], 3)
    with pytest.raises(GraphError, match="cannot be divided into 2 parts"):
        divide_blocks(network, {"mixes": 2})
    found = divided(network, "v100-sxm2", 2)
    assert found.units == {"conv": 2, "last": 2}
    inputs = random_inputs(network)
    np.testing.assert_array_equal(
        evaluate_graph(found.network.graph, inputs)["last"], evaluate_graph(network.graph, inputs)["last"]
    )


def test_auto_is_never_slower_and_finds_again_what_it_saved(tmp_path: Path) -> None:
    network = iossim.load("vgg16", batch=4)
    before = api.optimize(network, "v100-sxm2")
    after = api.optimize(network, "v100-sxm2", micro_batch="auto")
    assert after.latency_us <= before.latency_us
    units = after.options["micro_batches"]
    assert units
    assert set(units.values()) <= {2, 4}
    names = {name for stage in after.stages for group in stage.groups for name in group}
    assert {part_name(unit, 0, count) for unit, count in units.items()} <= names
    after.save(tmp_path / "schedule.json")
    again = network_of(Schedule.read(tmp_path / "schedule.json"))
    assert again.graph.hash == after.graph_hash


def test_auto_halves_blocks_whose_micro_batches_have_too_many_transitions(tmp_path: Path) -> None:
    network = iossim.load("nasnet_a", batch=8, block=4)
    (block,) = network.blocks
    found = divided(network, "v100-sxm2")
    assert set(found.parts) == {f"{block.name}.part1"}
    assert "blocks too wide for some (a smaller `max_block` cuts blocks)" in found.sentence()
    whole_us = api.optimize(network, "v100-sxm2").latency_us
    assert found.before_us == whole_us
    assert found.after_us is not None
    assert found.after_us < whole_us
    schedule = api.optimize(network, "v100-sxm2", micro_batch="auto")
    assert schedule.latency_us == pytest.approx(found.after_us)
    schedule.save(tmp_path / "schedule.json")
    assert network_of(Schedule.read(tmp_path / "schedule.json")).graph.hash == schedule.graph_hash


@pytest.mark.parametrize("limit", ["0B", "1MiB", "64MiB"])
def test_under_a_limit_auto_is_never_slower_than_any_number(limit: str) -> None:
    b, x = builder_with("two_convolutions", x=(8, 64, 28, 28))
    y = b.conv(x, 64, 3, padding=1, name="first")
    network = b.network([b.conv(y, 64, 3, padding=1, name="second")])
    options = api.search_options(workspace_limit=limit)
    auto, whole, two, four = (
        api.optimize(network, "v100-sxm2", options=options, micro_batch=count).latency_us for count in ("auto", 1, 2, 4)
    )
    assert auto <= min(whole, two, four) * (1 + 1e-12)


def test_the_command_divides_and_says_so(tmp_path: Path) -> None:
    command = "optimize squeezenet --batch 2 -d v100-sxm2 --micro-batch 2"
    found = printed_json(f"{command} --workspace-limit 16MiB --json")
    assert found["options"]["micro_batches"]["fire2.squeeze"] == 2
    assert json.loads(found["source"]["options"]["micro_batches"])["blocks"]["fire2"] == 2
    printed(f"{command} --no-plot --out {tmp_path}")
    assert "fire2.squeeze.1of2" in (tmp_path / "trace.json").read_text()
    told = printed(f"explain {tmp_path / 'schedule.json'} -d v100-sxm2")
    assert told.startswith("squeezenet on v100-sxm2")
    assert " in 2" in told


@pytest.mark.parametrize(
    ("count", "reason"),
    [
        ("3", "3: a batch of 2 has no 3 equal parts; give auto or one of 2"),
        ("some", "'some' is not known; give auto, or how many micro-batches, as 2"),
        ("0", "'0' is not known; give auto, or how many micro-batches, as 2"),
    ],
)
def test_numbers_of_micro_batches_that_are_refused(count: str, reason: str) -> None:
    line = refused(f"optimize ios_sample --batch 2 -d v100-sxm2 --micro-batch {count}")
    assert line == f"error: --micro-batch {reason}\n"


def test_a_network_without_a_batch_in_common_is_refused() -> None:
    b, x, y = builder_with("two", x=(2, 3), y=(4, 3))
    network = b.network([b.add(Softmax(1), x, name="s"), b.add(Softmax(1), y, name="t")])
    with pytest.raises(OptionError, match="have no batch in common"):
        divided(network, "v100-sxm2", 2)
