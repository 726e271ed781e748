"""``iossim explain`` and ``iossim diff`` on saved schedules."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import printed, printed_json, refused
from onnx_models import write_onnx

import iossim
from iossim.report.explanation import long_lines, overview, short_lines
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import Schedule
from iossim.tasks.explain import Choice


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of schedules of the sample network: on the V100 by four schedulers, for batch 32, and on the T4."""
    from iossim.cli.main import main

    folder = tmp_path_factory.mktemp("schedules")
    for name, options in {
        "best": "--device v100-sxm2 --scheduler ios-parallel",
        "both": "--device v100-sxm2",
        "greedy": "--device v100-sxm2 --scheduler greedy",
        "one_by_one": "--device v100-sxm2 --scheduler sequential",
        "batch": "--device v100-sxm2 --batch 32",
        "t4": "--device t4",
    }.items():
        line = f"optimize ios_sample {options} --out {folder / name} --no-plot --no-trace"
        assert main(line.split()) == 0
        (folder / name / "schedule.json").rename(folder / f"{name}.json")
    return folder


def latency_us(path: Path) -> float:
    return Schedule.read(path).latency_us


def test_explain(saved: Path) -> None:
    text = printed(f"explain {saved}/best.json")
    best_us, both_us, one_by_one_us, greedy_us = (
        latency_us(saved / f"{name}.json") for name in ("best", "both", "one_by_one", "greedy")
    )
    told = f"{best_us / 1e3:.3f} ms in 2 stages, speed-up {one_by_one_us / best_us:.2f}x over sequential"
    assert f"ios_sample on v100-sxm2, batch 1, fp32, paper engine, ios-parallel: {told}" in text
    assert "Time by limit: " in text
    assert "No block has a faster set of stages under this cost model" in text
    assert "stage 0 (sample): 3 concurrent groups of 4 units" in text
    assert re.search(r"saves \d+\.\d us over sequential", text)
    assert "too few blocks to fill the SMs" in text
    assert re.search(
        r"best alternative for its units, as 2 stages of 2 concurrent units: \+\d+\.\d us \(within the noise\)", text
    )
    saving_us = greedy_us - both_us
    assert f"would save {saving_us:.1f} us ({100 * saving_us / greedy_us:.1f}%)" in printed(
        f"explain {saved}/greedy.json"
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("best", "-d v100-sxm2 --scheduler ios-parallel"),
        ("greedy", "-d v100-sxm2 --scheduler greedy"),
        ("batch", "-d v100-sxm2 -b 32"),
        ("streams", "-d v100-sxm2 --scheduler ios-streams"),
    ],
)
def test_explain_a_model_as_it_is_optimised(name: str, options: str, saved: Path) -> None:
    if name == "streams":
        printed(f"optimize ios_sample {options} --out {saved}/made --no-trace")
        (saved / "made" / "schedule.json").rename(saved / "streams.json")
    asked, kept = (printed_json(f"explain {what} --json") for what in (f"ios_sample {options}", f"{saved}/{name}.json"))
    assert asked == kept


def test_explain_a_rewritten_model_step_by_step(tmp_path: Path) -> None:
    line = "explain ios_sample -d v100-sxm2 --rewrite metaflow --rewrite-search backtracking --rewrite-budget 5"
    assert printed_json(f"{line} --unproved --json --out {tmp_path}")["rewriting"]
    assert (tmp_path / "graph.svg").is_file()


def test_explain_refuses_what_it_would_leave_unused(saved: Path) -> None:
    assert "whose model is read as it was" in refused(f"explain {saved}/best.json --batch 8")
    for unused in ("--scheduler greedy", "-s 2"):
        assert "is a saved schedule: nothing is searched" in refused(f"explain {saved}/best.json {unused}")


def test_a_schedule_is_no_model(saved: Path, tmp_path: Path) -> None:
    refused(f"optimize {saved}/best.json -d t4", "best.json is no model but a schedule of iossim's", "'iossim explain'")
    (tmp_path / "cut.json").write_text((saved / "best.json").read_text()[:200])
    refused(f"simulate {tmp_path}/cut.json -d t4", "cut.json is not valid", "write it again with optimize")


def test_explain_one_stage(saved: Path) -> None:
    text = printed(f"explain {saved}/best.json --stage 0")
    assert "stage 1 " not in text
    for words in ("sequential", "waves", "same units rearranged", "the longest group takes", "a > "):
        assert words in text
    assert "--stage 7: the schedule has stages 0 to 1" in refused(f"explain {saved}/best.json --stage 7")


def test_a_processor_has_cores_and_no_sms() -> None:
    cpu = Path(__file__).resolve().parents[2] / "examples" / "cpu.yaml"
    found = iossim.explain(iossim.optimize("ios_sample", cpu), device=cpu)
    lines = [line for one in found.stages for line in (*short_lines(one), *long_lines(one))]
    text = "\n".join([*overview(found), *lines])
    assert "too few blocks to fill the cores" in text
    assert "unfilled cores" in text
    assert re.findall(r"\bSMs?\b|\bwarps?\b|the host", text) == []


