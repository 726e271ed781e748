"""Contract of every cost model (:class:`iossim.cost.model.CostModel`): subclass, and construct yours.

class TestMine(CostModelConformance):
    def cost_model(self, device):
        return MyCostModel(device)
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import pytest

from iossim.cost.model import START, CostModel, StageBounds, problems_of
from iossim.hardware.profile import DeviceProfile
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import ModelSource, Network
from iossim.models.layers import conv_relu, join
from iossim.models.random_graphs import seeded_network
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.search.counting import distinct_stages
from iossim.search.options import StageSpace
from iossim.search.scheduler import schedule


def least_price_us(bounds: StageBounds, groups: list[int]) -> float:
    """Lower bound of a concurrent stage's price; its groups (masks) in the order of issue."""
    units = bits(sum(groups))
    issue_us = np.zeros(len(bounds.serial_us)) if bounds.issue_us is None else bounds.issue_us
    issued_us = np.cumsum([0.0, *(issue_us[bits(group)].sum() for group in groups)])[:-1]
    least_us = [before + bounds.serial_us[bits(group)].sum() for before, group in zip(issued_us, groups, strict=True)]
    least_us += bounds.work_us[units].sum(axis=0).tolist()
    if len(groups) == 1:
        least_us.append(bounds.single_us[units].sum())
    return float(max(least_us))


#: Tolerated relative difference of sums of the same numbers in another order.
ROUNDING = 1e-9


class CostModelConformance(ABC):
    """Prices are finite or inf, the same in any batch and for equal work, and never below the bounds."""

    #: Seeds of the priced networks, each with two blocks of equal size.
    seeds = (1, 2, 3)
    units = 6

    @abstractmethod
    def cost_model(self, device: DeviceProfile) -> CostModel:
        """A new cost model; ``device`` is a small GPU for those that need one."""

    @pytest.fixture
    def prices(self, iossim_device: DeviceProfile) -> CostModel:
        return self.cost_model(iossim_device)

    def networks(self) -> list[Network]:
        return [seeded_network(seed, units=self.units, blocks=2) for seed in self.seeds]

    def test_two_of_the_same_have_one_identity(self, prices: CostModel, iossim_device: DeviceProfile) -> None:
        assert prices.identity == self.cost_model(iossim_device).identity
        assert prices.identity.name

    def test_prices_are_microseconds_of_each_stage(self, prices: CostModel) -> None:
        for network in self.networks():
            for batch in batches(network):
                found = prices.price_stages(batch)
                assert found.dtype == np.float64
                assert found.shape == (len(batch),)
                assert not np.isnan(found).any()
                assert (found >= 0).all()

    def test_a_price_does_not_depend_on_its_batch(self, prices: CostModel, iossim_device: DeviceProfile) -> None:
        for network in self.networks():
            for batch in batches(network):
                together = prices.price_stages(batch)
                backwards = np.arange(len(batch))[::-1]
                other = self.cost_model(iossim_device)
                again = other.price_stages(batch.take(backwards))[backwards]
                np.testing.assert_allclose(again, together, rtol=ROUNDING)

    def test_equal_work_has_equal_prices(self, prices: CostModel) -> None:
        for one, other in zip(self.networks(), self.networks(), strict=True):
            for first, second in zip(batches(one), batches(other), strict=True):
                assert np.array_equal(prices.price_stages(first), prices.price_stages(second))

    def test_boundaries_take_time_or_none(self, prices: CostModel) -> None:
        for left in (False, True):
            for right in (False, True):
                assert 0 <= prices.price_boundary(left, right) < np.inf

    def test_bounds_never_exceed_prices(self, prices: CostModel) -> None:
        for network in self.networks():
            for batch in batches(network):
                bounds = prices.bounds(batch.problem)
                if bounds is None:
                    continue
                found = prices.price_stages(batch)
                for mask, price_us in zip(batch.masks.tolist(), found.tolist(), strict=True):
                    assert least_price_us(bounds, list(batch.problem.groups(mask))) <= price_us * (1 + ROUNDING)

    def test_a_search_finds_no_worse_than_one_by_one(self, prices: CostModel) -> None:
        for network in self.networks():
            sequential, best = (schedule(network, prices, name) for name in ("sequential", "ios-both"))
            assert best.latency_us <= sequential.latency_us * (1 + ROUNDING)

    def test_blocks_that_look_alike_are_solved_by_their_own_prices(self, prices: CostModel) -> None:
        """Their units have equal work but different names; proofs about a schedule are checked for all schedules."""
        network = twin_network()
        for plain, told_apart in zip(batches(network), problems_of(network, prices), strict=True):
            asked = StageBatch.concurrent(told_apart, plain.masks)
            np.testing.assert_array_equal(prices.price_stages(asked), prices.price_stages(plain))
        found = schedule(network, prices, "ios-parallel")
        assert found.latency_us == pytest.approx(least_latency_us(network, prices), rel=ROUNDING)
        assert found.lower_bound_us is None or found.lower_bound_us <= found.latency_us * (1 + ROUNDING)


def twin_network() -> Network:
    """Two equal blocks of three convolutions of one input, and their sum."""
    b = GraphBuilder("twins")
    x = b.input("image", (1, 8, 14, 14))
    for block in ("first", "second"):
        with b.block(block):
            branches = [conv_relu(b, f"{block}.{n}", x, 8, k, padding=k // 2) for n, k in enumerate((1, 3, 3))]
            x = join(b, f"{block}.sum", [branches])
    return b.network([x], ModelSource("twins"))


def least_latency_us(network: Network, prices: CostModel) -> float:
    """Minimum latency of all schedules of concurrent stages, from every state of every block in turn."""
    best = {START: 0.0}
    for batch in batches(network):
        stages = list(zip(batch.masks.tolist(), prices.price_stages(batch).tolist(), strict=True))
        reached = {(0, bit): us for bit, us in best.items()}
        for done in range(batch.problem.full):
            ready = batch.problem.ancestors.tolist()
            for mask, price_us in stages:
                if mask & done or any(ready[unit] & ~(done | mask) for unit in bits(mask)):
                    continue
                bit = int(len(batch.problem.groups(mask)) > 1)
                for before in {before for state, before in reached if state == done}:
                    between_us = 0.0 if before == START else prices.price_boundary(bool(before), bool(bit))
                    total_us = reached[done, before] + between_us + price_us
                    reached[done | mask, bit] = min(total_us, reached.get((done | mask, bit), np.inf))
        best = {bit: us for (state, bit), us in reached.items() if state == batch.problem.full}
    return min(best.values())


def batches(network: Network) -> list[StageBatch]:
    """For each block of a network, all its concurrent stages."""
    problems = [ScheduleProblem.of_block(network, block) for block in network.blocks]
    return [StageBatch.concurrent(problem, distinct_stages(problem, StageSpace())) for problem in problems]
