"""What does not hold, one test each: all of these fail, and say why."""

from dataclasses import replace

import iossim
from iossim.execution.lower import lower_schedule
from iossim.execution.plan import Synchronize, Wait
from iossim.testing import assert_latency_at_most, assert_no_slower_than, assert_plan_race_free, assert_schedule_valid


def test_too_slow():
    assert_latency_at_most(iossim.optimize("ios_sample", "t4"), 0.1)


def test_slower_than_before(iossim_network, iossim_device):
    network, prices = iossim_network(3), iossim.cost_model("simulator", iossim_device)
    best = iossim.optimize(network, None, cost_model=prices)
    one_by_one = iossim.optimize(network, None, cost_model=prices, scheduler="sequential")
    assert_no_slower_than(one_by_one, best, network, prices)


def test_of_another_network(iossim_network, iossim_device):
    schedule = iossim.optimize(iossim_network(3), iossim_device)
    assert_schedule_valid(schedule, iossim_network(4))


def test_a_race(iossim_network, iossim_device):
    network = iossim_network(3)
    plan = lower_schedule(iossim.optimize(network, iossim_device, scheduler="greedy"), network, in_place=True)
    *commands, last = plan.commands
    kept = [command for command in commands if not isinstance(command, Synchronize | Wait)]
    assert_plan_race_free(replace(plan, commands=(*kept, last)))
