"""``iossim profile`` and ``iossim bench``: what is measured, kept, told, and not measured again."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import printed, printed_json, refused
from fake_backend import FakeBackend

import iossim
from iossim.calibration.evaluated_networks import evaluate_measured_networks
from iossim.cli.main import main
from iossim.cli.outputs import ExitCode
from iossim.cost.measured import cost_model as measured
from iossim.cost.measured.cost_model import MeasuredCostModel
from iossim.cost.measured.profiling import ProfileOptions, profile_parts, random_stages
from iossim.cost.measured.record import Kind
from iossim.cost.measured.store import MeasurementStore
from iossim.execution.backend import Timing
from iossim.hardware.load import device
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.measurements.measured_networks import read_measured_networks
from iossim.measurements.measurement import MeasurementError
from iossim.schedule.batch import Strategy
from iossim.schedule.fit import fit
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import StreamSchedule


def stored(path: str) -> MeasurementStore:
    return MeasurementStore(Path(path), read_only=True)


def test_units_pairs_and_stages_are_kept(fake: str) -> None:
    command = f"profile squeezenet --backend {fake} --store s.sqlite --pairs 5 --stages 7 --rounds 4"
    found = printed_json(f"{command} --json")
    parts = {part["part"]: part for part in found["parts"]}
    network = iossim.load("squeezenet")
    # All distinct units that launch something are measured: all but the concats.
    units = len({network.signatures[i] for i, unit in enumerate(network.units) if "concat" not in unit.name})
    assert {name: part["measured"] for name, part in parts.items()} == {"units": units, "pairs": 5, "stages": 7}
    assert {part["kept"] for part in parts.values()} == {0}
    assert (found["name"], found["device"], found["engine"]) == ("fake", "fake-device", "paper")
    assert found["boundary_us"] == pytest.approx(7.0, abs=2.0)
    with stored("s.sqlite") as store:
        records = store.records()
    assert sum(record.kind is Kind.UNIT for record in records) == units
    assert sum(record.kind is Kind.BOUNDARY for record in records) == 2
    assert len(records) == units + 5 + 7 + 2
    assert {len(record.samples.times_us) for record in records} == {4}
    again = printed_json(f"{command} --json")
    assert {part["measured"] for part in again["parts"]} == {0}
    assert again["sequential_us"] == found["sequential_us"]
    more = printed_json(f"{command.replace('--stages 7', '--stages 20')} --json")
    assert {part["part"]: part["measured"] for part in more["parts"]}["units"] == 0
    anew = printed_json(f"{command} --again --json")
    assert sum(part["measured"] for part in anew["parts"]) == units + 5 + 7


def test_what_people_read(capsys: pytest.CaptureFixture[str], fake: str, folder: Path) -> None:
    assert main(["profile", "ios_sample", "--backend", fake]) == 0
    output = capsys.readouterr()
    assert re.fullmatch(r"\d+ stages to measure; 0 stages in .*measurements.sqlite already\n", output.err)
    for words in (
        "ios_sample by fake on fake-device",
        "units",
        "pairs",
        "stages",
        "sequential:",
        "measurements.sqlite",
    ):
        assert words in output.out
    assert (folder / "data" / "measurements.sqlite").is_file()
    assert main(["profile", "ios_sample", "--backend", fake]) == 0
    assert "0 stages to measure; " in capsys.readouterr().err
    assert "unable to open" in refused(f"profile squeezenet --backend {fake} --store .")


def test_engines_options_and_dtypes_are_apart(fake: str) -> None:
    command = f"profile ios_sample --store s.sqlite --pairs 0 --stages 0 --rounds 2 --json --backend {fake}"
    # Of two images it counts that a unit writes into a concat.
    for extra, units in (("", 2), (":seed=1", 2), (" --engine graph", 2), (" --batch 2", 3)):
        found = printed_json(command + extra)
        assert [part["measured"] for part in found["parts"]] == [units, 0, 0]
    with stored("s.sqlite") as store:
        expected = [{"boundary": 2, "unit": 5}, {"boundary": 2, "unit": 2}, {"unit": 2}]
        assert [one.counts for one in store.contexts()] == expected


def test_an_interrupt_keeps_what_was_measured(
    capsys: pytest.CaptureFixture[str], fake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "CHUNK", 8)
    calls = 0
    run = FakeBackend.measure

    def interrupted(self: FakeBackend, *arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 12:
            raise KeyboardInterrupt
        return run(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(FakeBackend, "measure", interrupted)
    command = ["profile", "squeezenet", "--backend", fake, "--store", "s.sqlite"]
    assert main(command) == 3
    assert "interrupted: the same command goes on" in capsys.readouterr().out
    with stored("s.sqlite") as store:
        kept = len([record for record in store.records() if record.kind is not Kind.BOUNDARY])
    assert kept > 0
    assert kept % 8 == 0
    assert main(command) == 0
    assert f"{kept} stages in s.sqlite already" in capsys.readouterr().err


def test_this_machines_cpu_is_described_once(
    fake: str, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the device is the CPU itself, calibrate finds its profile afterwards."""
    command = ["profile", "ios_sample", "--backend", fake, "--pairs", "0", "--stages", "0"]
    path = folder / "data" / "devices" / "cpu.yaml"
    assert main(command) == 0
    assert not path.exists()
    described = []

    def measure() -> DeviceProfile:
        described.append(1)
        return iossim.device("t4").model_copy(update={"name": "cpu"})  # a CPU takes seconds to measure

    monkeypatch.setattr("iossim.hardware.host_measuring.measure_host_cpu", measure)
    made = FakeBackend.__init__

    def on_cpu(self: FakeBackend, *arguments: object, **fields: object) -> None:
        made(self, *arguments, **fields)  # type: ignore[arg-type]
        self.context = replace(self.context, device="cpu")

    monkeypatch.setattr(FakeBackend, "__init__", on_cpu)
    assert main(command) == 0
    assert f"described this machine's CPU in {path}" in caplog.text
    assert iossim.device("cpu").name == "cpu"
    assert main(command) == 0
    assert described == [1]


