"""Concats and splits in place: what the backends do not launch, the simulator does not price."""

from __future__ import annotations

import numpy as np
import pytest
from random_networks import random_network, random_schedule

import iossim
from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.events import run_plan
from iossim.base.errors import OptionError
from iossim.execution.in_place import in_place_buffers
from iossim.execution.lower import lower_schedule
from iossim.hardware.load import device
from iossim.ir.network import Network
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem
from iossim.search.assemble import reprice


def unit_prices(network: Network, spec: str) -> dict[str, float]:
    """Each unit alone, microseconds."""
    prices = iossim.cost_model(spec, "v100-sxm2")
    found: dict[str, float] = {}
    for block in network.blocks:
        problem = ScheduleProblem.of_block(network, block)
        masks = np.array([1 << unit for unit in range(len(problem))], dtype=np.uint64)
        found |= dict(zip(problem.unit_names, prices.price_stages(StageBatch.concurrent(problem, masks)), strict=True))
    return found


def test_concats_in_place_cost_nothing_and_all_else_what_it_did() -> None:
    network = iossim.load("squeezenet")
    launched, in_place = unit_prices(network, "simulator"), unit_prices(network, "simulator:in-place")
    concats = {name for name in launched if name.endswith(".concat")}
    assert len(concats) == 8
    for name, price in launched.items():
        assert price > 0
        assert in_place[name] == (0.0 if name in concats else price)


def test_what_is_copied_is_priced_as_a_copy() -> None:
    """Two equal concats, one of values that are made, one of the network's input: equal units that are not equal work."""
    from iossim.ir.builder import GraphBuilder
    from iossim.ir.ops.slice import Concat

    b = GraphBuilder("two concats")
    x = b.input("x", (1, 64, 56, 56))
    with b.block("only"):
        left, right = b.conv(x, 64, name="left"), b.conv(x, 64, name="right")
        made, copied = b.add(Concat(), left, right, name="made"), b.add(Concat(), x, x, name="copied")
    network = b.network([made, copied])
    prices = unit_prices(network, "simulator:in-place")
    assert prices["made"] == 0.0
    assert prices["copied"] == unit_prices(network, "simulator")["copied"] > 0.0


@pytest.mark.parametrize("seed", range(8))
def test_a_schedule_is_priced_as_its_plan_in_place_runs(seed: int) -> None:
    """One stream: the prices add up to the event-driven engine's time, but for what the host's overlap hides."""
    network = random_network(seed, movers=True)
    profile = device("v100-sxm2")
    prices = SimulatorCostModel(profile, network.precision, in_place=True)
    chosen = random_schedule(network, seed, merge=False)
    moves = in_place_buffers(network).moves
    names = {span.unit for span in prices.timeline(network, reprice(chosen, network, prices))}
    plan = lower_schedule(chosen, network, in_place=True)
    assert names == {span.unit for span in run_plan(plan, network, profile).spans}
    free = {network.units[unit].name for unit, copies in moves.items() if not copies}
    assert not names & free


def test_another_argument_is_refused() -> None:
    with pytest.raises(OptionError, match="the simulator knows no such argument; leave it out, or give in-place"):
        iossim.cost_model("simulator:inplace", "v100-sxm2")
