"""Networks measured as a whole against predictions: made files whose errors are known."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from case_files import cases
from command_line import printed, printed_json

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.calibration.evaluated_networks import MeasuredEvaluation, evaluate_all
from iossim.execution.backend import Samples
from iossim.execution.engine import UNDIVIDED, Engine
from iossim.hardware.load import device
from iossim.ir.types import Precision
from iossim.measurements.formats import formats
from iossim.measurements.measured_networks import (
    NetworkHeader,
    NetworkRun,
    find_measured_networks,
    header_line,
    read_measured_networks,
    run_line,
)
from iossim.measurements.measurement import MeasurementError
from iossim.models.load import load
from iossim.search.scheduler import schedule

CASES = cases(__file__, "mistakes.yaml")

DEVICE = "v100-sxm2"
#: What a measured latency is over its prediction.
SLOWER = {"sequential": 1.25, "ios-both": 0.8}


def made_run(name: str, engine: str = Engine.PAPER, **changed: Any) -> NetworkRun:
    """The sample network, measured ``SLOWER`` times as long as it is predicted to take."""
    network = load("ios_sample")
    found = schedule(
        network, SimulatorCostModel(device(DEVICE), Precision.FP32, Engine.named(engine), in_place=True), name
    )
    measured_us = SLOWER[name] * found.latency_us
    samples = Samples((0.9 * measured_us, measured_us, 1.2 * measured_us), conditions={"clock": "host", "load": 0.5})
    fields = {"model": "ios_sample", "batch": 1, "dtype": "fp32", "engine": engine, "backend": "cupy_cudnn"}
    return NetworkRun.of(samples, **{**fields, "name": name, "schedule": found, **changed})


def baseline() -> NetworkRun:
    fields = {"model": "ios_sample", "batch": 1, "dtype": "fp32", "engine": "", "backend": "torch_cuda"}
    return NetworkRun.of(Samples((100.0,)), name="torch-eager", **fields)


def write(path: Path, *runs: NetworkRun, **header: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [header_line(NetworkHeader(**{"device": DEVICE, "source": "made", **header})), *map(run_line, runs)]
    path.write_text("".join(lines))
    return path


def evaluated(path: Path) -> tuple[MeasuredEvaluation, ...]:
    return evaluate_all([path])[0]


def test_errors_and_speedups_are_those_that_were_made(tmp_path: Path) -> None:
    runs = [made_run(name, engine) for engine in UNDIVIDED for name in ("ios-both", "sequential")]
    (found,) = evaluated(write(tmp_path / "sub" / "networks.jsonl", *runs, baseline()).parent.parent)
    assert [each.run.name for each in found.latencies] == ["ios-both", "sequential"] * 2 + ["torch-eager"]
    errors = [1 / SLOWER[name] - 1 for name in ("ios-both", "sequential")] * 2
    assert [each.error for each in found.latencies[:4]] == pytest.approx(errors)
    for each in found.latencies[::2][:2]:
        assert each.measured_speedup == pytest.approx(each.speedup * SLOWER["sequential"] / SLOWER["ios-both"])
    assert (found.latencies[4].error, found.latencies[4].speedup) == (None, None)
    assert found.accuracy.rows == 4
    assert found.accuracy.mean_error == pytest.approx(sum(map(abs, errors)) / 4)
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert document["runs"][0]["error"] == pytest.approx(0.25)
    assert document["runs"][0]["conditions"] == {"clock": "host", "load": 0.5}
    assert "schedule" not in document["runs"][0]


def test_intervals_cover_what_is_near(tmp_path: Path) -> None:
    far = made_run("sequential").model_copy(update={"median_us": 1e6})
    near = made_run("ios-both")
    near = near.model_copy(update={"median_us": near.median_us / SLOWER["ios-both"]})
    (found,) = evaluated(write(tmp_path / "networks.jsonl", far, near, baseline()))
    assert [each.is_covered for each in found.latencies] == [False, True, None]


def test_the_newest_of_equal_runs_counts(tmp_path: Path) -> None:
    old = made_run("sequential")
    new = old.model_copy(update={"median_us": 123.0})
    assert [run.median_us for run in read_measured_networks(write(tmp_path / "n.jsonl", old, new)).runs] == [123.0]


def test_what_cannot_be_predicted_is_noted(tmp_path: Path) -> None:
    run = made_run("sequential")
    stranger = run.model_copy(
        update={"name": "greedy", "schedule": run.schedule.model_copy(update={"graph_hash": "0"})}
    )
    path = write(tmp_path / "n.jsonl", run, stranger)
    (found,), notes = evaluate_all([path])
    assert found.latencies[1].error is None
    (note,) = notes
    assert "greedy of ios_sample" in note
    other = write(tmp_path / "other.jsonl", run, device="unknown")
    expected = ((), (f"{other}: of unknown, which has no profile; give one with `device` FILE.yaml",))
    assert evaluate_all([other]) == expected


@pytest.mark.parametrize(
    ("error", "words"),
    [(math.inf, "outputs are not finite"), (0.02, "outputs are wrong by 2.0e-02 of the largest value")],
)
def test_a_run_with_wrong_outputs_is_kept_and_its_time_tells_nothing(tmp_path: Path, error: float, words: str) -> None:
    right = made_run("sequential", output_error=1e-5)
    wrong = made_run("ios-both", output_error=error)
    path = write(tmp_path / "networks.jsonl", wrong, right)
    assert [run.wrong_outputs for run in read_measured_networks(path).runs] == [words, ""]
    (found,), notes = evaluate_all([path])
    assert [each.run.name for each in found.latencies] == ["sequential"]
    assert found.accuracy.rows == 1
    assert notes == (f"{path}: ios-both of ios_sample, paper engine: {words}: left out",)
    document = printed_json(f"validate --data {path} --json")
    assert [run["name"] for run in document["measured"][0]["runs"]] == ["sequential"]
    assert document["operators"] == []  # it holds none, and is no mistake
    assert "networks measured on v100-sxm2" in printed(f"validate --data {tmp_path}")
    # Speed-ups are over what computed the same.
    path = write(tmp_path / "other.jsonl", made_run("sequential", output_error=error), made_run("ios-both"))
    ((other,), _) = evaluate_all([path])
    assert [each.measured_speedup for each in other.latencies] == [None]


def test_fewer_bits_may_err_more() -> None:
    assert made_run("sequential", output_error=0.01).wrong_outputs
    assert not made_run("sequential", output_error=0.01, dtype="tf32").wrong_outputs


def test_chosen_devices(tmp_path: Path) -> None:
    path = write(tmp_path / "networks.jsonl", made_run("sequential"))
    assert evaluate_all([path], [device("t4")]) == ((), ())
    mine = write(tmp_path / "mine.jsonl", made_run("sequential"), device="my-gpu")
    (found,), _ = evaluate_all([mine], [device("t4").model_copy(update={"name": "my-gpu"})])
    assert found.device == "my-gpu"
    assert found.latencies[0].predicted_us != evaluated(path)[0].latencies[0].predicted_us


def test_no_other_format_takes_the_file_for_its_own(tmp_path: Path) -> None:
    path = write(tmp_path / "networks.jsonl", made_run("sequential"))
    assert not any(known.recognises(path, path.read_text()) for known in formats())
    (tmp_path / "else.jsonl").write_text('{"schema":"iossim-measurements"}\n')
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe")
    assert [each.path for each in find_measured_networks([tmp_path, tmp_path / "absent"])] == [path]


@pytest.mark.parametrize(("changed", "line", "words"), CASES["networks"])
def test_a_header_or_line_that_is_wrong_is_named(
    tmp_path: Path, changed: Mapping[str, Any], line: str, words: str
) -> None:
    header = {"format": "iossim-measured-networks", "version": 1, "device": DEVICE, **changed}
    (tmp_path / "n.jsonl").write_text(f"{json.dumps(header)}\n{line}\n")
    with pytest.raises(MeasurementError, match=words):
        read_measured_networks(tmp_path / "n.jsonl")
