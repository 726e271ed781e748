"""Rewritten networks compute what the networks as given do: as ONNX under ONNX Runtime, and as scheduled plans on NumPy.

Weights are seeded noise, images smaller than usual, and few graphs are searched; no network ends in a softmax.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from checked_execution import execute
from command_line import printed, printed_everywhere, refused
from onnx_import import import_onnx
from onnx_of_op import run_onnxruntime

import iossim
from iossim import api
from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.base.errors import OptionError
from iossim.execution.lower import lower_schedule
from iossim.ir.constants import AbsentConstant
from iossim.ir.graph import Graph
from iossim.models.load import load
from iossim.models.onnx.export import check_exportable, write_onnx
from iossim.transforms.rewriting.scheduled import Rewriting

#: The smallest inputs that a network takes, or nearly so.
SHAPES = {
    "alexnet": (1, 3, 96, 96),
    "bert_layer": (1, 16, 128),
    "inception_v3": (1, 3, 75, 75),
    "mobilenet_v1": (1, 3, 64, 64),
    "nasnet_a": (1, 3, 64, 64),
    "randwire": (1, 3, 64, 64),
    "resnet50": (1, 3, 64, 64),
    "resnext50": (1, 3, 64, 64),
    "squeezenet": (1, 3, 64, 64),
    "vgg19": (1, 3, 32, 32),
}
#: Of these no rule makes the network faster, searched as little as this.
UNCHANGED = {"alexnet", "bert_layer", "randwire", "vgg19"}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_a_rewritten_network_computes_the_same(name: str, tmp_path: Path) -> None:
    network = iossim.load(name, shapes={"tokens" if name == "bert_layer" else "image": SHAPES[name]})
    task = api.task(network, "v100-sxm2", scheduler="sequential", rewrite="default", rewrite_budget="4")
    (found,) = task.change().outcomes
    assert isinstance(found, Rewriting)
    assert found.found.best.cost_us <= found.found.before_us
    assert bool(found.found.best.steps) is (name not in UNCHANGED)
    (value,) = network.graph.inputs
    given = {value: np.random.default_rng(7).standard_normal(SHAPES[name]).astype(np.float32)}
    paths = [tmp_path / "given.onnx", tmp_path / "rewritten.onnx"]
    for each, path in zip((network, found.network), paths, strict=True):
        write_onnx(each.graph, path)
    (expected,), (made,) = (run_onnxruntime(str(path), given) for path in paths)
    schedule = iossim.optimize(found.network, "v100-sxm2", scheduler="greedy")
    (planned,) = execute(lower_schedule(schedule, found.network, "graph"), found.network, given, 8).values()
    bound = 1e-4 * np.abs(expected).max()
    assert bound > 0
    assert np.abs(made - expected).max() <= bound
    assert np.abs(planned - expected).max() <= bound


@pytest.mark.slow
def test_every_process_finds_the_same() -> None:
    script = (
        "import iossim; from iossim import api; network = iossim.load('squeezenet'); "
        "task = api.task(network, 'v100-sxm2', scheduler='sequential', rewrite='default', rewrite_budget='4'); "
        "(found,) = task.change().outcomes; print(found.network.graph.hash, found.found.best.steps)"
    )
    assert "Step(" in printed_everywhere(script)


def test_the_network_as_given(tmp_path: Path) -> None:
    made = tmp_path / "made.onnx"
    printed(f"optimize ios_sample -d v100-sxm2 --rewrite --onnx {made}")
    network, rewritten = load("ios_sample"), import_onnx(made)
    inputs = {
        value: np.random.default_rng(2).standard_normal(network.graph.types[value].shape).astype(np.float32)
        for value in network.graph.inputs
    }
    expected, found = evaluate_graph(network.graph, inputs), evaluate_graph(rewritten, inputs)
    assert rewritten.hash != network.graph.hash
    for name in network.graph.outputs:
        assert np.abs(expected[name] - found[name]).max() <= 1e-4 * np.abs(expected[name]).max()
    printed(f"optimize ios_sample -d v100-sxm2 --onnx {made}")
    assert import_onnx(made).hash == network.graph.hash


def test_what_cannot_be_written_is_refused_before_the_search(tmp_path: Path) -> None:
    line = "optimize ios_sample -d v100-sxm2 --rewrite --onnx"
    refused(f"{line} {tmp_path}/none/m.onnx", "is no folder; choose another file")
    refused(f"{line} {tmp_path}/m.onnx --dtype int8", "give --dtype fp32, fp16 or bf16")
    network = load("ios_sample")
    graph = network.graph
    absent = {name: AbsentConstant(constant.type) for name, constant in graph.constants.items()}
    inputs = {name: graph.types[name] for name in graph.inputs}
    without = replace(network, graph=Graph.create(inputs, graph.outputs, graph.nodes, absent))
    with pytest.raises(OptionError, match="ios_sample was read without its weights; give the model's own file"):
        check_exportable(without, tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []
