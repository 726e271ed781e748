"""``iossim compare`` with several devices, and ``iossim check``: exit code 0 where all holds, 1 where something does not."""

import csv
import json
from io import StringIO
from operator import itemgetter
from pathlib import Path

import pytest
import yaml
from case_files import cases
from command_line import printed, printed_json, refused

from iossim.cli.main import main
from iossim.cli.options import several_devices
from iossim.cli.outputs import wants_plot
from iossim.hardware.load import device
from iossim.schedule.schedule import Schedule

CASES = cases(__file__, "mistakes.yaml")


@pytest.mark.parametrize(
    ("given", "devices"),
    [
        (None, []),
        ("", [""]),
        ("t4", ["t4"]),
        (["t4", "v100-sxm2"], ["t4", "v100-sxm2"]),
        (["t4,v100-sxm2", "t4"], ["t4", "v100-sxm2"]),
        (["t4+sms=20,dram_gbps=200,v100-sxm2+sms=100", "a10,"], ["t4+sms=20,dram_gbps=200", "v100-sxm2+sms=100", "a10"]),
    ],
)  # fmt: skip
def test_devices_are_divided_by_commas(given: str | list[str] | None, devices: list[str], tmp_path: Path) -> None:
    """But the name of a file is not."""
    assert several_devices(given) == devices
    (path := tmp_path / "mine,yours.yaml").touch()
    assert several_devices([str(path)]) == [str(path)]


@pytest.mark.parametrize("given", ["-d t4 -d v100-sxm2", "--device t4,v100-sxm2"])
def test_each_device_has_the_best_schedule_that_it_has_alone(given: str) -> None:
    document = printed_json(f"compare squeezenet {given} --json")
    alone = [printed_json(f"compare squeezenet -d {name} --json") for name in ("t4", "v100-sxm2")]
    for found, expected in zip(document["devices"], alone, strict=True):
        assert found["device"] == expected["device"]
        told = itemgetter("scheduler", "latency_us", "speedup", "interval_us")
        assert list(map(told, found["schedules"])) == list(map(told, expected["schedules"]))
    assert document["fastest"] == "v100-sxm2"
    assert document["complete"] is True
    text = printed(f"compare squeezenet {given}")
    best_us = [
        min(one["latency_us"] for one in (*each["schedules"], *each["joins"].get("schedules", ()))) for each in alone
    ]
    rows = {line.split()[0]: line for line in text.splitlines() if line.split()[0] in ("t4", "v100-sxm2")}
    assert all(f"{us / 1e3:.3f}" in rows[name] for name, us in zip(("t4", "v100-sxm2"), best_us, strict=True))
    said = f"Fastest: v100-sxm2, {best_us[1] / 1e3:.3f} ms by ios-merge, {best_us[0] / best_us[1]:.2f}x as fast as t4"
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
    assert f"Within {limit_ms:g} ms: {', '.join(within)}; the least power is that of " in " ".join(text.split())
    said = {row.split()[0]: row.split() for row in text.splitlines() if row.startswith(("t4", "v100"))}
    assert all(len(said[device]) == 10 for device in best)  # a line each
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
    assert "Engines differ" not in text
    assert "Engines differ (paper, graph): --engine " in printed("compare ios_sample -d t4,l4")
    assert "intervals" not in printed("compare ios_sample -d t4,v100-sxm2 --cost-model random:1")


def test_profiles_of_one_name_are_told_apart_by_their_files(tmp_path: Path) -> None:
    """A calibrated profile keeps the name of its device: rows and files of the two were one."""
    text = yaml.safe_dump(device("t4").model_dump(mode="json", exclude_none=True))
    ours, twin = tmp_path / "ours.yaml", tmp_path / "twin" / "ours.yaml"
    twin.parent.mkdir()
    for path in (ours, twin):
        path.write_text(text)
    out = tmp_path / "out"
    document = printed_json(f"compare ios_sample -d t4,{ours} --schedulers sequential --out {out} --json")
    assert [each["device"] for each in document["devices"]] == ["t4", "ours"]
    assert {path.name for path in out.glob("*.schedule.json")} == {"t4.schedule.json", "ours.schedule.json"}
    assert list(document["board_power_w"]) == ["t4", "ours"]
    said = refused(f"compare ios_sample -d {ours},{twin}")
    assert "two devices are called 'ours'; give profiles in files of different names" in said


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


