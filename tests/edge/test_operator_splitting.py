"""Every partition gives out every element once; parameters are cut until they fit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iossim.base.errors import DeviceError
from iossim.edge.access import AS_IT_LIES, Order
from iossim.edge.linking import AS_MADE, Bands, Layout, Visit, visit, wanted
from iossim.edge.operators import operators
from iossim.edge.splitting import Even, Grid, Partition, chunks, grids
from iossim.execution.box import Box
from iossim.ir.builder import GraphBuilder
from iossim.ir.ops.matmul import Gemm
from iossim.ir.ops.unary import Relu

shapes = st.tuples(st.just(1), st.integers(1, 9), st.integers(1, 7), st.integers(1, 6))


def counts(partition: Partition) -> np.ndarray:
    """How often each element is given out."""
    given_out = np.zeros(partition.space.shape, int)
    for unit in range(partition.units):
        for box in partition.boxes(unit):
            given_out[box.selection] += 1
    return given_out


def loads(partition: Partition) -> list[int]:
    return [sum(math.prod(box.shape) for box in partition.boxes(unit)) for unit in range(partition.units)]


@given(shapes, st.integers(1, 12))
def test_the_priority_gives_out_all_and_balances_to_one_piece(shape: tuple[int, ...], units: int) -> None:
    partition = Even(Box.whole(shape), units, (1, 2, 3))
    assert (counts(partition) == 1).all()
    assert max(loads(partition)) - min(loads(partition)) <= 1
    assert loads(partition)[0] == max(loads(partition))


@given(shapes, st.integers(1, 12))
def test_so_does_every_grid(shape: tuple[int, ...], units: int) -> None:
    for partition in grids(Box.whole(shape), units, (1, 2)):
        assert (counts(partition) == 1).all()
        assert loads(partition)[0] == max(loads(partition))


def test_output_channels_come_first() -> None:
    space = Box.whole((1, 32, 14, 14))
    assert Even(space, 8, (1, 2, 3)).words == ((1, 8),)
    assert Even(space, 8, (1, 2, 3)).boxes(3) == (Box((0, 12, 0, 0), (1, 4, 14, 14)),)
    # Three filters over eight units: 42 rows, five a unit, and the last two row by row over pixels.
    shared = Even(Box.whole((1, 3, 14, 14)), 8, (1, 2, 3))
    assert [axis for axis, _ in shared.words] == [1, 2, 3]
    assert max(loads(shared)) - min(loads(shared)) == 1


def test_an_operator_that_nothing_splits_stays_whole() -> None:
    space = Box.whole((1, 5))
    assert [Even(space, 3, ()).boxes(unit) for unit in range(3)] == [(space,), (), ()]
    assert Grid(space, 3, (), ()).boxes(0) == (space,)


def test_parameters_are_cut_along_filters_first_then_into_partial_sums() -> None:
    b = GraphBuilder("net")
    x = b.input("x", (1, 16, 6, 6))
    with b.unit("conv", "Conv-Relu"):
        x = b.add(Relu(), b.conv(x, 8, 3, padding=1))
    (operator,) = operators(b.network([x]))
    box = Box.whole((1, 8, 6, 6))
    whole = 8 * 16 * 9 * 4 + 8 * 4
    (one,) = chunks(operator, box, whole)
    assert one.parameter_bytes == whole
    cut = chunks(operator, box, whole - 1)
    assert [chunk.demand.box.shape[1] for chunk in cut] == [2] * 4 or len(cut) == 3
    assert all(chunk.part is None and chunk.parameter_bytes <= whole // 2 for chunk in cut)
    partial = chunks(operator, box, 400)
    assert max(chunk.parameter_bytes for chunk in partial) <= 200
    assert {chunk.part.channels[1] for chunk in partial if chunk.part} == {4}
    assert [chunk.first for chunk in partial[:4]] == [True, False, False, False]
    assert sum(chunk.demand.multiply_adds for chunk in partial) == 8 * 16 * 9 * 36


def test_what_fits_no_way_is_named() -> None:
    b = GraphBuilder("net")
    x = b.input("x", (4, 64))
    with b.unit("fc", "Gemm"):
        x = b.add(Gemm(), x, b.constant("w", (64, 8)), b.constant("c", (8,)))
    (operator,) = operators(b.network([x]))
    assert len(chunks(operator, Box.whole((4, 8)), 64)) > 8
    with pytest.raises(DeviceError, match=r"operator 'fc' needs .* bytes of parameters at once, and half of .* is 4;"):
        chunks(operator, Box.whole((4, 8)), 8)


SHAPE = (1, 64, 28, 28)
BYTES = 64 * 28 * 28 * 4
CHANNELS = Order((0, 2, 3, 1))


def test_a_pixel_by_pixel_reader_pays_a_line_for_each_element_beyond_the_cache() -> None:
    whole = Box.whole(SHAPE)
    assert visit(whole, CHANNELS, AS_MADE, SHAPE, 4, 64, 32768) == Visit(16 * BYTES, False)
    assert visit(whole, CHANNELS, AS_MADE, SHAPE, 4, 64, BYTES) == Visit(BYTES, True)
    assert visit(whole, CHANNELS, AS_MADE, SHAPE, 4, 4, 0) == Visit(BYTES, True)  # words of their own
    assert visit(whole, CHANNELS, Layout((0, 2, 3, 1)), SHAPE, 4, 64, 32768) == Visit(BYTES, True)
    assert visit(whole, AS_IT_LIES, AS_MADE, SHAPE, 4, 64, 32768) == Visit(BYTES, True)


def test_a_linked_window_reads_its_halo_again() -> None:
    order = Order((0, 2, 3, 1), 3, 1, 1)
    layout = wanted(order, SHAPE, 4, 0)
    assert layout.bands == Bands(1, 3, 1, 1)
    rows = 3 * 28 - 2  # the first and the last row lack one
    assert layout.elements(SHAPE) == rows * 64 * 28
    assert visit(Box.whole(SHAPE), order, layout, SHAPE, 4, 64, 0) == Visit(rows * 64 * 28 * 4, True)
    # A cache of ten rows lets a band have eight of the output.
    assert wanted(order, SHAPE, 4, 10 * 64 * 28 * 4).bands == Bands(8, 3, 1, 1)
    assert wanted(AS_IT_LIES, SHAPE, 4, 0) == AS_MADE


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 3), st.integers(1, 6), st.integers(0, 2))
def test_every_row_is_in_a_band_and_every_window_in_one(
    height: int, window: int, stride: int, rows: int, before: int
) -> None:
    before = min(before, window - 1)
    window = min(window, height + 2 * before)
    stride = min(stride, window)
    bands = Bands(rows, window, stride, before)
    ranges = bands.of(height)
    assert {row for low, size in ranges for row in range(low, low + size)} == set(range(height))
    made = (height + 2 * before - window) // stride + 1
    for out in range(made):
        low, size = ranges[out // rows]
        first, last = max(0, out * stride - before), min(height, out * stride - before + window)
        assert low <= first <= last <= low + size
    seen = bands.read(0, height, height, Order(None, 1))
    assert sorted(row for _, start, size in seen for row in range(start, start + size)) == list(range(height))
