"""``iossim validate`` and ``python -m evidence validate``: tables, JSON and files from given data, and one line for what
cannot be used.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import printed, printed_json, refused

from iossim.hardware.load import device
from iossim.measurements.measurement import Operator
from iossim.measurements.operator_kinds import parse_description
from iossim.prediction.predict import predict

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
@pytest.mark.parametrize(
    ("command", "drawn"),
    [(OWN, ["operators.t4"]), (f"{EVIDENCE} --part networks", ["operators.t4", "networks.v100-sxm2"])],
)
def test_files(command: str, drawn: list[str]) -> None:
    pytest.importorskip("vl_convert")
    document = printed_json(f"{command} --data data/gemm.t4.csv --json --out out")
    names = {path.name for path in Path("out").iterdir()}
    pictures = {f"{name}.{kind}" for name in drawn for kind in ("svg", "png")}
    assert names == {"validation.json", *pictures}
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        *(
            (f"{command} {arguments}", said)
            for command in (OWN, "evidence validate")
            for arguments, said in (
                ("--data nowhere", "no such file or folder"),
                ("--data empty", "no file in the folder is of measurements"),
                ("--data cut.jsonl", "cut"),
                ("--data data -d v1000", "unknown device"),
                ("--data data --out data/gemm.t4.csv", "is not a folder"),
                ("--data data --plot", "--out DIR"),
            )
        ),
        (OWN, "give --data FILES"),
        (f"{OWN} -d t4", "give --data FILES"),
        ("evidence validate --part operator", "did you mean 'operators'"),
        ("evidence validate --split sizes", "did you mean 'size'"),
    ],
)
def test_mistakes(arguments: str, said: str) -> None:
    Path("empty").mkdir()
    Path("cut.jsonl").write_text('{"schema": "iossim-measurements", "version": 1, "device": "t4", "data_set": "x", "me')
    refused(arguments, said)
