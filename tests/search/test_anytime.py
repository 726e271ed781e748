"""Searches that end when their time is up; here a clock moves on by one second whenever it is looked at."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from command_line import printed, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import random_network

import iossim
from iossim.base.errors import OptionError
from iossim.cost.random import RandomCostModel
from iossim.schedule.fit import fit
from iossim.search import anytime
from iossim.search.ios import STRATEGIES
from iossim.search.options import SearchOptions, StageSpace
from iossim.search.scheduler import schedule


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anytime, "perf_counter", _clock())


def _clock() -> Callable[[], float]:
    ticks = count()
    return lambda: float(next(ticks))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 120), st.sampled_from(sorted(STRATEGIES)))
def test_whatever_time_there_is_the_schedule_is_whole(seed: int, seconds: int, name: str) -> None:
    network = random_network(seed, units=9)
    prices = RandomCostModel(seed)
    best = schedule(network, prices, name)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(anytime, "perf_counter", _clock())
        found = schedule(network, prices, name, SearchOptions(seconds=seconds))
    fit(found, network)
    assert found.complete
    assert found.latency_us >= best.latency_us * (1 - 1e-12)
    assert found.latency_us <= schedule(network, prices, "sequential").latency_us * (1 + 1e-12)
    if name != "ios-merge":
        assert found.latency_us <= schedule(network, prices, "greedy").latency_us * (1 + 1e-12)
    assert found.lower_bound_us is not None
    assert found.lower_bound_us <= best.latency_us * (1 + 1e-12)
    assert found.proven == (not found.notes)
    if found.proven:
        assert found.latency_us == best.latency_us


@pytest.mark.usefixtures("clock")
def test_more_time_finds_no_worse_and_then_the_best() -> None:
    network = iossim.load("randwire")
    prices = RandomCostModel(3)
    pruned = SearchOptions(StageSpace(max_group_size=2, max_groups=3))
    best = schedule(network, prices, "ios-parallel", pruned)
    found = []
    for seconds in (1, 40, 120, 1e6):
        one = schedule(network, prices, "ios-parallel", SearchOptions(pruned.space, seconds=seconds))
        found.append(one.latency_us)
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1] == best.latency_us


def test_without_seconds_there_is_one_search() -> None:
    asked = []

    class Found:
        complete = True

    def search(options: SearchOptions, progress: object, before: object) -> Found:
        asked.append((options.space.max_group_size, options.space.max_groups, before))
        return found

    found = Found()
    anytime.within(SearchOptions(), lambda done, total: None, search)
    assert asked == [(None, None, None)]
    asked.clear()
    anytime.within(SearchOptions(StageSpace(max_group_size=2), seconds=9), lambda done, total: None, search)
    assert asked == [(1, 4, None), (2, 8, found), (2, None, found)]


@pytest.mark.usefixtures("clock")
def test_the_command_says_that_the_time_was_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = printed(capsys, f"optimize randwire --device v100-sxm2 --seconds 30 --out {tmp_path}")
    said = " ".join(told.split())
    assert "the search was ended after 30 s: not all stages were looked at" in said
    assert "Not proven optimal" in said
    assert "Interrupted" not in said
    assert (tmp_path / "schedule.json").is_file()


def test_seconds_end_no_search_that_measures(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "optimize squeezenet --cost-model onnxruntime_cpu:threads=1 --budget 10 --seconds 2")
    assert "give --budget 2s" in said


def test_no_time_is_refused() -> None:
    with pytest.raises(OptionError, match="leaves no time to search"):
        SearchOptions(seconds=0.0)
