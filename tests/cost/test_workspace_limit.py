"""A limit on the workspace of what runs at the same time, and the stand-in for hardware, whose errors are of the size asked for."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from stage_signature import stage_signature

import iossim
from iossim.api import cost_model, optimize
from iossim.base.errors import OptionError
from iossim.cost import workspace_limit
from iossim.cost.capabilities import MeasuringCostModel, VariantCostModel
from iossim.cost.perturbed import PerturbedCostModel
from iossim.cost.workspace_limit import WorkspaceLimited, workspace_limited
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.slice import Concat
from iossim.schedule.batch import StageBatch, Strategy, UnitVariant
from iossim.schedule.planned_stage import PlannedStage, batch_of
from iossim.schedule.problem import ScheduleProblem
from iossim.search.assemble import reprice
from iossim.search.options import SearchOptions
from iossim.search.scheduler import schedule

SIMULATOR = cost_model(device="v100-sxm2")
assert isinstance(SIMULATOR, VariantCostModel)


def branches(channels: tuple[int, ...] = (64, 96, 128)) -> Network:
    """Convolutions of one input, one of them with another behind it, and a concat."""
    b = GraphBuilder("branches")
    x = b.input("x", (8, 64, 28, 28))
    with b.block("branches"):
        ends = [_convolution(b, f"c{index}", x, 64, width) for index, width in enumerate(channels)]
        ends[0] = _convolution(b, "d", ends[0], channels[0], 48)
        with b.unit("join", "Concat"):
            joined = b.add(Concat(1), *ends)
    return b.network([joined])


def _convolution(b: GraphBuilder, name: str, x: str, channels: int, width: int) -> str:
    with b.unit(name, "Conv"):
        return b.add(Conv((1, 1), (1, 1, 1, 1)), x, b.constant(f"w_{name}", (width, channels, 3, 3)))


NETWORK = branches()
PROBLEM = ScheduleProblem.of_block(NETWORK, NETWORK.blocks[0])
VARIANTS = SIMULATOR.variants(PROBLEM)
#: Workspaces between which something changes.
LEVELS = sorted({one.workspace_bytes for variants in VARIANTS for one in variants})
LIMITS = sorted({0, *LEVELS, *(a + b for a in LEVELS for b in LEVELS)})


def needed(stage: PlannedStage) -> int:
    """The workspace of a stage as it names its variants: added over groups, the most of a group's units."""
    if stage.strategy is Strategy.MERGE:
        return SIMULATOR.merged_workspace_bytes(PROBLEM, stage.mask)
    chosen = dict(stage.variants)
    need = [
        {one.name: one.workspace_bytes for one in variants}[chosen.get(unit, "")]
        for unit, variants in enumerate(VARIANTS)
    ]
    return sum(
        max(need[unit] for unit in range(len(PROBLEM)) if group >> unit & 1) for group in PROBLEM.groups(stage.mask)
    )


def front(variants: tuple[UnitVariant, ...]) -> list[UnitVariant]:
    return [one for one in variants if not any(_beats(other, one) for other in variants)]


def _beats(one: UnitVariant, other: UnitVariant) -> bool:
    return (
        one != other
        and (one.alone_us, one.workspace_bytes, one.name) < (other.alone_us, other.workspace_bytes, other.name)
        and (one.workspace_bytes <= other.workspace_bytes)
    )


