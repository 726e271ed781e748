"""``ios-streams`` on the command line: optimize, compare, explain and run."""

import json
import re
from pathlib import Path

import pytest
from command_line import printed, printed_json, refused, run

import iossim
from iossim.execution.backend import create_backend
from iossim.models.random_graphs import seeded_network
from iossim.report.figures.schedule_timeline import stream_figure
from iossim.schedule.schedule import StreamSchedule, read_schedule
from iossim.schedule.streams import as_streams
from iossim.search.assemble import plan_us
from iossim.tasks.measured_schedules import for_backend
from iossim.tasks.stream_explain import explain_streams

FILES = {"schedule.json", "graph.svg", "index.html", "trace.json", "timeline.svg", "timeline.png"}
SEARCHED = "--device v100-sxm2 --scheduler ios-streams"


def test_streams_are_found_saved_and_explained(tmp_path: Path) -> None:
    out = tmp_path / "out"
    told = printed(f"optimize squeezenet {SEARCHED} --engine graph --out {out}")
    assert "waits for events of other streams, and no barriers" in " ".join(told.split())
    assert "Lower bound of all streams" in told
    schedule = read_schedule(out / "schedule.json")
    assert isinstance(schedule, StreamSchedule)
    assert {path.name for path in out.iterdir()} == FILES
    page = (out / "index.html").read_text()
    title, lead = re.findall(r"<h1>(.*)</h1>", page), re.findall(r'<p class="lead">(.*?)</p>', page)
    assert re.fullmatch(
        r".* 0\.\d{3} ms simulated, 0\.\d{3}-0\.\d{3} ms expected on hardware \(90% interval\), .*", *title
    )
    assert lead[0].endswith(
        f"{len(schedule.launches)} launches, {_waits(schedule)} waits · {len(schedule.streams)} streams"
    )
    assert lead[1].startswith("With --engine paper it takes ")
    assert "Critical path: " in page
    assert "Critical path: " in printed(f"explain {out}/schedule.json")
    document = printed_json(f"explain {out}/schedule.json --json")
    assert document["latency_us"] == pytest.approx(schedule.latency_us)
    assert sum(document["critical_path_us"].values()) == pytest.approx(schedule.latency_us)
    assert len(document["launches"]) == len(schedule.launches)
    network, prices = iossim.load("squeezenet"), iossim.cost_model("simulator", "v100-sxm2", engine="graph")
    records = stream_figure(network, explained := explain_streams(schedule, network, prices)).records
    lasted_ms = sum(record["end_ms"] - record["start_ms"] for record in records if record["what"] == "kernel")
    assert lasted_ms == pytest.approx(sum(one.end_us - one.start_us for one in explained.launches) / 1e3)
    assert sum(record["what"] == "wait" for record in records) == _waits(schedule)
    assert "<svg" in schedule.plot().svg
    assert "is of streams, and has no stages" in refused(f"explain {out}/schedule.json --stage 1")
    assert "prices stages alone" in refused(f"explain {out}/schedule.json --cost-model random:1")
    printed(f"explain {out}/schedule.json --out {tmp_path}/drawn")
    assert {path.name for path in (tmp_path / "drawn").iterdir()} == FILES - {"schedule.json"}
    assert (tmp_path / "drawn" / "graph.svg").read_text() == (out / "graph.svg").read_text()


def test_streams_of_a_rewritten_network_are_found_exported_and_priced_again(tmp_path: Path) -> None:
    """Changes in turn are those for the best stages."""
    changes = "--engine graph --rewrite --rewrite-budget 3 --micro-batch 2 --batch 2"
    line = f"optimize ios_sample {SEARCHED} {changes} --onnx {tmp_path}/o.onnx --out {tmp_path} --no-plot"
    assert "substitution" in printed(line)
    saved, network = iossim.api.read_any_schedule(tmp_path / "schedule.json")
    assert isinstance(saved, StreamSchedule)
    assert iossim.simulate(saved, network=network).latency_us == pytest.approx(saved.latency_us)
    assert {"rewriting", "micro_batches"} & dict(network.source.options).keys()
    assert len(iossim.load(tmp_path / "o.onnx").units) == len(network.units)


def _waits(schedule: StreamSchedule) -> int:
    return sum(len(launch.after) for launch in schedule.launches)


