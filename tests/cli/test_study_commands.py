"""``iossim study list``, ``show`` and ``new``: what ships, what a study will take, and a file to begin with."""

from pathlib import Path

import pytest
from command_line import printed, printed_json, refused

from iossim.study.question import in_words
from iossim.study.scenario_file import MODELINE, read_scenario, scenario_names


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with nothing in it: its schemas are beside it."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def test_list_names_what_ships(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = printed_json("study list --json")
    assert [row["name"] for row in rows] == scenario_names()
    assert all(row["points"] >= 1 and row["schedules"] >= row["points"] and row["title"] for row in rows)
    monkeypatch.setattr("iossim.study.scenario_file.scenario_names", lambda: ["active_warps", "resnet"])
    table = printed("study list")
    expected = ["active_warps", "resnet"]
    assert [line.split()[0] for line in table.splitlines() if "_" in line or "resnet" in line] == expected


def test_show_says_what_will_be_done() -> None:
    text = printed("study show batch_specialisation")
    scenario = read_scenario("batch_specialisation")
    for words in (
        scenario.title,
        *map(in_words, scenario.questions),
        "all combinations of",
        "iossim study run batch_specialisation --out",
    ):
        assert words in text
    data = printed_json("study show batch_specialisation --json")
    sizes, schedulers = len(scenario.batch_sizes), len(scenario.schedulers)
    work = data["work"]
    assert (work["points"], work["schedules"]) == (sizes, sizes * schedulers)
    assert work["cross_prices"] == sizes * (sizes - 1) * schedulers
    assert data["scenario"]["name"] == "batch_specialisation"


def test_new_without_questions_writes_a_file_that_can_be_shown(folder: Path) -> None:
    line = printed("study new mine")
    assert "wrote mine.yaml" in line
    text = (folder / "mine.yaml").read_text()
    schema = text.splitlines()[0].removeprefix(MODELINE)
    assert Path(schema).read_text().startswith("{")
    scenario = read_scenario(folder / "mine.yaml")
    assert (scenario.name, scenario.title, scenario.batch_sizes) == ("mine", "Mine", [1, 8, 32])
    assert "work: 6 points, 12 schedules" in printed("study show mine.yaml")
    assert [path.name for path in folder.iterdir()] == ["mine.yaml"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("new there", "there.yaml is there already; choose another --out, or give --force"),
        ("new other --out missing/other.yaml", "cannot write scenario missing/other.yaml: No such file"),
        ("show there.yaml", "scenario there.yaml, line 1: is not a mapping of fields"),
    ],
)
def test_mistakes_are_one_line_and_leave_no_file(arguments: str, words: str, folder: Path) -> None:
    (folder / "there.yaml").write_text("mine\n")
    assert words in refused(f"study {arguments}")
    assert [path.name for path in folder.iterdir()] == ["there.yaml"]
    assert (folder / "there.yaml").read_text() == "mine\n"


def test_force_replaces(folder: Path) -> None:
    (folder / "there.yaml").write_text("mine\n")
    printed("study new there --force")
    assert read_scenario(folder / "there.yaml").name == "there"
