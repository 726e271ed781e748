"""Every partition gives out every element once; the search for splits is exact by its bound, limited, and ends by an interrupt."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from edge_devices import made, outputs_equal
from graph_builders import builder_with
from hypothesis import given
from hypothesis import strategies as st

from iossim import related
from iossim.base.errors import DeviceError
from iossim.edge import optimize
from iossim.edge.access import AS_IT_LIES, Order
from iossim.edge.linking import AS_MADE, Layout, Visit, visit, wanted
from iossim.edge.operators import operators
from iossim.edge.optimize import SplitSearch, plan
from iossim.edge.plan import EdgePlan, Load, OperatorStep, OutputSlice, Variant, slice_load, unit_work
from iossim.edge.runs import run
from iossim.edge.splitting import Even, Grid, Partition, check_fits, chunks, grids
from iossim.execution.plan import Box
from iossim.ir.builder import GraphBuilder
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.reshape import Reshape
from iossim.ir.ops.slice import Split
from iossim.ir.ops.unary import Relu
from iossim.models.load import load

shapes = st.tuples(st.just(1), st.integers(1, 9), st.integers(1, 7), st.integers(1, 6))


def counts(partition: Partition) -> np.ndarray:
    """Number of times that each element is given out."""
    given_out = np.zeros(partition.space.shape, int)
    for unit in range(partition.units):
        for box in partition.boxes(unit):
            given_out[box.selection] += 1
    return given_out


def loads(partition: Partition) -> list[int]:
    return [partition.elements(unit) for unit in range(partition.units)]


@given(shapes, st.integers(1, 12))
def test_every_split_gives_out_all_and_the_priority_balances_to_one_piece(shape: tuple[int, ...], units: int) -> None:
    priority = Even(Box.whole(shape), units, (1, 2, 3))
    assert max(loads(priority)) - min(loads(priority)) <= 1
    for partition in (priority, *grids(Box.whole(shape), units, (1, 2))):
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
    b, x = builder_with("net", x=(1, 16, 6, 6))
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
    assert {chunk.part[0][1] for chunk in partial if chunk.part} == {4}
    assert [chunk.first for chunk in partial[:4]] == [True, False, False, False]
    assert sum(chunk.demand.multiply_adds for chunk in partial) == 8 * 16 * 9 * 36
    # Each part adds its sums to those before.
    added = sum(math.prod(chunk.demand.box.shape) for chunk in partial)
    assert sum(chunk.demand.other_flops for chunk in partial) == one.demand.other_flops + added


@pytest.mark.parametrize(
    ("image", "kernel", "groups"), [((5, 5), (3, 3), 2), ((9,), (5,), 1), ((3, 4, 3), (2, 2, 2), 1)]
)
def test_partial_sums_of_groups_and_of_any_rank(image: tuple[int, ...], kernel: tuple[int, ...], groups: int) -> None:
    """Those of signals and volumes were a crash."""
    b, pads, ones = GraphBuilder("net"), tuple(size // 2 for size in kernel), (1,) * len(kernel)
    weights = b.constant("weight", (4, 8 // groups, *kernel)), b.constant("bias", (4,))
    y = b.add(Conv(ones, (*pads, *pads), ones, groups), b.input("x", (1, 8, *image)), *weights)
    found = plan(b.network([y]), made(units=2, private_bytes=120), Variant.HORIZONTAL)
    step = replace(found.steps[0], is_cut=True)
    assert any(work.chunk.part is not None for work in unit_work(found, step, step.slices[0], 0))
    outputs_equal(replace(found, steps=(step,)))


SHAPE = (1, 64, 28, 28)
BYTES = 64 * 28 * 28 * 4
CHANNELS = Order((0, 2, 3, 1))


def test_a_pixel_by_pixel_reader_pays_a_line_for_each_element_beyond_the_cache() -> None:
    whole = Box.whole(SHAPE)
    assert visit(whole, CHANNELS, AS_MADE, SHAPE, 4, 64, 32768) == Visit(16 * BYTES, False)
    assert visit(whole, CHANNELS, AS_MADE, SHAPE, 4, 64, BYTES) == Visit(BYTES, True)
    assert visit(whole, CHANNELS, AS_MADE, SHAPE, 4, 4, 0) == Visit(BYTES, True)  # words of their own
    assert visit(whole, CHANNELS, Layout(CHANNELS), SHAPE, 4, 64, 32768) == Visit(BYTES, True)
    assert visit(whole, AS_IT_LIES, AS_MADE, SHAPE, 4, 64, 32768) == Visit(BYTES, True)
    # Half of each row: what follows it is not adjacent, whatever the order of the outer axes.
    half = Box((0, 0, 0, 0), (2, 64, 14, 14))
    assert visit(half, Order((1, 0, 2, 3)), AS_MADE, (2, 64, 28, 28), 4, 64, 0) == Visit(2 * 64 * 14 * 64, False)


def test_a_linked_window_reads_its_halo_again() -> None:
    order = Order((0, 2, 3, 1), 3, 1, 1)
    layout = wanted(order, SHAPE, 4, 0)
    assert layout == Layout(order, 1)
    rows = 3 * 28 - 2  # the first and the last row lack one
    assert layout.elements(SHAPE) == rows * 64 * 28
    assert visit(Box.whole(SHAPE), order, layout, SHAPE, 4, 64, 0) == Visit(rows * 64 * 28 * 4, True)
    # A cache of ten rows lets a band have eight of the output.
    assert wanted(order, SHAPE, 4, 10 * 64 * 28 * 4) == Layout(order, 8)
    assert wanted(AS_IT_LIES, SHAPE, 4, 0) == AS_MADE


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 3), st.integers(1, 6), st.integers(0, 2))
def test_every_row_is_in_a_band_and_every_window_in_one(
    height: int, window: int, stride: int, rows: int, before: int
) -> None:
    before = min(before, window - 1)
    window = min(window, height + 2 * before)
    stride = min(stride, window)
    layout, shape = Layout(Order((0, 2, 3, 1), window, stride, before), rows), (1, 1, height, 1)
    ranges = layout.bands(height)
    assert {row for low, size in ranges for row in range(low, low + size)} == set(range(height))
    made = (height + 2 * before - window) // stride + 1
    for out in range(made):
        low, size = ranges[out // rows]
        first, last = max(0, out * stride - before), min(height, out * stride - before + window)
        assert low <= first <= last <= low + size
    seen = [part for _, part in layout.read(Box.whole(shape), shape, AS_IT_LIES)]
    assert sorted(row for part in seen for row in range(part.starts[2], part.ends[2])) == list(range(height))


@pytest.mark.parametrize(("model", "device", "every"), [("squeezenet", "c6678", 3), ("ios_sample", "zcu102", 400)])
def test_no_split_takes_less_than_its_share_of_the_arithmetic_and_the_search_finds_the_best(
    model: str, device: str, every: int
) -> None:
    found = plan(load(model), made(device), Variant.HORIZONTAL)
    units = found.device.units.value
    for operator in operators(found.network)[:3]:
        (part, *_) = found.steps[operator.index].slices
        step = OperatorStep(operator, (part,))
        space = part.partition.space
        demand = operator.demand(space)
        assert demand is not None
        rate = found.device.multiply_adds_per_us(found.precision)
        whole_us = (demand.multiply_adds + demand.other_flops) / rate

        def price_us(partition: Partition, step: OperatorStep = step, part: OutputSlice = part) -> float:
            return slice_load(found, step, replace(part, partition=partition)).us

        splits = [Even(space, units, operator.axes), *grids(space, units, operator.axes)]
        for partition in splits[::every]:
            share = partition.elements(0) / math.prod(space.shape)
            assert price_us(partition) >= whole_us * share * (1 - 1e-9)
        chosen = SplitSearch("exhaustive").split(found, step, units, part)
        if every < 10:
            assert price_us(chosen) == min(map(price_us, splits))


class Falling:
    """Prices each less than the one before; after ``most`` of them an interrupt comes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.priced: list[Partition] = []

    def __call__(self, found: EdgePlan, step: OperatorStep, part: OutputSlice) -> Load:
        if len(self.priced) == self.most:
            raise KeyboardInterrupt
        self.priced.append(part.partition)
        return Load(1e9 - len(self.priced), 0.0, 0.0)


