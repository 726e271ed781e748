"""``iossim search-space``: the counts, as a table and as JSON."""

from __future__ import annotations

import math

import pytest
from command_line import printed, printed_json

BLOCK_FIELDS = ["name", "units", "width", "states", "transitions", "schedules", "distinct_stages"]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    counted = printed_json(capsys, "search-space squeezenet --json")
    assert counted["model"] == "squeezenet"
    assert counted["stages"] == "general"
    assert len(counted["blocks"]) == 12
    for block in counted["blocks"]:
        assert sorted(block) == sorted(BLOCK_FIELDS)
        assert all(type(block[field]) is int for field in BLOCK_FIELDS[1:])
    for field in ("units", "states", "transitions", "distinct_stages"):
        assert counted["totals"][field] == sum(block[field] for block in counted["blocks"])
    assert counted["totals"]["schedules"] == math.prod(block["schedules"] for block in counted["blocks"])


def test_counts_of_the_sample_network(capsys: pytest.CaptureFixture[str]) -> None:
    """a -> b, c, d side by side, concat last. States: ideals of the partial order. By hand: {a < b} x {c} x {d}."""
    (block,) = printed_json(capsys, "search-space ios_sample --json")["blocks"]
    assert block["units"] == 5
    assert block["width"] == 3
    assert block["states"] == 3 * 2 * 2
    pruned = printed_json(capsys, "search-space ios_sample -r 1 -s 1 --json")["blocks"][0]
    # One unit a stage: the linear extensions, of four units with one relation: 4! / 2.
    assert pruned["schedules"] == 12


def test_pruning_and_paper_stages_leave_out(capsys: pytest.CaptureFixture[str]) -> None:
    general, paper, pruned = (
        printed_json(capsys, f"search-space inception_v3 {options} --json")
        for options in ("", "--stages paper", "--stages paper -r 3 -s 8")
    )
    for field in ("transitions", "distinct_stages"):
        assert general["totals"][field] >= paper["totals"][field] >= pruned["totals"][field]
    assert (pruned["max_group_size"], pruned["max_groups"]) == (3, 8)


def test_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = printed(capsys, "search-space inception_v3 --stages paper -r 3")
    lines = text.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].strip() == "inception_v3, paper stages, groups of at most 3 units"
    assert lines[-1].split()[:2] == ["total", "119"]


def test_the_schedules_that_readme_speaks_of(capsys: pytest.CaptureFixture[str]) -> None:
    total = printed(capsys, "search-space inception_v3").splitlines()[-1].split()
    assert total == ["total", "119", "1,206", "28,829", "3.085e+62", "7,252"]
