"""Rewritten networks compute what the networks as given do: as ONNX under ONNX Runtime, and as scheduled plans on NumPy.

Weights are seeded noise, images smaller than usual, and few graphs are searched; no network ends in a softmax.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx_of_op import run_onnxruntime

import iossim
from iossim import api
from iossim.backends.numpy_reference.execute import execute
from iossim.execution.lower import lower_schedule
from iossim.models.onnx.export import write_onnx
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


def small(name: str) -> iossim.Network:
    return iossim.load(name, shapes={"tokens" if name == "bert_layer" else "image": SHAPES[name]})


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_a_rewritten_network_computes_the_same(name: str, tmp_path: Path) -> None:
    network = small(name)
    task = api.task(network, "v100-sxm2", scheduler="sequential", rewrite="default", rewrite_budget="4")
    (found,) = task.change().outcomes
    assert isinstance(found, Rewriting)
    assert found.after_us <= found.before_us
    assert bool(found.steps) is (name not in UNCHANGED)
    (value,) = network.graph.inputs
    given = {value: np.random.default_rng(7).standard_normal(SHAPES[name]).astype(np.float32)}
    paths = [tmp_path / "given.onnx", tmp_path / "rewritten.onnx"]
    for each, path in zip((network, found.network), paths, strict=True):
        write_onnx(each.graph, path)
    (expected,), (made,) = (run_onnxruntime(str(path), given) for path in paths)
    schedule = iossim.optimize(found.network, "v100-sxm2", scheduler="greedy")
    (planned,) = execute(lower_schedule(schedule, found.network, "graph"), found.network, given, seed=8).values()
    bound = 1e-4 * np.abs(expected).max()
    assert bound > 0
    assert np.abs(made - expected).max() <= bound
    assert np.abs(planned - expected).max() <= bound


@pytest.mark.slow
def test_every_process_finds_the_same() -> None:
    script = (
        "import iossim; from iossim import api; network = iossim.load('squeezenet'); "
        "task = api.task(network, 'v100-sxm2', scheduler='sequential', rewrite='default', rewrite_budget='4'); "
        "(found,) = task.change().outcomes; print(found.network.graph.hash, found.steps)"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "77")
    }
    assert len(told) == 1
    assert "Step(" in told.pop()