@pytest.mark.parametrize("limit_bytes", LIMITS[:: max(1, len(LIMITS) // 6)])
def test_a_stage_has_the_best_of_all_choices(limit_bytes: int) -> None:
    limited = workspace_limited(SIMULATOR, NETWORK, limit_bytes)
    apart = [mask for mask in range(1, 16) if all(group.bit_count() == 1 for group in PROBLEM.groups(mask))]
    for mask in apart:
        units = [unit for unit in range(4) if mask >> unit & 1]
        tried = [
            PlannedStage(
                mask,
                Strategy.CONCURRENT,
                tuple((unit, one.name) for unit, one in zip(units, variants, strict=True) if one.name),
            )
            for variants in product(*(front(VARIANTS[unit]) for unit in units))
        ]
        allowed = [stage for stage in tried if needed(stage) <= limit_bytes]
        least = SIMULATOR.price_stages(batch_of(PROBLEM, allowed)).min()
        fastest = PlannedStage(mask, Strategy.CONCURRENT)
        own = limited.price_stages(batch_of(PROBLEM, [fastest]))
        if needed(fastest) <= limit_bytes:
            assert own == SIMULATOR.price_stages(batch_of(PROBLEM, [fastest]))
        else:
            assert own == least


@pytest.mark.parametrize("most_divisions", [1, 256])
@pytest.mark.parametrize("limit_bytes", LIMITS[:: max(1, len(LIMITS) // 4)])
def test_what_is_chosen_keeps_the_limit_and_has_the_price(
    most_divisions: int, limit_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_limit, "MOST_DIVISIONS", most_divisions)
    limited = workspace_limited(SIMULATOR, NETWORK, limit_bytes)
    stages = [PlannedStage(mask, Strategy.CONCURRENT) for mask in range(1, 16)]
    prices = limited.price_stages(batch_of(PROBLEM, stages))
    chosen = [limited.chosen(PROBLEM, stage) for stage in stages]
    assert all(needed(stage) <= limit_bytes for stage in chosen)
    assert (limited.price_stages(batch_of(PROBLEM, chosen)) == prices).all()
    assert (SIMULATOR.price_stages(batch_of(PROBLEM, chosen)) == prices).all()


def test_a_stage_that_names_too_much_has_no_price() -> None:
    masks = np.array([0b1111], dtype=np.uint64)
    assert np.isfinite(SIMULATOR.price_stages(StageBatch.concurrent(PROBLEM, masks))).all()
    greedy = max(VARIANTS[0], key=lambda one: one.workspace_bytes)
    limited = workspace_limited(SIMULATOR, NETWORK, greedy.workspace_bytes - 1)
    named = PlannedStage(1, Strategy.CONCURRENT, ((0, greedy.name),))
    assert limited.price_stages(batch_of(PROBLEM, [named])) == np.inf


def test_schedules_under_limits() -> None:
    """The more there may be, the faster; each schedule says what its units run as, and costs that without the limit, too."""
    limits = [*LIMITS[:: max(1, len(LIMITS) // 4)], LIMITS[-1]]
    found = [schedule(NETWORK, SIMULATOR, "ios-both", SearchOptions(workspace_limit_bytes=limit)) for limit in limits]
    free = schedule(NETWORK, SIMULATOR, "ios-both")
    latencies = [one.latency_us for one in found]
    assert latencies == sorted(latencies, reverse=True)
    assert latencies[0] > latencies[-1] == free.latency_us
    for limit, one in zip(limits, found, strict=True):
        assert one.options["workspace_limit_bytes"] == limit
        assert one.lower_bound_us is not None
        assert one.lower_bound_us <= one.latency_us
        assert reprice(one, NETWORK, SIMULATOR).latency_us == one.latency_us
        for stage in one.blocks[0].stages:
            assert needed(PlannedStage.of(PROBLEM, stage)) <= limit
    assert "workspace_limit_bytes" not in free.options


@pytest.mark.slow
def test_a_whole_network_without_any_workspace() -> None:
    tight = optimize("squeezenet", "v100-sxm2", options=SearchOptions(workspace_limit_bytes=0))
    assert any(stage.variants for block in tight.blocks for stage in block.stages)
    assert tight.latency_us > optimize("squeezenet", "v100-sxm2").latency_us


class _Needy:
    """The simulator, but every unit needs a kilobyte more."""

    def __getattr__(self, name: str) -> Any:
        return getattr(SIMULATOR, name)

    def variants(self, problem: ScheduleProblem) -> tuple[tuple[UnitVariant, ...], ...]:
        return tuple(
            tuple(one._replace(workspace_bytes=one.workspace_bytes + 1024) for one in variants)
            for variants in SIMULATOR.variants(problem)
        )


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(OptionError, match=r"unit 'join' of 'branches' needs 1024 bytes .* give 1024 or more"):
        workspace_limited(_Needy(), NETWORK, 1023)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="'random' does not know the workspaces"):
        schedule(NETWORK, cost_model("random:1"), "greedy", SearchOptions(workspace_limit_bytes=1))
    with pytest.raises(OptionError, match="is negative"):
        SearchOptions(workspace_limit_bytes=-1)
    assert isinstance(workspace_limited(SIMULATOR, NETWORK, 0), WorkspaceLimited)


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
