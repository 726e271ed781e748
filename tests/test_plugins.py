"""A package of someone else's, installed as a user installs one: what works is found, what is broken is one line."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_files import cases
from command_line import printed, printed_json, refused
from onnx_models import write_onnx
from random_networks import random_inputs, random_network

from iossim import api
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import say_once
from iossim.base.registry import PluginError
from iossim.cli.main import build_app
from iossim.cli.schedules import OUTPUTS
from iossim.cost.create import cost_model_names
from iossim.execution.backend import backend_names, create_backend, missing_for, offers_of
from iossim.execution.lower import lower_schedule
from iossim.hardware.load import device
from iossim.hardware.names import device_names, origin
from iossim.ir.op import OPS, Op, op_class
from iossim.search.scheduler import schedule, scheduler_names
from iossim.transforms.rewriting.rule_sets import rule_set

CASES = cases(__file__, "broken_plugins.yaml")

PROJECT = Path(__file__).parents[1] / "examples" / "plugin"
BROKEN = Path(__file__).parent / "broken_plugins"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has what ``pip install`` of the template writes, and modules and entry points that are broken."""
    site = tmp_path_factory.mktemp("plugin") / "site"
    shutil.copytree(PROJECT / "src", site)
    shutil.copytree(BROKEN, site / "iossim_example", dirs_exist_ok=True)
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    further = tomllib.loads((BROKEN / "entry_points.toml").read_text())
    info = site / f"iossim_example-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    entry_points = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in (named | further.get(group, {})).items())
        for group, named in project["entry-points"].items()
    )
    (info / "entry_points.txt").write_text(entry_points)
    return site


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(site))
    say_once.cache_clear()
    yield
    for name in [name for name in sys.modules if name.startswith("iossim_example")]:
        del sys.modules[name]
    for kind in ("determinant", "miscounted"):
        Op.registry.pop(kind, None)  # an op registers itself as it is imported
    Op.onnx_registry.pop("Det", None)


def test_a_plugin_that_ends_the_program_is_broken_as_any_other(installed: None) -> None:
    found = OUTPUTS.plugins()["csv"]
    with pytest.raises(PluginError, match=r"plugin 'csv' of .* does not work: SystemExit: 3; update or uninstall"):
        found.guarded(sys.exit)(3)
    with pytest.raises(KeyboardInterrupt):
        found.guarded(signal.raise_signal)(signal.SIGINT)


def test_nothing_is_found_that_is_not_installed() -> None:
    assert not [row for row in printed_json("doctor --json")["plugins"] if row["package"].startswith("iossim-example")]


def test_all_are_found_by_name(installed: None) -> None:
    assert {"per-unit", "broken-costs", "simulator", "random"} <= set(cost_model_names())
    assert {"example", "broken-backend", "numpy_reference"} <= set(backend_names())
    assert {"example-gpu", "t4"} <= set(device_names())
    assert str(OUTPUTS.plugins()["csv"]) == "plugin 'csv' of iossim-example 1.2 (iossim.outputs)"
    assert "iossim_example" not in sys.modules, "a list imports nothing"


def test_a_cost_model(installed: None) -> None:
    found = printed_json("optimize ios_sample --cost-model per-unit:7 --device t4 --json")
    # a, b and c side by side (or as one convolution), then d, then the concat.
    assert (found["cost_model"]["name"], found["latency_us"]) == ("per-unit", 3 * 7)


def test_an_op_is_found_by_its_kind_and_by_its_onnx_type(installed: None, tmp_path: Path) -> None:
    assert "determinant" in OPS.names()
    assert op_class("determinant").__module__ == "iossim_example.determinant"
    assert op_class("relu").__module__ == "iossim.ir.ops.unary", "iossim's own win"
    with pytest.raises(PluginError, match="is an op of kind 'determinant', whose entry point must have that name"):
        op_class("broken-op")
    with pytest.raises(PluginError, match=r"'miscounted' .* does not work: RuntimeError: the licence server"):
        op_class("miscounted")().work([], [])
    for name in ("function-op", "other-class-op"):
        with pytest.raises(PluginError, match="not a class of Op"):
            op_class(name)
    path = write_onnx(tmp_path / "det.onnx", "y = Det (x)", {"x": [4, 8, 8]}, output={"y": [4]})
    # --strict refuses what is carried as a foreign op.
    assert printed_json(f"optimize {path} --device t4 --strict --json")["latency_us"] > 0


