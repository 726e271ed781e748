"""``iossim validate``: tables, JSON and files from measurements of the user's own, and one line for what cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import printed, printed_json, refused

from iossim.calibration.prediction.predict import predict
from iossim.hardware.load import device
from iossim.measurements.operator import Operator
from iossim.measurements.operator_kinds import parse_description

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


def held_out() -> int:
    return sum(each.is_held_out() for each in shapes())


def write_table(measured_over_predicted: np.ndarray) -> None:
    predictions = predict(shapes(), device("t4"))
    lines = [
        f"{m},{n},{k},N,N,{ratio * each.gpu_time_us:.6f}\n"
        for (m, n, k), each, ratio in zip(ROWS, predictions, measured_over_predicted.tolist(), strict=True)
    ]
    Path("data/gemm.t4.csv").write_text("m,n,k,trans_a,trans_b,latency_us\n" + "".join(lines))


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    ratios = np.resize([1.25, 0.8, 0.95], len(ROWS))
    write_table(ratios)
    document = printed_json(capsys, "validate --data data --json")
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
    # A table of the name of one that the profile was fitted to, with another error than the profile quotes.
    (note,) = document["notes"]
    assert note.startswith("the profile of t4 quotes an error of")


def test_tables_fit_eighty_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = printed(capsys, "validate --data data").splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.split()[:5] == ["gemm", "40", str(held_out()), "20.0", "20.0"] for line in lines)


@pytest.mark.slow
def test_files(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("vl_convert")
    document = printed_json(capsys, "validate --data data/gemm.t4.csv --json --out out")
    names = {path.name for path in Path("out").iterdir()}
    pictures = {f"{name}.{kind}" for name in ("operators.t4",) for kind in ("svg", "png")}
    assert names == {"validation.json", *pictures}
    assert json.loads(Path("out/validation.json").read_text()) == document


def test_without_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "validate --data data --out out --no-plot")
    assert [path.name for path in Path("out").iterdir()] == ["validation.json"]


def test_a_profile_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    own = device("t4").model_dump(mode="json", exclude={"engine", "provenance", "parameters"}, exclude_none=True)
    Path("mine.yaml").write_text(json.dumps(own | {"name": "mine"}))
    Path("data/gemm.t4.csv").rename("data/gemm.mine.csv")
    (found,) = printed_json(capsys, "validate --data data -d mine.yaml --json")["operators"]
    assert found["device"] == "mine"
    document = printed_json(capsys, "validate --data data --json")
    assert document["operators"] == []
    assert "mine" in document["notes"][0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--data nowhere", "no such file or folder"),
        ("--data empty", "no file in the folder is of measurements"),
        ("--data cut.jsonl", "cut"),
        ("--data data -d v1000", "unknown device"),
        ("", "give --data FILES"),
        ("-d t4", "give --data FILES"),
        ("--data data --out data/gemm.t4.csv", "is not a folder"),
        ("--data data --plot", "--out DIR"),
    ],
)
def test_mistakes(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    Path("cut.jsonl").write_text(
        '{"schema": "iossim-measurements", "version": 1, "device": "t4", "data_set": "x", "measu'
    )
    assert said in refused(capsys, f"validate {arguments}")
