"""A measured search that chooses kernels, and schedules at measured prices through the API, a store and the command line."""

import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from command_line import printed, printed_json
from fake_backend import FakeBackend

import iossim
from iossim import api
from iossim.base.errors import OptionError, PlanError
from iossim.cli.main import main
from iossim.cli.outputs import ExitCode
from iossim.cost.capabilities import MeasuringCostModel, VariantCostModel
from iossim.cost.measured.cost_model import MeasuredCostModel
from iossim.cost.measured.store import MeasurementStore
from iossim.cost.model import CostModel, Prices, WrappedCostModel, problems_of
from iossim.cost.perturbed import PerturbedCostModel
from iossim.cost.random import RandomCostModel
from iossim.execution.backend import Timing
from iossim.report.explanation import short_lines
from iossim.report.schedule_tables import summary
from iossim.schedule.batch import FASTEST, StageBatch, Strategy, UnitVariant
from iossim.schedule.fit import fit
from iossim.schedule.planned_stage import PlannedStage, batch_of, planned_of
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import Schedule
from iossim.schedule.streams import as_streams
from iossim.search.assemble import price_blocks, reprice, total_latency_us
from iossim.search.measured import Budget
from iossim.search.measured.company import NamedAlike, _alike, with_names_of
from iossim.search.measured.search import DEVIATION, MeasuredSolution, expected_deviation, measured_search
from iossim.tasks.explain import explain

DEVICE = "v100-sxm2"


def simulator(device: str = DEVICE) -> VariantCostModel:
    made = iossim.cost_model("simulator", device, engine="graph")
    assert isinstance(made, VariantCostModel)
    return made


def hardware(error: str, seed: int, device: str = DEVICE) -> MeasuringCostModel:
    """The simulator with an error, as a stand-in."""
    made = iossim.cost_model(f"perturbed:{error},{seed}", device, engine="graph")
    assert isinstance(made, MeasuringCostModel)
    return made


def search(
    problems: list[ScheduleProblem], estimate: CostModel, truth: MeasuringCostModel, budget: Budget, company: bool
) -> MeasuredSolution:
    deviation = expected_deviation(estimate)
    estimate = with_names_of(truth, estimate) if company else estimate
    options = api.search_options("general", 3, 8, company=company)
    return measured_search(problems, estimate, truth, options, budget, deviation=deviation)