def test_streams_are_compared_with_stages() -> None:
    schedulers = "--schedulers sequential,ios-both,ios-streams"
    document = printed_json(f"compare squeezenet --device v100-sxm2 {schedulers} --json")
    assert [one["scheduler"] for one in document["schedules"]] == ["sequential", "ios-both"]
    (streams,) = document["streams"]
    assert streams["scheduler"] == "ios-streams"
    assert (
        streams["latency_us"] <= document["schedules"][1]["latency_us"] < document["schedules"][1]["sum_of_stages_us"]
    )
    told = " ".join(printed(f"compare squeezenet --device v100-sxm2 {schedulers}").split())
    assert "sums of stages: sequential 0.842 ms, ios-both 0.741 ms" in told
    assert "Best: ios-streams, 0.683 ms, speed-up 1.18x over sequential" in told
    assert "Provably optimal" not in told


@pytest.mark.parametrize("engine", ["paper", "graph"])
@pytest.mark.parametrize("seed", [4, 17, 30])
def test_streams_and_stages_have_latencies_of_one_meaning(seed: int, engine: str) -> None:
    """Sixty of 120 random networks showed streams as slower, by a sum of stages, than the stages they began from."""
    network, prices = seeded_network(seed, blocks=2), iossim.cost_model("simulator", "v100-sxm2", engine=engine)
    names = ["sequential", "greedy", "ios-both", "ios-streams"]
    found = iossim.compare(network, None, schedulers=names, engine=engine, cost_model=prices)
    rows = {row.scheduler: row for row in found.rows}
    assert rows["ios-streams"].latency_us <= rows["ios-both"].latency_us * (1 + 1e-9)
    for one in found.schedules if found.plans_us or engine == "graph" else ():
        assert rows[one.scheduler].latency_us == pytest.approx(plan_us(one, network, prices))
    assert found.best_us == rows[found.best_of_all.label].latency_us
    # A scheduler of streams may find stages: beside streams, their latency is that of their plan.
    staged = found["ios-both"].model_copy(update={"scheduler": "staged"})
    one, other = found.beside([staged, *found.streams], prices).to_json()["streams"]
    assert other["latency_us"] == found.streams[0].latency_us
    assert one["latency_us"] == pytest.approx(plan_us(staged, network, prices))
    assert one.get("sum_of_stages_us", one["latency_us"]) == pytest.approx(staged.latency_us)
    assert ("sum_of_stages_us" in one, one["proven"]) == ((True, False) if found.plans_us else (False, staged.proven))
    assert found.best_us == pytest.approx(min(row.latency_us for row in rows.values()))
    told = {one["scheduler"]: one for key in ("schedules", "streams") for one in found.to_json()[key]}
    for name, row in rows.items():
        assert (told[name]["latency_us"], told[name]["speedup"]) == (row.latency_us, row.speedup)
        assert row.speedup == rows["sequential"].latency_us / row.latency_us
        assert row.lower_bound_us is None or row.lower_bound_us <= row.latency_us * (1 + 1e-9)


def test_streams_are_run_beside_stages(tmp_path: Path) -> None:
    """Outputs are right, predictions are those of the plan, and stages alone are refused."""
    printed(f"optimize ios_sample {SEARCHED} --engine graph --out {tmp_path}")
    line = f"run {tmp_path}/schedule.json --backend numpy_reference --rounds 1 --device v100-sxm2"
    document = printed_json(f"{line} --json")
    assert [row["name"] for row in document["runs"]] == ["sequential", "ios-streams"]
    assert document["output_error"] <= document["output_tolerance"]
    sequential_us, streams_us = (row["predicted_us"] for row in document["runs"])
    assert 0.0 < streams_us <= sequential_us
    assert "no stages to be measured" in refused(f"{line} --stages")


def test_variants_of_another_device_are_left_out_of_streams() -> None:
    network = iossim.load("ios_sample")
    found = as_streams(iossim.optimize(network, "v100-sxm2"), network)
    launch = found.streams[0][0].model_copy(update={"variant": "of another device"})
    foreign = found.model_copy(update={"streams": [[launch, *found.streams[0][1:]], *found.streams[1:]]})
    kept, remark = for_backend(foreign, network, create_backend("onnxruntime_cpu"))
    assert isinstance(kept, StreamSchedule)
    assert kept.streams == found.streams
    assert "of another device" in remark


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sample's best stages and the streams from them, in one CUDA graph and under the paper engine."""
    folder = tmp_path_factory.mktemp("saved")
    for engine in ("graph", "paper"):
        for scheduler in ("ios-both", "ios-streams"):
            line = f"optimize squeezenet -d v100-sxm2 --engine {engine} --scheduler {scheduler} --no-trace --no-plot"
            assert run([*line.split(), "--out", f"{folder}/out"]) == 0
            (folder / "out" / "schedule.json").rename(folder / f"{engine}-{scheduler}.json")
    return folder


