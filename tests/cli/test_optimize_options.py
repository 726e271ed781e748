"""Options of ``iossim optimize`` and ``compare``: how a model is read, ``--rewrite``, limits, and the lines that say what to do next."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import printed, printed_json, refused
from onnx_models import write_onnx

from iossim import api
from iossim.base.errors import OptionError
from iossim.cli.main import build_command
from iossim.cli.optimize import next_steps
from iossim.models.load import load

#: Commands that read a model, with what they need besides.
COMMANDS = {
    "models show": "",
    "search-space": "",
    "compare": "-d t4",
    "optimize": "-d t4",
    "predict": "-d t4",
    "check": "-d t4 --max-latency-ms 100",
    "profile": "--backend numpy_reference --pairs 0 --stages 0 --rounds 1 --warm-up 0",
    "bench": "--backend numpy_reference --schedulers sequential --rounds 1 --warm-up 0",
}


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A model with open dimensions in both inputs, and with operators that iossim does not know."""
    nodes = 'sampled = GridSample <mode="bicubic"> (x, grid); lower = Trilu(sampled); y = Relu(lower)'
    inputs = {"x": ["batch", 2, 6, 6], "grid": ["batch", "side", "side", 2]}
    return write_onnx(tmp_path / "foreign.onnx", nodes, inputs, opset=17)


@pytest.mark.parametrize("command", COMMANDS)
def test_dimensions_and_strict(command: str, foreign: Path, tmp_path: Path) -> None:
    arguments = f"{command} {foreign} --dim batch=3 --dim side=4 {COMMANDS[command]}"
    if "--backend" in arguments:
        arguments += f" --store {tmp_path / 'store.sqlite'}"
    text = printed(arguments)
    if command != "search-space":  # which prices nothing
        assert "GridSample, Trilu" in " ".join(text.split()) or command == "check"
    assert "GridSample, Trilu; leave out --strict" in refused(f"{arguments} --strict")


def test_a_schedule_remembers_how_its_model_was_read(foreign: Path, tmp_path: Path) -> None:
    printed(f"optimize {foreign} --dim batch=3 --shape grid=3x4x4x2 -d t4 --out {tmp_path} --no-plot")
    saved = tmp_path / "schedule.json"
    arguments = f"run {saved} --backend numpy_reference --rounds 1 --warm-up 0"
    document = printed_json(f"{arguments} --json")
    assert document["output_error"] < 1e-6
    expected = ["Priced as memory traffic, since iossim does not know what they compute: GridSample, Trilu."]
    assert document["remarks"] == expected
    assert "GridSample, Trilu" in printed(arguments)
    assert "GridSample, Trilu; leave out --strict" in refused(f"{arguments} --strict")


@pytest.mark.parametrize("out", [None, Path("a folder")])
@pytest.mark.parametrize("engine", ["paper", "graph", ""])
def test_three_lines_that_fit_a_terminal(out: Path | None, engine: str) -> None:
    lines = next_steps(out, engine, has_page=True)
    assert len(lines) == 3
    assert all(len(line) <= 80 for line in lines)
    assert f"--engine {'paper' if engine == 'graph' else 'graph'}" in lines[1]
    if out is not None:
        assert "'a folder/index.html'" in lines[0]
        assert "'a folder/schedule.json'" in lines[2]
        command = lines[2].split()[1]
        assert command in build_command().commands


def test_only_a_terminal_is_told(tmp_path: Path) -> None:
    arguments = ["optimize", "ios_sample", "-d", "t4", "--no-trace", "--out"]
    command = [sys.executable, "-m", "iossim", *arguments, str(tmp_path)]
    piped = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Next:" not in piped.stdout
    terminal, end = pty.openpty()
    subprocess.run(command, stdout=end, stderr=subprocess.DEVNULL, check=True)
    os.close(end)
    said = b""
    try:
        while part := os.read(terminal, 65536):
            said += part
    except OSError:  # Linux says so at the end of what a terminal's other side wrote
        pass
    os.close(terminal)
    lines = said.decode().splitlines()
    (first,) = [place for place, line in enumerate(lines) if line.startswith(f"Next: open {tmp_path / 'index.html'}")]
    assert [line[:6] for line in lines[first + 1 : first + 3]] == [" " * 6] * 2


def test_explain_tells_what_was_rewritten(tmp_path: Path) -> None:
    printed(f"optimize ios_sample -d v100-sxm2 --rewrite --out {tmp_path} --no-plot --no-trace")
    said = printed(f"explain {tmp_path}/schedule.json --out {tmp_path}/drawn")
    assert "the network was rewritten by 1 substitution\nstep 1: merge-relus-of-concat: 343." in said
    names = "graph.svg index.html timeline.png timeline.svg trace.json"
    assert " ".join(sorted(path.name for path in (tmp_path / "drawn").iterdir())) == names
    told = printed_json(f"explain {tmp_path}/schedule.json --json")
    (step,) = told["rewriting"]
    assert step["after_us"] == pytest.approx(told["latency_us"])
    assert len(step["before"]) == len(step["after"]) == 3
    assert "rewritten" not in printed(f"explain {tmp_path}/schedule.json --stage 0")