def test_no_part_holds_what_another_holds(folder: Path) -> None:
    network = iossim.load("inception_v3")
    with MeasurementStore(folder / "s.sqlite") as store:
        model = MeasuredCostModel(FakeBackend(), store, Timing(2, 0))
        parts = profile_parts(network, model, ProfileOptions(pairs=30, stages=30, seed=1))
        again = profile_parts(network, model, ProfileOptions(pairs=30, stages=30, seed=1))
        signed = [[model.signatures(batch) for batch in part.batches] for part in parts]
        assert signed == [[model.signatures(batch) for batch in part.batches] for part in again]
        flat = [signature for part in signed for of_one in part for signature in of_one]
        assert len(flat) == len(set(flat))
        assert [sum(map(len, part)) for part in signed[1:]] == [30, 30]
        other = profile_parts(network, model, ProfileOptions(pairs=30, stages=30, seed=2))
        assert signed[1:] != [[model.signatures(batch) for batch in part.batches] for part in other[1:]]


def test_pairs_are_of_units_that_may_run_together(folder: Path) -> None:
    network = iossim.load("squeezenet")
    with MeasurementStore(folder / "s.sqlite") as store:
        model = MeasuredCostModel(FakeBackend(), store)
        pairs = profile_parts(network, model, ProfileOptions(pairs=1000, stages=0))[1]
        assert sum(len(batch) for batch in pairs.batches) > 10
        for batch in pairs.batches:
            assert all(len(batch.problem.groups(mask)) == 2 for mask in batch.masks.tolist())
            assert np.all(batch.strategies == Strategy.CONCURRENT.code)


@pytest.mark.parametrize("name", ["squeezenet", "nasnet_a"])
def test_random_stages_are_a_valid_schedule_within_the_pruning(name: str) -> None:
    import random

    network = iossim.load(name)
    merged = 0
    for index, block in enumerate(network.blocks[:12]):
        problem = ScheduleProblem.of_block(network, block)
        done = 0
        for stage in random_stages(problem, random.Random(index), ProfileOptions(max_group_size=2, max_groups=3)):
            mask = stage.mask
            assert mask & done == 0
            for unit in range(len(problem)):
                if mask >> unit & 1:
                    assert int(problem.predecessors[unit]) & ~(done | mask) == 0
            if stage.strategy is Strategy.MERGE:
                merged += 1
                assert len({int(problem.merge_class[unit]) for unit in range(len(problem)) if mask >> unit & 1}) == 1
                assert mask.bit_count() <= 3
            else:
                groups = problem.groups(mask)
                assert len(groups) <= 3
                assert max(group.bit_count() for group in groups) <= 2
            done |= mask
        assert done == problem.full
    assert merged > 0 or name == "nasnet_a"


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
    assert {tuple(run.libraries.items()) for run in measured.runs} == {(("fake", "1"),)}
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
    (run,) = read_measured_networks(out / "networks.jsonl").runs
    assert run.model == "ios_sample"
    cut = run.schedule.model_copy(update={"complete": False})
    assert not measured.MeasuredNetwork(
        iossim.load("ios_sample"), {"sequential": run.schedule, "greedy": cut}, ()
    ).complete
    assert main(["bench", "squeezenet", *common]) == ExitCode.INTERRUPTED
