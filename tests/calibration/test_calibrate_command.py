"""``iossim calibrate``: measurements in, a profile out; bad files leave the old one as it was."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import printed, printed_json, refused
from operators import parse_description

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.execution.engine import Engine
from iossim.hardware.load import device
from iossim.hardware.profile import with_values
from iossim.hardware.write import write_profile
from iossim.ir.types import Precision
from iossim.measurements.measurement import Header, Measurement, MeasurementSet, StageMeasurement
from iossim.measurements.measurement_set import write_measurements
from iossim.prediction.predict import predict, stage_us

EFFICIENCY = 0.6


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made(name: str = "v100-sxm2", label: str = "", count: int = 64) -> MeasurementSet:
    """Products and sums on a device whose products are slower than its profile has them."""
    texts = [f"gemm m={256 + 64 * n} n={1024 - 8 * n} k={512 + 32 * n} trans_a=N trans_b=T" for n in range(count // 2)]
    texts += [f"relu rows={500 + 97 * n} cols={1000 + 31 * n}" for n in range(count - len(texts))]
    operators = [parse_description(text) for text in texts]
    truth = with_values(device(name), {"gemm_efficiency": EFFICIENCY})
    noise = np.exp(0.02 * np.random.default_rng(0).normal(size=count))
    rows = tuple(
        Measurement(operator, prediction.gpu_time_us * factor, row)
        for row, (operator, prediction, factor) in enumerate(
            zip(operators, predict(operators, truth), noise.tolist(), strict=True)
        )
    )
    return MeasurementSet(Header(device=label or name, data_set="lab"), rows)


def test_a_profile_that_the_other_commands_take(folder: Path) -> None:
    write_measurements(made(), Path("lab.jsonl"))
    text = printed("calibrate --data lab.jsonl --device v100-sxm2 --folds 2")
    assert "intervals of" not in text
    shown = ("gemm_efficiency", "not identified", "graph_gap_factor", "fork_us", "not fitted", "lab")
    for words in ("held-out shapes", "cross-validated", *shown):
        assert words in text
    assert sorted(path.name for path in folder.iterdir()) == ["lab.jsonl", "v100-sxm2.calibrated.yaml"]
    found = device("./v100-sxm2.calibrated.yaml")
    assert found.parameters.gemm_efficiency == pytest.approx(EFFICIENCY, abs=0.04)
    assert found.provenance.kind == "fitted"
    assert found.datasheet == device("v100-sxm2").datasheet
    assert "fitted" in printed("devices show v100-sxm2.calibrated.yaml")
    Path("ops.csv").write_text("m,n,k,trans_a,trans_b\n1024,1024,1024,N,T\n")
    (row,) = printed_json("predict ops.csv --op gemm -d v100-sxm2.calibrated.yaml --json")
    assert row["low_us"] > 0.8 * row["gpu_time_us"]
    comparison = printed_json("compare squeezenet -d v100-sxm2.calibrated.yaml --json")
    assert all(one["interval_us"][0] < one["latency_us"] for one in comparison["schedules"])


def test_json_out_and_files_behind_data(folder: Path) -> None:
    whole = made()
    for name, rows in (("a.jsonl", whole.measurements[::2]), ("b.jsonl", whole.measurements[1::2])):
        write_measurements(replace(whole, measurements=rows), Path(name))
    options = "--device v100-sxm2 --out mine.yaml --folds 0 --held-out 0.2 --json"
    found = printed_json(f"calibrate --data a.jsonl --data b.jsonl {options}")
    assert found["device"] == "v100-sxm2"
    assert found["profile"] == "mine.yaml"
    assert found["parameters"]["gemm_efficiency"]["value"] == pytest.approx(EFFICIENCY, abs=0.04)
    assert found["parameters"]["gemm_efficiency"]["fitted"]
    # Nothing measured here tells what an edge costs, nor a launch: that is taken over, with what is known of it.
    edge = found["parameters"]["fork_us"]
    assert (edge["fitted"], edge["value"]) == (False, device("v100-sxm2").engine.fork_us)
    mine = device("./mine.yaml")
    assert mine.engine.bare_launch_us == device("v100-sxm2").engine.bare_launch_us
    assert mine.spread["bare_launch_us"] == device("t4").spread["bare_launch_us"]
    assert found["provenance"]["held_out_fraction"] == 0.2
    assert len(found["provenance"]["data_sets"]) == 2
    assert sorted(path.name for path in folder.iterdir()) == ["a.jsonl", "b.jsonl", "mine.yaml"]


def test_stages_tell_of_concurrency() -> None:
    whole = made()
    operator = parse_description("gemm m=512 n=512 k=512 trans_a=N trans_b=T")
    slow_edges = with_values(device("v100-sxm2"), {"gemm_efficiency": EFFICIENCY, "fork_us": 8.0, "join_us": 8.0})
    groups = ((operator,), (operator,))
    latency_us = stage_us(groups, SimulatorCostModel(slow_edges, Precision.FP32, Engine.GRAPH))
    write_measurements(replace(whole, stages=(StageMeasurement(groups, latency_us),)), Path("lab.jsonl"))
    found = printed_json("calibrate --data lab.jsonl --device v100-sxm2 --folds 0 --out a.yaml --json")
    written = device("./a.yaml")
    assert found["parameters"]["fork_us"]["fitted"]
    assert found["parameters"]["fork_us"]["value"] == written.engine.fork_us == written.engine.join_us
    assert found["provenance"]["note"] == written.provenance.note
    assert [one["name"] for one in found["provenance"]["data_sets"]] == ["lab", "lab, stages"]
    assert written.engine.fork_us > device("v100-sxm2").engine.fork_us + 2


def test_a_device_of_ones_own_is_written_with_out_alone() -> None:
    write_profile(device("v100-sxm2").model_copy(update={"name": "mine"}), Path("mine.yaml"))
    before = Path("mine.yaml").read_text()
    write_measurements(made(label="mine"), Path("lab.jsonl"))
    text = " ".join(printed("calibrate --data lab.jsonl --device mine.yaml --folds 0").split())
    assert "note: intervals of gemm, relu are not from these rows: of each kind, 19 must be predicted" in text
    assert device("./mine.calibrated.yaml").provenance.bands["gemm"] == device("mine.yaml").provenance.bands["gemm"]
    assert Path("mine.yaml").read_text() == before
    assert device("./mine.calibrated.yaml").name == "mine"
    printed("calibrate --data lab.jsonl --device mine.yaml --folds 0 --out mine.yaml")
    assert Path("mine.yaml").read_text() == Path("mine.calibrated.yaml").read_text()


def as_table(name: str, change: Callable[[int, dict[str, str]], None] = lambda row, cells: None) -> None:
    """A bare table of products, with cells changed."""
    products = [row for row in made().measurements if row.operator.kind == "gemm"]
    with Path(name).open("w", newline="") as stream:
        writer = csv.DictWriter(stream, ["m", "n", "k", "trans_a", "trans_b", "latency_us"])
        writer.writeheader()
        for index, row in enumerate(products):
            (m, n), k = row.operator.outputs[0].shape, row.operator.inputs[0].shape[1]
            sizes = {"m": m, "n": n, "k": k, "trans_a": "N", "trans_b": "T"}
            cells = {key: str(value) for key, value in (sizes | {"latency_us": row.latency_us}).items()}
            change(index, cells)
            writer.writerow(cells)


TABLE, LINES = "gemm.v100-sxm2.csv", "gemm.v100-sxm2.jsonl"


def truncated() -> None:
    write_measurements(made(), Path(LINES))
    text = Path(LINES).read_text()
    Path(LINES).write_text(text[: len(text) // 2])


def first_rows(count: int) -> None:
    as_table(TABLE)
    Path(TABLE).write_text("".join(Path(TABLE).read_text().splitlines(keepends=True)[: 1 + count]))


def in_another_unit(factor: float) -> None:
    as_table(TABLE, lambda index, cells: cells.update(latency_us=str(factor * float(cells["latency_us"]))))


def full_of_nan() -> None:
    as_table(TABLE, lambda index, cells: cells.update(latency_us="nan" if index % 3 == 0 else cells["latency_us"]))


BAD: dict[str, tuple[Callable[[], None], list[str]]] = {
    "truncated": (truncated, ["cut"]),
    "mislabelled": (lambda: write_measurements(made("p4", label="v100-sxm2"), Path(LINES)), ["is the device right", "--trust-labels"]),
    "labelled as another": (lambda: write_measurements(made("t4"), Path(LINES)), ["recorded on t4, not on v100-sxm2"]),
    "of a CPU": (lambda: write_measurements(made(label="cpu"), Path("gemm.cpu.jsonl")), ["recorded on cpu, not on v100-sxm2", "--trust-labels"]),
    "full of nan": (full_of_nan, ["of 32 rows are not usable", "line 2", "latency_us is not a number"]),
    "in milliseconds": (lambda: in_another_unit(1e-3), ["faster than v100-sxm2 can be", "is the unit us"]),
    "in nanoseconds": (lambda: in_another_unit(1e3), ["times slower", "is the unit us"]),
    "too small": (lambda: first_rows(3), ["3 usable rows", "measure more operators"]),
    "hardly larger": (lambda: first_rows(7), ["usable rows are not held out", "measure more operators"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_files_that_are_wrong(kind: str, folder: Path) -> None:
    make, words = BAD[kind]
    make()
    (path,) = folder.iterdir()
    Path("old.yaml").write_text("as it was")
    refused(f"calibrate --data {path.name} --device v100-sxm2 --out old.yaml", path.name, *words)
    assert Path("old.yaml").read_text() == "as it was"
    assert sorted(each.name for each in folder.iterdir()) == sorted([path.name, "old.yaml"])


def test_measurements_of_another_device_are_fitted_where_that_is_wanted() -> None:
    write_measurements(made(label="lab-board"), Path("lab.jsonl"))
    assert "recorded on lab-board, not on v100-sxm2" in refused("calibrate lab.jsonl -d v100-sxm2 --folds 0")
    printed("calibrate lab.jsonl -d v100-sxm2 --folds 0 --trust-labels")
    assert device("./v100-sxm2.calibrated.yaml").provenance.kind == "fitted"


def test_what_is_faster_than_the_peak_is_named_with_the_precision() -> None:
    """TF32, as TensorRT runs fp32 by default: convolutions at over four times the peak of fp32."""
    sizes = [f"in_channels=256 out_channels={8 * n} kernel=3 in_size=14" for n in range(24, 56)]
    rows = [parse_description(f"conv batch=32 {size} padding=1 stride=1") for size in sizes]
    peak = 1e6 * device("a100-sxm-40gb").fp32_tflops
    several = tuple(Measurement(row, row.flops / (4.5 * peak)) for row in rows)
    for precision, name in ((Precision.FP32, "fp32"), (Precision.TF32, "tf32")):
        labelled = tuple(replace(one, operator=replace(one.operator, precision=precision)) for one in several)
        header = Header(device="a100-sxm-40gb", data_set="lab", precision=precision)
        write_measurements(MeasurementSet(header, labelled), Path(f"lab.{name}.jsonl"))
    told = "32 of 32 rows are faster than a100-sxm-40gb can be in fp32"
    refused("calibrate lab.fp32.jsonl -d a100-sxm-40gb --folds 0", told, "did they run in tf32?")
    assert list(Path().glob("*.yaml")) == []
    printed("calibrate lab.tf32.jsonl -d a100-sxm-40gb --folds 0 --trust-labels")


def test_a_few_bad_rows_are_stated() -> None:
    def change(index: int, cells: dict[str, str]) -> None:
        if index == 3:
            cells["latency_us"] = "nan"
        if index == 5:
            cells["latency_us"] = str(6 * float(cells["latency_us"]))

    as_table("gemm.v100-sxm2.csv", change)
    found = printed_json("calibrate gemm.v100-sxm2.csv -d v100-sxm2 --folds 0 --held-out 0.1 --json")
    assert any("1 of 32 rows dropped" in note for note in found["notes"])
    assert any("count less" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--data lab.jsonl", ["--device"]),
        ("--device t4", ["--data"]),
        ("--data lab.jsonl --device v100-sxm", ["did you mean"]),
        ("--data nothing.csv --device t4", ["nothing.csv"]),
        ("--data lab.jsonl lab.jsonl --device v100-sxm2", ["lab.jsonl", "twice"]),
        ("--data lab.jsonl --device v100-sxm2 --held-out 1", ["--held-out"]),
        ("--data lab.jsonl --device v100-sxm2 --held-out nan", ["--held-out"]),
        ("--data lab.jsonl --device v100-sxm2 --folds 1", ["--folds"]),
        ("--data lab.jsonl --device v100-sxm2 --folds 0 --held-out 0", ["--held-out 0"]),
        ("--data lab.jsonl --device v100-sxm2 --out nowhere/mine.yaml", ["nowhere", "no such folder"]),
        ("--data lab.jsonl --device v100-sxm2 --out mine.json", [".yaml"]),
    ],
)
def test_other_mistakes(arguments: str, words: list[str], folder: Path) -> None:
    write_measurements(made(count=20), Path("lab.jsonl"))
    refused(f"calibrate {arguments}", *words)
    assert [path.name for path in folder.iterdir()] == ["lab.jsonl"]


def test_an_interrupt_leaves_the_old_profile(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from iossim.cli.main import main

    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    write_measurements(made(), Path("lab.jsonl"))
    Path("old.yaml").write_text("as it was")
    monkeypatch.setattr("iossim.calibration.calibrate.bootstrap", interrupted)
    assert main(["calibrate", "--data", "lab.jsonl", "-d", "v100-sxm2", "--folds", "0", "--out", "old.yaml"]) == 130
    assert Path("old.yaml").read_text() == "as it was"
    assert capsys.readouterr().out == ""
