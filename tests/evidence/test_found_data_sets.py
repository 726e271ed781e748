"""Which files are read, whose device each is of, and what is said about the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_sets import made_set

from evidence.data.data_sets import default_places, read_data_sets
from iossim.base.errors import OptionError
from iossim.hardware.load import device
from iossim.measurements.measurement import MeasurementError
from iossim.measurements.measurement_set import write_measurements

FOREIGN = "m,n,k,trans_a,trans_b,latency_us\n" + "".join(f"{64 * n},64,64,N,N,{20 + n}\n" for n in range(1, 9))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two sets, one of a device that does not ship, one in a subfolder, and files that are none."""
    (tmp_path / "inner").mkdir()
    write_measurements(made_set(), tmp_path / "inner" / "own.jsonl")
    (tmp_path / "gemm.my-gpu.csv").write_text(FOREIGN)
    (tmp_path / "README.md").write_text("About these.\n")
    (tmp_path / "prices.csv").write_text("fruit,price\napple,3\n")
    (tmp_path / "device.json").write_text('{"id": "facts"}\n')
    return tmp_path


def test_folder(folder: Path) -> None:
    found = read_data_sets([folder])
    assert [(measured.header.data_set, profile.name) for measured, profile in found.sets] == [("made", "v100-sxm2")]
    assert len(found.notes) == 1
    assert "my-gpu" in found.notes[0]
    assert "`device` FILE.yaml" in found.notes[0]


def test_chosen_devices(folder: Path) -> None:
    mine = device("t4").model_copy(update={"name": "my-gpu"})
    assert [profile for _, profile in read_data_sets([folder], [mine]).sets] == [mine]
    assert read_data_sets([folder], [device("t4")]).sets == ()
    assert read_data_sets([folder], [device("t4")]).notes == ()


def test_a_profile_given_stands_for_the_shipped_one(folder: Path) -> None:
    changed = device("v100-sxm2").model_copy(update={"title": "tuned"})
    ((_, profile),) = read_data_sets([folder], [changed]).sets
    assert profile is changed


def test_a_file_alone(folder: Path) -> None:
    ((measured, _),) = read_data_sets([folder / "inner" / "own.jsonl"]).sets
    assert len(measured.measurements) == 120


def test_places_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no such file or folder"):
        read_data_sets([tmp_path / "nowhere"])
    with pytest.raises(OptionError, match="no file in the folder is of measurements"):
        read_data_sets([tmp_path])


def test_default_places_may_be_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOSSIM_SHARED", str(tmp_path))
    found = read_data_sets(profiles=[device("k80")])
    assert any(str(tmp_path) in note for note in found.notes)
    (tmp_path / "data" / "kernels_mine").mkdir(parents=True)
    assert default_places()[-1] == tmp_path / "data" / "kernels_mine"
    for name in ("operators", "framework_operators"):
        (tmp_path / "data" / name).mkdir()
    assert [place.name for place in default_places()[1:]] == ["kernels_mine", "framework_operators", "operators"]


def test_measurements_that_cannot_be_right_are_refused(folder: Path) -> None:
    (folder / "inner" / "relu.t4.csv").write_text("rows,cols,latency_us\n" + "4096,4096,0.001\n" * 9)
    with pytest.raises(MeasurementError, match="is the unit us"):
        read_data_sets([folder])
