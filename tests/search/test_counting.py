"""Counts of the search space: against brute force, and against the figures that are known for the paper's networks."""

from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from brute_force import problems, spaces, stages_of
from case_files import cases
from hypothesis import given, settings
from hypothesis import strategies as st

import iossim
from iossim.base.errors import OptionError
from iossim.ir.network import Network
from iossim.schedule.problem import ScheduleProblem
from iossim.search import counting
from iossim.search.counting import count_search_space, distinct_stages, more_transitions_than
from iossim.search.lattice import build_lattice
from iossim.search.options import StageSpace


@settings(max_examples=40)
@given(problems(7), spaces)
def test_counts_equal_brute_force(problem: ScheduleProblem, space: StageSpace) -> None:
    edges = {(u, v) for v in range(len(problem)) for u in range(v) if int(problem.predecessors[v]) >> u & 1}

    @cache
    def stages(state: frozenset[int], space: StageSpace = space) -> list[frozenset[int]]:
        return [stage for stage, _, _ in stages_of(state, edges, [-1] * len(problem), space, True, False)]

    @cache
    def schedules(state: frozenset[int]) -> int:
        return sum(schedules(state - stage) for stage in stages(state)) if state else 1

    # Pruning hides no state: the lattice holds all of them.
    full = frozenset(range(len(problem)))
    states, todo = set(), [full]
    while todo:
        state = todo.pop()
        if state and state not in states:
            states.add(state)
            todo += [state - stage for stage in stages(state, StageSpace())]
    transitions = [stage for state in states for stage in stages(state)]
    distinct = {sum(1 << unit for unit in stage) for stage in transitions}
    counted = count_search_space(problem, space)
    assert (counted.states, counted.transitions) == (len(states), len(transitions))
    assert (counted.distinct_stages, counted.schedules) == (len(distinct), schedules(full))
    assert distinct_stages(problem, space).tolist() == sorted(distinct)
    antichains = [
        chosen
        for chosen in range(1, 1 << len(problem))
        if not any(chosen >> v & 1 and int(problem.ancestors[v]) & chosen for v in range(len(problem)))
    ]
    assert counted.width == max(chosen.bit_count() for chosen in antichains)


def test_schedules_are_counted_beyond_64_bits() -> None:
    """A chain of n units has 2^(n-1) schedules; side by side with itself it has one for each way through a grid."""
    chain = ScheduleProblem.of_edges(64, [(u, u + 1) for u in range(63)])
    assert count_search_space(chain, StageSpace()).schedules == 2**63
    two = ScheduleProblem.of_edges(64, [(u, u + 1) for u in range(63) if u != 31])
    ways = {(0, 0): 1}
    for here in product(range(33), repeat=2):
        before = product(range(here[0] + 1), range(here[1] + 1))
        ways[here] = ways.get(here) or sum(ways[one] for one in before if one != here)
    assert count_search_space(two, StageSpace()).schedules == ways[32, 32] > 2**64
    limbs = np.array([2**64 - 1, 2**64 - 1, 0], dtype=np.uint64)
    counting._add(limbs, np.array([1, 0, 0], dtype=np.uint64))
    assert limbs.tolist() == [0, 0, 1]


def test_independent_units_are_counted_in_closed_form() -> None:
    """Each unit is done, in the stage, or to come; a schedule is an ordered partition (A000670). More than a walk hands over."""
    counted = count_search_space(ScheduleProblem.of_edges(10, []), StageSpace())
    assert counted.transitions == 3**10 - 2**10
    assert counted.distinct_stages == 2**10 - 1
    assert counted.schedules == 102_247_563


@pytest.mark.parametrize("space", [StageSpace(max_group_size=3, max_groups=8), StageSpace("paper")])
def test_a_sample_of_states_tells_about_how_many_transitions_there_are(space: StageSpace) -> None:
    problem = ScheduleProblem.of_edges(24, [(u, u + 6) for u in range(18)])
    lattice = build_lattice(problem, 20_000)
    assert lattice is not None
    assert len(lattice) > 5 * counting.SAMPLED_STATES
    exact = count_search_space(problem, space).transitions
    assert more_transitions_than(int(exact * 0.95), problem, lattice, space, sampled=True)
    assert not more_transitions_than(int(exact * 1.05), problem, lattice, space, sampled=True)