def test_explain_what_no_simulator_priced(saved: Path, tmp_path: Path) -> None:
    units = ["a", "b", "c", "d", "concat"]
    stages = [{"units": [unit], "latency_us": 10} for unit in units] + [{"units": ["a", "b"], "latency_us": 12}]
    (tmp_path / "prices.json").write_text(json.dumps({"stages": stages}))
    table = f"--cost-model table:{tmp_path}/prices.json"
    printed(f"optimize ios_sample {table} --out {tmp_path} --no-plot --no-trace")
    path = f"{tmp_path}/schedule.json"
    text = printed(f"explain {path}")
    assert "Unknown: what limits a stage, which prices by 'table' lack" in text
    assert "Unknown: what alternatives would cost, since cost model 'table' is not given" in text
    assert "there is no alternative" not in text
    text = printed(f"explain {path} {table}")
    assert "1.19x over sequential" in text
    assert "saves 8.0 us over sequential" in text
    assert text.count("Unknown") == 1
    assert "Unknown" not in printed(f"explain {path} --device v100-sxm2")
    assert "has no price for the" in refused(f"explain {saved}/best.json {table}")


def test_an_alternative_names_its_smallest_group_first_and_no_single_stage_as_many(saved: Path) -> None:
    """``groups of 3 and 1 units`` was said."""
    explained = iossim.explain(Schedule.read(saved / "best.json")).stages[0]
    ways = [["a"]], [["a", "b", "c"], ["d"]], [["a"], ["b"]], [["a"], ["b"], ["c"]]
    stages = tuple(
        explained.stage.model_copy(update={"groups": groups, "strategy": Strategy.CONCURRENT}) for groups in ways
    )
    said = " ".join(short_lines(replace(explained, own=Choice("", (0,), stages, 1.0))))
    assert "as 1 unit, then concurrent groups of 1 and 3 units, then 2 concurrent units, and 1 more stage:" in said


def test_diff(saved: Path) -> None:
    text = printed(f"diff {saved}/greedy.json {saved}/best.json")
    first_us, second_us = latency_us(saved / "greedy.json"), latency_us(saved / "best.json")
    change_us = second_us - first_us
    assert f"B against A: {change_us:+.1f} us ({100 * change_us / first_us:+.1f}%): within the noise" in text
    assert "Identical stages: 1. Runs of stages that differ: 1 (1 joined)" in text
    same = printed(f"diff {saved}/best.json {saved}/best.json")
    assert "B takes as long as A" in same
    assert "All 2 stages are the same" in same
    found = printed_json(f"diff {saved}/one_by_one.json {saved}/best.json --json")
    assert found["tie"] is False
    assert sum(each["first_us"] for each in found["passages"]) == pytest.approx(found["first"]["latency_us"])


def test_diff_of_devices_and_batches(saved: Path) -> None:
    for other in ("t4", "batch"):
        found = printed_json(f"diff {saved}/best.json {saved}/{other}.json --json")
        assert not found["same_prices"]
        # Each is optimal where it was made.
        assert found["cross"]["second_at_first_us"] >= found["first"]["latency_us"] * (1 - 1e-9)
        assert found["cross"]["first_at_second_us"] >= found["second"]["latency_us"] * (1 - 1e-9)
        text = printed(f"diff {saved}/best.json {saved}/{other}.json")
        best_ms = latency_us(saved / "best.json") / 1e3
        assert f"On the setup of A (v100-sxm2, batch 1, paper engine): A {best_ms:.3f} ms, B " in text


def test_diff_of_two_networks(saved: Path, tmp_path: Path) -> None:
    other = (saved / "best.json").read_text().replace('"a"', '"z"')
    (tmp_path / "other.json").write_text(other)
    assert "'z'" in refused(f"diff {saved}/best.json {tmp_path}/other.json")
    printed(f"optimize squeezenet -d t4 --scheduler sequential --out {tmp_path} --no-plot --no-trace")
    told = refused(f"diff {saved}/best.json {tmp_path}/schedule.json")
    assert "belong to different networks: unit 'a' is in the first one alone; give two of the same model, with" in told
    assert "No such file" in refused(f"diff {saved}/best.json {tmp_path}/none.json")


def test_people_read_the_convolution_of_a_unit_and_files_keep_its_last_op(tmp_path: Path) -> None:
    nodes = "a = Conv (x, w)\nb = Relu (a)\nc = Conv (x, v)\nd = Relu (c)\ny = Add (b, d)"
    weights = {name: np.full((8, 8, 3, 3), at, np.float32) for at, name in enumerate("wv")}
    model = write_onnx(tmp_path / "m.onnx", nodes, {"x": [1, 8, 9, 9]}, weights)
    texts = [printed(f"optimize {model} -d t4 --units conv-relu --out {tmp_path} --no-trace")]
    saved = tmp_path / "schedule.json"
    assert {"Relu_1", "Relu_3"} < set(re.findall(r'"(\w+)"', saved.read_text()))
    texts += [printed(f"{line} {saved}") for line in ("explain --stage 0", "simulate", f"diff --all {saved}")]
    texts += [(tmp_path / name).read_text() for name in ("graph.svg", "index.html")]
    assert [("Relu_" in text, "Conv_2" in text) for text in texts] == [(False, True)] * 6
    assert "Relu_1" not in printed(f"search-space {model} --units conv-relu")
    # A block is found by the name that is read and by the one that it has.
    (shown,) = printed_json(f"models show {model} --units conv-relu --json")["block_list"]
    for name in (shown["block"], "Relu_1..Add_4"):
        assert len(iossim.load(model, units="conv-relu", block=name).units) == 3
