"""Contract of every scheduler (:mod:`iossim.search.scheduler`): subclass, and set its name.

class TestMine(SchedulerConformance):
    scheduler = "mine"
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from iossim.cost.random import RandomCostModel
from iossim.execution.lower import lower_schedule
from iossim.ir.network import Network
from iossim.models.random_graphs import seeded_network
from iossim.schedule.fit import fit
from iossim.schedule.schedule import Schedule
from iossim.search.assemble import reprice
from iossim.search.scheduler import schedule
from iossim.tasks.checks import race_free


class SchedulerConformance:
    """Schedules fit their network, have the latency of their stages, run without races, and are reproducible."""

    scheduler: str
    #: Seeds of networks and of prices.
    seeds = (1, 2, 3)

    @pytest.fixture(params=(1, 2, 3))
    def network(self, request: pytest.FixtureRequest) -> Network:
        return seeded_network(request.param, units=7, blocks=2)

    @pytest.fixture
    def prices(self, network: Network) -> RandomCostModel:
        return RandomCostModel(seed=len(network.graph.nodes))

    @pytest.fixture
    def found(self, network: Network, prices: RandomCostModel) -> Schedule:
        return schedule(network, prices, self.scheduler)

    def test_it_says_whose_it_is(self, found: Schedule) -> None:
        assert found.scheduler == self.scheduler
        assert found.complete

    def test_it_fits_its_network(self, found: Schedule, network: Network) -> None:
        fit(found, network)

    def test_its_latency_is_the_sum_of_its_stages(
        self, found: Schedule, network: Network, prices: RandomCostModel
    ) -> None:
        total_us = sum(stage.latency_us + stage.boundary_us for stage in found.stages)
        assert found.latency_us == pytest.approx(total_us)
        assert reprice(found, network, prices).latency_us == pytest.approx(found.latency_us)

    def test_its_plan_runs_without_races(self, found: Schedule, network: Network) -> None:
        for engine in ("paper", "graph"):
            check = race_free(lower_schedule(found, network, engine))
            assert check.holds, str(check)

    def test_the_same_network_has_the_same_schedule(self, found: Schedule, network: Network) -> None:
        again = schedule(network, RandomCostModel(seed=len(network.graph.nodes)), self.scheduler)
        assert again.model_copy(update={"search_s": found.search_s}) == found

    def test_it_is_no_faster_than_its_bound(self, found: Schedule) -> None:
        if found.lower_bound_us is not None:
            assert found.lower_bound_us <= found.latency_us * (1 + 1e-9)

    def test_progress_goes_up_to_all_units(self, network: Network, prices: RandomCostModel) -> None:
        told: list[tuple[int, int]] = []
        schedule(network, prices, self.scheduler, progress=lambda done, total: told.append((done, total)))
        assert all(before <= after for (before, _), (after, _) in pairwise(told))
        assert all(done <= total == len(network.units) for done, total in told)
