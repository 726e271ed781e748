"""Single costs by ``gpu_report``: each has the value that the double of CUDA gives it."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from host_device import KERNEL_US, HostDriver
from host_library import HostLibrary

from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend
from iossim.backends.cupy_cudnn.cudnn_graphs import EnginePlan
from iossim.backends.cupy_cudnn.options import CudnnOptions
from iossim.execution.backend import create_backend
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
