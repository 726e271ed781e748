"""Collectives leave on every device what they are named after, and send no more than their closed forms say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iossim.base.errors import OptionError
from iossim.edge.collectives import (
    SYNCHRONISATIONS,
    apply,
    parts_of,
    ring_reduce_scatter,
    synchronisation,
)
from iossim.ir.op import Array

sizes = st.tuples(st.integers(1, 9), st.integers(0, 40), st.integers(0, 1 << 30))
names = st.sampled_from(sorted(SYNCHRONISATIONS))


def buffers(devices: int, elements: int, seed: int) -> list[Array]:
    return list(np.random.default_rng(seed).integers(-99, 99, (devices, elements)))


@given(sizes, names)
def test_every_device_has_the_sum(size: tuple[int, int, int], name: str) -> None:
    devices, elements, _ = size
    held = buffers(*size)
    expected = np.sum(held, axis=0)
    apply(SYNCHRONISATIONS[name].all_reduce(parts_of(devices, elements)), held)
    for each in held:
        np.testing.assert_array_equal(each, expected)


@given(sizes, names)
def test_every_device_has_all_parts(size: tuple[int, int, int], name: str) -> None:
    devices, elements, seed = size
    (whole,) = buffers(1, elements, seed)
    parts = parts_of(devices, elements)
    held = [np.zeros_like(whole) for _ in parts]
    for each, part in zip(held, parts, strict=True):
        each[part.selection] = whole[part.selection]
    apply(SYNCHRONISATIONS[name].all_gather(parts), held)
    for each in held:
        np.testing.assert_array_equal(each, whole)


@given(sizes)
def test_each_device_has_a_part_of_the_sum(size: tuple[int, int, int]) -> None:
    devices, elements, _ = size
    held, parts = buffers(*size), parts_of(devices, elements)
    expected = np.sum(held, axis=0)
    apply(ring_reduce_scatter(parts), held)
    for device, each in enumerate(held):
        part = parts[(device + 1) % devices].selection
        np.testing.assert_array_equal(each[part], expected[part])


@given(st.integers(2, 9), st.data(), names)
def test_what_is_wanted_arrives(devices: int, data: st.DataObject, name: str) -> None:
    elements = 24
    (whole,), parts = buffers(1, elements, 3), parts_of(devices, elements)
    pairs = st.tuples(st.integers(0, devices - 1), st.integers(0, devices - 1)).filter(
        lambda pair: pair[0] != pair[1]
    )
    wanted = [(source, target, parts[source]) for source, target in data.draw(st.lists(pairs, unique=True))]
    held = [np.full(elements, -1) for _ in parts]
    for each, part in zip(held, parts, strict=True):
        each[part.selection] = whole[part.selection]
    apply(SYNCHRONISATIONS[name].exchange(wanted, parts), held)
    for _, target, box in wanted:
        np.testing.assert_array_equal(held[target][box.selection], whole[box.selection])


@given(st.integers(2, 9), st.integers(1, 9))
def test_a_ring_sends_no_more_than_must_be(devices: int, times: int) -> None:
    """2 (n - 1) / n of the buffer from each device: the least there is (Patarasuk and Yuan 2009, theorem 1)."""
    elements = devices * times
    assert synchronisation("ring").all_reduce(parts_of(devices, elements)).elements == 2 * (devices - 1) * elements


def test_a_way_that_is_unknown() -> None:
    with pytest.raises(OptionError, match="unknown `sync` 'rings'; did you mean 'ring'"):
        synchronisation("rings")
