"""Single costs by ``gpu_report``: each has the value that the double of CUDA gives it; and what it gives its time to inside
a section: baselines in one call, the graph engine first and most.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from host_device import KERNEL_US, HostDriver
from host_library import HostLibrary

from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend
from iossim.backends.cupy_cudnn.cudnn_graphs import EnginePlan
from iossim.backends.cupy_cudnn.options import CudnnOptions
from iossim.execution.backend import Context, Samples, create_backend
from iossim.execution.engine import Engine
from iossim.ir.types import Precision

#: What the double's host takes for a call, by its verb.
ISSUE_US = {"launch": 3.0, "launch_graph": 8.0, "convolution": 11.0, "record": 1.5, "wait": 0.5, "synchronize": 2.0}


@pytest.fixture
def costs() -> ModuleType:
    return import_module("gpu_report_costs")


def double() -> CupyCudnnBackend:
    driver = HostDriver(issue_us=lambda verb: ISSUE_US.get(verb, 0.0))
    library = HostLibrary(driver, lambda _: {EnginePlan("eng0", 0): 40.0})
    return CupyCudnnBackend(Precision.FP32, Engine.GRAPH, CudnnOptions(), driver, library)


@pytest.fixture
def recorded(costs: ModuleType, new_job: Any, records: Any) -> Callable[[Any], list[dict[str, Any]]]:
    def run(backend: Any) -> list[dict[str, Any]]:
        job = new_job("costs", 600.0, _backends={"graph": backend})
        costs.section_costs(job)
        assert job.remark == ""
        return list(records())

    return run


def test_every_cost_is_a_record_with_the_value_that_the_device_gives_it(costs: ModuleType, recorded: Any) -> None:
    rows = recorded(double())
    assert {row.pop("record") for row in rows} == {"cost"}
    found = {row.pop("of"): row for row in rows}
    assert found["graph: empty"]["us"] == pytest.approx(0.0, abs=1e-6)
    for of in ("graph: chain", "stream: chain"):
        assert found[of]["each_us"] == pytest.approx(KERNEL_US)
        assert found[of]["start_us"] == pytest.approx(0.0, abs=1e-6)
        assert found[of]["times_us"]["512"] == pytest.approx(512 * KERNEL_US)
    # Branches run side by side there, and forking them is free.
    forks = found["graph: fork and join"]["beyond_a_chain"]
    assert {fork["branches"] for fork in forks} == {2, 3, 4, 6, 8}
    assert [fork["us"] for fork in forks] == pytest.approx([0.0] * len(forks), abs=1e-6)
    hosts = {of: row["us"] for of, row in found.items() if of.startswith("host: ")}
    assert hosts == {
        "host: kernel launch": pytest.approx(ISSUE_US["launch"]),
        "host: library call": pytest.approx(ISSUE_US["convolution"]),
        "host: graph launch": pytest.approx(ISSUE_US["launch_graph"]),
        "host: event record": pytest.approx(ISSUE_US["record"]),
        "host: event wait": pytest.approx(ISSUE_US["wait"]),
        "host: synchronise": pytest.approx(ISSUE_US["synchronize"]),
        # The kernel begins when it was issued, and ends in the time that the host takes to ask for that.
        "host: launch and synchronise": pytest.approx(ISSUE_US["launch"] + max(KERNEL_US, ISSUE_US["synchronize"])),
    }
    assert all(found[of]["issued_from"] == "Python" for of in hosts)
    placement = found["placement"]  # the double has four multiprocessors, in turn
    assert placement["multiprocessors"] == 4
    assert placement["sms"]["alone"]["5"] == [0, 1, 2, 3, 0]
    assert placement["sms"]["beside"]["2"] == [[0, 1], [0, 1]]
    assert placement["shared"] == {"1": 1, "2": 2, "4": 4, "5": 4, "8": 4}
    copies = {row["bytes"]: row["gbps"] for of, row in found.items() if of.startswith("copy: ")}
    assert copies == {size: pytest.approx(2 * size / KERNEL_US / 1e3) for size in (1024, 4096, 32768)}
    flops = costs.PEAK_BLOCKS * 4 * 256 * costs.DRY_STEPS * 16
    assert found["fp32 peak"]["tflops"] == pytest.approx(flops / KERNEL_US / 1e6)


def test_forked_chains_wait_for_each_other(costs: ModuleType) -> None:
    """Where chains run one after the other, four of them take three depths more than one."""
    from gpu_report_probe import Probe

    class OneByOne(HostDriver):
        def end_capture(self, stream: Any) -> Any:
            graph = super().end_capture(stream)
            for before, node in zip(graph.nodes, graph.nodes[1:], strict=False):
                node.after.add(before)
            return graph

    driver = OneByOne()
    backend = CupyCudnnBackend(Precision.FP32, Engine.GRAPH, CudnnOptions(), driver, HostLibrary(driver))
    probe = Probe(driver, backend.library, backend.lane, 2)
    assert probe.fork_and_join_us(4, 5) == pytest.approx(3 * 5 * KERNEL_US)
    assert probe.fork_and_join_us(2, 1) == pytest.approx(KERNEL_US)


def test_a_copy_copies_and_the_peak_is_of_what_is_computed(costs: ModuleType) -> None:
    from gpu_report_kernels import COPY, MULTIPLY_ADD
    from host_kernels import host_kernel

    source, target = np.arange(3000, dtype=np.float32), np.zeros(3001, np.float32)
    arguments = (np.uint32(3000), np.uint64(source.ctypes.data), np.uint64(target.ctypes.data))
    host_kernel(COPY, "copy")(3, 256, arguments)
    np.testing.assert_array_equal(target, [*source, 0])
    assert MULTIPLY_ADD.count("* x + y") * 2 == 16
    kept = np.zeros(1, np.float32)
    host_kernel(MULTIPLY_ADD, "multiply_add")(1, 8, (np.int32(4), np.uint64(kept.ctypes.data)))
    assert kept[0] == 0


def test_a_backend_without_a_driver_has_no_costs(recorded: Any) -> None:
    (row,) = recorded(create_backend("numpy_reference", engine=Engine.GRAPH))
    assert row["record"] == "skipped"
    assert row["reason"] == "backend numpy_reference runs on no driver of CUDA"


def test_times_of_the_paper_engine_say_that_python_issues_its_calls(recorded: Any, tmp_path: Path) -> None:
    from gpu_report_summary import summary

    recorded(double())
    run = {"model": "m", "batch": 1, "backend": "b", "name": "greedy", "dtype": "fp32"}
    run |= {"median_us": 2e3, "p10_us": 1e3, "p90_us": 3e3}
    rows = [run | {"engine": engine} for engine in ("graph", "paper")]
    (tmp_path / "networks.jsonl").write_text(json.dumps(rows[0]) + "\n")
    assert not [line for line in summary(tmp_path) if "Python's wrappers" in line]
    (tmp_path / "networks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (said,) = (line for line in summary(tmp_path) if "Python's wrappers" in line)
    assert said.startswith("paper: the host issues each call through Python's wrappers")
    assert said.endswith("an engine in C++ takes less (here a launch 3.0 us, a library call 11.0 us)")


@pytest.fixture
def job(new_job: Any) -> Callable[..., Any]:
    return lambda section, dry=False: new_job(section, 1000.0, ("ios_sample", "squeezenet"), dry)


@pytest.mark.torch
def test_a_module_is_measured_once_and_told_beside_pytorch(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that ended the section is not begun again."""
    pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")
    import gpu_report_modules
    from gpu_report_records import read_records
    from gpu_report_summary import summary

    monkeypatch.setattr(gpu_report_modules, "measured", lambda *_: {"iossim": 2000.0, "torch-eager": 3000.0})
    for _ in range(2):
        given = job("modules", dry=True)
        gpu_report_modules.section_modules(given)
        assert given.remark == ""
    records = [row["record"] for row in read_records(tmp_path / "report.jsonl")]
    assert records == ["module-begun", "module"]
    _, line, mean = summary(tmp_path)
    assert line.split() == ["two_branches", "1", "2.000", "3.000", "1.50", "iossim.torch.compile;", "torch-eager"]
    assert mean.split() == ["geometric", "mean,", "batch", "1", "1.50"]


@pytest.mark.torch
def test_baselines_that_share_what_is_compiled_are_measured_in_one_call(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")
    import gpu_report_baselines

    from iossim.backends.torch_cuda import backend, baselines

    calls: list[tuple[str, ...]] = []

    def measure(network: object, names: Sequence[str], *rest: object) -> dict[str, Samples]:
        calls.append(tuple(names))
        return {name: Samples((1.0, 2.0, 3.0)) for name in names}

    context = Context("torch_cuda", "h100-sxm", "fp32", "paper")
    monkeypatch.setattr(backend, "missing", lambda: "")
    monkeypatch.setattr(backend, "create", lambda *given: SimpleNamespace(context=context))
    monkeypatch.setattr(baselines, "measure_baselines", measure)
    monkeypatch.setattr(baselines, "baseline_names", lambda device=None: list(baselines.BASELINES))
    together = (gpu_report_baselines.COMPILED, gpu_report_baselines.AUTOTUNED)
    for names in together:
        given = job("compile/ios_sample")
        gpu_report_baselines.section_compile(given, "ios_sample", names)
        assert given.remark == ""
    assert calls == [("torch-compile", "torch-compile-cuda-graph"), ("torch-max-autotune",)]
    calls.clear()
    short = job("autotune/ios_sample")
    short.end_s = time.monotonic() + gpu_report_baselines.AUTOTUNE_S - 1
    for names in together:
        gpu_report_baselines.section_compile(short, "ios_sample", names)
    assert calls == [("torch-compile", "torch-compile-cuda-graph")]
    (left,) = short.left
    assert left.startswith("torch-max-autotune of ios_sample: of 120 s 11")
    calls.clear()
    gpu_report_baselines.section_baselines(job("baselines"))
    assert calls == [("torch-eager", "torch-cuda-graph")] * 2
    rows = [json.loads(line) for line in (tmp_path / "networks.jsonl").read_text().splitlines()[1:]]
    assert {row["name"] for row in rows if row["model"] == "ios_sample"} == set(baselines.BASELINES)


def test_max_autotune_has_a_limit_of_its_own() -> None:
    """However much is left, and whatever it does: the process of a section is ended."""
    from gpu_report_plan import MOST_S, time_for

    assert time_for("autotune/inception_v3@bf16", [], 3600.0) == MOST_S["autotune"] == 240
    assert time_for("compile/inception_v3@bf16", [], 3600.0) == 3600
    assert time_for("autotune/inception_v3", ["prediction"], 100.0) == 100


def test_one_table_says_how_the_best_of_iossim_compares_with_the_best_of_pytorch() -> None:
    from gpu_report_summary import best_beside_pytorch

    def run(model: str, name: str, us: float, right: bool = True) -> tuple[Any, dict[str, Any]]:
        backend = "torch_cuda" if name.startswith("torch-") else "cupy_cudnn"
        return (model, 1, "graph", backend, name), {"median_us": us, "outputs_right": right}

    pytorch = [
        run("a", "torch-eager", 900.0),
        run("a", "torch-compile-cuda-graph", 400.0),
        run("b", "torch-eager", 50.0),
    ]
    iossim = [run("a", "sequential", 300.0), run("a", "ios-both", 200.0), run("a", "greedy", 10.0, right=False)]
    assert best_beside_pytorch(dict([*iossim, run("b", "sequential", 1.0, right=False)])) == []
    _, a, mean = best_beside_pytorch(dict([*pytorch, *iossim]))
    assert a.split()[:5] == ["a", "1", "0.200", "0.400", "2.00"]
    assert a.endswith("  cupy_cudnn ios-both, graph; torch-compile-cuda-graph")
    assert mean.split() == ["geometric", "mean", "2.00"]
    *_, b, mean = best_beside_pytorch(dict([*pytorch, *iossim, run("b", "sequential", 100.0)]))
    assert b.split()[:5] == ["b", "1", "0.100", "0.050", "0.50"]
    assert mean.split()[-1] == "1.00"


def test_the_graph_engine_gets_three_quarters_of_a_profile_and_warm_comes_before_cold(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gpu_report_profile

    asked: list[tuple[bool, str, float]] = []
    now_s = 0.0

    def profile(
        job: Any, item: str, store: object, network: object, model: str, engine: str, cold: bool, seconds: float
    ) -> None:
        nonlocal now_s
        asked.append((cold, engine, seconds))
        now_s += seconds  # all that it is given

    given = job("profile", dry=True)
    begin_s = given.end_s - 1000
    clock = SimpleNamespace(monotonic=lambda: begin_s + now_s)
    monkeypatch.setattr(sys.modules["gpu_report_job"], "time", clock)
    monkeypatch.setattr(gpu_report_profile, "_profile", profile)
    gpu_report_profile.section_profile(given)
    expected = [(cold, engine) for cold in (False, True) for engine in ("graph", "paper") for _ in given.models]
    assert [(cold, engine) for cold, engine, _ in asked] == expected
    for cold in (False, True):
        seconds = {
            engine: sum(one for was_cold, used, one in asked if (was_cold, used) == (cold, engine))
            for engine in ("graph", "paper")
        }
        assert seconds["graph"] == pytest.approx(3 * seconds["paper"])
        assert sum(seconds.values()) == pytest.approx(500)


def test_what_needs_no_search_is_kept_before_one_begins_and_a_late_one_does_not(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gpu_report_networks

    told: list[str] = []

    def run(job: Any, model: str, network: object, prices: Any, schedules: dict[str, object], *seen: object) -> Any:
        told.append(f"{prices} {' '.join(schedules)}")
        return {}, {}

    monkeypatch.setattr(gpu_report_networks, "_search", lambda job, network, prices, seconds: told.append("search"))
    monkeypatch.setattr(gpu_report_networks, "measuring", lambda job, engine, store: engine)
    monkeypatch.setattr(gpu_report_networks, "_run_schedules", run)
    gpu_report_networks.section_network(job("networks/ios_sample", dry=True), "ios_sample")
    assert told == [
        said
        for engine in ("graph", "paper")
        for said in (f"{engine} sequential greedy", "search", f"{engine} sequential greedy ios-both")
    ]
    told.clear()
    late = job("networks/ios_sample", dry=True)
    late.end_s = time.monotonic() + 5
    gpu_report_networks.section_network(late, "ios_sample")
    assert told == ["graph sequential greedy", "paper sequential greedy"]
    assert late.left == ["search of ios_sample, graph engine", "search of ios_sample, paper engine"]


def test_a_search_ends_with_its_section_and_measures_its_first_schedule_all_the_same(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gpu_report_networks

    from iossim import api

    interrupted = []

    def optimize(network: object, device: str, **given: Any) -> str:
        prices = given["cost_model"]
        for _ in range(3):
            try:
                prices.progress(1, 2)
            except KeyboardInterrupt:
                interrupted.append(True)
        return "found"

    monkeypatch.setattr(api, "optimize", optimize)
    context = SimpleNamespace(device="h100-sxm", engine="graph")
    prices = SimpleNamespace(context=context, progress=None)
    given = job("networks/ios_sample")
    assert gpu_report_networks._search(given, None, prices, seconds=-1.0) == "found"
    assert interrupted == [True]
