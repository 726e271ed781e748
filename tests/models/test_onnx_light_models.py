"""The light models of the onnx wheel compute what ONNX Runtime computes, as read and after the standard passes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_import import import_onnx
from onnx_of_op import run_onnxruntime
from seeded_weights import LIGHT_MODELS, write_seeded

from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.ir.graph import Graph
from iossim.models.passes.pipeline import canonicalise

#: Convolutions, then all ops, as the files list them, constants left out.
OPS = {
    "light_bvlc_alexnet": (5, 24),
    "light_densenet121": (121, 668),
    "light_inception_v1": (57, 144),
    "light_inception_v2": (69, 371),
    "light_resnet50": (53, 176),
    "light_shufflenet": (49, 203),
    "light_squeezenet": (26, 66),
    "light_vgg19": (16, 46),
    "light_zfnet512": (5, 22),
}


def relative_error(graph: Graph, inputs: dict[str, np.ndarray], expected: np.ndarray) -> float:
    (output,) = evaluate_graph(graph, inputs).values()
    assert output.shape == expected.shape
    return float(np.max(np.abs(output - expected)) / np.max(np.abs(expected)))


@pytest.mark.parametrize("name", OPS)
def test_light_model_is_read_op_for_op(name):
    graph = import_onnx(LIGHT_MODELS / f"{name}.onnx")
    convolutions = sum(node.op.kind == "conv" for node in graph.nodes)
    assert (convolutions, len(graph.nodes)) == OPS[name]


@pytest.mark.parametrize("name", OPS)
def test_layers_whose_weights_are_the_same_fill_stay_apart(name):
    graph = canonicalise(import_onnx(LIGHT_MODELS / f"{name}.onnx"))
    kinds = [node.op.kind for node in graph.nodes]
    assert kinds.count("conv") == OPS[name][0]
    norms = 62 if name == "light_densenet121" else 0  # those that stand before their convolution
    assert kinds.count("batch_norm") == norms


@pytest.mark.parametrize(
    "name",
    [
        "light_squeezenet",
        "light_resnet50",
        "light_shufflenet",
        pytest.param("light_densenet121", marks=pytest.mark.slow),
        "light_inception_v1",
        pytest.param("light_inception_v2", marks=pytest.mark.slow),
        pytest.param("light_bvlc_alexnet", marks=pytest.mark.slow),
        pytest.param("light_vgg19", marks=pytest.mark.slow),
        pytest.param("light_zfnet512", marks=pytest.mark.slow),
    ],
)
def test_light_model_computes_what_onnxruntime_does(name, tmp_path):
    path = write_seeded(LIGHT_MODELS / f"{name}.onnx", tmp_path / f"{name}.onnx")
    graph = import_onnx(path)
    (image,) = graph.inputs
    x = np.random.default_rng(1).standard_normal(graph.types[image].shape).astype(np.float32)
    (expected,) = run_onnxruntime(str(path), {image: x})
    assert expected.std() > 0.01 * np.abs(expected).max()  # the weights tell the classes apart
    assert relative_error(graph, {image: x}, expected) < 1e-4
    assert relative_error(canonicalise(graph), {image: x}, expected) < 1e-4


@pytest.mark.parametrize("name", ["light_resnet50", "light_shufflenet"])
def test_another_batch_computes_each_image_alone(name, tmp_path):
    path = write_seeded(LIGHT_MODELS / f"{name}.onnx", tmp_path / f"{name}.onnx")
    graph = canonicalise(import_onnx(path, batch=2))
    (image,) = graph.inputs
    assert graph.types[image].shape[0] == 2
    x = np.random.default_rng(1).standard_normal(graph.types[image].shape).astype(np.float32)
    expected = np.concatenate([run_onnxruntime(str(path), {image: x[index : index + 1]})[0] for index in range(2)])
    assert relative_error(graph, {image: x}, expected) < 1e-4