def test_a_scheduler(installed: None) -> None:
    assert scheduler_names()[-2:] == ("pairs", "raising-scheduler")
    found = printed_json("optimize ios_sample --device t4 --scheduler pairs --json")
    assert found["scheduler"] == "pairs"
    assert max(len(stage["groups"]) for block in found["blocks"] for stage in block["stages"]) == 2


@pytest.mark.slow
def test_its_own_tests_hold_it_to_the_contracts(site: Path, tmp_path: Path) -> None:
    """As its author runs them: each part in the conformance class that iossim has for it."""
    shutil.copytree(PROJECT / "tests", tmp_path, dirs_exist_ok=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout


def test_a_command_and_a_device(installed: None, caplog: pytest.LogCaptureFixture) -> None:
    assert printed("hello --name you") == "hello, you\n"
    build_app()
    assert "the licence server is down; update" in caplog.text
    assert device("example-gpu").sm_count == 20
    assert origin("example-gpu") == "iossim-example 1.2"
    found = printed_json("optimize ios_sample --device example-gpu --json")
    assert found["device"] == "example-gpu"
    assert printed("devices validate example-gpu") == "example-gpu: plausible\n"


def test_a_backend_runs_plans(installed: None) -> None:
    network = random_network(3)
    backend = create_backend("example")
    assert backend.context.backend == "example"
    assert (missing_for("example"), offers_of("example")) == ("", ["every op, in NumPy"])
    plan = lower_schedule(schedule(network, api.cost_model("random:1"), "greedy"), network, in_place=True)
    inputs = random_inputs(network)
    found = backend.execute(network, plan, inputs)
    for name, expected in evaluate_graph(network.graph, inputs).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6)


def test_an_output_format(installed: None, tmp_path: Path) -> None:
    printed(f"optimize ios_sample --device t4 --out {tmp_path} --no-plot --no-trace")
    printed(f"schedules export {tmp_path}/schedule.json --format csv --out {tmp_path}/stages.csv")
    blocks = json.loads((tmp_path / "schedule.json").read_text())["blocks"]
    stages = [stage for block in blocks for stage in block["stages"]]
    lines = (tmp_path / "stages.csv").read_text().splitlines()
    assert len(lines) == 1 + len(stages)
    assert lines[1].startswith(f"{stages[0]['strategy']},")


def test_a_set_of_rules(installed: None) -> None:
    (rule,) = rule_set("example-rules")
    assert rule.name == "double-relu"
    rows = {row["name"]: row for row in printed_json("rules list --json")}
    assert rows["example-rules"] == {"name": "example-rules", "rules": 1, "of": ["relu"], "from": "iossim-example 1.2"}
    assert {"broken-rules", "no-rules"}.isdisjoint(rows)
    assert printed("rules show example-rules").startswith("double-relu:\n")


OPTIMIZE = "optimize ios_sample --device t4"


@pytest.mark.parametrize(("line", "words"), CASES["commands"])
def test_what_is_broken_is_one_line_where_it_is_asked_for(installed: None, line: str, words: str, relus: Path) -> None:
    assert words in refused(line.format(relus=relus))


def test_a_broken_scheduler_is_left_out_of_a_comparison(installed: None, caplog: pytest.LogCaptureFixture) -> None:
    names = [row["scheduler"] for row in printed_json("compare ios_sample --device t4 --json")["schedules"]]
    assert names == ["sequential", "greedy", "ios-merge", "ios-parallel", "ios-both", "pairs"]
    hasty, raising = sorted(caplog.messages)
    assert raising.startswith("warning: scheduler 'raising-scheduler' is left out: plugin 'raising-scheduler' of ")
    assert "'hasty-scheduler' is left out: " in hasty
    assert "returned no schedule of ios_sample: block 'sample': unit 'a' is in no stage" in hasty
    assert "licence" in refused("compare ios_sample --device t4 --schedulers raising-scheduler")


def test_schedulers_whose_stages_a_plugin_cannot_price_are_left_out_of_a_comparison(
    installed: None, caplog: pytest.LogCaptureFixture
) -> None:
    asked = "compare ios_sample --device t4 --cost-model merging-costs --json --schedulers"
    names = [row["scheduler"] for row in printed_json(f"{asked} sequential,ios-merge,ios-parallel")["schedules"]]
    assert names == ["sequential", "ios-parallel"]
    (said,) = caplog.messages
    assert said.startswith("warning: scheduler 'ios-merge' is left out: plugin 'merging-costs' of ")
    assert "ZeroDivisionError" in refused(f"{asked} ios-merge,ios-both")
    prices = api.cost_model("merging-costs")
    assert pickle.loads(pickle.dumps(prices)) == prices


