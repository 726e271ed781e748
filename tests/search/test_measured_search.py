"""The measured search against brute force and the exact search; what it may measure, and what it has at any moment."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from brute_force import ScrambledTable, boundaries, cheapest, layered, problems, spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from measuring_model import Measuring, Sign, by_place, stage_signature

import iossim
from iossim.base.errors import OptionError, ScheduleError
from iossim.cost.capabilities import FREE, MeasuringCostModel
from iossim.cost.model import CostModel, Prices
from iossim.cost.random import RandomCostModel
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.planned_stage import batch_of
from iossim.schedule.problem import ScheduleProblem
from iossim.search.assemble import price_blocks, total_latency_us
from iossim.search.ios import solve
from iossim.search.measured import Budget
from iossim.search.measured import search as measured_module
from iossim.search.measured.search import KAPPAS, MeasuredSolution, measured_search
from iossim.search.options import SearchLimits, SearchOptions, StageSpace

EVERYTHING = Budget(everything=True)


def search(
    blocks: Sequence[ScheduleProblem], estimate: CostModel, truth: MeasuringCostModel, budget: Budget, **given: Any
) -> MeasuredSolution:
    named: dict[str, Any] = {"options": SearchOptions(), **given}
    return measured_search(blocks, estimate, truth, named.pop("options"), budget, **named)


def cost_of(blocks: Sequence[ScheduleProblem], found: MeasuredSolution, truth: Measuring) -> float:
    """The plans' price by the truth itself; each block's units run once each."""
    for block, plan in zip(blocks, found.plans, strict=True):
        assert sum(stage.mask for stage in plan) == block.full
        assert sum(stage.mask.bit_count() for stage in plan) == len(block)
    return total_latency_us(price_blocks(blocks, found.plans, truth.inner))


@settings(max_examples=20)
@given(problems(6), spaces, st.integers(0, 99), boundaries, st.booleans(), st.booleans(), st.booleans())
def test_all_measured_is_the_optimum_of_brute_force(
    problem: ScheduleProblem,
    space: StageSpace,
    seed: int,
    boundaries_us: tuple[float, float, float, float],
    concurrent: bool,
    merge: bool,
    by_number: bool,
) -> None:
    """Whatever the estimates say; and so it is with a number of measurements that suffices for all."""
    inner = ScrambledTable(seed, boundaries_us)
    truth = Measuring(inner, by_place)
    estimate, budget = (
        ScrambledTable(seed + 100, boundaries_us),
        Budget(measurements=100_000) if by_number else EVERYTHING,
    )
    options = SearchOptions(replace(space, concurrent=concurrent, merge=merge))
    found = search([problem], estimate, truth, budget, options=options)
    assert found.cost_us == pytest.approx(cheapest(problem, inner, space, concurrent, merge), rel=1e-9)
    assert cost_of([problem], found, truth) == pytest.approx(found.cost_us, rel=1e-12)
    assert found.complete
    assert found.exhaustive
    assert found.measurements == len(truth.asked)
    assert set(truth.asked.values()) == {1}


@settings(max_examples=12)
@given(st.lists(problems(8), min_size=1, max_size=4), st.integers(0, 99), boundaries)
def test_all_measured_is_the_exact_search_over_several_blocks(
    blocks: list[ScheduleProblem], seed: int, boundaries_us: tuple[float, float, float, float]
) -> None:
    truth = Measuring(ScrambledTable(seed, boundaries_us), by_place)
    found = search(blocks, RandomCostModel(seed), truth, EVERYTHING)
    exact = solve(blocks, truth.inner, SearchOptions())
    assert found.cost_us == pytest.approx(exact.cost_us, rel=1e-9)
    assert set(truth.asked.values()) == {1}


@settings(max_examples=25)
@given(
    st.lists(problems(8), min_size=1, max_size=3),
    st.integers(0, 99),
    st.integers(0, 80),
    st.sampled_from([stage_signature, by_place]),
)
def test_a_budget_is_kept_and_each_signature_measured_once(
    blocks: list[ScheduleProblem], seed: int, more: int, sign: object
) -> None:
    """The best at the end is measured throughout, and the curve leads down to it."""
    inner = RandomCostModel(seed) if sign is stage_signature else ScrambledTable(seed)
    truth = Measuring(inner, sign)  # type: ignore[arg-type]
    units = sum(len(block) for block in blocks)
    most = units + more
    found = search(blocks, RandomCostModel(seed + 1), truth, Budget(measurements=most))
    assert found.measurements == len(truth.asked) <= most
    assert set(truth.asked.values()) == {1}
    assert cost_of(blocks, found, truth) == pytest.approx(found.cost_us, rel=1e-12)
    for block, plan in zip(blocks, found.plans, strict=True):
        assert set(truth.signatures(batch_of(block, plan))) <= set(truth.asked)
    made, costs = zip(*found.curve, strict=True)
    assert list(made) == sorted(made)
    assert list(costs) == sorted(costs, reverse=True)
    assert costs[-1] == found.cost_us


@pytest.mark.parametrize("at", [1, 2, 3, 4, 7, 12, 20, 33])
def test_an_interrupt_at_any_moment_leaves_a_measured_schedule(at: int) -> None:
    """The first two batches are those of the first path."""
    generator = np.random.default_rng(at)
    blocks = [layered(generator, layers=3, width=3), layered(generator, layers=2, width=4)]
    budget = Budget(measurements=100)
    truth = Measuring(RandomCostModel(1), interrupt_at=frozenset({at}))
    found = search(blocks, RandomCostModel(2), truth, budget)
    assert found.interrupted
    assert not found.complete
    assert cost_of(blocks, found, truth) == pytest.approx(found.cost_us, rel=1e-12)
    whole = search(blocks, RandomCostModel(2), Measuring(RandomCostModel(1)), budget)
    assert not whole.interrupted
    assert found.measurements < whole.measurements == 100
    assert found.cost_us >= whole.cost_us * (1 - 1e-9)


def test_exact_estimates_are_confirmed_by_few_measurements() -> None:
    """Where estimates are right, what is measured says so, and the search ends early."""
    block = layered(np.random.default_rng(1), layers=4, width=4)
    truth = Measuring(RandomCostModel(3))
    found = search([block], RandomCostModel(3), truth, Budget())
    exact = solve([block], truth.inner, SearchOptions())
    assert found.complete
    assert found.cost_us == pytest.approx(exact.cost_us, rel=1e-9)
    assert not found.exhaustive
    every = search([block], RandomCostModel(3), Measuring(RandomCostModel(3)), EVERYTHING)
    assert found.measurements < every.measurements / 20
    assert found.kappa == KAPPAS[-1]


def test_equal_stages_of_several_blocks_are_one_measurement() -> None:
    block = layered(np.random.default_rng(4), layers=3, width=3)
    counts = []
    for copies in (2, 6):
        truth = Measuring(RandomCostModel(2))
        search([block] * copies, RandomCostModel(5), truth, Budget(measurements=60))
        counts.append(len(truth.asked))
    assert counts[0] == counts[1] == 60


def test_stages_that_the_truth_tells_apart_are_measured_apart() -> None:
    """Stages of one class whose price depends on more than the units: no assumption is left in the result."""
    block = ScheduleProblem.of_edges(8, [(0, 2), (1, 3), (4, 6), (5, 7)])
    alike = replace(block, signatures=tuple("aabbaabb"))

    class Places(RandomCostModel):
        def price_stages(self, batch: StageBatch) -> Prices:
            place = batch.masks % np.uint64(7)
            several = np.bitwise_count(batch.masks) > 1
            return super().price_stages(batch) * (1 + 0.05 * place * several)

    def sign(problem: ScheduleProblem, mask: int, strategy: Strategy) -> object:
        return stage_signature(problem, mask, strategy), mask % 7 if mask.bit_count() > 1 else 0

    truth = Measuring(Places(1), sign)  # type: ignore[arg-type]
    found = search([alike], RandomCostModel(2), truth, Budget(measurements=60))
    assert found.measurements == len(truth.asked) <= 60
    assert set(truth.asked.values()) == {1}
    assert cost_of([alike], found, truth) == pytest.approx(found.cost_us, rel=1e-12)


@dataclass(frozen=True)
class Forbidding(RandomCostModel):
    """Stages cannot run, but those of masks that ``of`` divides, and, if ``alone``, those of one unit."""

    of: int = 5
    alone: bool = True

    def price_stages(self, batch: StageBatch) -> Prices:
        able = (batch.masks % np.uint64(self.of) == 0) | (self.alone & (np.bitwise_count(batch.masks) == 1))
        return np.where(able, super().price_stages(batch), np.inf)


def test_stages_that_cannot_run_after_all_are_avoided() -> None:
    block = layered(np.random.default_rng(6), layers=3, width=3)
    truth = Measuring(Forbidding(1), by_place)
    found = search([block], RandomCostModel(1), truth, Budget(measurements=400))
    assert np.isfinite(found.cost_us)
    assert cost_of([block], found, truth) == pytest.approx(found.cost_us)
    with pytest.raises(ScheduleError, match="no schedule was found"):
        search([block], RandomCostModel(1), Measuring(Forbidding(1, of=1 << 40, alone=False)), Budget())


def test_a_budget_too_small_for_any_schedule_is_refused() -> None:
    block = layered(np.random.default_rng(6), layers=3, width=3)
    truth = Measuring(RandomCostModel(1))
    with pytest.raises(OptionError, match=r"`budget` 2 is too small: a first schedule takes \d+ measurements"):
        search([block], RandomCostModel(1), truth, Budget(measurements=2))
    assert not truth.asked


def test_seconds_end_a_search_but_not_before_there_is_a_schedule() -> None:
    block = layered(np.random.default_rng(6), layers=4, width=4)
    truth = Measuring(RandomCostModel(1))
    found = search([block], RandomCostModel(2), truth, Budget(seconds=1e-9))
    assert not found.complete
    assert not found.interrupted
    assert cost_of([block], found, truth) == pytest.approx(found.cost_us)
    assert len(truth.sizes) == 1


@pytest.mark.parametrize(("sign", "seconds", "measured"), [(by_place, 40.5, 40), (lambda *stage: FREE, 1.0, 0)])
def test_seconds_are_for_as_many_measurements_as_these_have_taken(
    sign: Sign, seconds: float, measured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A measurement takes a second on this clock, planning none."""
    truth = Measuring(RandomCostModel(1), sign)
    monkeypatch.setattr(measured_module, "working_s", lambda: float(len(truth.asked)))
    block = layered(np.random.default_rng(6), layers=4, width=4)
    found = search([block], RandomCostModel(2), truth, Budget(seconds=seconds))
    assert found.measurements == measured


