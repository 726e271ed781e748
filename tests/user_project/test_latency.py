"""What a project may want to hold of its networks, on a machine without a GPU."""

from pathlib import Path

import pytest

import iossim
from iossim.testing import assert_latency_at_most, assert_no_slower_than, assert_plan_race_free, assert_schedule_valid


def test_squeezenet_keeps_to_its_latency():
    network = iossim.load("squeezenet")
    schedule = iossim.optimize(network, "t4")
    assert_schedule_valid(schedule, network)
    assert_plan_race_free(schedule, network)
    assert_latency_at_most(schedule, 2.0)


@pytest.mark.parametrize("seed", range(3))
def test_searching_is_worth_it(iossim_network, iossim_device, seed):
    network = iossim_network(seed, units=6)
    prices = iossim.cost_model("simulator", iossim_device)
    best = iossim.optimize(network, None, cost_model=prices)
    one_by_one = iossim.optimize(network, None, cost_model=prices, scheduler="sequential")
    assert_no_slower_than(best, one_by_one, network, prices)


def test_no_slower_than_what_was_saved(iossim_network, iossim_device, tmp_path: Path):
    network = iossim_network(7)
    prices = iossim.cost_model("simulator", iossim_device)
    schedule = iossim.optimize(network, None, cost_model=prices)
    schedule.save(tmp_path / "schedule.json")
    assert_no_slower_than(schedule, tmp_path / "schedule.json", network, prices)


def test_prices_of_ones_own(iossim_table):
    network = iossim.load("ios_sample")
    alone = dict.fromkeys(("a", "b", "c", "d", "concat"), 10.0)
    prices = iossim_table({**alone, ("a", "b", "c"): 15.0, ("b", "c", "d"): 40.0}, boundary_us=1.0)
    schedule = iossim.optimize(network, None, cost_model=prices)
    assert [sorted(stage.units) for stage in schedule.stages] == [["a", "b", "c"], ["d"], ["concat"]]
    assert_latency_at_most(schedule, 0.036)
