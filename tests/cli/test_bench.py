"""``iossim bench``: schedules found by measured search, timed beside each other and beside baselines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import printed, printed_json, refused

from iossim.calibration.evaluated_networks import evaluate_measured_networks
from iossim.cli.main import main
from iossim.cli.outputs import ExitCode
from iossim.hardware.load import device
from iossim.ir.network import Network
from iossim.measurements.measured_networks import read_measured_networks
from iossim.measurements.measurement import MeasurementError
from iossim.schedule.fit import fit
from iossim.schedule.schedule import StreamSchedule

#: On made-up times, with estimates of a GPU: any device's will do, since they are corrected by what is measured.
WHERE = ["--backend", "fake", "--device", "v100-sxm2"]
QUICK = [*WHERE, "--rounds", "3", "--warm-up", "0", "--budget", "30"]

pytestmark = pytest.mark.usefixtures("fake")


def test_schedules_are_found_measured_and_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["bench", "ios_sample", *QUICK, "--store", str(tmp_path / "s.sqlite"), "--out", str(out), "--json"]
    (document,) = printed_json(arguments)
    assert document["model"] == "ios_sample"
    assert [run["name"] for run in document["runs"]] == ["sequential", "greedy", "ios-both"]
    assert all(run["predicted_us"] > 0 and len(run["times_us"]) == 3 for run in document["runs"])
    assert sorted(path.name for path in out.iterdir()) == ["bench.png", "bench.svg", "networks.jsonl"]
    measured = read_measured_networks(out / "networks.jsonl")
    assert measured.header.device == document["context"]["device"]
    assert [run.median_us for run in measured.runs] == [run["median_us"] for run in document["runs"]]
    import iossim

    network = iossim.load("ios_sample")
    for run in measured.runs:
        fit(run.schedule, network)


def test_streams_are_measured_beside_stages(tmp_path: Path) -> None:
    """Searched at the simulator's prices, run as a whole, and written as a run that is read and priced again."""
    out, schedulers = tmp_path / "out", ["--schedulers", "sequential,ios-streams"]
    arguments = ["bench", "squeezenet", *QUICK, *schedulers, "--store", str(tmp_path / "s.sqlite"), "--out", str(out)]
    text = printed(arguments)
    assert "note: ios-streams: searched at the estimates of the simulator of v100-sxm2" in text
    (_, run) = read_measured_networks(out / "networks.jsonl").runs
    assert isinstance(run.schedule, StreamSchedule)
    assert len(run.schedule.streams) > 1
    (document,) = printed_json([*arguments[:-2], "--json"])
    assert [one["name"] for one in document["runs"]] == ["sequential", "ios-streams"]
    predicted_us = [one["predicted_us"] for one in document["runs"]]
    assert predicted_us[1] == pytest.approx(run.schedule.latency_us)
    assert predicted_us[1] < predicted_us[0]
    measured = read_measured_networks(out / "networks.jsonl")
    found = evaluate_measured_networks(measured, device("v100-sxm2"))
    assert not found.notes
    of_stages_us, of_streams_us = (one.predicted_us for one in found.latencies)
    assert of_streams_us == pytest.approx(predicted_us[1])
    # Beside streams, stages are told as a whole plan; alone, by the sum of the stages.
    assert of_stages_us == pytest.approx(predicted_us[0], rel=3e-3)
    assert [one.is_covered is None for one in found.latencies] == [False, True]
    written = (out / "networks.jsonl").read_text()
    (out / "networks.jsonl").write_text(written.replace('"after":["', '"after":[1,"', 1))
    with pytest.raises(MeasurementError, match=r"schedule\.streams\.streams"):
        read_measured_networks(out / "networks.jsonl")


def test_streams_need_a_device_that_is_known(tmp_path: Path) -> None:
    store = ["--store", str(tmp_path / "s.sqlite")]
    arguments = ["bench", "ios_sample", "--backend", "numpy_reference", "--schedulers", "sequential,ios-streams"]
    assert "has no profile to estimate its stages with" in refused([*arguments, *store])


def test_a_table_a_network_beside_baselines(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="its whole-model session is the baseline")
    text = printed(["bench", "ios_sample", "--backend", "numpy_reference", "--rounds", "2", "--warm-up", "0", "--schedulers",
         "sequential", "--compare", "onnxruntime-1-thread", "--store", str(tmp_path / "s.sqlite")],
    )  # fmt: skip
    assert "ios_sample by numpy_reference on cpu, batch 1, fp32, paper engine" in text
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert lines["sequential"][3] == "1.00"
    assert float(lines["onnxruntime-1-thread"][3]) > 0


def test_an_interrupt_keeps_the_networks_that_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second of two networks is interrupted: the first is printed and written, and the exit code says it is not all."""
    from iossim.tasks import measured_schedules as measured

    whole = measured.measure_network

    def interrupted(network: Network, *arguments: Any, **options: Any) -> measured.MeasuredNetwork:
        if network.name == "squeezenet":
            raise KeyboardInterrupt
        return whole(network, *arguments, **options)

    monkeypatch.setattr(measured, "measure_network", interrupted)
    out = tmp_path / "out"
    common = [*QUICK, "--schedulers", "sequential", "--store", str(tmp_path / "s.sqlite"), "--out", str(out)]
    assert main(["bench", "ios_sample", "squeezenet", *common]) == ExitCode.INCOMPLETE
    assert "ios_sample by fake" in capsys.readouterr().out
    assert [run.model for run in read_measured_networks(out / "networks.jsonl").runs] == ["ios_sample"]
    assert main(["bench", "squeezenet", *common]) == ExitCode.INTERRUPTED
