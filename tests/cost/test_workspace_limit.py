"""A limit on the workspace of concurrent kernels, and the stand-in for hardware, whose errors are of the size asked for."""

from itertools import product
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
from graph_builders import builder_with

import iossim
from iossim.api import cost_model, optimize
from iossim.base.errors import OptionError
from iossim.cost import workspace_limit
from iossim.cost.capabilities import MeasuringCostModel, VariantCostModel
from iossim.cost.perturbed import PerturbedCostModel
from iossim.cost.workspace_limit import workspace_limited
from iossim.execution.engine import Engine
from iossim.ir.network import Network
from iossim.ir.ops.slice import Concat
from iossim.schedule.batch import StageBatch, Strategy, UnitVariant
from iossim.schedule.planned_stage import PlannedStage, batch_of
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.search.assemble import reprice
from iossim.search.options import SearchOptions, StageSpace
from iossim.search.scheduler import schedule
from iossim.tasks.explain import explain
from iossim.tasks.task import under_other_engine

SIMULATOR = cost_model(device="v100-sxm2")
assert isinstance(SIMULATOR, VariantCostModel)


def branches() -> Network:
    """Convolutions of one input, one of them followed by another, and a concat."""
    b, x = builder_with("branches", x=(8, 64, 28, 28))
    with b.block("branches"):
        ends = [b.conv(x, width, kernel=3, padding=1, name=f"c{width}") for width in (64, 96, 128)]
        ends[0] = b.conv(ends[0], 48, kernel=3, padding=1, name="d")
        joined = b.add(Concat(1), *ends, name="join")
    return b.network([joined])


NETWORK = branches()
PROBLEM = ScheduleProblem.of_block(NETWORK, NETWORK.blocks[0])
VARIANTS = SIMULATOR.variants(PROBLEM)
#: Workspaces between which something changes.
LEVELS = sorted({one.workspace_bytes for variants in VARIANTS for one in variants})
LIMITS = sorted({0, *LEVELS, *(a + b for a in LEVELS for b in LEVELS)})


def needed(stage: PlannedStage) -> int:
    """The workspace of a stage as it names its variants: added over groups, the most of a group's units."""
    chosen = dict(stage.variants)
    need = [
        next(one for one in own if one.name == chosen.get(unit, "")).workspace_bytes
        for unit, own in enumerate(VARIANTS)
    ]
    if stage.strategy is Strategy.MERGE:
        return SIMULATOR.merged_workspace_bytes(PROBLEM, stage.mask)
    return sum(max(need[unit] for unit in bits(group)) for group in PROBLEM.groups(stage.mask))


def front(variants: tuple[UnitVariant, ...]) -> list[UnitVariant]:
    """Variants on the Pareto front: no other is as small and faster, or equal and named before."""
    key = attrgetter("alone_us", "workspace_bytes", "name")
    return [
        one
        for one in variants
        if not any(key(other) < key(one) and other.workspace_bytes <= one.workspace_bytes for other in variants)
    ]


@pytest.mark.parametrize("limit_bytes", LIMITS[:: max(1, len(LIMITS) // 6)])
def test_a_stage_has_the_best_of_all_choices(limit_bytes: int) -> None:
    limited = workspace_limited(SIMULATOR, NETWORK, limit_bytes)
    apart = [mask for mask in range(1, 16) if all(group.bit_count() == 1 for group in PROBLEM.groups(mask))]
    for mask in apart:
        fronts = [[(unit, one.name) for one in front(VARIANTS[unit])] for unit in bits(mask)]
        tried = [
            PlannedStage(mask, Strategy.CONCURRENT, tuple(each for each in choice if each[1]))
            for choice in product(*fronts)
        ]
        fastest = PlannedStage(mask, Strategy.CONCURRENT)
        allowed = (
            [fastest] if needed(fastest) <= limit_bytes else [each for each in tried if needed(each) <= limit_bytes]
        )
        least = SIMULATOR.price_stages(batch_of(PROBLEM, allowed)).min()
        assert limited.price_stages(batch_of(PROBLEM, [fastest])) == least


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
    """Units of one group, which run one after another, need no more than the one that needs most."""
    greedy = max(VARIANTS[0], key=lambda one: one.workspace_bytes)
    limited = workspace_limited(SIMULATOR, NETWORK, greedy.workspace_bytes - 1)
    named = PlannedStage(1, Strategy.CONCURRENT, ((0, greedy.name),))
    assert limited.price_stages(batch_of(PROBLEM, [named])) == np.inf
    group = (0, 3)
    most = [max(VARIANTS[unit], key=lambda one: one.workspace_bytes) for unit in group]
    named = PlannedStage(
        0b1001, Strategy.CONCURRENT, tuple((unit, one.name) for unit, one in zip(group, most, strict=True))
    )
    limited = workspace_limited(SIMULATOR, NETWORK, max(one.workspace_bytes for one in most))
    assert np.isfinite(limited.price_stages(batch_of(PROBLEM, [named]))).all()


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


class Needy:
    """The simulator, but every unit needs a kilobyte more."""

    def __getattr__(self, name: str) -> Any:
        return getattr(SIMULATOR, name)

    def variants(self, problem: ScheduleProblem) -> list[list[UnitVariant]]:
        return [
            [one._replace(workspace_bytes=one.workspace_bytes + 1024) for one in own]
            for own in SIMULATOR.variants(problem)
        ]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(OptionError, match=r"unit 'join' of 'branches' needs 1024 bytes .* give 1024 or more"):
        workspace_limited(Needy(), NETWORK, 1023)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="'random' does not know the workspaces"):
        schedule(NETWORK, cost_model("random:1"), "greedy", SearchOptions(workspace_limit_bytes=1))
    with pytest.raises(OptionError, match="is negative"):
        SearchOptions(workspace_limit_bytes=-1)


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


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        *((text, "deviation from 0 to 1, or 'structured'") for text in ("", "much", "-0.1", "1.5", "nan", "structure")),
        ("0.1,x", "the seed is not a whole number"),
    ],
)
def test_an_error_that_is_none_is_refused(argument: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        model(argument)


def test_the_other_engine_is_under_the_same_limit() -> None:
    limited = SearchOptions(StageSpace("general", 3, 8), workspace_limit_bytes=2**16)
    found = schedule(NETWORK, SIMULATOR, "ios-both", limited)
    there = under_other_engine(NETWORK, found, SIMULATOR, limited)
    assert there is not None
    graph = SIMULATOR.at(engine=Engine.GRAPH)
    best_us, free_us = (schedule(NETWORK, graph, "ios-both", each).latency_us for each in (limited, SearchOptions()))
    assert there.best_us == pytest.approx(best_us, rel=1e-9)
    assert there.sequential_us == pytest.approx(schedule(NETWORK, graph, "sequential", limited).latency_us, rel=1e-9)
    assert best_us > free_us


def test_a_limit_that_no_kernel_keeps_under_the_other_engine_ends_nothing() -> None:
    """In TF32 convolutions of the paper's engine transform layouts; a compiler's do not, and need no workspace."""
    network, little = iossim.load("ios_sample", dtype="tf32"), SearchOptions(workspace_limit_bytes=2**20)
    found = optimize(network, "a100-sxm-40gb", options=little)
    assert not any("With `engine`" in remark for remark in found.remarks)
    paper = cost_model("simulator", "a100-sxm-40gb", "tf32", "paper")
    with pytest.raises(OptionError, match="needs 11165400 bytes whatever it runs as"):
        workspace_limited(paper, network, 2**20)
    assert explain(reprice(found, network, paper), network, paper).could_save_us is not None