@pytest.mark.parametrize(
    ("model", "device", "seeds"),
    [
        ("squeezenet", DEVICE, 2),
        pytest.param("inception_v3", DEVICE, 1, marks=pytest.mark.slow),
        pytest.param("inception_v3", "h100-sxm", 1, marks=pytest.mark.slow),
    ],
)
def test_kernels_cost_at_most_twice_the_measurements_for_the_same_regret(model: str, device: str, seeds: int) -> None:
    """Measurements until the best found is within 1% of what all that may be measured has, and to a search's own end."""
    estimate = simulator(device)
    problems = problems_of(iossim.load(model), estimate)
    reached, ended, optimum_us = ({False: 0.0, True: 0.0} for _ in range(3))
    for error in ("0.1", "structured"):
        for seed in range(seeds):
            truth = hardware(error, seed, device)
            for company in (False, True):
                best = search(problems, estimate, truth, Budget(everything=True), company)
                assert best.exhaustive
                found = search(problems, estimate, truth, Budget(measurements=best.measurements * 9 // 10), company)
                assert best.cost_us * (1 - 1e-9) <= found.cost_us <= 1.003 * best.cost_us
                assert total_latency_us(price_blocks(problems, found.plans, truth)) == pytest.approx(found.cost_us)
                reached[company] += next(made for made, us in found.curve if us <= 1.01 * best.cost_us)
                ended[company] += found.measurements
                optimum_us[company] += best.cost_us
    assert reached[True] <= 2 * reached[False], reached
    assert ended[True] <= 1.3 * ended[False], ended
    assert optimum_us[True] < (1.0 if device == "h100-sxm" else 0.9985) * optimum_us[False]  # there it hardly gains


def test_a_schedule_names_its_kernels_and_is_found_again() -> None:
    """Through the API, with a stand-in for the measuring backend; and its price is what its kernels were measured at."""
    network, truth = iossim.load("squeezenet"), hardware("0.1", 0)
    options = api.search_options("general", 3, 8, company=True)
    found, again = (
        iossim.optimize(network, DEVICE, cost_model=hardware("0.1", 0), options=options, budget="120") for _ in range(2)
    )
    assert found.blocks == again.blocks
    varied = [stage for stage in found.stages if stage.variants]
    assert varied
    assert all(stage.concurrent for stage in varied)
    read = Schedule.model_validate_json(found.model_dump_json())
    assert reprice(read, network, truth).latency_us == pytest.approx(found.latency_us)
    assert found.options["company"]
    named = {unit: kernel for stage in varied for unit, kernel in stage.variants.items()}
    assert {one.units[0]: one.variant for one in as_streams(found, network).launches if one.variant} == named
    told = "\n".join(line for one in explain(found, network, None).stages for line in short_lines(one))
    assert all(f"{unit.rpartition('.')[2]} by {kernel}" in told for unit, kernel in named.items())
    # The estimate is of the schedule with its kernels.
    assert found.options["estimated_us"] == pytest.approx(reprice(found, network, simulator()).latency_us)


@dataclass(eq=False)
class Renamed(WrappedCostModel):
    """The simulator's variants under other names, in another order, and without ``facts`` of their blocks if not given."""

    facts: bool = True

    def variants(self, problem: ScheduleProblem) -> tuple[tuple[UnitVariant, ...], ...]:
        assert isinstance(self.inner, VariantCostModel)
        found = []
        for own in self.inner.variants(problem):
            told = [UnitVariant(f"plan{at}", one.alone_us, 0, *one[3:] * self.facts) for at, one in enumerate(own)]
            found.append((own[0], *reversed(told[1:])))
        return tuple(found)


@pytest.mark.parametrize("device", [DEVICE, "h100-sxm"])
def test_variants_of_other_names_have_the_prices_of_those_that_are_alike(device: str) -> None:
    own = simulator(device)
    problem = next(each for each in problems_of(iossim.load("squeezenet"), own) if len(each) > 3)
    alike = NamedAlike(own, Renamed(own))
    assert isinstance(alike, VariantCostModel)
    masks = (problem.full, 3, 1)
    stages: dict[bool, list[PlannedStage]] = {False: [], True: []}
    for unit, (theirs, ours) in enumerate(zip(alike.variants(problem), own.variants(problem), strict=True)):
        assert theirs[0].name == FASTEST
        # What is like another of the unit's, or like the fastest, is offered once.
        assert len(theirs) == 1 + len({one[1:] for one in ours} - {ours[0][1:]})
        for variant in theirs[1:]:
            place = int(variant.name.removeprefix("plan"))
            for renamed, name in ((True, variant.name), (False, ours[place].name)):
                stages[renamed] += [
                    PlannedStage(mask, Strategy.CONCURRENT, ((unit, name),)) for mask in masks if mask >> unit & 1
                ]
    assert len(stages[True]) > 5
    batches = {renamed: batch_of(problem, named) for renamed, named in stages.items()}
    assert planned_of(batches[True]) == stages[True]
    prices = {True: alike.price_stages(batches[True]), False: own.price_stages(batches[False])}
    np.testing.assert_allclose(prices[True], prices[False], rtol=1e-12)
    for bounds, theirs in zip(alike.bounds_of_variants(problem), alike.variants(problem), strict=True):
        assert len(bounds.keys) == len(bounds.bounds.serial_us) == len(bounds.bounds.work_us) == len(theirs)
    with pytest.raises(PlanError, match="unheard"):
        alike.price_stages(batch_of(problem, [PlannedStage(1, Strategy.CONCURRENT, ((0, "unheard"),))]))


def test_variants_of_which_only_the_name_is_known_are_like_none() -> None:
    own = simulator()
    (problem, *_) = problems_of(iossim.load("squeezenet"), own)
    assert [len(each) for each in NamedAlike(own, Renamed(own, facts=False)).variants(problem)] == [1] * len(problem)
    # Nor is one that is like the fastest in all but its name.
    fastest, twin, other = (UnitVariant(*each, 0, 5, 0.5) for each in ((FASTEST, 1.0), ("twin", 1.0), ("other", 2.0)))
    assert [one.name for one, _ in _alike((fastest, twin, other), (fastest, twin, other))] == [FASTEST, "other"]


def test_who_knows_one_kernel_of_each_unit_is_refused() -> None:
    with pytest.raises(OptionError, match=r"`company`: cost model 'random' does not know what else a unit may run as"):
        with_names_of(hardware("0.1", 0), RandomCostModel())
    replayed = WrappedCostModel(simulator())
    with pytest.raises(OptionError, match=r"`company`: cost model 'simulator' knows one kernel of each unit"):
        with_names_of(replayed, simulator())  # type: ignore[arg-type]


PRUNED = api.search_options("general", 3, 8)


def backend_model(path: Path) -> MeasuredCostModel:
    return MeasuredCostModel(FakeBackend(), MeasurementStore(path / "store.sqlite"), Timing(rounds=3, warm_up=0))


def test_a_backend_is_asked_for_little(tmp_path: Path) -> None:
    """The schedule fits, its stages are measured, and few others are; measured all, it is as good as the exact search's."""
    network = iossim.load("inception_v3")
    truth = backend_model(tmp_path)
    found = iossim.optimize(network, "v100-sxm2", cost_model=truth, options=PRUNED, budget="150")
    fit(found, network)
    assert truth.measured <= found.options["measurements"] == 150
    assert found.device == "fake-device"
    assert found.options["estimate"]["device"] == "v100-sxm2"
    assert found.complete
    sequential = iossim.optimize(network, None, cost_model=truth, scheduler="sequential")
    assert found.latency_us < sequential.latency_us
    # What is in the store is not measured again.
    again = backend_model(tmp_path)
    assert iossim.optimize(network, "v100-sxm2", cost_model=again, options=PRUNED, budget="150").blocks == found.blocks
    assert again.measured == 0


@pytest.mark.parametrize("scheduler", ["ios-merge", "ios-parallel", "ios-both"])
def test_all_stages_of_a_backend_measured(scheduler: str, tmp_path: Path) -> None:
    network = iossim.load("squeezenet")
    truth = backend_model(tmp_path)
    found = iossim.optimize(network, DEVICE, cost_model=truth, scheduler=scheduler, options=PRUNED, budget="all")
    exact = iossim.optimize(network, None, cost_model=truth, scheduler=scheduler, options=PRUNED)
    assert found.latency_us == pytest.approx(exact.latency_us, rel=1e-9)
    assert truth.measured == found.options["measurements"]
    assert found.scheduler == scheduler


def test_a_device_without_a_profile_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"'fake-device' has no profile .* give `device`"):
        iossim.optimize("squeezenet", None, cost_model=backend_model(tmp_path), budget="50")


def test_the_profile_says_how_far_to_trust_the_simulator() -> None:
    calibrated = expected_deviation(iossim.cost_model("simulator", "v100-sxm2"))
    transferred = expected_deviation(iossim.cost_model("simulator", "h100-sxm"))
    assert 0.05 < calibrated < transferred < 0.5
    assert expected_deviation(iossim.cost_model("random:1")) == DEVIATION


def test_command_line(tmp_path: Path) -> None:
    command = f"optimize squeezenet -d t4 --cost-model perturbed:0.1,3 --budget 60 -r 3 -s 8 --out {tmp_path}"
    text = " ".join(printed(command).split())
    assert "60 stages measured, until the budget of 60 was spent; simulator of t4 predicts" in text
    assert "proven" not in text
    saved = Schedule.read(tmp_path / "schedule.json")
    assert [saved.options[name] for name in ("measurements", "budget", "settled")] == [60, "60", False]
    assert f"{saved.options['estimated_us'] / 1e3:.3f} ms for this schedule" in text
    again = printed_json(command.replace(f"--out {tmp_path}", "--json"))
    assert again == {**json.loads(saved.model_dump_json()), "search_s": again["search_s"]}


def test_command_line_measures_everything_if_told() -> None:
    command = "optimize squeezenet -d t4 --cost-model perturbed:0.1,3 -r 3 -s 8"
    everything = " ".join(printed(f"{command} --budget all").split())
    assert "stages measured, every stage of the search space" in everything
    assert "Provably optimal under this cost model" in everything
    # The usual budget is larger than all that there is.
    assert " ".join(printed(command).split()) == everything


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
def test_interrupted_on_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The first Ctrl-C ends the search with the best that is measured, and says so."""
    price, asked = PerturbedCostModel.price_stages, 0

    def interrupted(model: PerturbedCostModel, batch: StageBatch) -> Prices:
        nonlocal asked
        asked += 1
        if asked == 20:
            signal.raise_signal(signal.SIGINT)
        return price(model, batch)

    monkeypatch.setattr(PerturbedCostModel, "price_stages", interrupted)
    code = main(
        ["optimize", "inception_v3", "-d", "t4", "--cost-model", "perturbed:0.2", "-r", "3", "-s", "8", "--json"]
    )
    assert code == ExitCode.INCOMPLETE
    output = capsys.readouterr()
    assert "ending with the best schedule so far" in output.err
    found = Schedule.model_validate_json(output.out)
    assert not found.complete
    fit(found, iossim.load("inception_v3"))
    assert "until interrupted" in summary(found)
