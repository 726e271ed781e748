"""Boxes against the sets of their elements."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from iossim.execution.box import Box, starting

WHOLES = st.lists(st.integers(1, 4), min_size=0, max_size=3).map(tuple)


@st.composite
def boxes(draw: st.DrawFn, count: int) -> tuple[tuple[int, ...], list[Box]]:
    """A whole, and boxes of it; some are empty."""
    whole = draw(WHOLES)
    found = []
    for _ in range(count):
        starts = tuple(draw(st.integers(0, size)) for size in whole)
        shape = tuple(draw(st.integers(0, size - start)) for size, start in zip(whole, starts, strict=True))
        found.append(Box(starts, shape))
    return whole, found


def elements(box: Box) -> set[tuple[int, ...]]:
    return set(product(*(range(start, start + size) for start, size in zip(box.starts, box.shape, strict=True))))


@given(boxes(2))
def test_overlap_and_what_is_left(drawn: tuple[tuple[int, ...], list[Box]]) -> None:
    _, (one, other) = drawn
    assert one.overlaps(other) == other.overlaps(one) == bool(elements(one) & elements(other))
    left = [elements(part) for part in one.without(other)]
    assert set().union(*left) == elements(one) - elements(other)
    assert sum(map(len, left)) == len(elements(one) - elements(other)), "parts do not overlap"


@given(boxes(5))
def test_coverage(drawn: tuple[tuple[int, ...], list[Box]]) -> None:
    _, (wanted, *parts) = drawn
    assert wanted.covered_by(parts) == (elements(wanted) <= set().union(*map(elements, parts)))


@given(boxes(1))
def test_the_index_picks_the_elements(drawn: tuple[tuple[int, ...], list[Box]]) -> None:
    whole, (box,) = drawn
    numbers = np.arange(np.prod(whole, dtype=int)).reshape(whole)
    picked = numbers[box.selection]
    assert isinstance(picked, np.ndarray)
    assert np.shares_memory(picked, numbers) or not picked.size
    assert set(picked.reshape(-1).tolist()) == {int(numbers[place]) for place in elements(box)}
    assert Box.whole(whole).shape == numbers.shape


def test_a_box_inside_a_box() -> None:
    assert Box((1, 0), (2, 3)).moved((4, 5)) == Box((5, 5), (2, 3))
    assert starting(4, 1, 7) == (0, 7, 0, 0)