def test_progress_tells_of_each_round() -> None:
    heard: list[tuple[int, int | None, float, float]] = []
    block = layered(np.random.default_rng(6), layers=4, width=4)
    truth, budget = Measuring(RandomCostModel(2)), Budget(measurements=80)
    found = search([block], RandomCostModel(1), truth, budget, progress=lambda *told: heard.append(told))
    assert heard[-1][0] == found.measurements
    assert all(most == 80 and bound_us <= best_us for _, most, best_us, bound_us in heard)
    assert [best_us for _, _, best_us, _ in heard] == sorted((one[2] for one in heard), reverse=True)


def test_blocks_too_large_are_pruned_or_split_and_noted() -> None:
    chains = ScheduleProblem.of_edges(35, [(u, u + 1) for u in range(34) if u % 7 != 6])
    options = SearchOptions(limits=SearchLimits(max_states=5_000))
    truth = Measuring(RandomCostModel(1))
    found = search([chains], RandomCostModel(2), truth, Budget(measurements=100), options=options)
    assert any("split into runs of 15, 20 units" in note for note in found.notes)
    assert cost_of([chains], found, truth) == pytest.approx(found.cost_us)


def measured_squeezenet(error: str) -> str:
    """What a search of SqueezeNet finds, in words."""
    network = iossim.load("squeezenet")
    truth = iossim.cost_model(f"perturbed:{error},5", "t4")
    assert isinstance(truth, MeasuringCostModel)
    problems = [ScheduleProblem.of_block(network, block) for block in network.blocks]
    options = SearchOptions(StageSpace("general", 3, 8))
    found = search(problems, iossim.cost_model("simulator", "t4"), truth, Budget(measurements=70), options=options)
    return f"{found.curve} {found.plans} {found.deviation}"


@pytest.mark.slow
def test_the_same_in_every_process() -> None:
    code = "import test_measured_search as t; print(*map(t.measured_squeezenet, ['0.2', 'structured']), sep='|')"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed == "|".join(map(measured_squeezenet, ["0.2", "structured"])) + "\n"


@pytest.mark.parametrize("text", ["", "0", "-3", "many", "1.5", "0s", "nans", "infs", "10m", "ALL"])
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="give a number of measurements"):
        Budget.parse(text)


def test_budgets_are_read_and_written() -> None:
    for text, budget in {"12": Budget(12), "1.5s": Budget(seconds=1.5), "all": Budget(everything=True)}.items():
        assert (Budget.parse(text), str(budget)) == (budget, text)
