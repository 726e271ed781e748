"""``iossim measurements``: list, export, import, prune."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from case_files import cases
from command_line import printed, printed_json, refused
from fake_backend import FakeBackend
from operators import describe

import iossim
from iossim.base.errors import OptionError
from iossim.cost.measured.cost_model import MeasuredCostModel
from iossim.cost.measured.profiling import ProfileOptions, profile_parts
from iossim.cost.measured.record import Kind, MeasurementRecord
from iossim.cost.measured.store import MeasurementStore
from iossim.execution.backend import Context, Samples, Timing
from iossim.measurements.measurement_set import read_measurements
from iossim.schedule.problem import ScheduleProblem
from iossim.tasks.explain import explain

CASES = cases(__file__, "mistakes.yaml")

PATH = Path("s.sqlite")


def fill(path: Path, model: str = "squeezenet", cold: bool = False, **backend: object) -> MeasuredCostModel:
    """Profile a network by the fake backend."""
    network = iossim.load(model)
    with MeasurementStore(path) as store:
        prices = MeasuredCostModel(FakeBackend(**backend), store, Timing(3, 0, cold=cold))  # type: ignore[arg-type]
        prices.boundary_us()
        prices.measure(*(b for part in profile_parts(network, prices, ProfileOptions(6, 12)) for b in part.batches))
    return prices


def test_list() -> None:
    fill(PATH)
    fill(PATH, engine="graph")
    text = printed("measurements list --store s.sqlite")
    assert "in 2 contexts" in text
    assert "fake on fake-device, fp32, graph engine" in text
    found = printed_json("measurements list --store s.sqlite --json")["contexts"]
    expected = [(1, "paper", "fake 1"), (2, "graph", "fake 1")]
    assert [(one["context"], one["engine"], one["libraries"]) for one in found] == expected
    assert {len(one[name]) for one in found for name in ("first", "last")} == {len("2026-12-01")}
    records = printed_json("measurements list --store s.sqlite --records --kind unit --engine graph --json")
    assert {row["kind"] for row in records["records"]} == {"unit"}
    assert len(records["records"]) == 36
    assert "fire2.squeeze" in printed("measurements list --store s.sqlite --records --kind unit")
    assert printed_json("measurements list --store s.sqlite --device other --json")["contexts"] == []
    assert "0 measurements in 0 contexts" in printed("measurements list --store s.sqlite --backend other")


def test_export_is_what_calibrate_reads() -> None:
    """Latencies are those of the prices; a Conv-Relu is a convolution; stages are groups of operators."""
    prices = fill(PATH)
    facts = printed_json("measurements export out.jsonl --store s.sqlite --json")
    read = read_measurements(Path("out.jsonl"))
    assert (len(read.measurements), len(read.stages)) == (facts["operators"], facts["stages"])
    header = read.header
    assert (header.device, str(header.precision), header.libraries) == ("fake-device", "fp32", {"fake": "1"})
    assert header.includes_gaps
    assert not header.includes_host_overhead
    network = iossim.load("squeezenet")
    with MeasurementStore(PATH, read_only=True) as store:
        records = store.records()
    units = {record.words.rpartition(" ")[2]: record for record in records if record.kind is Kind.UNIT}
    boundary_us = prices.boundary_us()
    latency_us = {describe(one.operator): one.latency_us for one in read.measurements}
    for name, words in (
        ("conv1", "conv batch=1 in_channels=3 out_channels=96 in_h=224 in_w=224 kernel_h=7 kernel_w=7"),
        ("pool1", "max_pool batch=1 channels=96"),
    ):
        (found,) = (us for text, us in latency_us.items() if text.startswith(words))
        assert found == pytest.approx(units[name].copy_us(boundary_us))
        assert network.unit(name).name == name
    side_by_side = [stage for stage in read.stages if len(stage.groups) > 1]
    assert side_by_side
    assert all(stage.serial_us is not None for stage in side_by_side)
    stages = {
        record.words: record for record in records if record.kind is Kind.STAGE and len(record.subject["groups"]) > 1
    }
    expected = sorted(record.copy_us(boundary_us) + 2 * boundary_us for record in stages.values())
    assert sorted(stage.latency_us for stage in side_by_side) == pytest.approx(expected)


def test_export_says_what_it_cannot_express() -> None:
    fill(PATH, "randwire")
    facts = printed_json("measurements export out.jsonl --store s.sqlite --json")
    assert any("no columns for units of kind Relu-SepConv" in note for note in facts["left_out"])
    counted = sum(int(note.split()[0]) for note in facts["left_out"])
    listed = printed_json("measurements list --store s.sqlite --json")["contexts"][0]["measurements"]
    assert facts["operators"] + facts["stages"] + counted == listed - 2  # two of the boundary
    assert "note: " in printed("measurements export out.jsonl --store s.sqlite")


def test_export_is_of_one_context() -> None:
    fill(PATH)
    fill(PATH, engine="graph")
    refused("measurements export out.jsonl --store s.sqlite", "2 such contexts", "--context NUMBER")
    assert not Path("out.jsonl").exists()
    for choice in ("--context 2", "--engine graph"):
        printed(f"measurements export out.jsonl --store s.sqlite {choice}")
        assert "graph engine" in read_measurements(Path("out.jsonl")).header.source
    assert "holds nothing of that kind" in refused("measurements export x.jsonl --store s.sqlite --device no")
    assert "measured cold" in refused("measurements export x.jsonl --store s.sqlite --context 1 --cold")


def test_cold_measurements_are_single_calls() -> None:
    fill(PATH)
    fill(PATH, cold=True)
    printed("measurements export warm.jsonl --store s.sqlite")
    printed("measurements export cold.jsonl --store s.sqlite --cold")
    warm, cold = (read_measurements(Path(f"{name}.jsonl")) for name in ("warm", "cold"))
    assert cold.header.includes_host_overhead
    assert {one.is_cold for one in cold.measurements} == {True}
    assert {one.is_cold for one in warm.measurements} == {False}
    assert len(cold.measurements) == len(warm.measurements)


@pytest.mark.slow
def test_calibrate_takes_what_was_profiled() -> None:
    """The whole way by the commands, with a simulated device for hardware."""
    command = "profile squeezenet --backend simulator:device=v100-sxm2 --engine graph --store s.sqlite --rounds 2"
    printed(f"{command} --pairs 6 --stages 6")
    printed("measurements export squeezenet.jsonl --store s.sqlite")
    found = printed_json("calibrate --data squeezenet.jsonl --device v100-sxm2 --folds 0 --out p.yaml --json")
    assert found["device"] == "v100-sxm2"
    assert iossim.device("./p.yaml").name == "v100-sxm2"


def test_import_is_idempotent() -> None:
    fill(PATH)
    fill(Path("other.sqlite"), "ios_sample")
    count = printed_json("measurements list --store s.sqlite --json")["contexts"][0]["measurements"]
    (row,) = printed_json("measurements import other.sqlite --store s.sqlite --json")["imported"]
    assert row["new"] == row["measurements"] > 0
    (context,) = printed_json("measurements list --store s.sqlite --json")["contexts"]
    assert context["measurements"] == count + row["new"]
    rows = printed_json("measurements import other.sqlite s.sqlite --store s.sqlite --json")["imported"]
    assert [one["new"] for one in rows] == [0, 0]
    assert "0 of them new" in printed("measurements import other.sqlite --store s.sqlite")


def test_an_imported_store_replays() -> None:
    fill(Path("there.sqlite"))
    printed("measurements import there.sqlite")
    command = "optimize squeezenet --cost-model {} --json"
    here = printed_json(command.format("replay"))
    assert here["device"] == "fake-device"
    there = printed_json(command.format("replay:there.sqlite"))
    assert {**here, "search_s": 0} == {**there, "search_s": 0}


def test_replay_of_a_context() -> None:
    fill(PATH)
    fill(PATH, driver="2")
    sequential = "optimize squeezenet --scheduler sequential --json --cost-model"
    contexts = "has 2 contexts of fp32: 1: fake on fake-device"
    refused(f"{sequential} replay:s.sqlite", contexts, "replay:s.sqlite#NUMBER")
    first, second = (printed_json(f"{sequential} replay:s.sqlite#{number}") for number in (1, 2))
    assert first["cost_model"]["version"] != second["cost_model"]["version"]
    under_graph = "nothing of fp32 under the graph engine; it has 1: fake"
    refused(f"{sequential} replay:s.sqlite --engine graph", under_graph)
    refused(f"{sequential} replay:s.sqlite --dtype fp16", "nothing of fp16")
    refused(f"{sequential} replay:s.sqlite --device t4", "nothing of fp32 on t4")
    refused(f"{sequential} replay:s.sqlite#9", "in context 9")
    refused("optimize inception_v3 --cost-model replay:s.sqlite#1", "no schedule that 'fake' can price")
    refused(f"{sequential} replay:none.sqlite", "there is no measurement store")


def test_a_backend_by_name_measures_through_the_store(fake: str) -> None:
    command = f"optimize ios_sample --cost-model {fake} --device v100-sxm2 --budget all --store s.sqlite --json"
    found = printed_json(command)
    assert found["cost_model"]["name"] == fake
    with MeasurementStore(PATH, read_only=True) as store:
        count = len(store.records())
    problem = ScheduleProblem.of_block(network := iossim.load("ios_sample"), network.blocks[0])
    assert count > len(problem)
    again = printed_json(command)
    assert {**again, "search_s": 0} == {**found, "search_s": 0}
    with MeasurementStore(PATH, read_only=True) as store:
        assert len(store.records()) == count
    replayed = printed_json("optimize ios_sample --cost-model replay:s.sqlite --json")
    # The plain search at the same prices finds one as good; a concat that costs nothing may stand elsewhere.
    assert replayed["latency_us"] == found["latency_us"]


def _record(signature: str, kind: Kind = Kind.UNIT, days_ago: int = 0, device: str = "here") -> MeasurementRecord:
    date = (datetime.now(UTC) - timedelta(days=days_ago)).isoformat(timespec="microseconds")
    return MeasurementRecord(
        Context("fake", device, "fp32", "paper"), kind, signature, 1, 1, Samples((1.0,)), date=date
    )


def test_prune() -> None:
    with MeasurementStore(PATH) as store:
        store.add([_record("old", days_ago=40), _record("new"), _record("b", Kind.BOUNDARY, days_ago=40)])
        store.add([_record("there", device="there")])
    before = PATH.read_bytes()
    assert "2 measurements in 1 context would go; add --yes" in printed(
        "measurements prune --older-than 30 --store s.sqlite"
    )
    assert PATH.read_bytes() == before
    command = "measurements prune --older-than 30 --kind unit --store s.sqlite --json"
    assert printed_json(command) == {"store": "s.sqlite", "chosen": 1, "deleted": 0}
    assert printed_json(f"{command} --yes") == {"store": "s.sqlite", "chosen": 1, "deleted": 1}
    assert "1 measurement deleted" in printed("measurements prune --device there --yes --store s.sqlite")
    with MeasurementStore(PATH, read_only=True) as store:
        assert {record.signature for record in store.records()} == {"new", "b"}
        assert [one.context.device for one in store.contexts()] == ["here"]


@pytest.mark.parametrize(("arguments", "words"), CASES["measurements"])
def test_mistakes(arguments: str, words: str) -> None:
    with MeasurementStore(PATH) as store:
        store.add([_record("s")])
    Path("text.sqlite").write_text("not a store at all")
    Path("set.jsonl").write_text('{"schema": "iossim-measurements", "version": 1}\n')
    Path("conv.csv").write_text("batch,in_channels\n1,64\n")
    Path("x.onnx").write_bytes(b"\0\1" * 9)
    iossim.optimize("ios_sample", "t4", scheduler="sequential").save("s.json")
    refused(f"measurements {arguments}", words)


def test_what_would_have_to_be_measured_is_not_explained() -> None:
    network = iossim.load("ios_sample")
    found = iossim.optimize(network, "t4", scheduler="greedy")
    with (
        MeasurementStore(PATH) as store,
        pytest.raises(OptionError, match=r"would have to measure .* give replay:STORE"),
    ):
        explain(found, network, MeasuredCostModel(FakeBackend(), store))
