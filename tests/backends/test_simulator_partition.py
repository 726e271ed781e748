"""The partition engine: the best division by trying all, bounds below prices, and what a stage's parts are."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iossim import api
from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.partition import PreparedPartition
from iossim.base.errors import OptionError
from iossim.cost.variant_bounds import least_of_variants
from iossim.execution.engine import Engine
from iossim.hardware.green_contexts import granularity, part_sizes
from iossim.hardware.load import device
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.search.assemble import reprice

V100 = device("v100-sxm2")
SIZES = np.array([2, 4, 6, 8], dtype=np.int64)
SMS = 10


def partition(unit_us: np.ndarray, shared_us: np.ndarray) -> PreparedPartition:
    single_us = unit_us.min(axis=1) * 0.9
    keys = np.arange(1, len(unit_us) + 1, dtype=np.uint64)
    return PreparedPartition(SMS, SIZES, unit_us, shared_us, single_us, keys)


def brute_force_us(found: PreparedPartition, groups: list[list[int]]) -> float:
    """The shortest longest group over every division."""
    choices = product(range(len(SIZES)), repeat=len(groups))
    return min(
        max(found.unit_us[group, size].sum() for group, size in zip(groups, sizes, strict=True))
        for sizes in choices
        if SIZES[list(sizes)].sum() <= SMS
    )


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_the_longest_group_is_as_short_as_any_division_makes_it(data: st.DataObject) -> None:
    """Times need not fall with the SMs: a bigger part may keep less in L2."""
    count = data.draw(st.integers(2, 5))
    us = st.floats(1.0, 100.0)
    unit_us = np.array(data.draw(st.lists(st.lists(us, min_size=4, max_size=4), min_size=count, max_size=count)))
    group_of = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    # Units of one group are a chain.
    groups = [[u for u in range(count) if group_of[u] == g] for g in sorted(set(group_of), key=group_of.index)]
    predecessors = np.zeros(count, dtype=np.uint64)
    for group in groups:
        for before, unit in pairwise(group):
            predecessors[unit] = np.uint64(1 << before)
    found = partition(unit_us, np.zeros((count, 4, 2)))
    mask = np.array([(1 << count) - 1], dtype=np.uint64)
    (price,) = found.price(mask, predecessors)
    bounds = found.bounds()
    assert (bounds.serial_us <= bounds.single_us).all()
    if len(groups) == 1:
        assert price == pytest.approx(found.single_us.sum())
        return
    assert price == pytest.approx(brute_force_us(found, groups))
    parts, price_us = found.divide(groups)
    assert price_us == pytest.approx(price, rel=1e-12)
    own = [found.unit_us[group, list(SIZES).index(len(part))].sum() for group, part in zip(groups, parts, strict=True)]
    assert max(own) == pytest.approx(price)
    assert sum(map(len, parts)) <= SMS
    assert len({sm for part in parts for sm in part}) == sum(map(len, parts))
    assert bounds.work_us.sum(axis=0).max() <= price
    assert max(bounds.serial_us[group].sum() for group in groups) <= price


def test_what_all_share_is_no_faster_for_the_division() -> None:
    unit_us = np.array([[8.0, 4.0, 3.0, 2.0]] * 2)
    shared_us = np.zeros((2, 4, 2))
    shared_us[0, :, 0] = shared_us[1, :, 0] = 5.0
    (price,) = partition(unit_us, shared_us).price(np.array([3], dtype=np.uint64), np.zeros(2, dtype=np.uint64))
    assert price == 10.0


def test_more_groups_than_parts_share_them_one_after_another() -> None:
    found = partition(np.array([[8.0, 4.0, 3.0, 2.0]] * 7), np.zeros((7, 4, 2)))
    parts, _ = found.divide([[unit] for unit in range(7)])
    assert parts[5] == parts[0]
    assert parts[6] == parts[1]
    assert len(set(parts)) == 5
    (price,) = found.price(np.array([127], dtype=np.uint64), np.zeros(7, dtype=np.uint64))
    assert price == 16.0


@pytest.mark.parametrize("name", ["squeezenet", "inception_v3"])
def test_bounds_of_stages_of_a_network(name: str) -> None:
    network = load(name)
    model = SimulatorCostModel(V100, Precision.FP32, Engine.PARTITION)
    random = np.random.default_rng(0)
    for block in network.blocks[-2:]:
        problem = ScheduleProblem.of_block(network, block)
        masks = np.unique(random.integers(1, problem.full + 1, 300, dtype=np.uint64))
        prices = model.price_stages(StageBatch.concurrent(problem, masks))
        for any_variant in (False, True):
            bounds = least_of_variants(model.bounds_of_variants(problem)) if any_variant else model.bounds(problem)
            for mask, price in zip(masks.tolist(), prices.tolist(), strict=True):
                groups = [list(bits(group)) for group in problem.groups(mask)]
                least = max(bounds.serial_us[group].sum() for group in groups)
                own = list(bits(mask))
                assert max(least, bounds.work_us[own].sum(axis=0).max()) <= price
                if len(groups) == 1:
                    assert bounds.single_us[own].sum() <= price


def test_stages_of_one_group_and_merged_ones_have_the_whole_device() -> None:
    network = load("squeezenet")
    sequential = [api.optimize(network, V100, scheduler="sequential", engine=one).latency_us for one in Engine]
    assert sequential[2] == sequential[1]


@pytest.mark.slow
def test_a_search_finds_no_worse_than_any_schedule_priced_on_parts() -> None:
    network = load("squeezenet")
    prices = SimulatorCostModel(V100, Precision.FP32, Engine.PARTITION)
    best = api.optimize(network, V100, engine=Engine.PARTITION)
    for engine in Engine:
        other = api.optimize(network, V100, engine=engine, scheduler="ios-parallel")
        assert best.latency_us <= reprice(other, network, prices).latency_us * (1 + 1e-9)
    spans = prices.timeline(network, best)
    assert max(span.end_us for span in spans) == pytest.approx(best.latency_us)


def test_sizes_of_parts_by_generation() -> None:
    assert part_sizes(V100) == tuple(range(2, 79, 2))
    assert granularity(device("a100-sxm-40gb")) == (4, 2)
    assert part_sizes(device("h100-sxm"))[:3] == (8, 16, 24)
    with pytest.raises(OptionError, match=r"'k80' \(kepler\) cannot divide its SMs.*give `engine` paper or graph"):
        SimulatorCostModel(device("k80"), Precision.FP32, Engine.PARTITION)
    with pytest.raises(OptionError, match="has 2 SMs and a green context at least 2"):
        part_sizes(device("v100-sxm2+sms=2"))
