"""Engines by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import printed

import iossim
from iossim.base.errors import OptionError
from iossim.execution.backends import backend_from, create_backend
from iossim.execution.engine import AUTO, Engine
from iossim.hardware.load import device as load_device

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("engine", Engine)
def test_names(engine: Engine) -> None:
    assert Engine.named(engine.value) is engine


@pytest.mark.parametrize("name", ["", "graphs", "Paper"])
def test_unknown_names(name: str) -> None:
    with pytest.raises(
        OptionError, match=rf"unknown engine '{name}'; .*known: auto, graph, onnxruntime, paper, partition"
    ):
        Engine.named(name)


@pytest.mark.parametrize("name", ["onnxruntime_cpu", "torch_cuda"])
def test_backends_that_cannot_divide_a_device_say_so_before_what_else_they_lack(name: str) -> None:
    with pytest.raises(OptionError, match=r"cannot run `engine` partition; give paper or graph$"):
        create_backend(name, engine=Engine.PARTITION)


def test_the_reference_computes_the_values_of_a_divided_plan() -> None:
    assert create_backend("numpy_reference", engine=Engine.PARTITION).context.engine == "partition"


@pytest.mark.parametrize(
    ("name", "engine"),
    [("v100-sxm2", "paper"), ("t4", "paper"), ("k80", "paper"), ("a30", "graph"), ("l4", "graph"), ("h100-sxm", "graph"),
     ("rtx-5090", "graph"), ("examples/cpu.yaml", "paper")],
)  # fmt: skip
def test_auto_is_one_graph_from_ampere_on_for_functions_and_commands(name: str, engine: str) -> None:
    device = load_device(str(ROOT / name) if "/" in name else name)
    assert Engine.named(AUTO, device) == engine
    network = iossim.load("ios_sample")
    found = iossim.optimize(network, device)
    assert found.engine == engine
    assert found.latency_us == iossim.optimize(network, device, engine=engine).latency_us
    compared = iossim.compare(network, device, schedulers=["sequential"])
    assert compared.engine == compared.to_json()["engine"] == engine
    assert f"{engine} engine" in compared.title
    assert iossim.predict("ios_sample", device).engine == engine
    assert iossim.simulate(found, device, engine=AUTO).latency_us == iossim.simulate(found, device).latency_us


def test_commands_say_which_engine_auto_is(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("optimize", "compare", "predict"):
        for name, engine in (("t4", "paper"), ("l4", "graph")):
            text = printed(capsys, f"{command} ios_sample -d {name}")
            assert f"{engine} engine" in text.splitlines()[0]


def test_auto_without_a_device_is_the_engine_of_the_paper() -> None:
    assert Engine.named(AUTO) is Engine.PAPER
    assert backend_from("numpy_reference", engine=AUTO).context.engine == "paper"
    assert iossim.optimize("ios_sample", None, cost_model="random:1").engine == ""


@pytest.mark.parametrize(("name", "engine"), [("v100-sxm2", "paper"), ("h100-sxm", "graph")])
def test_a_backend_chooses_for_the_device_that_it_finds(name: str, engine: str) -> None:
    assert backend_from("simulator", engine=AUTO, device=name).context.engine == engine


def test_facts_say_what_stands_between_stages() -> None:
    assert [engine for engine in Engine if engine.synchronises] == [Engine.PAPER]
    assert [engine for engine in Engine if not engine.has_barriers] == [Engine.ONNXRUNTIME]
    assert [engine for engine in Engine if engine.is_recorded] == [Engine.GRAPH, Engine.PARTITION]
    assert [engine for engine in Engine if engine.facts.divides_sms] == [Engine.PARTITION]
    assert [engine for engine in Engine if engine.facts.runs_on_devices] == [Engine.PAPER, Engine.GRAPH]
