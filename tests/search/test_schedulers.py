"""Schedulers on whole networks: what sequential and greedy are, and what every schedule keeps to."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import iossim
from iossim.base.errors import OptionError
from iossim.cost.random import RandomCostModel
from iossim.ir.network import Network
from iossim.schedule.fit import fit
from iossim.search.options import SearchLimits, SearchOptions, StageSpace
from iossim.search.scheduler import schedule, scheduler_names


@pytest.fixture(scope="module")
def network() -> Network:
    return iossim.load("inception_v3")


def test_schedulers_are_named_from_the_plainest_to_the_most_able() -> None:
    assert scheduler_names() == ("sequential", "greedy", "ios-merge", "ios-parallel", "ios-both")
    with pytest.raises(OptionError, match="'ios-bth' is not known; did you mean 'ios-both'"):
        schedule(iossim.load("ios_sample"), RandomCostModel(), "ios-bth")


@pytest.mark.parametrize("name", ["ios-both", "ios-streams"])
def test_a_scheduler_is_found_by_the_first_who_asks_for_one(name: str) -> None:
    """In a process of its own: no other module has imported the schedulers before."""
    program = f"from iossim.search.scheduler import SCHEDULERS; assert callable(SCHEDULERS.find({name!r}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_sequential_runs_each_unit_alone_in_order(network: Network) -> None:
    found = schedule(network, RandomCostModel(), "sequential")
    assert [stage.groups for stage in found.stages] == [[[unit.name]] for unit in network.units]
    assert found.lower_bound_us == pytest.approx(found.latency_us)


def test_greedy_runs_all_that_is_ready(network: Network) -> None:
    found = schedule(network, RandomCostModel(), "greedy")
    for block, scheduled in zip(network.blocks, found.blocks, strict=True):
        done = {unit for unit in range(len(network.units)) if unit < block.units[0]}
        for stage in scheduled.stages:
            ready = {
                network.units[unit].name
                for unit in block.units
                if unit not in done and done.issuperset(network.predecessors[unit])
            }
            assert set(stage.units) == ready
            assert all(len(group) == 1 for group in stage.groups)
            done |= {network.unit_index[name] for name in ready}


@pytest.mark.parametrize("name", ["sequential", "greedy", "ios-merge", "ios-parallel", "ios-both"])
@pytest.mark.parametrize("space", [StageSpace(), StageSpace("paper", 3, 2)], ids=["general", "paper r3 s2"])
def test_every_schedule_fits_and_adds_up(network: Network, name: str, space: StageSpace) -> None:
    found = schedule(network, RandomCostModel(seed=3), name, SearchOptions(space))
    fit(found, network)
    assert found.latency_us == pytest.approx(sum(stage.latency_us + stage.boundary_us for stage in found.stages))
    assert found.lower_bound_us is not None
    assert found.lower_bound_us <= found.latency_us * (1 + 1e-12)
    assert found.stages[0].boundary_us == 0.0, "nothing stands before the first stage"
    if name.startswith("ios") and space.max_groups:
        assert all(len(stage.groups) <= space.max_groups for stage in found.stages)
        concurrent = [stage for stage in found.stages if stage.strategy == "concurrent"]
        assert all(len(group) <= 3 for stage in concurrent for group in stage.groups)
    if name == "ios-merge":
        assert all(stage.strategy == "merge" or len(stage.units) == 1 for stage in found.stages)
    if name in ("sequential", "greedy", "ios-parallel"):
        assert all(stage.strategy == "concurrent" for stage in found.stages)


@pytest.mark.parametrize("limits", [SearchLimits(), SearchLimits(max_states=10)], ids=["whole", "split"])
def test_progress_is_told_unit_by_unit(network: Network, limits: SearchLimits) -> None:
    """Also within a block: the widest may take as long as all others."""
    told: list[tuple[int, int]] = []
    options = SearchOptions(limits=limits)
    schedule(network, RandomCostModel(), "ios-both", options, progress=lambda done, total: told.append((done, total)))
    units = sum(len(block.units) for block in network.blocks)
    assert {total for _, total in told} == {units}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (units, units)
    ends = set(np.cumsum([len(block.units) for block in network.blocks]).tolist())
    assert {done for done, _ in told} >= ends
    assert len({done for done, _ in told} - ends) >= units // 2


def test_a_split_block_keeps_its_place_in_the_schedule() -> None:
    network = iossim.load("inception_v3", max_block=4)
    assert network.notes
    found = schedule(network, RandomCostModel(), "ios-both")
    fit(found, network)
    assert set(network.notes) <= set(found.notes)


@pytest.mark.parametrize("limits", [SearchLimits(max_states=10), SearchLimits(max_transitions=10)])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_not_searched_as_a_whole_is_no_worse_than_plainer_schedules(
    network: Network, limits: SearchLimits, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iossim.search.block_parts.FEW_STATES", 0)
    options = SearchOptions(limits=limits)
    found = {name: schedule(network, RandomCostModel(seed), name, options) for name in scheduler_names()}
    assert any("windows" in note for note in found["ios-both"].notes)
    latency_us = {name: one.latency_us * (1 - 1e-9) for name, one in found.items()}
    fit(found["ios-both"], network)
    assert latency_us["ios-parallel"] <= min(found[name].latency_us for name in ("sequential", "greedy"))
    assert latency_us["ios-both"] <= min(one.latency_us for one in found.values())


def test_a_split_block_is_not_greedy_where_that_was_pruned_away(network: Network) -> None:
    options = SearchOptions(StageSpace(max_groups=2), SearchLimits(max_states=10))
    found = schedule(network, RandomCostModel(), "ios-parallel", options)
    assert max(len(stage.groups) for stage in found.stages) == 2


def test_a_limit_beyond_all_units_prunes_nothing() -> None:
    network = iossim.load("ios_sample")
    plain, pruned = (
        schedule(network, RandomCostModel(), "ios-both", SearchOptions(StageSpace("general", limit, limit)))
        for limit in (None, 10**20)
    )
    assert pruned.blocks == plain.blocks
