"""A user's mistake on the command line: exit code 2, one line on standard error, nothing else, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import refused

from iossim.cli.main import main

LINES = (Path(__file__).parent / "mistakes.txt").read_text(encoding="utf-8").splitlines()
MISTAKES = dict(line.split(" => ") for line in LINES if line and not line.startswith("#"))


@pytest.mark.parametrize("arguments", MISTAKES)
def test_mistakes_get_one_line(arguments: str, folder: Path) -> None:
    line = refused(arguments)
    assert [words for words in MISTAKES[arguments].split(" | ") if words not in line] == []
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        "predict ios_sample -d t4 --out {out}",
        "optimize ios_sample -d t4 --onnx {out}",
        "run schedule.json --backend numpy_reference --plan {out}",
        "schedules export schedule.json --out {out}",
        "rules verify metaflow --write {out}",
        "models export ios_sample --out {out}",
    ],
)
@pytest.mark.parametrize("out", ["folder", "missing/file.json", "/proc/file.json"])
def test_files_that_cannot_be_written_are_told_before_the_work(
    command: str, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a schedule is read, rules are verified or a model is priced: what does that is not there."""
    (tmp_path / "folder").mkdir()
    for work in ("proving.verify.verify_all", "api.read_schedule", "api.optimize"):
        monkeypatch.setattr(f"iossim.{work}", _works)
    line = refused(command.format(out=out))
    assert f"{out} cannot be written: " in line
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def _works(*_: object, **__: object) -> None:
    raise AssertionError("the work begins")


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    assert "model file 'models' is a folder" in refused("compare models -d t4")
    (tmp_path / "ios_sample").mkdir()
    assert main(["compare", "ios_sample", "-d", "t4"]) == 0


@pytest.mark.parametrize("option", ["--out=file", "--out=file/below"])
@pytest.mark.parametrize("command", ["compare", "optimize"])
def test_output_folder_that_cannot_be_made(command: str, option: str) -> None:
    Path("file").write_text("not a folder")
    line = refused(f"{command} ios_sample --device t4 {option}")
    assert "file" in line
    assert "is not a folder" in line
    assert Path("file").read_text() == "not a folder"
