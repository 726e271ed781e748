"""Reports of accuracy, and ``iossim validate`` and ``python -m evidence validate``: tables, JSON and files from given data, and one line for what
cannot be used.
"""

import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from case_files import cases
from command_line import printed, printed_json, refused
from operators import parse_description
from rich.console import Console

from evidence.profiles.leave_one_out import LeaveOneOut, LeftOut
from evidence.tables.accuracy_tables import accuracy_tables
from evidence.validation.concurrency import MODELS, ConcurrencyEvaluation, MicroRatio, PairErrors, RatioErrors
from evidence.validation.engines import EngineAgreement
from evidence.validation.networks import Foretold, NetworkEvaluation, NetworkLatency, SchedulerOrder
from evidence.validation.report import ValidationReport
from evidence.validation.sm_shares import (
    CurveErrors,
    NetworkPairErrors,
    NetworkShareErrors,
    ReachErrors,
    ShareEvaluation,
)
from evidence.validation.splits import SplitRows
from iossim.calibration.accuracy import Residuals
from iossim.calibration.evaluated_networks import MeasuredEvaluation, MeasuredLatency
from iossim.calibration.validation import OperatorEvaluation, StageEvaluation, evaluate_operators
from iossim.execution.backend import Samples
from iossim.hardware.load import device
from iossim.measurements.measured_networks import NetworkRun
from iossim.measurements.measurement import Header, Measurement, MeasurementSet, Operator
from iossim.prediction.predict import predict

CASES = cases(__file__, "mistakes.yaml")

OWN, EVIDENCE = "validate", "evidence validate --part operators --split hash"
either = pytest.mark.parametrize("command", [OWN, EVIDENCE])
ROWS = [(64 * n, 128, 256) for n in range(1, 41)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in a folder of its own, with a table of which every time is a quarter above its prediction."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IOSSIM_SHARED", str(tmp_path / "nowhere"))
    Path("data").mkdir()
    write_table(np.full(len(ROWS), 1.25))
    return tmp_path


def shapes() -> list[Operator]:
    return [parse_description(f"gemm m={m} n={n} k={k} trans_a=N trans_b=N") for m, n, k in ROWS]


def write_table(measured_over_predicted: np.ndarray) -> None:
    predictions = predict(shapes(), device("t4"))
    lines = [
        f"{m},{n},{k},N,N,{ratio * each.gpu_time_us:.6f}\n"
        for (m, n, k), each, ratio in zip(ROWS, predictions, measured_over_predicted.tolist(), strict=True)
    ]
    Path("data/gemm.t4.csv").write_text("m,n,k,trans_a,trans_b,latency_us\n" + "".join(lines))


@either
def test_json(command: str) -> None:
    ratios = np.resize([1.25, 0.8, 0.95], len(ROWS))
    write_table(ratios)
    document = printed_json(f"{command} --data data --json")
    (found,) = document["operators"]
    assert (found["device"], found["data_set"], found["rows"]) == ("t4", "gemm.t4", 40)
    unseen = np.array([each.is_held_out() for each in shapes()])
    errors = (1 / ratios - 1)[unseen]
    assert found["gpu_time"]["mape"] == pytest.approx(np.abs(errors).mean(), abs=1e-4)
    assert found["gpu_time"]["bias"] == pytest.approx(errors.mean(), abs=1e-4)
    bands = np.array([(p.low_us, p.high_us) for p in predict(shapes(), device("t4"))])[unseen]
    times_us = np.array([p.gpu_time_us for p in predict(shapes(), device("t4"))])[unseen] * ratios[unseen]
    covered = ((bands[:, 0] <= times_us) & (times_us <= bands[:, 1])).mean()
    assert 0.2 < covered < 0.8
    assert found["interval_coverage"] == pytest.approx(covered)
    if command == EVIDENCE:
        assert document["networks"] == document["engines"] == []
    # A table of the name of one that the profile was fitted to, with another error than the profile quotes.
    (note,) = document["notes"]
    assert note.startswith("the profile of t4 quotes an error of")


