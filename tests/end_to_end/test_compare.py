"""``iossim compare``: the table, the JSON, and the files."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from command_line import printed, printed_json

SCHEDULERS = ["sequential", "greedy", "ios-merge", "ios-parallel", "ios-both"]
FIELDS = {"model": str, "device": str, "batch": int, "dtype": str, "engine": str, "schedules": list}
SCHEDULE_FIELDS = {"scheduler": str, "stages": int} | dict.fromkeys(
    ("latency_us", "speedup", "search_s", "lower_bound_us"), float
)


def check_comparison(comparison: dict[str, Any]) -> None:
    """The documented fields with their types, and what must hold between the figures of any comparison."""
    for field, kind in FIELDS.items():
        assert type(comparison[field]) is kind, field
    assert [found["scheduler"] for found in comparison["schedules"]] == SCHEDULERS
    by_name = {found["scheduler"]: found for found in comparison["schedules"]}
    for found in comparison["schedules"]:
        for field, kind in SCHEDULE_FIELDS.items():
            assert type(found[field]) is kind, field
        assert found["speedup"] == pytest.approx(by_name["sequential"]["latency_us"] / found["latency_us"])
        assert found["lower_bound_us"] <= found["latency_us"] * (1 + 1e-9)
        assert found["stages"] >= 1
        if found["interval_us"] is None:
            assert comparison["cost_model"]["name"] != "simulator"
        else:
            low_us, high_us = found["interval_us"]
            assert 0 < low_us < found["latency_us"] < high_us
        # Who ties with whom does not depend on who is asked.
        assert all(found["scheduler"] in by_name[other]["ties"] for other in found["ties"])
        assert found["scheduler"] not in found["ties"]
    best = by_name["ios-both"]["latency_us"]
    assert all(best <= found["latency_us"] * (1 + 1e-9) for found in comparison["schedules"])
    assert by_name["ios-parallel"]["latency_us"] <= by_name["greedy"]["latency_us"] * (1 + 1e-9)
    for name in ("ios-merge", "ios-parallel"):
        assert by_name[name]["latency_us"] <= by_name["sequential"]["latency_us"] * (1 + 1e-9)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            "-d v100-sxm2",
            {"model": "squeezenet", "device": "v100-sxm2", "batch": 1, "dtype": "fp32", "engine": "paper"},
        ),
        *((f"-d a100-sxm-40gb --dtype {dtype}", {"dtype": dtype}) for dtype in ("tf32", "fp16", "bf16", "int8")),
        ("-d t4 --engine graph", {"engine": "graph"}),
        ("-d t4 --shape image=2x3x128x128", {"batch": 2}),
    ],
)
def test_json(options: str, expected: dict[str, Any]) -> None:
    comparison = printed_json(f"compare squeezenet {options} --json")
    check_comparison(comparison)
    assert {key: comparison[key] for key in expected} == expected
    assert comparison["complete"] is True
    assert comparison["peak_memory_bytes"] > 2**24  # of the whole process, which other tests may have grown


def test_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = printed("compare squeezenet --device v100-sxm2")
    lines = text.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[0] == "squeezenet on v100-sxm2, batch 1, fp32, paper engine, priced by simulator"
    # A sign behind a scheduler marks a tie with the best.
    words = [line.replace("≈", " ").split() for line in lines]
    rows = [row for row in words if row[:1] and row[0] in SCHEDULERS]
    assert [row[0] for row in rows] == SCHEDULERS
    assert rows[0][2] == "1.00"
    # ios-both takes as long as ios-merge, the simpler one, which is named; its proof counts.
    assert rows[2][1:3] == rows[4][1:3]
    assert f"Best: ios-merge, {rows[2][1]} ms, speed-up {rows[2][2]}x over sequential" in lines
    assert lines[-2] == "Provably optimal under this cost model (general stages)"
    assert lines[-1].startswith("With --engine graph it takes ")
    # Beside the simulator's figures stand the published ones.
    assert "published" in text
    assert "0.98" in rows[1]


def test_fp32_that_nobody_chose_is_remarked_on_tensor_cores() -> None:
    """The remark's figure is the one that --dtype bf16 prints."""
    for asked in ("v100-sxm2", "h100-sxm --dtype fp32", "h100-sxm --json"):
        assert "(the default)" not in printed(f"compare ios_sample -d {asked}")
    shown = [printed(f"compare squeezenet -d h100-sxm --schedulers sequential{how}") for how in ("", " --dtype bf16")]
    (fp32, *_), (bf16, *_) = (re.findall(r"^sequential\S* +(\S+)", one, re.MULTILINE) for one in shown)
    assert f"With --dtype bf16 sequential takes {bf16} ms, in fp32 (the default) {fp32} ms" in shown[0]


