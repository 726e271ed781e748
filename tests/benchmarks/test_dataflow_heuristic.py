"""``benchmarks/dataflow_heuristic.py``: operators that are the same for a seed, run as planned, and never split worse by the search."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from iossim.hardware.edge import edge_device

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def heuristic(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import dataflow_heuristic

    yield dataflow_heuristic
    del sys.modules["dataflow_heuristic"]


def test_operators_are_those_of_the_seed(heuristic: ModuleType) -> None:
    drawn = [heuristic.random_operator(seed) for seed in range(40)]
    assert len({kind for kind, _ in drawn}) >= 6
    again = [heuristic.random_operator(seed) for seed in range(40)]
    assert [network.graph.hash for _, network in drawn] == [network.graph.hash for _, network in again]


def test_the_search_has_what_the_priority_has(heuristic: ModuleType) -> None:
    for seed in range(8):
        found = heuristic.times_us(heuristic.random_operator(seed, 64, 14)[1], edge_device("c6678"))
        assert found["exhaustive"] <= found["priority"] * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_a_few_run_as_planned(heuristic: ModuleType, seed: int) -> None:
    assert heuristic.worst_error(seed) <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("first", range(8, 128, 24))
def test_many_run_as_planned(heuristic: ModuleType, first: int) -> None:
    assert max(heuristic.worst_error(seed) for seed in range(first, first + 24)) <= 1e-4