def test_streams_are_simulated_elsewhere(saved: Path) -> None:
    streams = saved / "graph-ios-streams.json"
    own = read_schedule(streams)
    simulate = f"simulate {streams}"
    document = printed_json(f"{simulate} --json")
    assert StreamSchedule.model_validate(document).latency_us == pytest.approx(own.latency_us)
    stages = printed_json(f"simulate {saved}/graph-ios-both.json --event-driven --json")
    there = printed_json(f"{simulate} --device t4 --batch 4 --engine paper --event-driven --json")
    assert set(there) == (set(stages) - {"blocks"}) | {"streams", "issue"}
    assert (there["device"], there["source"]["batch"], there["engine"]) == ("t4", 4, "paper")
    assert set(there["event_driven"]) == set(stages["event_driven"])
    assert there["event_driven"]["latency_us"] == pytest.approx(there["latency_us"], rel=0.1)
    assert there["latency_us"] > own.latency_us
    told = printed(f"{simulate} --device t4 --batch 4 --engine paper")
    assert "squeezenet on t4, batch 4, fp32, paper engine, ios-streams" in told
    assert "Critical path: " in told
    said = f"{own.latency_us / 1e3:.3f} ms on v100-sxm2, batch 1, which it was found for"
    assert said in " ".join(told.split())


def test_simulated_streams_have_a_trace(saved: Path, tmp_path: Path) -> None:
    """Of the run event by event, with what is in use, where that is asked for."""
    streams = saved / "graph-ios-streams.json"
    printed(f"simulate {streams} --out {tmp_path}/fluid")
    assert {path.name for path in (tmp_path / "fluid").iterdir()} == FILES
    document = printed_json(f"simulate {streams} --event-driven --out {tmp_path}/events --json --no-plot")
    events = json.loads((tmp_path / "events" / "trace.json").read_text())["traceEvents"]
    assert {event["name"] for event in events if event["ph"] == "C"} >= {"active warps"}
    ended_us = max(event["ts"] + event["dur"] for event in events if event["ph"] == "X")
    assert ended_us == pytest.approx(document["event_driven"]["latency_us"], abs=1e-2)
    printed(f"simulate {tmp_path}/events/schedule.json --no-plot")


def test_what_simulate_cannot_do_with_streams(saved: Path) -> None:
    line = f"simulate {saved}/graph-ios-streams.json"
    assert "partition divides stages" in refused(f"{line} --engine partition")
    assert "prices stages alone" in refused(f"{line} --cost-model random:1")
    assert "batch 0 is not possible" in refused(f"{line} --batch 0")


@pytest.mark.parametrize("engine", ["graph", "paper"])
def test_stages_and_streams_are_diffed_as_plans(saved: Path, engine: str) -> None:
    stages, streams = (f"{saved}/{engine}-{name}.json" for name in ("ios-both", "ios-streams"))
    document = printed_json(f"diff {stages} {streams} --json")
    assert document["second"]["latency_us"] == pytest.approx(read_schedule(Path(streams)).latency_us)
    faster = document["second"]["latency_us"] / document["first"]["latency_us"] - 1
    assert faster < 0
    assert document["regrets"][1] == pytest.approx(faster)
    told = printed(f"diff {stages} {streams}")
    assert f"({faster:+.1%})" in told
    assert f"Units in another stream: {len(document['moved_units'])} (" in told
    assert document["plans"][0]["critical_path"] != document["plans"][1]["critical_path"]
    every = printed(f"diff {stages} {streams} --all")
    assert len(every.splitlines()) > len(told.splitlines())
    assert "Units in another stream: 0" in printed(f"diff {streams} {streams}")


def test_streams_are_not_exported(saved: Path, tmp_path: Path) -> None:
    export = f"schedules export {saved}/graph-ios-streams.json --out {tmp_path}/file"
    refused(export, "streams without barriers, which would be lost; export the stages")
    assert not (tmp_path / "file").exists()


def test_compare_saves_streams_that_are_read_again(tmp_path: Path) -> None:
    schedulers = "--schedulers sequential,ios-streams"
    compared = f"compare squeezenet --device v100-sxm2 {schedulers} --out {tmp_path} --no-plot --json"
    (streams,) = printed_json(compared)["streams"]
    again = printed_json(f"simulate {tmp_path}/ios-streams.json --json")
    assert again["latency_us"] == pytest.approx(streams["latency_us"])
