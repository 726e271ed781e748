"""A pytest plugin for projects that use iossim: fixtures and assertions that need no GPU.

Enable it in the topmost ``conftest.py`` of the tests (or with ``pytest -p iossim.testing``)::

    pytest_plugins = ["iossim.testing"]

It is not an entry point of pytest, which every pytest of an environment would load, in other projects too.

Fixtures:

- ``iossim_device``: a small GPU, an eighth of a T4, which small networks already fill.
- ``iossim_network``: makes a network from a seed (:func:`~iossim.models.random_graphs.seeded_network`).
- ``iossim_table``: makes a cost model from a few prices written in a test.

The assertions (:func:`assert_schedule_valid`, :func:`assert_latency_at_most`, :func:`assert_no_slower_than`,
:func:`assert_plan_race_free`) report what they found when they fail.

To test an op, a cost model, a scheduler, a backend or a device of your own, subclass a class of
:mod:`iossim.testing.conformance`, and pytest checks its contract. iossim's own are tested in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from iossim.cost.model import CostModel
    from iossim.cost.table import TableCostModel
    from iossim.execution.plan import Plan
    from iossim.hardware.profile import DeviceProfile
    from iossim.ir.network import Network
    from iossim.schedule.schedule import AnySchedule
    from iossim.tasks.checks import Check

# iossim is imported on use: loading the plugin costs nothing. pytest is optional: nothing else imports
# this.

MakeTable = Callable[..., "TableCostModel"]


@pytest.fixture(scope="session")
def iossim_device() -> DeviceProfile:
    """A GPU of 5 SMs and 40 GB/s, otherwise as a T4."""
    from iossim.hardware.load import device
    from iossim.hardware.override import derive

    facts = {"sm_count": 5, "dram_bandwidth_gbps": 40.0, "l2_mib": 0.5, "board_power_w": 10.0, "dram_gib": 2.0}
    return derive("iossim-test-gpu", device("t4"), facts)


@pytest.fixture(scope="session")
def iossim_network() -> Callable[..., Network]:
    """``iossim_network(seed, units=8, blocks=2, batch=1)`` is a small network."""
    from iossim.models.random_graphs import seeded_network

    return seeded_network


@pytest.fixture(scope="session")
def iossim_table() -> MakeTable:
    """``iossim_table({"a": 5.0, ("a", "b"): 6.0}, merged={("a", "b"): 4.0}, boundary_us=2.0)`` is a cost model.

    A key is a unit or several; unpriced stages cannot run. ``boundary_us`` applies next to stages of several groups.
    """
    from iossim.cost.table import BoundaryPrices, PriceTable, StagePrice, TableCostModel
    from iossim.schedule.batch import Strategy

    def make(
        prices_us: Mapping[str | Iterable[str], float],
        merged: Mapping[Iterable[str], float] | None = None,
        boundary_us: float = 0.0,
        device: str = "table",
    ) -> TableCostModel:
        stages = [
            StagePrice(units=[key] if isinstance(key, str) else list(key), latency_us=float(price))
            for key, price in prices_us.items()
        ]
        stages += [
            StagePrice(units=list(key), strategy=Strategy.MERGE, latency_us=float(price))
            for key, price in (merged or {}).items()
        ]
        between = float(boundary_us)
        boundaries = BoundaryPrices(
            single_to_concurrent=between, concurrent_to_single=between, concurrent_to_concurrent=between
        )
        return TableCostModel(PriceTable(device=device, boundary_us=boundaries, stages=stages), device)

    return make


def assert_schedule_valid(schedule: AnySchedule, network: Network) -> None:
    """Assert that the schedule runs each unit of the network once, after all its predecessors."""
    __tracebackhide__ = True  # tracebacks show the test
    from iossim.tasks.checks import valid

    _assert(valid(schedule, network))


def assert_latency_at_most(schedule: AnySchedule, limit_ms: float) -> None:
    """Assert that the schedule takes at most this number of milliseconds, at the prices that it was found with."""
    __tracebackhide__ = True  # tracebacks show the test
    from iossim.tasks.checks import latency_at_most

    _assert(latency_at_most(schedule, limit_ms))


def assert_no_slower_than(
    schedule: AnySchedule,
    baseline: AnySchedule | Path | str,
    network: Network,
    prices: CostModel,
    tolerance: float = 0.0,
    changed_model: bool = False,
) -> None:
    """Assert that the schedule takes no longer than a saved one, both priced by ``prices``
    (:func:`iossim.tasks.checks.no_slower_than`).
    """
    __tracebackhide__ = True  # tracebacks show the test
    from iossim.schedule.schedule import read_schedule
    from iossim.tasks.checks import no_slower_than

    before = read_schedule(Path(baseline)) if isinstance(baseline, Path | str) else baseline
    _assert(no_slower_than(schedule, before, network, prices, tolerance, changed_model))


def assert_plan_race_free(plan: Plan | AnySchedule, network: Network | None = None, engine: str = "paper") -> None:
    """Assert that a plan's result, or that of a schedule of ``network``, does not depend on interleaving."""
    __tracebackhide__ = True  # tracebacks show the test
    from iossim.execution.plan import Plan
    from iossim.tasks.checks import race_free, runs_without_races

    if isinstance(plan, Plan):
        _assert(race_free(plan))
        return
    if network is None:
        raise TypeError("assert_plan_race_free of a schedule needs its network")
    _assert(runs_without_races(plan, network, engine))


def _assert(check: Check) -> None:
    __tracebackhide__ = True
    if not check.holds:
        raise AssertionError(str(check))
