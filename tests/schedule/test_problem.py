"""Scheduling problems: masks, groups, keys, and runs of a block."""

from __future__ import annotations

import numpy as np
import pytest
from brute_force_groups import connected_components
from hypothesis import given, settings
from hypothesis import strategies as st

import iossim
from iossim.base.errors import GraphError
from iossim.cost.measured.stage_plans import stage_digest
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.masks import count_groups, find_groups
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.schedule.stage_hash import stage_hashes, unit_keys


@st.composite
def problems(draw: st.DrawFn) -> ScheduleProblem:
    count = draw(st.integers(1, 10))
    edges = [(u, v) for v in range(count) for u in range(v) if draw(st.integers(0, 3)) == 0]
    return ScheduleProblem.of_edges(count, edges)


@given(problems(), st.integers(0, 1 << 10))
def test_groups_are_connected_components(problem: ScheduleProblem, chosen: int) -> None:
    mask = chosen & problem.full
    edges = [(u, v) for v in range(len(problem)) for u in bits(int(problem.predecessors[v]))]
    expected = [sum(1 << unit for unit in group) for group in connected_components(bits(mask), edges)]
    assert problem.groups(mask) == expected


@given(problems())
def test_successors_mirror_predecessors(problem: ScheduleProblem) -> None:
    for u in range(len(problem)):
        for v in range(len(problem)):
            assert (int(problem.successors[u]) >> v & 1) == (int(problem.predecessors[v]) >> u & 1)


@given(problems(), st.data())
def test_a_run_keeps_the_edges_inside_it(problem: ScheduleProblem, data: st.DataObject) -> None:
    units = sorted(data.draw(st.sets(st.integers(0, len(problem) - 1), min_size=1)))
    run = problem.restrict(units)
    for i, u in enumerate(units):
        for j, v in enumerate(units):
            assert (int(run.predecessors[j]) >> i & 1) == (int(problem.predecessors[v]) >> u & 1)


def test_equal_blocks_have_equal_keys() -> None:
    network = iossim.load("nasnet_a")
    keys = {
        block.name: ScheduleProblem.of_block(network, block).key
        for block in network.blocks
        if block.name.startswith("cell_")
    }
    assert keys["cell_3"] == keys["cell_4"]
    assert keys["cell_2"] != keys["cell_7"], "the same structure at another size is other work"
    assert keys["cell_0"] != keys["cell_1"]


def test_batch_and_precision_change_signatures() -> None:
    plain = iossim.load("ios_sample")
    assert plain.signatures == iossim.load("ios_sample").signatures
    for other in (iossim.load("ios_sample", batch=2), iossim.load("ios_sample", dtype="tf32")):
        assert not set(plain.signatures) & set(other.signatures)
    # a and c are the same work, so are b and d; the concat is its own.
    assert len(set(plain.signatures)) == 3


def test_a_problem_must_be_in_topological_order_and_have_units() -> None:
    with pytest.raises(GraphError, match="precedes what it reads"):
        ScheduleProblem("p", ("a", "b"), np.array([2, 0], dtype=np.uint64), np.zeros(2, dtype=np.int32), ("a", "b"))
    with pytest.raises(GraphError, match="block 'problem' has no units; a problem holds 1 or more"):
        ScheduleProblem.of_edges(0, [])


def test_one_sink() -> None:
    assert ScheduleProblem.of_edges(3, [(0, 2), (1, 2)]).one_sink
    assert not ScheduleProblem.of_edges(3, [(0, 1), (0, 2)]).one_sink


@st.composite
def small_problems(draw: st.DrawFn) -> ScheduleProblem:
    count = draw(st.integers(1, 7))
    pairs = [(u, v) for v in range(count) for u in range(v)]
    return ScheduleProblem.of_edges(count, [pair for pair in pairs if draw(st.booleans())])


def all_masks(problem: ScheduleProblem) -> np.ndarray:
    return np.arange(1, min(problem.full, 500) + 1, dtype=np.uint64)


@settings(max_examples=20, deadline=None)
@given(small_problems(), st.lists(st.sampled_from(["", "a", "b"]), min_size=64, max_size=64))
def test_number_and_text_tell_the_same_stages_apart(problem: ScheduleProblem, texts: list[str]) -> None:
    texts = texts[: len(problem)]
    keys = unit_keys(texts)
    keys[[not text for text in texts]] = 0
    masks = all_masks(problem)
    digests = []
    for mask in masks.tolist():
        groups = PlannedStage(mask, Strategy.CONCURRENT).groups(problem)
        digests.append(stage_digest(Strategy.CONCURRENT, [[texts[unit] for unit in bits(group)] for group in groups]))
    numbers = stage_hashes(StageBatch.concurrent(problem, masks), keys).tolist()
    pairs = set(zip(digests, numbers, strict=True))
    assert len(pairs) == len(set(digests)) == len(set(numbers))
    assert {digest for digest, number in pairs if number == 0} <= {None}


def test_a_digest_is_what_stores_are_keyed_by() -> None:
    """Stores outlive releases: another text here needs another format, and says that nothing of old is found."""
    assert stage_digest(Strategy.CONCURRENT, [["b", "", "c"], ["a"], [""]]) == "25591ac5a37c5ae19938bd5b06679bf3"
    assert stage_digest(Strategy.CONCURRENT, [["a"], ["b", "c"]]) == "25591ac5a37c5ae19938bd5b06679bf3"
    assert stage_digest(Strategy.MERGE, [["b", "a"]]) == "ffa3e60c9abf1920d49435447bfd6ce7"
    assert stage_digest(Strategy.CONCURRENT, [[""]]) is None


@settings(max_examples=20, deadline=None)
@given(small_problems())
def test_compiled_groups_are_those_of_the_problem(problem: ScheduleProblem) -> None:
    masks = all_masks(problem)
    groups = np.zeros(len(problem), dtype=np.uint64)
    for mask in masks:
        count = find_groups(mask, problem.predecessors, groups)
        assert groups[:count].tolist() == problem.groups(int(mask))
    assert count_groups(masks, problem.predecessors).tolist() == [len(problem.groups(mask)) for mask in masks.tolist()]
