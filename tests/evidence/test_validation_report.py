"""The report as a value: its parts, its notes, and JSON that any reader takes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from made_sets import DEVICE, made_set

from evidence.profiles.leave_one_out import LeaveOneOut, LeftOut
from evidence.validation.report import PARTS, validate
from iossim.base.errors import OptionError
from iossim.calibration.accuracy import Residuals
from iossim.hardware.load import device
from iossim.hardware.provenance import KindError
from iossim.measurements.measurement_set import write_measurements


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "made.jsonl"
    write_measurements(made_set(lambda operator: 1.25), path)
    return path


def test_operators_by_kind(data: Path) -> None:
    report = validate(None, [data], ["operators"], splits=["hash"])
    assert [each.kinds[0][0] for each in report.operators] == ["conv", "gemm", "relu"]
    assert report.networks == report.engines == ()
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    for each in document["operators"]:
        assert each["device"] == DEVICE
        assert each["gpu_time"]["mape"] == pytest.approx(0.2)
        assert each["held_out_rows"] == each["gpu_time"]["rows"]


@pytest.mark.parametrize(("quoted", "said"), [(20.2, False), (7.0, True)])
def test_a_quoted_error_that_is_no_longer_right(data: Path, quoted: float, said: bool) -> None:
    profile = device(DEVICE)
    error = KindError(data_set="made", kind="gemm", rows=9, mape_percent=quoted, median_error_percent=quoted)
    provenance = profile.provenance.model_copy(update={"held_out": [error]})
    report = validate([profile.model_copy(update={"provenance": provenance})], [data], ["operators"], splits=["hash"])
    assert any("quotes an error of 7.0% for gemm of made; it is 20.0%" in note for note in report.notes) == said


def test_parts(data: Path) -> None:
    with pytest.raises(OptionError, match="did you mean 'engines'"):
        validate(None, [data], ["engine"])
    with pytest.raises(OptionError, match="`split` 'hsh' is not known"):
        validate(None, [data], splits=["hsh"])
    report = validate([device("k80")], [data], PARTS)
    assert report.operators == report.networks == report.engines == ()
    assert report.transfer is None
    assert any("no transfer to unseen devices: 0 chips" in note for note in report.notes)
    assert validate([device("k80")], [data], quick=True).notes == ()


def test_devices_left_out(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chips are left out of the sets that were found."""
    from evidence.validation import report as module

    times = np.linspace(10.0, 500.0, 150)
    conv, gemm = (Residuals("made", kind, 1.1 * times, times) for kind in ("conv", "gemm"))
    few = Residuals("few", "conv", times[:9], times[:9])
    made = LeaveOneOut(tuple(LeftOut(DEVICE, DEVICE, *each) for each in ((conv, conv), (gemm,), (few,))), (), 20, 0)
    asked: list[int] = []

    def fake(chips: object, samples: int, seed: int, progress: object) -> LeaveOneOut:
        asked.append(len(chips))  # type: ignore[arg-type]
        return made

    monkeypatch.setattr(module, "leave_out_each", fake)
    report = validate(None, [data], ["operators"], splits=["device"])
    assert asked == [1]
    assert report.transfer is made
    assert report.operators == ()
    assert [row.zero_shot for row in module.sampled_rows(made)] == [conv, gemm]
    rows = json.loads(json.dumps(report.to_json(), allow_nan=False))["transfer"]["left_out"]
    assert [row["zero_shot"]["mape"] for row in rows] == pytest.approx([0.1, 0.1, 0.0])
    assert rows[0]["refined"]["rows"] == 150
    assert rows[1]["refined"] is None
