"""Concats and splits in place: what the backends do not launch, the simulator does not price."""

from __future__ import annotations

import numpy as np
import pytest
from random_networks import random_network, random_schedule

import iossim
from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.events import run_plan
from iossim.base.errors import OptionError
from iossim.execution.engine import Engine
from iossim.execution.in_place import in_place_buffers
from iossim.execution.lower import lower_schedule
from iossim.hardware.load import device
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.pool import MaxPool
from iossim.ir.ops.slice import Concat
from iossim.ir.types import Precision
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem
from iossim.search.assemble import reprice


def unit_prices(network: Network, spec: str, engine: str = "paper") -> dict[str, float]:
    """Each unit alone, microseconds."""
    prices = iossim.cost_model(spec, "v100-sxm2", network.precision, engine)
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


def test_values_lie_where_the_engine_has_them_unless_another_place_is_asked_for() -> None:
    """A captured graph is what inference compilers and our backends make; the paper's engine launches its concats."""
    network = iossim.load("squeezenet")
    for engine, own, other in (("graph", "in-place", "copies"), ("paper", "copies", "in-place")):
        found = {spec: unit_prices(network, f"simulator{spec}", engine) for spec in ("", f":{own}", f":{other}")}
        assert found[""] == found[f":{own}"] != found[f":{other}"]
    moved = iossim.cost_model("simulator", "v100-sxm2", engine="graph").at(engine=Engine.PAPER)  # type: ignore[attr-defined]
    assert (moved.identity, moved.in_place) == (iossim.cost_model("simulator", "v100-sxm2").identity, False)


def fire(dtype: Precision, *order: str) -> Network:
    """Two convolutions that merge, inside a concat in that order, with a pool before or behind them."""
    b = GraphBuilder("fire", dtype)
    x = b.input("x", (1, 64, 28, 28))
    with b.block("only"):
        made = {"small": b.conv(x, 64, name="small"), "large": b.conv(x, 64, kernel=3, padding=1, name="large")}
        made["pool"] = b.add(MaxPool((3, 3), (1, 1), (1, 1, 1, 1)), x, name="pool")
        whole = b.add(Concat(), *(made[name] for name in order), name="whole")
    return b.network([whole])


@pytest.mark.parametrize("engine", ["paper", "graph"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("order", "copies"),
    [
        (("small", "large", "pool"), {"fp32": 0, "bf16": 1}),  # of channels that lie last a slice has gaps
        (("small", "pool", "large"), {"fp32": 2, "bf16": 2}),
    ],
)
def test_what_a_convolution_cannot_write_in_place_is_copied_behind_it(
    order: tuple[str, ...], copies: dict[str, int], dtype: str, engine: str
) -> None:
    """Alone and merged, by the prices of stages, of plans, and event by event."""
    network = fire(Precision(dtype), *order)
    prices = iossim.cost_model("simulator:in-place", "h100-sxm", dtype, engine)
    problem = ScheduleProblem.of_block(network, network.blocks[0])
    units = {unit.name: index for index, unit in enumerate(network.units)}
    merged = prices.units.price_merged(network, [units["small"], units["large"]])  # type: ignore[attr-defined]
    kernels = {name: len(prices.units.price(problem)[at].names) for name, at in units.items()}  # type: ignore[attr-defined]
    alone = {"small": 1, "large": 1, "pool": 1, "whole": 0}
    gaps = {"small": 1, "large": 1} if dtype == "bf16" else {}
    assert kernels == {name: count + gaps.get(name, 0) for name, count in alone.items()}
    assert len(merged.names) == 1 + copies[dtype]
    found = iossim.optimize(network, "h100-sxm", cost_model=prices, scheduler="ios-merge")
    plans = [lower_schedule(found, network, engine, in_place=in_place) for in_place in (False, True)]
    ran = [run_plan(plan, network, device("h100-sxm"), engine, in_place=True).spans for plan in plans]
    assert len(ran[0]) == len(ran[1]) == len(prices.timeline(network, found))  # type: ignore[attr-defined]


def test_what_is_copied_is_priced_as_a_copy() -> None:
    """Two equal concats, one of values that are made, one of the network's input: equal units that are not equal work."""
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
    with pytest.raises(
        OptionError, match="the simulator knows no such argument; leave it out, or give in-place or copies"
    ):
        iossim.cost_model("simulator:inplace", "v100-sxm2")
