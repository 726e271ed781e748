"""The stand-in for hardware: errors of the size asked for, alike for equal work, and refused where they make no sense."""

from __future__ import annotations

import numpy as np
import pytest
from stage_signature import stage_signature

import iossim
from iossim.base.errors import OptionError
from iossim.cost.capabilities import MeasuringCostModel
from iossim.cost.perturbed import PerturbedCostModel
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.problem import ScheduleProblem

DEVICE = "t4"


def model(error: str) -> MeasuringCostModel:
    found = iossim.cost_model(f"perturbed:{error}", DEVICE)
    assert isinstance(found, MeasuringCostModel)
    return found


def inception_stages(block: int = 3) -> StageBatch:
    network = iossim.load("inception_v3")
    problem = ScheduleProblem.of_block(network, network.blocks[block])
    return StageBatch.concurrent(problem, np.arange(1, problem.full + 1, dtype=np.uint64))


@pytest.mark.parametrize("sigma", [0.1, 0.2])
def test_independent_errors_are_log_normal(sigma: float) -> None:
    batch = inception_stages()
    truth = model(f"{sigma},3")
    _, first = np.unique(np.array(truth.signatures(batch), dtype=np.uint64), return_index=True)
    distinct = StageBatch.concurrent(batch.problem, batch.masks[first])
    off = np.log(truth.price_stages(distinct) / iossim.cost_model("simulator", DEVICE).price_stages(distinct))
    assert len(off) > 300
    assert off.std() == pytest.approx(sigma, rel=0.15)
    assert abs(np.median(off)) < 0.2 * sigma
    assert abs(float(np.mean(((off - off.mean()) / off.std()) ** 3))) < 0.5


def test_equal_work_costs_the_same_in_whatever_order_it_is_asked_for() -> None:
    batch = inception_stages()
    truth = model("0.2,1")
    prices = truth.price_stages(batch).tolist()
    signatures = [stage_signature(batch.problem, mask, Strategy.CONCURRENT) for mask in batch.masks.tolist()]
    classes = truth.signatures(batch)  # of equal work that finds its operands in equal places
    assert len(set(zip(signatures, classes, strict=True))) == len(set(classes)) < len(batch)
    assert len(set(zip(prices, classes, strict=True))) == len(set(classes))
    backwards = StageBatch.concurrent(batch.problem, batch.masks[::-1].copy())
    assert truth.price_stages(backwards).tolist() == prices[::-1]


def test_seeds_differ_and_say_so() -> None:
    batch = inception_stages()
    first, again, other = (model(f"0.2,{seed}") for seed in (1, 1, 2))
    assert first.price_stages(batch).tolist() == again.price_stages(batch).tolist()
    assert first.price_stages(batch).tolist() != other.price_stages(batch).tolist()
    assert first.identity == again.identity != other.identity
    assert first.identity.device == DEVICE
    assert first.bounds(batch.problem) is None


def test_merged_stages_are_perturbed_and_impossible_ones_stay_so() -> None:
    network = iossim.load("squeezenet")
    problem = ScheduleProblem.of_block(network, network.blocks[2])
    masks = np.arange(1, problem.full + 1, dtype=np.uint64)
    batch = StageBatch(problem, masks, np.full(len(masks), Strategy.MERGE.code, dtype=np.uint8))
    exact = iossim.cost_model("simulator", DEVICE).price_stages(batch)
    prices = model("0.1").price_stages(batch)
    assert np.array_equal(np.isfinite(exact), np.isfinite(prices))
    able = np.isfinite(exact)
    assert able.any()
    assert (prices[able] != exact[able]).all()


def test_a_structured_error_is_that_of_the_units() -> None:
    """Before the independent part: a unit's time is off alike in all chains, and what groups share is off besides."""
    batch = inception_stages()
    problem = batch.problem
    truth, simulator = model("structured,2"), iossim.cost_model("simulator", DEVICE)
    assert isinstance(truth, PerturbedCostModel)
    off = truth.inner.price_stages(batch) / simulator.price_stages(batch)
    alone = StageBatch.concurrent(problem, np.uint64(1) << np.arange(len(problem), dtype=np.uint64))
    unit_us = truth.inner.price_stages(alone)
    unit_off = unit_us / simulator.price_stages(alone)
    assert 0.05 < np.log(unit_off).std() < 0.3
    members = (batch.masks[:, None] >> np.arange(len(problem), dtype=np.uint64) & np.uint64(1)).astype(float)
    single = np.array([len(problem.groups(mask)) == 1 for mask in batch.masks.tolist()])
    assert single.sum() > 30
    prices = truth.inner.price_stages(batch)
    assert prices[single] == pytest.approx(members[single] @ unit_us, rel=1e-9)
    # Side by side, the errors of units alone do not explain all.
    least, most = (np.where(members > 0, unit_off, end).T for end in (np.inf, -np.inf))
    beyond = (off < least.min(axis=0) * (1 - 1e-9)) | (off > most.max(axis=0) * (1 + 1e-9))
    assert not beyond[single].any()
    assert beyond[~single].any()


@pytest.mark.parametrize("argument", ["", "much", "-0.1", "1.5", "nan", "structure"])
def test_an_error_that_is_none_is_refused(argument: str) -> None:
    with pytest.raises(OptionError, match="standard deviation from 0 to 1, or 'structured'"):
        model(argument)


def test_a_seed_that_is_none_is_refused() -> None:
    with pytest.raises(OptionError, match="the seed is not a whole number"):
        model("0.1,x")


def test_no_error_at_all() -> None:
    batch = inception_stages(1)
    truth = model("0")
    assert isinstance(truth, PerturbedCostModel)
    assert (truth.price_stages(batch) > 0).all()
