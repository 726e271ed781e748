"""What ``gpu_report`` gives its time to inside a section: baselines in one call, the graph engine first and most."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from iossim.execution.backend import Context, Samples

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in [name for name in sys.modules if name.startswith("gpu_report")]:
        del sys.modules[name]


def job(out: Path, section: str, dry: bool = False) -> Any:
    from gpu_report_job import Job

    return Job(section, out, time.monotonic() + 1000, ("ios_sample", "squeezenet"), "", "", dry)


@pytest.mark.torch
def test_baselines_that_share_what_is_compiled_are_measured_in_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    given = job(tmp_path, "compile/ios_sample")
    gpu_report_baselines.section_compile(given, "ios_sample")
    assert given.remark == ""
    assert calls == [("torch-compile", "torch-compile-cuda-graph"), ("torch-max-autotune",)]
    calls.clear()
    gpu_report_baselines.section_baselines(job(tmp_path, "baselines"))
    assert calls == [("torch-eager", "torch-cuda-graph")] * 2
    rows = [json.loads(line) for line in (tmp_path / "networks.jsonl").read_text().splitlines()[1:]]
    assert {row["name"] for row in rows if row["model"] == "ios_sample"} == set(baselines.BASELINES)


def test_small_networks_are_compiled_first() -> None:
    from gpu_report_plan import MODELS, section_names

    names = [name for name in section_names(MODELS) if name.startswith("compile/")]
    assert names == [f"compile/{model}" for model in ("squeezenet", "inception_v3", "randwire", "nasnet_a")]


def test_the_graph_engine_gets_three_quarters_of_a_profile_and_warm_comes_before_cold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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

    given = job(tmp_path, "profile", dry=True)
    begin_s = given.end_s - 1000
    clock = SimpleNamespace(monotonic=lambda: begin_s + now_s)
    monkeypatch.setattr(sys.modules["gpu_report_job"], "time", clock)
    monkeypatch.setattr(gpu_report_profile, "_profile", profile)
    gpu_report_profile.section_profile(given)
    assert [(cold, engine) for cold, engine, _ in asked] == [
        (cold, engine) for cold in (False, True) for engine in ("graph", "paper") for _ in given.models
    ]
    for cold in (False, True):
        seconds = {
            engine: sum(one for was_cold, used, one in asked if (was_cold, used) == (cold, engine))
            for engine in ("graph", "paper")
        }
        assert seconds["graph"] == pytest.approx(3 * seconds["paper"])
        assert sum(seconds.values()) == pytest.approx(500)


def test_a_search_on_the_graph_engine_gets_three_quarters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gpu_report_networks

    asked: dict[str, float] = {}

    def search(job: Any, network: object, prices: Any, seconds: float) -> None:
        asked[prices] = seconds

    monkeypatch.setattr(gpu_report_networks, "_search", search)
    monkeypatch.setattr(gpu_report_networks, "measuring", lambda job, engine, store: engine)
    monkeypatch.setattr(gpu_report_networks, "_run_schedules", lambda *given: None)
    gpu_report_networks.section_network(job(tmp_path, "networks/ios_sample", dry=True), "ios_sample")
    assert asked["graph"] == pytest.approx(3 * asked["paper"])
    assert asked["graph"] + asked["paper"] == pytest.approx(500, rel=0.05)
