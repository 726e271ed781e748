"""The search for splits: exact by its bound, limited, ended by an interrupt with what it has, and nothing searched that cannot fit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from edge_devices import made

from iossim import related
from iossim.base.errors import DeviceError
from iossim.edge import optimize
from iossim.edge.operators import operators
from iossim.edge.optimize import SplitSearch, arithmetic_us, plan
from iossim.edge.plan import OperatorStep, OutputSlice, Variant, slice_load
from iossim.edge.splitting import Even, Grid, Partition, check_fits, chunks, grids
from iossim.execution.box import Box
from iossim.ir.builder import GraphBuilder
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.reshape import Reshape
from iossim.models.load import load


def grids_of(space: Box, units: int, axes: tuple[int, ...]) -> list[Partition]:
    return [Even(space, units, axes), *grids(space, units, axes)]


@pytest.mark.parametrize(("model", "device", "every"), [("squeezenet", "c6678", 3), ("ios_sample", "zcu102", 400)])
def test_no_split_takes_less_than_its_share_of_the_arithmetic_and_the_search_finds_the_best(
    model: str, device: str, every: int
) -> None:
    network, board = load(model), made(device)
    found = plan(network, board, Variant.HORIZONTAL)
    units, tried = board.units.value, 0
    for operator in operators(network)[:3]:
        step = OperatorStep(operator, found.steps[operator.index].slices[:1])
        (part,) = step.slices
        space = part.partition.space
        whole_us = arithmetic_us(found, operator, space)

        def price_us(partition: Partition, step: OperatorStep = step, part: OutputSlice = part) -> float:
            nonlocal tried
            tried += 1
            return slice_load(found, step, replace(part, partition=partition)).us

        every_one = grids_of(space, units, operator.axes)
        for partition in every_one[::every]:
            share = partition.elements(0) / math.prod(space.shape)
            assert price_us(partition) >= whole_us * share * (1 - 1e-9)
        tried = 0
        chosen = SplitSearch("exhaustive").split(found, operator, space, units, price_us)
        assert tried <= len(every_one)
        if every < 10:
            assert price_us(chosen) == min(map(price_us, every_one))


def test_so_many_splits_are_tried_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimize, "MOST_TRIED", 7)
    network, board = load("squeezenet"), made()
    found = plan(network, board, Variant.HORIZONTAL)
    prices: list[Partition] = []

    def price_us(partition: Partition) -> float:
        prices.append(partition)
        return 1e9 - len(prices)

    operator = operators(network)[0]
    chosen = SplitSearch("exhaustive").split(found, operator, Box.whole(operator.output.shape), 8, price_us)
    assert len(prices) == 7
    assert chosen == prices[-1]


def test_an_interrupt_leaves_the_best_so_far_and_the_priority_behind_it() -> None:
    network, board = load("squeezenet"), made()
    found = plan(network, board, Variant.HORIZONTAL)
    first, second = operators(network)[:2]
    prices: list[Partition] = []

    def price_us(partition: Partition) -> float:
        if len(prices) == 3:
            raise KeyboardInterrupt
        prices.append(partition)
        return 1e9 - len(prices)

    search = SplitSearch("exhaustive")
    assert search.split(found, first, Box.whole(first.output.shape), 8, price_us) == prices[2]
    assert isinstance(prices[2], Grid)
    assert search.was_interrupted
    space = Box.whole(second.output.shape)
    assert search.split(found, second, space, 8, price_us) == Even(space, 8, second.axes)


def test_progress_counts_all_operators_of_all_plans() -> None:
    told: dict[str, list[tuple[int, int]]] = {}

    def start(label: str) -> optimize.Progress:
        return lambda done, total: told.setdefault(label, []).append((done, total))

    related.dataflow("ios_sample", "c6678", policy="exhaustive", progress=start)
    units = len(load("ios_sample").units)
    assert told["operators split"] == [(done, 3 * units) for done in range(1, 3 * units + 1)]
    assert told["plans checked and timed"][-1] == (6, 6)


def test_what_cannot_fit_is_refused_before_anything_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr(SplitSearch, "split", never)
    for private, words in (
        (8, "no split makes them fit"),
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
        refused = []
        for fits in (
            lambda operator=operator: chunks(operator, Box.whole(operator.output.shape), private),
            lambda operator=operator: check_fits(operator, private),
        ):
            try:
                fits()
                refused.append("")
            except DeviceError as error:
                refused.append(str(error))
        assert refused[0] == refused[1]
