"""``iossim study report``: the page again, pictures and tables of a run directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import printed, refused
from small_studies import small_study

from iossim.cli.outputs import tell_written
from iossim.study.axes import Device
from iossim.study.sweep import run_study

pytest.importorskip("altair")
pytest.importorskip("vl_convert")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scenario = small_study(("ios_sample",), devices=[Device(device="v100-sxm2")], batch_sizes=[1])
    return run_study(scenario, tmp_path_factory.mktemp("reported") / "run", workers=1).folder


def test_the_page_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iossim.study.report.report.libraries", lambda: "")
    assert not printed(["study", "report", str(folder)])
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_many_files_are_told_by_their_folder(capsys: pytest.CaptureFixture[str]) -> None:
    files = [Path("run", "figures", f"{number}.svg") for number in range(26)]
    tell_written(files)
    tell_written(files[:2])
    assert capsys.readouterr().err.splitlines() == [
        f"wrote 26 files to {Path('run', 'figures')}",
        f"wrote {files[0]}, {files[1]}",
    ]


def test_pictures_are_written_by_name(folder: Path) -> None:
    printed(["study", "report", str(folder), "--figures", "svg", "--plot", "speedup", "--plot", "kinds"])
    assert sorted(path.name for path in (folder / "figures").iterdir()) == ["kinds.svg", "speedup.svg"]


def test_tables_are_printed(folder: Path) -> None:
    text = printed(["study", "report", str(folder), "--table", "--plot", "latency"])
    assert text.startswith("Latency\n")
    assert "ios-both" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--figures", "pdf"], "--figures 'pdf' is not known; known: png, svg"),
        (["--plot", "speedup"], "--plot needs --figures or --table"),
        (["--table", "--plot", "spedup"], "plot 'spedup' is not known; did you mean 'speedup'?"),
        (["--table", "--plot", "pruning"], "holds no data for pruning"),
    ],
)
def test_mistakes_are_one_line(folder: Path, arguments: list[str], said: str) -> None:
    assert said in refused(["study", "report", str(folder), *arguments])


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    assert "iossim study run" in refused(["study", "report", str(tmp_path)])