@pytest.fixture
def horizontal() -> EdgePlan:
    return plan(load("squeezenet"), made(), Variant.HORIZONTAL)


def test_so_many_splits_are_tried_and_no_more(horizontal: EdgePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimize, "MOST_TRIED", 7)
    monkeypatch.setattr(optimize, "slice_load", prices := Falling(1000))
    step = horizontal.steps[0]
    chosen = SplitSearch("exhaustive").split(horizontal, step, 8, step.slices[0])
    assert len(prices.priced) == 7
    assert chosen == prices.priced[-1]


def test_an_interrupt_leaves_the_best_so_far_and_the_priority_afterwards(
    horizontal: EdgePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimize, "slice_load", prices := Falling(3))
    first, second = horizontal.steps[:2]
    search = SplitSearch("exhaustive")
    assert search.split(horizontal, first, 8, first.slices[0]) == prices.priced[2]
    assert isinstance(prices.priced[2], Grid)
    assert search.was_interrupted
    space = Box.whole(second.operator.output.shape)
    assert search.split(horizontal, second, 8, second.slices[0]) == Even(space, 8, second.operator.axes)


def test_progress_counts_all_operators_of_all_plans() -> None:
    told: dict[str, list[tuple[int, int]]] = {}

    def start(label: str) -> optimize.Progress:
        return lambda done, total: told.setdefault(label, []).append((done, total))

    related.dataflow("ios_sample", "c6678", policy="exhaustive", progress=start)
    units = len(load("ios_sample").units)
    assert told["operators split"] == [(done, 3 * units) for done in range(1, 3 * units + 1)]
    assert told["plans checked and timed"][-1] == (3, 3)