@given(problems(7), spaces, st.integers(0, 5))
def test_counting_little_by_little_is_counting_at_one_go(
    problem: ScheduleProblem, space: StageSpace, at_a_time: int
) -> None:
    """Compiled code returns after so many transitions, wherever its walk is, and goes on from there."""
    at_one_go = count_search_space(problem, space)
    lattice = build_lattice(problem, 1000)
    assert lattice is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "_AT_A_TIME", at_a_time)
        assert count_search_space(problem, space) == at_one_go
        assert not more_transitions_than(at_one_go.transitions, problem, lattice, space)
        assert more_transitions_than(at_one_go.transitions - 1, problem, lattice, space)


@pytest.mark.parametrize("space", [StageSpace(max_group_size=3), StageSpace("paper")], ids=["pruned", "paper"])
def test_a_long_count_returns_to_python_in_between(space: StageSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt is not heard within compiled code."""
    calls = []
    some = counting._count_some
    monkeypatch.setattr(counting, "_count_some", lambda *given: calls.append(1) or some(*given))
    problem = ScheduleProblem.of_edges(14, [])
    lattice = build_lattice(problem, 20_000)
    assert lattice is not None
    assert not more_transitions_than(3**14, problem, lattice, space)
    assert len(calls) >= (3**14 - 2**14) // (counting._AT_A_TIME + 3**7)


def test_a_block_too_large_to_count_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = ScheduleProblem.of_edges(18, [], name="wide")
    assert build_lattice(problem, 1000) is None
    monkeypatch.setattr(counting, "MAX_TRANSITIONS", 3_000_000)
    with pytest.raises(OptionError, match="has more than 3,000,000 transitions; prune with `max_group_size`"):
        count_search_space(problem, StageSpace())
    monkeypatch.setattr(counting, "MAX_STATES", 1000)
    with pytest.raises(OptionError, match="'wide' has more than 1,000 states; split it with a smaller `max_block`"):
        count_search_space(problem, StageSpace())


#: What is known of blocks of the paper's networks, by name.
COUNTS = cases(__file__, "block_counts.yaml")


@pytest.fixture(scope="module", params=sorted(COUNTS["paper"]))
def network(request: pytest.FixtureRequest) -> Network:
    """The paper's networks; RandWire's graphs are reference data."""
    if request.param != "randwire":
        return iossim.load(request.param)
    shared: Path = request.getfixturevalue("shared")
    return iossim.load("randwire", graphs=shared / "data" / "randwire")


def test_the_counts_of_blocks(network: Network) -> None:
    """Counts as published, and by the general definition."""
    blocks = {block.name: ScheduleProblem.of_block(network, block) for block in network.blocks}
    for block, (units, antichain, states, transitions, schedules, distinct) in COUNTS["paper"][network.name].items():
        counted = count_search_space(blocks[block], StageSpace("paper"))
        assert (counted.units, counted.width, counted.states) == (units, antichain, states), block
        assert (counted.transitions, counted.distinct_stages) == (transitions, distinct), block
        assert rounded(counted.schedules, schedules) == schedules, block
    for block, (transitions, schedules) in COUNTS["general"][network.name].items():
        counted = count_search_space(blocks[block], StageSpace())
        assert counted.transitions == transitions, block
        assert schedules is None or rounded(counted.schedules, schedules) == schedules, block


def rounded(number: int, like: str) -> str:
    """The number as precisely as ``like`` is written."""
    if "e" not in like:
        return str(number)
    digits = len(like.partition("e")[0].partition(".")[2])
    return f"{number:.{digits}e}".replace("e+", "e").replace("e0", "e")