def fails(capsys: pytest.CaptureFixture[str], line: str) -> str:
    """A question that does not hold is printed; standard error stays empty."""
    capsys.readouterr()
    assert main(line.split()) == 1
    output = capsys.readouterr()
    assert output.err == ""
    return output.out


def test_a_latency(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("check ios_sample --device t4 --max-latency-ms 1")
    expected = ["PASS valid", "PASS free of races", "PASS latency"]
    assert [line.partition(":")[0] for line in text.splitlines()[:4]] == [*expected, "note"]
    latency_us = printed_json("optimize ios_sample --device t4 --json")["latency_us"]
    assert latency_us < 1000
    over = f"check ios_sample --device t4 --max-latency-ms {latency_us / 1e3 * 0.999}"
    assert "FAIL latency: " in fails(capsys, over)
    found = json.loads(fails(capsys, f"{over} --json"))
    latency = found["checks"][-1]
    assert latency["limit_us"] < latency["latency_us"] < latency["high_us"]
    assert f"; expected on hardware: {latency['low_us'] / 1e3:.3f}-" in text
    assert found["holds"] is False
    assert any(remark.startswith("With --engine graph") for remark in found["remarks"])
    assert found["latency_us"] == latency_us
    assert [check["holds"] for check in found["checks"]] == [True, True, False]
    # For the sequential schedule it is another question.
    assert "FAIL" in fails(
        capsys, f"check ios_sample --device t4 --max-latency-ms {latency_us / 1e3} --scheduler sequential"
    )


def test_a_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(f"optimize ios_sample --device t4 --out {tmp_path}/best --no-plot --no-trace")
    line = f"check ios_sample --device t4 --baseline {tmp_path}/best/schedule.json"
    assert "PASS no slower than before: " in printed(line)
    slow = fails(capsys, f"{line} --scheduler sequential")
    assert "(priced again)" in slow
    assert "(priced again) + 200.0%" in printed(f"{line} --scheduler sequential --tolerance 2")
    found = printed_json(f"{line} --json")
    (gate,) = (check for check in found["checks"] if check["check"] == "no slower than before")
    assert gate["latency_us"] == gate["baseline_us"] == found["latency_us"]
    # The baseline is of a model of the same name that was changed since.
    saved = Path(f"{tmp_path}/best/schedule.json")
    saved.write_text(saved.read_text().replace(Schedule.read(saved).graph_hash, "0" * 64))
    assert "graph hash 000" in refused(line)
    assert "PASS no slower than before: " in printed(f"{line} --changed-model")
    # Joins of branches are fused, or not, by their price: the search finds again what it saved.
    printed(f"optimize squeezenet -d t4 --out {tmp_path}/joins --no-plot --no-trace")
    line = f"check squeezenet -d t4 --baseline {tmp_path}/joins/schedule.json"
    assert "PASS no slower than before: " in printed(line)
    assert "PASS no slower than before: " in printed(f"{line} --scheduler ios-streams")


@pytest.mark.parametrize(("asked", "words"), CASES["baselines"])
def test_a_baseline_of_another_question_is_refused(asked: str, words: str, tmp_path: Path) -> None:
    """Whatever the two take: "no slower" would mean nothing."""
    printed(f"optimize ios_sample --device t4 --scheduler sequential --out {tmp_path} --no-plot --no-trace")
    said = refused(f"check {asked} --baseline {tmp_path}/schedule.json --tolerance 100")
    assert "--baseline is of another question: " in said
    assert words in said


def test_streams(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(
        f"optimize squeezenet --device v100-sxm2 --engine graph --scheduler ios-streams --out {tmp_path}/best --no-plot"
    )
    line = f"check squeezenet --device v100-sxm2 --engine graph --baseline {tmp_path}/best/schedule.json"
    found = printed(f"{line} --scheduler ios-streams --max-latency-ms 1")
    assert "each unit runs once: " in found
    assert "PASS free of races" in found
    assert "(priced again)" in found
    assert "FAIL no slower than before" in fails(capsys, f"{line} --scheduler sequential")
    assert "batch 1, not 2" in refused(f"{line} --batch 2 --scheduler sequential")
    # Under the paper engine the sums of stages that were found say more than their plans take.
    plain = "squeezenet --device v100-sxm2 --engine paper"
    printed(f"optimize {plain} --out {tmp_path}/stages --no-plot")
    compared = f"check {plain} --scheduler ios-streams --baseline {tmp_path}/stages/schedule.json"
    assert "baseline 0.705 ms (both as whole plans)" in printed(compared)
    assert "prices stages alone" in refused(f"{line} --cost-model random:1")