def test_what_cannot_fit_is_refused_before_anything_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr(SplitSearch, "split", never)
    for private, words in (
        (8, r"operator '\w+' needs .* bytes of parameters at once, and half of .* is 4; no split makes them fit"),
        (100, "would be cut into 42,025 parts; give units at least 130 bytes"),
    ):
        with pytest.raises(DeviceError, match=words):
            plan(load("mobilenet_v1"), made(private_bytes=private), Variant.HORIZONTAL)


@pytest.mark.parametrize("private", [4, 8, 16, 40, 200, 1000])
def test_the_check_says_what_the_search_would(private: int) -> None:
    """For operators whose parameters are few enough to be cut to pieces."""
    b = GraphBuilder("small")
    x = b.conv(b.input("x", (1, 6, 5, 5)), 8, 3)
    x = b.conv(x, 8, 1, groups=4)
    x = b.add(MatMul(), b.add(Reshape((9, 8)), x), b.constant("weight", (8, 3)))
    for operator in operators(b.network([x])):
        searched = refusal(chunks, operator, Box.whole(operator.output.shape), private)
        assert refusal(check_fits, operator, private) == searched


def refusal(fits: Callable[..., object], *given: object) -> str:
    try:
        fits(*given)
    except DeviceError as error:
        return str(error)
    return ""


def test_an_operator_of_unknown_access_is_done_once_and_its_outputs_are_whole() -> None:
    b, x = builder_with("unknown", x=(1, 4, 6, 6))
    with b.unit("both", "Conv"):
        y = b.add(Conv(groups=4), x, b.constant("w", (8, 1, 1, 1)))
        values = list(b.add_all(Split(1, (3, 5)), y))
    network = b.network(values)
    (step,) = (found := plan(network, made(), Variant.HORIZONTAL)).steps
    works = [work for unit in range(8) for work in unit_work(found, step, step.slices[0], unit)]
    assert sum(work.chunk.demand.multiply_adds for work in works) == 8 * 6 * 6
    shared = related.distribute(network, "c6678", 2)
    assert [shared.distribution.share(0).held[value] for value in values] == [1.0, 1.0]
    assert run(shared).holds
    assert run(found).holds
