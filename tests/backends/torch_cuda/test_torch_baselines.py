"""Baselines of PyTorch: names, what they refuse, and that each is timed; never how fast."""

from __future__ import annotations

import pytest
from random_networks import random_network

from iossim.base.errors import OptionError
from iossim.execution.backend import BackendError, Samples, Timing
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.unary import Relu

pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")

import torch

from iossim.backends.torch_cuda import baselines, program, timing
from iossim.backends.torch_cuda.baselines import BASELINES, baseline_names, measure_baselines
from iossim.backends.torch_cuda.program import input_tensors, torch_module
from iossim.backends.torch_cuda.timing import Run, time_rounds

pytestmark = pytest.mark.torch

TIMING = Timing(rounds=4, warm_up=1)


def tiny_network() -> Network:
    b = GraphBuilder("tiny")
    x = b.input("x", (1, 3, 8, 8))
    with b.block("only"), b.unit("conv", "Conv-Relu"):
        x = b.add(Relu(), b.conv(x, 4, kernel=3, padding=1))
    return b.network([x])


def check(found: dict[str, Samples], names: list[str]) -> None:
    assert list(found) == names
    for name, samples in found.items():
        assert len(samples.times_us) == TIMING.rounds
        assert min(samples.times_us) > 0
        assert samples.conditions["clock"] == ("cuda events" if BASELINES[name].captured else "host")
        assert isinstance(samples.conditions["prepare_s"], float)


def test_only_eager_and_compiled_run_without_cuda() -> None:
    assert baseline_names("cpu") == ["torch-eager", "torch-compile"]
    if torch.cuda.is_available():
        assert baseline_names("cuda") == list(BASELINES)


def test_eager_is_timed() -> None:
    told: list[tuple[int, int]] = []
    found = measure_baselines(random_network(0), ["torch-eager"], TIMING, "cpu", lambda *done: told.append(done))
    check(found, ["torch-eager"])
    assert told[-1] == (5, 5)


@pytest.mark.slow
def test_compiled_is_timed() -> None:
    names = ["torch-eager", "torch-compile"]
    check(measure_baselines(tiny_network(), names, TIMING, "cpu"), names)


def test_compiled_ones_of_one_call_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Max-autotune is another compiler's work, on a module of its own with channels last."""
    compiled: list[tuple[dict[str, object], bool]] = []

    def compile_(module: torch.nn.Module, **options: object) -> torch.nn.Module:
        filters = [tensor for tensor in module.buffers() if tensor.dim() == 4]
        compiled.append((options, all(one.is_contiguous(memory_format=torch.channels_last) for one in filters)))
        return module

    captured: list[str] = []

    def prepared(name: str, module: object, inputs: list[torch.Tensor], capture: bool) -> Run:
        module(*inputs)  # type: ignore[operator]
        captured.extend([name] if capture else [])
        last = all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in inputs)
        assert last is (name == "torch-max-autotune")
        return Run(lambda: None)

    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setattr(timing, "prepared", prepared)
    monkeypatch.setattr(baselines, "usable_device", lambda device: "cuda")
    monkeypatch.setattr(baselines, "baseline_names", lambda device: list(BASELINES))
    monkeypatch.setattr(program, "input_tensors", lambda graph, inputs, place: input_tensors(graph, inputs, "cpu"))
    monkeypatch.setattr(program, "torch_module", lambda graph, place: torch_module(graph, "cpu"))
    monkeypatch.setattr(timing, "time_rounds", lambda runs, *rest: [Samples((1.0,))] * len(runs))
    found = measure_baselines(tiny_network(), list(BASELINES), TIMING, "cuda")
    assert list(found) == list(BASELINES)
    (plain, plain_last), (tuned, tuned_last) = compiled
    assert (plain.get("mode"), plain_last) == (None, False)
    assert (tuned["mode"], tuned_last) == ("max-autotune-no-cudagraphs", True)
    assert captured == ["torch-cuda-graph", "torch-compile-cuda-graph", "torch-max-autotune"]


@pytest.mark.gpu
def test_all_are_timed_on_cuda() -> None:
    check(measure_baselines(tiny_network(), list(BASELINES), TIMING, "cuda"), list(BASELINES))


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(OptionError, match="did you mean 'torch-eager'"):
        measure_baselines(tiny_network(), ["torch-eagr"], TIMING, "cpu")
    with pytest.raises(BackendError, match="needs CUDA"):
        measure_baselines(tiny_network(), ["torch-cuda-graph"], TIMING, "cpu")


def test_a_compiler_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(module: object, **options: object) -> object:
        def run(*inputs: object) -> None:
            raise RuntimeError("no compiler is found\nlong log\nof it")

        return run

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(BackendError, match="torch-compile") as caught:
        measure_baselines(tiny_network(), ["torch-compile"], TIMING, "cpu")
    assert "no compiler is found" in str(caught.value)


def test_each_round_runs_all_in_an_order_of_the_seed() -> None:
    def order(seed: int) -> list[str]:
        ran: list[str] = []
        runs = [Run(lambda name=name: ran.append(name)) for name in "abcde"]
        time_rounds(runs, Timing(rounds=6, warm_up=2, seed=seed), "cpu")
        return ran

    first = order(0)
    assert first[::2] == first[1::2]  # each once untimed, to find its caches warm
    rounds = [first[start : start + 10 : 2] for start in range(0, 80, 10)]
    assert all(sorted(each) == list("abcde") for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1
    assert order(0) == first != order(1)


def test_cold_runs_find_empty_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(timing, "_flush", lambda device: lambda: ran.append("flush"))
    time_rounds([Run(lambda: ran.append("run"))], Timing(rounds=2, warm_up=1, cold=True), "cpu")
    assert ran == ["flush", "run"] * 3
