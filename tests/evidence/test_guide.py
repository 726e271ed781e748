"""The page on how it works: its pictures are those that the command draws, and its numbers those of the pictures."""

from __future__ import annotations

import re

import pytest

from evidence.commands.pictures import FOLDER, drawn
from iossim.cli.main import main


@pytest.fixture(scope="module")
def pictures() -> dict[str, str]:
    return drawn()


def test_the_pictures_of_the_page_are_those_drawn(pictures: dict[str, str]) -> None:
    kept = {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.iterdir())}
    assert kept == dict(sorted(pictures.items())), "run: python -m evidence pictures"


def test_numbers_of_the_page_are_those_of_its_pictures(pictures: dict[str, str]) -> None:
    page = FOLDER.with_suffix(".md").read_text(encoding="utf-8")
    assert re.findall(r"\(how_it_works/(\w+\.svg)\)", page) == list(pictures)
    shown = {number for svg in pictures.values() for number in re.findall(r"\d+\.\d", _texts(svg))}
    quoted = set(re.findall(r"\d+\.\d", page))
    assert len(quoted) >= 10
    assert quoted <= shown
    for words in ("13 states", "54 stages"):
        assert words in page
        assert words in _texts(pictures["states.svg"])


def test_the_cheapest_path_costs_what_the_schedule_does(pictures: dict[str, str]) -> None:
    assert "ios-both: 343.9 us" in _texts(pictures["timeline.svg"])
    assert re.search(r"all</text>\n<text [^>]*>343\.9<", pictures["states.svg"])


def test_the_command_writes_them(monkeypatch: pytest.MonkeyPatch, tmp_path: object, pictures: dict[str, str]) -> None:
    monkeypatch.setattr("evidence.commands.pictures.FOLDER", tmp_path)
    monkeypatch.setattr("evidence.commands.pictures.drawn", lambda: pictures)
    assert main(["pictures"], commands="evidence.commands") == 0
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == pictures  # type: ignore[attr-defined]


def _texts(svg: str) -> str:
    return "\n".join(re.findall(r"<text[^>]*>([^<]*)<", svg))