@pytest.mark.parametrize("command", [OWN, f"{EVIDENCE} --part networks"])
def test_tables_fit_eighty_columns(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = printed(f"{command} --data data").splitlines()
    assert max(map(len, lines)) <= 80
    held_out = sum(each.is_held_out() for each in shapes())
    assert any(line.split()[:5] == ["gemm", "40", str(held_out), "20.0", "20.0"] for line in lines)
    if command != OWN:
        assert any("are ranked correctly" in line for line in lines)
        assert any("|| b" in line for line in lines)


def test_largest_operators_and_families(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    predictions = predict([parse_description(f"relu rows={97 * n} cols=4096") for n in range(1, 101)], device("t4"))
    rows = [f"{97 * n},4096,{each.gpu_time_us:.6f}\n" for n, each in enumerate(predictions, 1)]
    Path("data/relu.t4.csv").write_text("rows,cols,latency_us\n" + "".join(rows))
    text = printed("evidence validate --data data --part operators --split size --split device --out out --no-plot")
    assert max(map(len, text.splitlines())) <= 80
    assert "largest operators" in text
    assert "no transfer to unseen devices: 1 chips" in " ".join(text.split())
    document = json.loads(Path("out/validation.json").read_text())
    assert document["operators"] == document["families"] == []
    inside, largest = document["splits"]
    assert [each["part"] for each in (inside, largest)] == ["inside", "largest"]
    assert largest["kind"] == "relu"
    assert largest["gpu_time"]["rows"] == 20
    assert largest["rows_over_2x"] == 0
    assert largest["interval_width"] >= 1.0


@pytest.mark.slow
@either
def test_files(command: str) -> None:
    pytest.importorskip("vl_convert")
    document = printed_json(f"{command} --data data/gemm.t4.csv --json --out out")
    names = {path.name for path in Path("out").iterdir()}
    assert names == {"validation.json", "operators.t4.svg", "operators.t4.png"}
    assert json.loads(Path("out/validation.json").read_text()) == document


@either
def test_without_pictures(command: str) -> None:
    printed(f"{command} --data data --out out --no-plot")
    assert [path.name for path in Path("out").iterdir()] == ["validation.json"]


def test_engines() -> None:
    (found,) = printed_json("evidence validate --part engines --quick -d t4 --json")["engines"]
    assert found["device"] == "t4"
    assert found["priced"] < found["stages"]
    assert 0 <= found["median_difference"] < 0.1
    assert "t4" in printed("evidence validate --part engines --quick -d t4")


@either
def test_a_profile_of_ones_own(command: str) -> None:
    own = device("t4").model_dump(mode="json", exclude={"engine", "provenance", "parameters"}, exclude_none=True)
    Path("mine.yaml").write_text(json.dumps(own | {"name": "mine"}))
    Path("data/gemm.t4.csv").rename("data/gemm.mine.csv")
    (found,) = printed_json(f"{command} --data data -d mine.yaml --json")["operators"]
    assert found["device"] == "mine"
    document = printed_json(f"{command} --data data --json")
    assert document["operators"] == []
    assert "mine" in document["notes"][0]


def test_data_that_is_not_there_is_said() -> None:
    document = printed_json("evidence validate --part operators --split hash -d k80 --json")
    assert document["operators"] == []
    assert any("nowhere" in note for note in document["notes"])


@pytest.mark.parametrize(("arguments", "said"), CASES["validate"])
def test_mistakes(arguments: str, said: str) -> None:
    Path("empty").mkdir()
    Path("cut.jsonl").write_text('{"schema": "iossim-measurements", "version": 1, "device": "t4", "data_set": "x", "me')
    refused(arguments, said)


DEVICE = "v100-sxm2"


def evaluation(rows: int) -> OperatorEvaluation:
    measurements = tuple(
        Measurement(parse_description(f"relu rows={64 * n} cols=4096"), 10.0 + 2 * n) for n in range(1, rows + 1)
    )
    header = Header(device=DEVICE, data_set=f"relu of {rows}", includes_host_overhead=True)
    return evaluate_operators(MeasurementSet(header, measurements), device(DEVICE))


def latency(scheduler: str, high_us: float) -> NetworkLatency:
    left_out = Foretold(880.0, 790.0, high_us)
    return NetworkLatency("squeezenet", 1, scheduler, 900.0, 1000.0, 800.0, high_us, 1.0, 1.1, left_out)


def measured_latency(name: str, predicted_us: float | None = None) -> MeasuredLatency:
    fields = {"model": "squeezenet", "batch": 1, "dtype": "fp32", "engine": "graph", "backend": "cupy_cudnn"}
    run = NetworkRun.of(Samples((1000.0,)), name=name, **fields)
    bounds = (None, None) if predicted_us is None else (700.0, 900.0)
    return MeasuredLatency(run, predicted_us, *bounds, None if predicted_us is None else 1.0, 1.0)


def split_rows(split: str, part: str, error: float, rows: int = 120, key: str = "softmax") -> SplitRows:
    times = np.linspace(10.0, 400.0, rows)
    predicted = (1 + error) * times
    bounds = (predicted * 0.7, predicted * 1.4, 2.5 * times)
    return SplitRows(split, part, "t4", f"{key}.t4", key, predicted, times, *bounds)


@pytest.fixture(scope="module")
def report() -> ValidationReport:
    """Few and many rows, a figure outside its interval, an order that is wrong, stages that were sampled."""
    order = SchedulerOrder("squeezenet", 1, "ios-both", "greedy", 0.2, -0.05, 0.1)
    networks = NetworkEvaluation(DEVICE, (latency("sequential", 950.0), latency("greedy", 1100.0)), (order,))
    times = np.linspace(10.0, 400.0, 50)
    agreement = EngineAgreement("inception_v3", DEVICE, 99, np.arange(50) % 3 + 1, times, 1.1 * times)
    stages = StageEvaluation(DEVICE, "pairs", np.array([1, 2, 2]), *(np.array([5.0, 8.0, 9.0]) for _ in range(4)))
    conv = Residuals("conv.t4", "conv", 1.25 * np.linspace(10.0, 400.0, 120), np.linspace(10.0, 400.0, 120))
    transfer = LeaveOneOut((LeftOut("t4", "t4", conv, conv), LeftOut("p4", "p4", conv)), (), 20, 0)
    operators = (evaluation(3), evaluation(80))
    measured = MeasuredEvaluation(
        DEVICE, "made", (measured_latency("sequential", 800.0), measured_latency("torch-eager"))
    )
    notes = ("something was left out",)
    splits = (
        split_rows("size", "inside", 0.1),
        split_rows("size", "largest", 1.5),
        split_rows("device", "zero-shot", 0.25),
        split_rows("device", "sampled", 0.05),
        split_rows("device", "zero-shot", 0.5, rows=3, key="elu"),
    )
    pair_ratios = np.array([2.0, 1.0, 1.5])
    pairs = PairErrors(
        "pairs.made", DEVICE, 1, pair_ratios, dict.fromkeys(MODELS, 1.1 * pair_ratios), np.array([False, False, True]),
        0.9 * pair_ratios, 1.2 * pair_ratios, "graph_beside_us", 0.2,
    )  # fmt: skip
    ratios = (
        MicroRatio(DEVICE, "slots", "80 + 80", 2, 1.0, 1.05),
        MicroRatio(DEVICE, "slots", "160 + 160", 3, 2.0, 1.0),
    )
    spread = RatioErrors(0.08, 0.09, 0.14)
    shares = ShareEvaluation(
        (CurveErrors("decode, batch 8", 8, 0.66, 0.056, 0.061),),
        (ReachErrors("rtx-5090", 7, 2.32, 0.027, 2.0, 0.067),),
        (NetworkShareErrors("vgg19", 1, 18.0, 0.07, 0.07, 0.07, 0.04),),
        NetworkPairErrors(750, 3.5, 0.45, spread, spread, spread),
    )
    return ValidationReport(
        operators,
        (stages,),
        (measured,),
        networks=(networks,),
        concurrency=(ConcurrencyEvaluation((pairs,), ratios),),
        shares=(shares,),
        engines=(agreement,),
        transfer=transfer,
        splits=splits,
        notes=notes,
    )


SAID = Path(__file__).with_name("accuracy_tables.txt").read_text(encoding="utf-8").splitlines()


def test_tables(report: ValidationReport) -> None:
    console = Console(width=80, record=True, file=StringIO())
    console.print(accuracy_tables(report))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert [said for said in SAID if not said.startswith("#") and said not in text] == []


def test_an_empty_report_has_only_notes() -> None:
    console = Console(width=80, record=True, file=StringIO())
    console.print(accuracy_tables(ValidationReport(notes=("nothing was there",))))
    assert console.export_text().strip() == "note: nothing was there"


def test_pictures(report: ValidationReport, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    from iossim.calibration.accuracy_report import operators_figures
    from iossim.report.figures.vega import picture_files

    names = [f"operators.{DEVICE}"]
    for attempt in ("first", "second"):
        (tmp_path / attempt).mkdir()
        figures = operators_figures(report.operators)
        assert [figure.name for figure in figures] == names
        for name, write in picture_files(figures, "svg", titled=True).items():
            write(tmp_path / attempt / name)
    for name in names:
        first, second = ((tmp_path / attempt / f"{name}.svg").read_bytes() for attempt in ("first", "second"))
        assert first == second
        assert b"</svg>" in first
    # Errors of all rows are drawn where they are few, and their trend where they are many.
    errors = figures[0].records_of(figures[0].panels[1], {})
    assert {record["what"] for record in errors} == {"point"}
    assert len(errors) == len(report.operators[0])
    assert operators_figures(ValidationReport().operators) == []
