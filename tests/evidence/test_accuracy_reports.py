"""Tables and pictures of accuracy: what they hold, whatever is known, and the same bytes each time."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from evidence.profiles.leave_one_out import LeaveOneOut, LeftOut
from evidence.tables.accuracy_tables import accuracy_tables
from evidence.validation.concurrency import (
    MODELS,
    ConcurrencyEvaluation,
    MicroRatio,
    PairErrors,
    Placement,
    RatioErrors,
)
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
from iossim.measurements.measurement import Header, Measurement, MeasurementSet
from iossim.measurements.operator_kinds import parse_description

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
        split_rows("family", "normalisations", -0.2),
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
    placements = (Placement(DEVICE, "copy", 170, 1.0, 0.25, 0.125, 0.01),)
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
        concurrency=(ConcurrencyEvaluation((pairs,), ratios, placements),),
        shares=(shares,),
        engines=(agreement,),
        transfer=transfer,
        splits=splits,
        notes=notes,
    )


SAID = (
    "in-sample: mean error 10.0%, worst -10.0%; 0 of 1 pairs of schedulers that differ by more than 3% are ranked correctly",
    "LOO: mean error 12.0%, worst -12.0%; 1 of 1 pairs of schedulers that differ by more than 3% are ranked correctly",
    "wrong order: ios-both is 20.0% faster than greedy on squeezenet, batch 1; predicted -5.0%, LOO +10.0%",
    "1 of 2 published latencies are within the 90% interval of their LOO prediction",
    "pairs 2 0.0 0.0",
    "squeezenet, batch 1, graph engine, cupy_cudnn",
    "sequential 0.800 0.700 0.900 1.000 -20.0 1.00 1.00",
    "torch-eager - - - 1.000 - - 1.00",
    "error: mean 20.0%, bias -20.0%; 0 of 1 latencies in their intervals",
    "pairs.made (1) no interference 10.0 10.0 10.0 10.0 10.0 10.0",
    "pairs.made: graph_beside_us 0.2, fitted; without this data set nothing determines it",
    "pairs.made: 100% of slowdowns within their 90% interval, 1.33x wide",
    f"slots, {DEVICE} 1 2 -50.0 2.00 1.00",
    f"beyond, slots, {DEVICE}: 160 + 160",
    f"copy on {DEVICE} 170 100.0 25.0 12.5 1.0",
    "decode, batch 8 8 0.66 5.6 6.1",
    "rtx-5090 7 2.32 2.7 2.00 6.7",
    "vgg19 1 18 7.0 7.0 7.0 4.0",
    "model, left out 8.0 9.0 14.0",
    # Beyond twice what was measured, outside the interval of two, and 15 times as wrong as inside.
    "softmax 120 10.0 150.0 150.0 15.00 120 150.0 150.0 0 2.00",
    "softmax 120 25.0 25.0 25.0 150.0 100 2.00 5.0 100 2.00",
    "one of few rows 3 50.0",
    "softmax 1 25.0 25.0 5.0 5.0",
    "softmax normalisations 120 20.0 -20.0 0",
    "softmax out 1 25.0 150.0 13.9 no",
    "note: something was left out",
)


def test_tables(report: ValidationReport) -> None:
    console = Console(width=80, record=True, file=StringIO())
    console.print(accuracy_tables(report))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert [said for said in SAID if said not in text] == []


def test_an_empty_report_has_only_notes() -> None:
    console = Console(width=80, record=True, file=StringIO())
    console.print(accuracy_tables(ValidationReport(notes=("nothing was there",))))
    assert console.export_text().strip() == "note: nothing was there"


def test_pictures(report: ValidationReport, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    from evidence.tables.figures import accuracy_figures
    from iossim.report.figures.pictures import picture_files

    names = [f"operators.{DEVICE}", f"networks.{DEVICE}", "engines", "transfer.p4", "transfer.t4"]
    for attempt in ("first", "second"):
        (tmp_path / attempt).mkdir()
        figures = accuracy_figures(report)
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
    assert accuracy_figures(ValidationReport()) == []