def test_a_broken_output_writes_nothing(installed: None, tmp_path: Path) -> None:
    printed(f"optimize ios_sample --device t4 --out {tmp_path} --no-plot --no-trace")
    out = tmp_path / "file.txt"
    words = refused(f"schedules export {tmp_path}/schedule.json --format broken-output --out {out}")
    assert "'broken-output' of iossim-example 1.2 (iossim.outputs) returns int, not text" in words
    assert not out.exists()


def test_doctor_names_each_problem(installed: None) -> None:
    rows = [row for row in printed_json("doctor --json")["plugins"] if row["package"] == "iossim-example 1.2"]
    problems = {row["name"]: row["problem"] for row in rows}
    works = {name for name, problem in problems.items() if problem is None}
    # Those are broken only once they are called.
    works -= {"raising-costs", "raising-scheduler", "broken-output", "broken-command", "misnamed-costs", "no-costs"}
    works -= {"merging-costs", "miscounted"}
    assert " ".join(sorted(works)) == (
        "csv determinant example example-gpu example-rules hasty-scheduler hello no-double-relu pairs per-unit "
        "short-costs"
    )
    for name, words in (
        ("simulator", "is not used: iossim has 'simulator' itself"),
        ("relu", "is not used: iossim has 'relu' itself"),
        ("broken-op", "is an op of kind 'determinant'"),
        ("broken-pass", "iossim_example.broken:profile is function, not a GraphPass"),
        ("broken-costs", "not_there"),
        ("broken-rules", "line 2: rule 'a'"),
        ("broken-gpu", "broken-gpu"),
        ("broken-backend", "not a module with create and missing"),
    ):
        assert words in problems[name]
    text = printed("doctor")
    for row in rows:
        assert f"{row['name']}" in text
        assert "\n" not in (row["problem"] or "")
    assert printed_json(f"{OPTIMIZE} --json")["cost_model"]["name"] == "simulator"


def test_of_two_packages_with_one_name_the_first_counts(
    installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "aaa-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: aaa\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[iossim.outputs]\ncsv = iossim_example.outputs:csv\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    chosen = OUTPUTS.plugins()["csv"]
    assert chosen.package == "aaa 1.0"
    told = [problem for each, problem in OUTPUTS.states() if each.name == "csv" and each is not chosen]
    assert told == ["plugin 'csv' of iossim-example 1.2 (iossim.outputs) is not used: aaa 1.0 has the same name"]


def test_a_broken_device_is_left_out_of_the_list_with_a_warning(site: Path) -> None:
    """In a process of its own, as a user's: standard output is the list alone, standard error that one line."""
    run = subprocess.run(
        [sys.executable, "-m", "iossim", "devices", "list", "--json"],
        env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    names = {row["name"] for row in json.loads(run.stdout)}
    assert names & {"broken-gpu", "example-gpu", "t4"} == {"example-gpu", "t4"}
    assert run.stderr.count("\n") == 1
    assert run.stderr.startswith("warning: device profile of plugin 'broken-gpu' of iossim-example 1.2")


@pytest.fixture
def relus(tmp_path: Path) -> Path:
    """An ONNX file of three ReLUs in a row."""
    nodes = "a = Relu (x); b = Relu (a); y = Relu (b)"
    return write_onnx(tmp_path / "relus.onnx", nodes, {"x": [1, 4, 8, 8]}, output={"y": [1, 4, 8, 8]})


def test_a_pass_rewrites_a_file_and_is_kept_in_the_schedule(installed: None, relus: Path, tmp_path: Path) -> None:
    def units(schedule: Any) -> int:
        stages = [stage for block in schedule["blocks"] for stage in block["stages"]]
        return sum(len(group) for stage in stages for group in stage["groups"])

    line = f"optimize {relus} --device t4 --units none"
    assert units(printed_json(f"{line} --json")) == 3
    printed(f"{line} --pass no-double-relu --out {tmp_path}/out --no-plot --no-trace")
    found = json.loads((tmp_path / "out" / "schedule.json").read_text())
    assert units(found) == 1
    assert found["source"]["options"]["passes"] == "no-double-relu"
    assert printed_json(f"simulate {tmp_path}/out/schedule.json --json")["latency_us"] == found["latency_us"]
