"""Schedules at measured prices: through the API, through a backend and its store, and from the command line."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from command_line import printed, printed_json
from fake_backend import FakeBackend

import iossim
from iossim import api
from iossim.base.errors import OptionError
from iossim.cli.main import main
from iossim.cli.outputs import ExitCode
from iossim.cost.measured.cost_model import MeasuredCostModel
from iossim.cost.measured.store import MeasurementStore
from iossim.cost.model import Prices
from iossim.cost.perturbed import PerturbedCostModel
from iossim.execution.backend import Timing
from iossim.report.schedule_tables import summary
from iossim.schedule.batch import StageBatch
from iossim.schedule.fit import fit
from iossim.schedule.schedule import Schedule
from iossim.search.measured import Budget
from iossim.search.measured.schedule import expected_deviation
from iossim.search.measured.search import DEVIATION

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
    found = iossim.optimize(
        network, "v100-sxm2", cost_model=truth, scheduler=scheduler, options=PRUNED, budget=Budget(everything=True)
    )
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
    assert saved.options["measurements"] == 60
    assert saved.options["budget"] == "60"
    assert not saved.options["settled"]
    said = f"{saved.options['estimated_us'] / 1e3:.3f} ms for this schedule"
    assert said in text
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
