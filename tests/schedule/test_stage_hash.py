"""Both forms of a stage's identity are one equivalence; groups of compiled code are those of a problem."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.masks import count_groups, find_groups
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.schedule.stage_hash import stage_digest, stage_hashes, unit_keys


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
