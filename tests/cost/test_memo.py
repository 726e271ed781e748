"""A memo asks once for equal work, and changes no price."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

import iossim
from iossim.cost.memo import MemoCostModel, stage_signature
from iossim.cost.model import CostModelIdentity, Prices
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.problem import ScheduleProblem


@dataclass
class Counting:
    """A unit costs 1 us, and remembers for which masks it was asked."""

    asked: list[int] = field(default_factory=list)
    identity: CostModelIdentity = field(default_factory=lambda: CostModelIdentity("counting"))

    def price_stages(self, batch: StageBatch) -> Prices:
        self.asked += batch.masks.tolist()
        return np.array([float(mask.bit_count()) for mask in batch.masks.tolist()])

    def price_boundary(self, left_concurrent: bool, right_concurrent: bool) -> float:
        return 0.25 if left_concurrent or right_concurrent else 0.0

    def bounds(self, problem: ScheduleProblem) -> None:
        return None


def test_equal_work_is_asked_for_once() -> None:
    inner = Counting()
    memo = MemoCostModel(inner)
    problem = ScheduleProblem.of_edges(3, [(0, 1)])
    batch = StageBatch.concurrent(problem, np.array([3, 4, 3], dtype=np.uint64))
    assert memo.price_stages(batch).tolist() == [2, 1, 2]
    assert inner.asked == [3, 4]
    assert memo.price_stages(batch).tolist() == [2, 1, 2]
    assert inner.asked == [3, 4]
    assert memo.identity is inner.identity
    assert memo.price_boundary(True, False) == 0.25


def test_signature_is_of_groups_and_strategy() -> None:
    problem = ScheduleProblem.of_edges(3, [(0, 1)])
    together = stage_signature(problem, 0b011, Strategy.CONCURRENT)
    assert together == (0, (("0", "1"),))
    assert stage_signature(problem, 0b101, Strategy.CONCURRENT) == (0, (("0",), ("2",)))
    assert stage_signature(problem, 0b011, Strategy.MERGE) == (1, (("0", "1"),))


def test_search_with_a_memo_finds_the_same_and_asks_less() -> None:
    """ResNet repeats its blocks; equal stages of different blocks are priced once."""
    network = iossim.load("resnet18")
    simulator = iossim.cost_model("simulator", "t4")
    plain = iossim.optimize(network, None, cost_model=simulator)
    memo = MemoCostModel(simulator)
    remembered = iossim.optimize(network, None, cost_model=memo)
    assert remembered.blocks == plain.blocks
    assert remembered.latency_us == plain.latency_us
    before = len(memo.prices)
    iossim.optimize(network, None, cost_model=memo)
    assert len(memo.prices) == before
