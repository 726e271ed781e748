"""What a visit costs as a map lies and as its reader has it, and that bands hold every row that their windows take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iossim.edge.access import AS_IT_LIES, Order
from iossim.edge.linking import AS_MADE, Bands, Layout, Visit, visit, wanted
from iossim.execution.box import Box

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