def test_what_nobody_proved_is_left_out(tmp_path: Path) -> None:
    """A rule of one's own, before it was verified."""
    rules = tmp_path / "mine.yaml"
    rules.write_text(
        "rule: twice\nsource:\n  - y = sigmoid(x)\n  - z = sigmoid(y)\ntarget:\n  - z = sigmoid(x)\noutputs: {z: z}\n"
    )
    said = " ".join(printed(f"optimize squeezenet -d v100-sxm2 --rewrite {rules}").split())
    assert "No rule matches: the graph is unchanged; 1 rule is not used, being unproved" in said


COMPARE = "compare ios_sample -d v100-sxm2"


def test_rewritten_first_and_jointly() -> None:
    """Here the merge that saves most of the sum of operators costs a concurrency that is worth more."""
    found = printed_json(f"{COMPARE} --rewrite --rewrite-budget 20 --json")
    as_given = {each["scheduler"]: each["latency_us"] for each in found["schedules"]}
    rewriting = found["rewriting"]
    by_label = {(each["scheduler"], each["way"]): each for each in rewriting["schedules"]}
    ways = ["rewritten", "saturated", "jointly"]
    assert list(by_label) == [("sequential", "rewritten"), *(("ios-both", way) for way in ways)]
    latency_us = {label: each["latency_us"] for label, each in by_label.items()}
    assert latency_us["sequential", "rewritten"] < as_given["sequential"]
    assert as_given["ios-both"] < latency_us["ios-both", "rewritten"]
    assert latency_us["ios-both", "jointly"] < as_given["ios-both"]
    jointly = by_label["ios-both", "jointly"]
    assert sum(jointly["rules"].values()) >= 1
    assert jointly["speedup"] == pytest.approx(as_given["sequential"] / jointly["latency_us"])
    assert rewriting["scheduler"] == "ios-both"
    assert rewriting["sentence"].startswith("rewritten by")
    assert found["other_engine"]["best_us"] > 0


def test_the_table_names_them_and_the_files_are_of_the_best(tmp_path: Path) -> None:
    said = printed(f"{COMPARE} --rewrite metaflow --rewrite-budget 20 --out {tmp_path}")
    words = " ".join(said.split())
    assert all(line in said for line in ("sequential, ", "\nrewritten "))  # on two lines, so that numbers stay whole
    assert "Best: ios-both, jointly, 0." in words
    assert "for the changed network" in words
    assert "Rewritten by 1 substitution, " in words
    saved = json.loads((tmp_path / "schedule.json").read_text())
    assert saved["source"]["options"].keys() == {"rewriting"}
    assert printed_json(f"simulate {tmp_path}/schedule.json --json")["latency_us"] == saved["latency_us"]


def test_the_scheduler_that_searches_most_is_rewritten_for() -> None:
    network = load("ios_sample")
    alone = api.compare(network, "v100-sxm2", schedulers=["sequential"], rewrite="metaflow", rewrite_budget="20")
    assert [row.scheduler for row in alone.rows] == ["sequential", "sequential, jointly"]
    assert alone.best_of_all.label == "sequential, jointly"
    assert alone.best_of_stages.network is not network
    merging = api.compare(
        network, "v100-sxm2", schedulers=["ios-merge", "greedy"], rewrite="metaflow", rewrite_budget="6"
    )
    expected = ["ios-merge, rewritten", "ios-merge, saturated", "ios-merge, jointly"]
    assert [each.label for each in merging.changed] == expected
    with pytest.raises(OptionError, match="cannot price graphs for any of greedy; add one of sequential, ios-"):
        api.compare(network, "v100-sxm2", schedulers=["greedy"], rewrite="metaflow")


def test_a_schedule_may_take_no_time(tmp_path: Path) -> None:
    nodes, sizes = "[r] y = Reshape (x, sizes); [f] z = Flatten (x)", {"sizes": np.array([2, 2])}
    views = write_onnx(tmp_path / "views.onnx", nodes, {"x": [1, 4]}, sizes, output="y z")
    printed(f"optimize {views} -d t4 --no-plot --out {tmp_path}")
    assert "0.000 ms by sequential, 1.00x as fast as v100-sxm2" in printed(f"compare {views} -d t4,v100-sxm2")
    assert "Mean active warps: 0." in printed(f"simulate {tmp_path}/schedule.json --event-driven")
    assert "no kernels: views only" in printed(f"explain {tmp_path}/schedule.json --stage 0")


def test_rules_may_remove_the_only_op(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "same.onnx", "[same] y = Identity (x)", {"x": [1, 4]})
    assert "1 stage:" in printed(f"optimize {path} -d t4 --rewrite --rewrite-search saturation")


def test_a_speed_up_is_over_the_model_and_a_proof_of_the_network_that_was_made_of_it(tmp_path: Path) -> None:
    printed(f"optimize ios_sample -d v100-sxm2 --rewrite metaflow --rewrite-budget 20 --out {tmp_path}")
    saved = json.loads((tmp_path / "schedule.json").read_text())
    given_us = api.optimize("ios_sample", "v100-sxm2", scheduler="sequential").latency_us
    assert printed_json(f"explain {tmp_path}/schedule.json --json")["sequential_us"] == pytest.approx(given_us)
    speedup = f"speed-up {given_us / saved['latency_us']:.2f}x over sequential"
    assert f"{speedup}, proven optimal for the changed network" in (tmp_path / "timeline.svg").read_text()
    assert "(general stages) for the changed network" in (tmp_path / "index.html").read_text()
