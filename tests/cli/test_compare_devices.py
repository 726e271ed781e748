"""``iossim compare`` with several devices: one table of what each is worth, and the same numbers as one by one."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path

import pytest
from command_line import printed, printed_json, refused

from iossim.cli.options import several_devices
from iossim.cli.outputs import wants_plot
from iossim.schedule.schedule import Schedule


@pytest.mark.parametrize(
    ("given", "devices"),
    [
        (None, []),
        ("", [""]),
        ("t4", ["t4"]),
        (["t4", "v100-sxm2"], ["t4", "v100-sxm2"]),
        (["t4,v100-sxm2", "t4"], ["t4", "v100-sxm2"]),
        (
            ["t4+sms=20,dram_gbps=200,v100-sxm2+sms=100", "a10,"],
            ["t4+sms=20,dram_gbps=200", "v100-sxm2+sms=100", "a10"],
        ),
    ],
)
def test_devices_are_divided_by_commas(given: str | list[str] | None, devices: list[str]) -> None:
    assert several_devices(given) == devices


def test_a_file_may_have_a_comma_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "mine,yours.yaml"
    path.touch()
    assert several_devices([str(path)]) == [str(path)]


@pytest.mark.parametrize("given", ["-d t4 -d v100-sxm2", "--device t4,v100-sxm2"])
def test_each_device_has_the_best_schedule_that_it_has_alone(given: str) -> None:
    document = printed_json(f"compare squeezenet {given} --json")
    alone = [printed_json(f"compare squeezenet -d {name} --json") for name in ("t4", "v100-sxm2")]
    for found, expected in zip(document["devices"], alone, strict=True):
        assert found["device"] == expected["device"]
        assert [
            (one["scheduler"], one["latency_us"], one["speedup"], one["interval_us"]) for one in found["schedules"]
        ] == [
            (one["scheduler"], one["latency_us"], one["speedup"], one["interval_us"]) for one in expected["schedules"]
        ]
    assert document["fastest"] == "v100-sxm2"
    assert document["complete"] is True
    text = printed(f"compare squeezenet {given}")
    best_us = [
        min(one["latency_us"] for one in (*each["schedules"], *each["joins"].get("schedules", ()))) for each in alone
    ]
    rows = {line.split()[0]: line for line in text.splitlines() if line.split()[0] in ("t4", "v100-sxm2")}
    assert [f"{us / 1e3:.3f}" in rows[name] for name, us in zip(("t4", "v100-sxm2"), best_us, strict=True)] == [
        True
    ] * 2
    said = f"Fastest: v100-sxm2, {best_us[1] / 1e3:.3f} ms by ios-both, {best_us[0] / best_us[1]:.2f}x as fast as t4"
    assert said in " ".join(text.split())


def test_devices_are_held_against_a_limit(tmp_path: Path) -> None:
    line = f"compare ios_sample -d t4,v100-sxm2,v100-sxm2+sms=40 --schedulers sequential,ios-both --out {tmp_path}"
    best = {
        each["device"]: (one["latency_us"], one["interval_us"][1])
        for each in printed_json(f"{line} --json")["devices"]
        for one in [min(each["schedules"], key=lambda one: one["latency_us"])]
    }
    (fastest, (_, high_us)), *_, (slowest, _) = sorted(best.items(), key=lambda item: item[1])
    limit_ms = high_us / 1e3
    text = printed(f"{line} --max-latency-ms {limit_ms}")
    within = [device for device, (us, _) in best.items() if us <= 1e3 * limit_ms]
    assert f"Within {limit_ms:g} ms: {', '.join(within)}; the least power has " in " ".join(text.split())
    said = {row.split()[0]: row.split() for row in text.splitlines() if row.startswith(("t4", "v100"))}
    assert "yes" in said[fastest]
    assert "no" in said[slowest]
    if wants_plot(None):
        drawn = (tmp_path / "devices.svg").read_text()
        assert [drawn.count(f">{device}<") for device in best] == [1] * 3
    none = printed(f"{line} --max-latency-ms 0.001")
    assert "Within 0.001 ms: none of them" in " ".join(none.split())
    assert "--max-latency-ms compares several devices" in refused("compare ios_sample -d t4 --max-latency-ms 1")


def test_intervals_that_overlap_leave_it_open() -> None:
    text = printed("compare ios_sample -d t4 -d t4+sms=41")
    assert "their 90% intervals overlap, so that either may be" in " ".join(text.split())
    assert "intervals" not in printed("compare ios_sample -d t4,v100-sxm2 --cost-model random:1")


def test_csv_has_a_line_for_each_scheduler_on_each_device() -> None:
    line = "compare ios_sample -d t4,v100-sxm2 --schedulers sequential,ios-both"
    rows = list(csv.DictReader(StringIO(printed(f"{line} --csv"))))
    document = printed_json(f"{line} --json")
    assert [(row["device"], row["scheduler"], float(row["latency_us"]), float(row["low_us"])) for row in rows] == [
        (each["device"], one["scheduler"], one["latency_us"], one["interval_us"][0])
        for each in document["devices"]
        for one in each["schedules"]
    ]
    (alone,) = list(csv.DictReader(StringIO(printed("compare ios_sample -d t4 --schedulers ios-both --csv"))))
    assert (alone["device"], alone["latency_us"]) == (rows[1]["device"], rows[1]["latency_us"])


def test_files(tmp_path: Path) -> None:
    document = printed_json(f"compare ios_sample -d t4,v100-sxm2 --out {tmp_path}/out --json")
    out = tmp_path / "out"
    assert json.loads((out / "comparison.json").read_text())["devices"] == document["devices"]
    saved = [Schedule.read(out / f"{name}.schedule.json") for name in ("t4", "v100-sxm2")]
    assert [one.device for one in saved] == ["t4", "v100-sxm2"]
    assert (out / "comparison.svg").exists() == wants_plot(None)
    assert (out / "comparison.csv").read_text().count("\n") == 11
