"""``iossim bench``: schedules found by measured search, timed beside each other and beside baselines."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import printed, printed_json, refused

from iossim.calibration.validation.measured_networks import read_measured_networks
from iossim.schedule.fit import fit

#: On NumPy, with estimates of a GPU: any device's will do, since they are corrected by what is measured.
QUICK = ["--backend", "numpy_reference", "--device", "v100-sxm2", "--rounds", "2", "--warm-up", "0", "--budget", "12"]


def test_schedules_are_found_measured_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ["bench", "ios_sample", *QUICK, "--store", str(tmp_path / "s.sqlite"), "--out", str(out), "--json"]
    (document,) = printed_json(capsys, arguments)
    assert document["model"] == "ios_sample"
    assert [run["name"] for run in document["runs"]] == ["sequential", "greedy", "ios-both"]
    assert all(run["predicted_us"] > 0 and len(run["times_us"]) == 2 for run in document["runs"])
    assert sorted(path.name for path in out.iterdir()) == ["bench.png", "bench.svg", "networks.jsonl"]
    measured = read_measured_networks(out / "networks.jsonl")
    assert measured.header.device == "cpu"
    assert [run.median_us for run in measured.runs] == [run["median_us"] for run in document["runs"]]
    import iossim

    network = iossim.load("ios_sample")
    for run in measured.runs:
        assert run.schedule is not None
        fit(run.schedule, network)


def test_a_table_a_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime", reason="its whole-model session is the baseline")
    arguments = ["bench", "ios_sample", *QUICK, "--schedulers", "sequential", "--compare", "onnxruntime-1-thread"]
    text = printed(capsys, [*arguments, "--store", str(tmp_path / "s.sqlite")])
    assert "ios_sample by numpy_reference on cpu, batch 1, fp32, paper engine" in text
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert float(lines["onnxruntime-1-thread"].split()[3]) > 0  # its speed-up over NumPy
    assert "1.00" in lines["sequential"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--schedulers", "ios"], "--schedulers 'ios' is not known; did you mean 'ios-both'?"),
        (["--schedulers", ","], "--schedulers names none; known: sequential"),
        (["--compare", "tensorrt"], "--compare 'tensorrt' is not known; known: onnxruntime, torch"),
        (["--compare", "onnxruntime-2"], "baseline 'onnxruntime-2' is not known"),
        (
            ["--budget", "soon"],
            "--budget 'soon' is no budget; give a number of measurements (1000), seconds (60s), or all",
        ),
        (["--rounds", "0"], "--rounds 0 is too few"),
    ],
)
def test_mistakes(arguments: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ["--store", str(tmp_path / "s.sqlite")]
    assert reason in refused(capsys, ["bench", "ios_sample", *QUICK, *store, *arguments])
    assert not (tmp_path / "out").exists()
