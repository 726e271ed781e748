"""``gpu_report`` from end to end on the double of CUDA, healthy and with each fault: what it records, and how it ends."""

import json
import shutil
import tarfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import pytest
from graph_builders import builder_with
from small_networks import branches

from iossim.calibration.evaluated_networks import evaluate_all
from iossim.execution.engine import UNDIVIDED
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Relu
from iossim.measurements.measured_networks import NetworkRun, read_measured_networks
from iossim.measurements.measurement_set import read_measurements
from iossim.models.onnx.export import export_graph

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = "profile,networks,prediction"
NAMES = {"sequential", "greedy", "ios-both"}


@pytest.fixture
def gpu_report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module; its sections find the double."""
    places = [str(ROOT / "tests" / "benchmarks" / "cuda_double"), str(ROOT / "tests" / "support")]
    monkeypatch.setenv("PYTHONPATH", ":".join(places))
    return import_module("gpu_report")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three branches of few channels, then two: small enough for NumPy to be the GPU."""
    builder, x = builder_with("branches", x=(1, 4, 6, 6))
    for block in range(2):
        branches = [
            builder.add(Relu(), builder.conv(x, 4, kernel=size, padding=size // 2, name=f"{block}conv{size}"))
            for size in (1, 3, 5)[block:]
        ]
        x = builder.add(Concat(1), *branches)
    path = tmp_path_factory.mktemp("model") / "branches.onnx"
    onnx.save(export_graph(builder.network([x]).graph), path)
    return str(path)


@pytest.fixture
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same folder for each test, emptied: compiled code is kept under its path."""
    folder = tmp_path_factory.getbasetemp() / "gpu_report"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def report(gpu_report: ModuleType, monkeypatch: pytest.MonkeyPatch, out: Path, model: str) -> Run:
    """Runs sections on the double; outcomes by section, without the model's name."""

    def run(
        fault: str,
        sections: str = SECTIONS,
        budget: float = 600.0,
        dry: bool = True,
        dtypes: str = "fp32",
        models: str = model,
    ) -> dict[str, tuple[str, str]]:
        monkeypatch.setenv("CUDA_DOUBLE", fault)
        monkeypatch.setenv("PYTHONPYCACHEPREFIX", "")  # what Python compiled is there, not to be made by each section
        given = [*(["--dry-run"] if dry else []), "--backend", "cupy_cudnn", "--models", models, "--out", str(out)]
        given += ["--dtypes", dtypes]
        code = gpu_report.report(gpu_report.parse([*given, "--sections", sections, "--budget", str(budget)]))
        found = {
            row["section"].partition("/")[0]: (row["outcome"], row.get("error", "")) for row in records(out, "section")
        }
        assert (code == 0) == all(outcome == "done" for outcome, _ in found.values())
        return found

    return run


def records(out: Path, kind: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (out / "report.jsonl").read_text().splitlines()]
    return [row for row in rows if row["record"] == kind]


def runs(out: Path) -> dict[tuple[str, str], NetworkRun]:
    return {(run.engine, run.name): run for run in read_measured_networks(out / "networks.jsonl").runs}


def test_a_healthy_device_is_measured_and_plans_are_made_once(
    report: Run, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report("none") == dict.fromkeys(("profile", "networks", "prediction"), ("done", ""))
    found = runs(out)
    assert set(found) == {(engine, name) for engine in ("graph", "paper") for name in NAMES}
    assert all(run.outputs_right and run.output_error is not None and run.output_error < 1e-4 for run in found.values())
    assert all(run.stages_warm_us and run.stages_cold_us for run in found.values())
    assert read_measured_networks(out / "networks.jsonl").header.device == "h100-sxm"
    for file in ("graph", "paper", "graph-cold", "paper-cold"):
        assert len(read_measurements(out / f"operators-{file}.jsonl").measurements) == 5
    (networks,) = (row for row in records(out, "prediction") if row["of"] == "networks")
    assert networks["rows"] == 6
    counts = {(row["section"].partition("/")[0], row["engine"]): row for row in records(out, "counts")}
    assert set(counts) == {(section, engine) for section in ("profile", "networks") for engine in ("graph", "paper")}
    # The first to ask times; the other engine, and later sections, recall.
    first = counts["profile", "graph"]
    assert first["chosen_by_timing"] == first["convolutions"] > 0
    assert first["refused"] > 0
    assert "CUDNN_STATUS_NOT_SUPPORTED" in first["first_refusal"]
    for where, row in counts.items():
        if where != ("profile", "graph"):
            assert row["recalled"] > 0
            assert row["chosen_by_timing"] <= 4  # of the boundary, and merged ones that the search asks for
        # What is recalled is built by itself; what is timed by the first few of each kind, here all three.
        assert row["plans_built"] <= row["recalled"] + 6 * row["chosen_by_timing"]
    assert counts["networks", "paper"]["candidates_timed"] == 0
    printed = capsys.readouterr().out
    assert printed.count('"plans_built"') == 4


def test_what_is_worth_most_comes_first_and_comes_back_as_one_file(report: Run, out: Path) -> None:
    """A convolution in each way, costs, and a network on the graph engine, kept before a profile is begun."""
    assert report("none", "first,costs,graph") == dict.fromkeys(("first", "costs", "graph"), ("done", ""))
    ways = [(row["engine"], row["way"], row["right"]) for row in records(out, "convolution")]
    assert ways == [(engine, way, True) for engine in ("graph", "paper") for way in ("fused", "apart")]
    (device,) = records(out, "device")
    assert device["machine"]["usable_cores"] > 0
    assert len(records(out, "cost")) > 12
    kept = runs(out)
    assert set(kept) == {("graph", "sequential"), ("graph", "greedy")}
    assert all(run.outputs_right and run.output_error is not None for run in kept.values())
    with tarfile.open(out / "results.tar.gz") as archive:
        names = archive.getnames()
    assert {"report.jsonl", "networks.jsonl", "log.txt", "choices.json"} <= set(names)
    assert not [name for name in names if name.startswith((".", "caches"))]


def test_a_convolution_that_is_wrong_where_it_is_captured_is_seen_in_the_first_section(report: Run, out: Path) -> None:
    outcome, said = report("nan", "first")["first"]
    assert outcome == "partial"
    assert said.startswith("2 failed, the first: conv, ")
    assert "graph engine: outputs are wrong by inf" in said
    found = {(row["engine"], row["way"]): row["right"] for row in records(out, "convolution")}
    assert found == {(engine, way): engine == "paper" for engine in ("graph", "paper") for way in ("fused", "apart")}


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_what_is_of_16_bits_is_measured_channels_last_and_held_to_its_own_tolerance(
    report: Run, out: Path, dtype: str
) -> None:
    assert report("none", "first,graph", dtypes=dtype) == {"first": ("done", ""), "graph": ("done", "")}
    attentions = [(row["engine"], row["way"], row["right"]) for row in records(out, "attention")]
    assert attentions == [(engine, way, True) for engine in ("graph", "paper") for way in ("fused", "apart")]
    ways = [(row["dtype"], row["layout"], row["way"], row["right"]) for row in records(out, "convolution")]
    assert ways == [(dtype, "nhwc", way, True) for _ in UNDIVIDED for way in ("fused", "apart")]
    assert {(run.dtype, run.outputs_right) for run in runs(out).values()} == {(dtype, True)}
    shutil.rmtree(out)
    outcome, said = report("wrong", "first,graph", dtypes=dtype)["first"]
    assert outcome == "partial"
    assert f"8 failed, the first: conv in {dtype}, " in said
    assert "of the largest value: " in said
    assert " instead of " in said


def test_a_graph_whose_outputs_are_not_those_of_its_calls_has_no_times(report: Run, out: Path) -> None:
    """Of captured graphs alone, so that the paper's engine is right, and what it ran is kept."""
    outcome, said = report("nan@networks", "networks,prediction")["networks"]
    assert outcome == "partial"
    assert "computes other outputs than the same calls one by one" in said
    kept = runs(out)
    assert set(kept) == {("paper", name) for name in NAMES}
    assert all(run.outputs_right for run in kept.values())
    (prediction,) = (row for row in records(out, "prediction") if row["of"] == "networks")
    assert prediction["rows"] == 3
    # Mended, the section is done again.
    assert report("none", "networks")["networks"] == ("done", "")
    assert len(runs(out)) == 6


def test_wrong_outputs_are_flagged_and_left_out(report: Run, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of graphs and calls alike, so that only the reference tells."""
    outcome, said = report("wrong@networks", "networks,prediction")["networks"]
    assert outcome == "partial"
    assert "6 failed, the first: " in said
    assert "outputs are wrong by" in said
    kept = runs(out)
    assert len(kept) == 6  # none is lost
    assert not [run for run in kept.values() if run.outputs_right]
    error = kept["graph", "greedy"].output_error
    assert 0.01 < error < 0.2
    ((evaluation,), notes) = evaluate_all([out])
    assert not evaluation.latencies
    assert len(notes) == 6
    assert capsys.readouterr().out.count("WRONG OUTPUTS") == 6


def test_a_sticky_error_ends_its_section_and_no_other(report: Run, out: Path) -> None:
    found = report("sticky@profile", "profile,networks")
    outcome, said = found["profile"]
    assert outcome == "failed"
    assert "DeviceLostError: the GPU failed: cudaErrorIllegalAddress" in said
    # One item is told of it, and none is tried after it.
    told = [row for row in records(out, "error") if row["section"] == "profile"]
    assert len(told) == 2
    assert told[0]["item"].startswith("profile of ")
    assert told[1]["item"] == "the section"
    assert found["networks"] == ("done", "")
    assert len(runs(out)) == 6
    # What it is not: a plan that cuDNN refuses.
    for row in records(out, "counts"):
        assert "IllegalAddress" not in row["first_refusal"]
    # The same command again does what is not done.
    assert report("none", "profile")["profile"] == ("done", "")


def test_a_section_that_hangs_is_ended_and_what_it_measured_is_kept(
    report: Run, out: Path, gpu_report: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_report, "GRACE_S", 1.0)
    monkeypatch.setitem(gpu_report.SHARES, "profile", 40)
    monkeypatch.setitem(gpu_report.SHARES, "networks", 300)
    found = report("hang@profile", "profile,networks", budget=300.0)
    outcome, said = found["profile"]
    assert outcome == "killed"
    assert "not at its end" in said
    assert found["networks"] == ("done", "")
    assert len(json.loads((out / "choices.json").read_text())["places"][0]["choices"]) > 0


def test_kernels_chosen_for_their_company_run_beside_the_fastest(
    report: Run, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a device whose fastest kernels fill it, so that those of fewer blocks are faster side by side."""
    path = tmp_path / "fire.onnx"
    onnx.save(export_graph(branches().graph), path)
    assert report("none", "company", dtypes="bf16", models=str(path)) == {"company": ("done", "")}
    (row,) = records(out, "company")
    assert row["device"] == "h100-sxm"
    assert set(row["measured_us"]) == set(row["predicted_us"]) == {"company", "company-fastest"}
    (stage,) = row["stages"]
    assert set(stage["variants"]) <= {unit for group in stage["groups"] for unit in group}
    assert stage["predicted_company_us"] < stage["predicted_fastest_us"]
    assert stage["company_us"] < stage["fastest_us"]
    assert all(run.outputs_right for run in runs(out).values())
    printed = capsys.readouterr().out
    assert "chosen kernels" in printed
    assert f"{stage['fastest_us']:10.1f} {stage['company_us']:10.1f}" in printed


@pytest.mark.parametrize("fault", ["none", "sticky"])
def test_the_gpu_tests_of_the_backends_run_and_no_others(
    report: Run, out: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k 'random_networks or ios_sample or kept'")  # what is small enough for NumPy
    outcome, said = report(fault, "tests", dry=False)["tests"]
    found = records(out, "test")
    ran = [row for row in found if row["outcome"] not in ("skipped", "begun")]
    assert all("tests/backends/cupy_cudnn/test_on_gpu.py" in row["test"] for row in ran)
    if fault == "none":
        assert outcome == "done", said
        assert len(ran) > 24
        assert {row["outcome"] for row in ran} == {"passed"}
        (counted,) = records(out, "tests")
        assert counted["passed"] == len(ran)
    else:  # the first that meets it is the last that ran
        assert outcome == "partial"
        assert "1 failed, the first: tests/backends/cupy_cudnn/test_on_gpu.py" in said
        assert "DeviceLostError: the GPU failed" in said
        assert [row["outcome"] for row in ran].count("failed") == 1
        assert ran[-1]["outcome"] == "failed"