@pytest.mark.parametrize(
    ("command", "starts"),
    [
        ("compare", ["≈ tied with", "Best: no", "Expected", "Provably", "With --engine graph it takes "]),
        ("optimize", ["1.570 ms in", "Lower bound", "Expected", "Tied with", "Provably", "note: With --engine graph it takes "]),
    ],
)  # fmt: skip
def test_the_page_has_every_sentence_of_the_terminal(
    command: str, starts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a network that no schedule makes faster: ties, the interval and the other engine among them."""
    monkeypatch.setenv("COLUMNS", "200")
    said = printed(f"{command} gpt2 -d v100-sxm2 --out {tmp_path} --no-trace").splitlines()[-len(starts) :]
    assert all(line.startswith(start) for line, start in zip(said, starts, strict=True))
    page = unescape((tmp_path / "index.html").read_text(encoding="utf-8"))
    assert [line for line in said if f">{line.removeprefix('note: ')}</p>" not in page.replace(">note: ", ">")] == []
    (interval,) = re.findall(r"Expected on hardware: (1\.\d+-1\.\d+ ms) \(90% interval\)", "\n".join(said))
    assert f"1.570 ms simulated, {interval} expected on hardware (90% interval)" in page


def test_table_says_what_was_not_searched() -> None:
    pruned = printed("compare squeezenet -d t4 -r 3 -s 2 --stages paper").replace("\n", " ")
    assert "(paper stages, groups of at most 3 units, at most 2 groups)" in pruned
    split = printed("compare squeezenet -d t4 --max-block 4").replace("\n", " ")
    assert "'fire2'" in split
    assert "Not proven optimal" in split


def test_graph_engine_is_never_dearer() -> None:
    """One launch instead of many, and no synchronisation between stages."""
    paper, graph = (
        printed_json(f"compare squeezenet -d v100-sxm2 --engine {engine} --json") for engine in ("paper", "graph")
    )
    for one, other in zip(graph["schedules"], paper["schedules"], strict=True):
        assert one["latency_us"] <= other["latency_us"]


def test_graphs(shared: Path) -> None:
    folders = sorted(
        {path.parent for path in (shared / "data").rglob("*.txt") if "randwire" in str(path.parent).lower()}
    )
    if not folders:
        pytest.skip("no edge lists of RandWire in the reference data")
    given = printed_json(["search-space", "randwire", "--graphs", str(folders[0]), "-r", "1", "-s", "2", "--json"])
    drawn = printed_json("search-space randwire -r 1 -s 2 --json")
    assert given["totals"]["units"] == drawn["totals"]["units"]
    assert given["blocks"] != drawn["blocks"]


def test_files(tmp_path: Path) -> None:
    out = tmp_path / "out"
    comparison = printed_json(["compare", "squeezenet", "-d", "t4", "--json", "--out", str(out)])
    names = {path.name for path in out.iterdir()}
    assert names >= {"comparison.json", "schedule.json", "trace.json", "graph.svg", "timeline.svg", "timeline.png"}
    assert names >= {"comparison.svg", "comparison.png"}
    assert json.loads((out / "comparison.json").read_text()) == comparison
    best = json.loads((out / "schedule.json").read_text())
    assert best["scheduler"] == "ios-both"
    assert best["latency_us"] == comparison["joins"]["schedules"][-1]["latency_us"]
    assert best["latency_us"] < min(found["latency_us"] for found in comparison["schedules"])
