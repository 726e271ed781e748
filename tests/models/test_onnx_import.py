"""What the importer makes of ONNX files: bound dimensions, folded shape arithmetic, lazy weights, older spellings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnx_models import Declared, nodes_of, write_onnx
from onnx_of_op import import_onnx, run_onnxruntime

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import OptionError
from iossim.ir.graph import Graph
from iossim.ir.op import Array
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.normalization import GroupNorm
from iossim.ir.ops.pool import MaxPool
from iossim.ir.ops.reshape import Reshape
from iossim.ir.ops.slice import Slice, Split
from iossim.ir.types import DType, TensorType
from iossim.models.onnx.constants import ExternalConstant
from iossim.models.onnx.file import read_model, trained_weights
from iossim.models.passes.pipeline import canonicalise

node = helper.make_node


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def graph_of(
    folder: Path,
    nodes: Sequence[NodeProto] | str,
    inputs: Mapping[str, Declared],
    weights: Mapping[str, Array | TensorProto] | None = None,
    opset: int = 13,
    **binding: Any,
) -> Graph:
    return import_onnx(write_onnx(folder / "m.onnx", nodes, inputs, weights, opset=opset), **binding)


def assert_equals_onnxruntime(path: Path, **options: Any) -> None:
    graph = import_onnx(path, **options)
    inputs = {name: noise(*graph.types[name].shape) for name in graph.inputs}
    (made,) = evaluate_graph(graph, inputs).values()
    (expected,) = run_onnxruntime(str(path), inputs)
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)


IMAGE = {"x": [1, 3, 8, 8]}


@pytest.mark.parametrize(
    ("lengths", "time", "made"), [([4, 4, 4], 1, "slice"), ([4, 3, 4], 1, "foreign"), ([3] * 4, 0, "slice")]
)
def test_whole_sequences_are_reversed_by_a_slice(lengths: list[int], time: int, made: str, tmp_path: Path) -> None:
    """As tf2onnx writes Keras' layers that run backwards; shorter sequences are reversed at run time."""
    reverse = node("ReverseSequence", ["x", "lengths"], ["y"], time_axis=time, batch_axis=1 - time)
    path = write_onnx(tmp_path / "m.onnx", [reverse], {"x": [3, 4, 2]}, {"lengths": ints(*lengths)}, opset=13)
    assert [each.op.kind for each in import_onnx(path).nodes] == [made]
    assert_equals_onnxruntime(path)


def test_value_names_are_the_files_and_unused_weights_are_dropped(tmp_path: Path) -> None:
    """Weights that are listed as inputs are none."""
    weights = {"w": noise(4, 3, 1, 1), "unused": noise(7)}
    graph = graph_of(tmp_path, "[c] y = Conv(x, w)", IMAGE | {"w": [4, 3, 1, 1]}, weights)
    assert (graph.inputs, graph.outputs, set(graph.constants)) == (("x",), ("y",), {"w"})
    assert graph.nodes[0].name == "c"
    np.testing.assert_array_equal(graph.constants["w"].load(), weights["w"])


def test_a_single_number_is_no_trained_weight(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", "y = Mul(x, s); z = Mul(y, w)", {"x": [2]}, {"s": noise(1), "w": noise(2)})
    assert trained_weights(read_model(path)) == {"w"}


def test_ops_without_names_or_with_the_same_get_names_of_their_own(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, "[r] a = Relu(x); [r] b = Relu(a); y = Relu(b)", {"x": [2]})
    assert [each.name for each in graph.nodes] == ["r", "r_2", "Relu_2"]


def test_ops_are_called_as_the_modules_that_pytorch_noted(tmp_path: Path) -> None:
    nodes = nodes_of("[node_relu] a = Relu(x); [node_relu_1] b = Relu(a); [r] c = Relu(b); [end] y = Relu(c)")
    scopes = ("['', 'layer.0', 'relu']", "['', 'layer.0', 'relu_1']", "['', 'relu_2']")
    for each, modules in zip(nodes, scopes, strict=False):
        each.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=modules)
    graph = graph_of(tmp_path, nodes, {"x": [2]})
    assert [each.name for each in graph.nodes] == ["layer.0.Relu", "layer.0.Relu_2", "r", "end"]


def test_shape_arithmetic_of_classic_exporters_folds(tmp_path: Path) -> None:
    """Flatten as PyTorch spelt it: x.view(x.size(0), -1), through operators that iossim does not know."""
    nodes = """
        shape = Shape(x); zero = Constant <value = int64 {0}> (); batch = Gather <axis=0> (shape, zero)
        front = Unsqueeze <axes=[0]> (batch); rest = Constant <value_ints=[-1]> (); target = Concat <axis=0> (front, rest)
        as_float = Cast <to=1> (target); floored = Floor(as_float); as_int = Cast <to=7> (floored)
        [view] y = Reshape(x, as_int)"""
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": ["N", 3, 4]}, opset=12)
    graph = import_onnx(path, batch=5)
    assert [each.op for each in graph.nodes] == [Reshape((5, 12))]
    assert not graph.constants
    assert_equals_onnxruntime(path, batch=5)


def test_what_a_few_numbers_make_terabytes_of_is_not_computed(tmp_path: Path) -> None:
    weights = {"one": noise(1), "large": ints(1 << 20, 1 << 18)}
    nodes = "[e] e = Expand(one, large); [g] y = Gather(e, x)"
    graph = canonicalise(graph_of(tmp_path, nodes, {"x": (TensorProto.INT64, [1])}, weights))
    assert [each.op.kind for each in graph.nodes] == ["gather"]
    assert graph.constants["e"].type == TensorType((1 << 20, 1 << 18))
    few = {"begin": np.array(-(1 << 40)), "end": np.array(3 - (1 << 40)), "one": np.array(1)}
    nodes = "r = Range(begin, end, one); f = Cast <to=1> (r); y = Add(x, f)"
    assert [each.op.kind for each in graph_of(tmp_path, nodes, {"x": [3]}, few).nodes] == ["add"]


def test_weights_of_many_gigabytes_beside_the_model(tmp_path: Path) -> None:
    """Only what is asked for is read: the file has a hole of four gigabytes."""
    size = 4 << 30
    weight = TensorProto(name="w", dims=[3], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "w.bin"), ("offset", str(size)), ("length", "12")):
        weight.external_data.add(key=key, value=value)
    with (tmp_path / "w.bin").open("wb") as stream:
        stream.seek(size)
        stream.write(np.arange(3, dtype=np.float32).tobytes())
    found = graph_of(tmp_path, "y = Add(x, w)", {"x": [3]}, {"w": weight}).constants["w"]
    assert isinstance(found, ExternalConstant)
    np.testing.assert_array_equal(found.load(), [0, 1, 2])


def test_fills_and_small_weights_become_constants(tmp_path: Path) -> None:
    nodes = "w = ConstantOfShape <value = float[1] {0.5}> (shape); y = Conv(x, w)"
    graph = graph_of(tmp_path, nodes, IMAGE, {"shape": ints(4, 3, 2, 2)})
    assert graph.types["w"] == TensorType((4, 3, 2, 2), DType.FLOAT32)
    np.testing.assert_array_equal(graph.constants["w"].load(), np.full((4, 3, 2, 2), 0.5, dtype=np.float32))


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"batch": 4, "dimensions": {"H": 8, "W": 6}}, (4, 3, 8, 6)),
        ({"shapes": {"x": (2, 3, 9, 9)}}, (2, 3, 9, 9)),
        ({"shapes": {"x": (2, 3, 9, 9)}, "batch": 2}, (2, 3, 9, 9)),
        ({"dimensions": {"N": 3, "H": 8, "W": 6}}, (3, 3, 8, 6)),
    ],
)
def test_open_dimensions_are_bound(tmp_path: Path, options: dict[str, Any], shape: tuple[int, ...]) -> None:
    assert graph_of(tmp_path, "y = Relu(x)", {"x": ["N", 3, "H", "W"]}, **options).types["y"].shape == shape


def test_a_dimension_bound_once_is_bound_everywhere(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", "y = Add(a, b)", {"a": ["N", "C"], "b": ["N", "C"]})
    assert import_onnx(path, shapes={"a": (2, 5)}).types["b"].shape == (2, 5)
    with pytest.raises(OptionError, match="dimension 'N' of input 'b' is bound to both 2 and 3"):
        import_onnx(path, shapes={"a": (2, 5), "b": (3, 5)})


@pytest.mark.parametrize(
    ("shape", "remedy"),
    [((1, 3, 20, 8), "export it with these dimensions open"), ((4, 3, 8, 8), "give that with `batch`")],
)
def test_a_shape_replaces_no_sizes_that_the_file_fixes(tmp_path: Path, shape: tuple[int, ...], remedy: str) -> None:
    """The file may say them elsewhere too, as in a reshape to ``[1, -1]``."""
    path = write_onnx(tmp_path / "m.onnx", "y = GlobalAveragePool(x)", {"x": [1, 3, 8, "W"]})
    with pytest.raises(OptionError) as caught:
        import_onnx(path, shapes={"x": shape})
    spelled = "x".join(map(str, shape))
    assert str(caught.value) == f"shape {spelled} of input 'x' is not that of {path}, 1x3x8xW; {remedy}"
    assert import_onnx(path, shapes={"x": (1, 3, 8, 9)}).types["y"].shape == (1, 3, 1, 1)


@pytest.mark.parametrize(
    ("nodes", "shape", "weights"),
    [
        pytest.param(
            "w = Reshape(flat_weight, weight_shape); rows = Reshape(x, x_shape); y = Gemm(rows, w)",
            [1, 3, 4],
            {"flat_weight": noise(120, 50), "weight_shape": ints(12, 500), "x_shape": ints(1, -1)},
            id="leaves reshaped weights alone",
        ),
        # Tokens and windows of all images in front, as exporters write a product, and back.
        pytest.param(
            "rows = Reshape(x, tokens); products = Gemm(rows, w); z = Reshape(products, windows); zz = MatMul(z, z)"
            "; y = Reshape(zz, images)",
            [1, 8, 4],
            {"w": noise(4, 4), "tokens": ints(8, 4), "windows": ints(2, 4, 4), "images": ints(1, 8, 4)},
            id="scales what stands in front with the batch",
        ),
    ],
)
def test_another_batch(nodes: str, shape: list[int], weights: dict[str, Array], tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": shape}, weights)
    graph = import_onnx(path, batch=3)
    x = noise(3, *shape[1:])
    (made,) = evaluate_graph(graph, {"x": x}).values()
    expected = np.concatenate([run_onnxruntime(str(path), {"x": x[index : index + 1]})[0] for index in range(3)])
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "bool", "bfloat16"])
@pytest.mark.parametrize("raw", [True, False])
def test_weights_of_each_type_are_loaded(tmp_path: Path, dtype: str, raw: bool) -> None:
    import ml_dtypes

    element = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    array = np.array([[0, 1], [1, 0]]).astype(element)
    code = helper.np_dtype_to_tensor_dtype(element)
    tensor = (
        numpy_helper.from_array(array, "w") if raw else helper.make_tensor("w", code, array.shape, array.reshape(-1))
    )
    outputs = {"y": None, "z": (code, None)}
    path = write_onnx(tmp_path / "m.onnx", "y = Relu(x); z = Identity(w)", {"x": [4]}, {"w": tensor}, output=outputs)
    loaded = import_onnx(path).constants["z"].load()
    assert loaded.dtype == element
    np.testing.assert_array_equal(loaded, array)


SPELLINGS: dict[str, tuple[int, str, dict[str, Array]]] = {
    "clip 9": (9, "y = Clip <min=0.0, max=6.0> (x)", {}),
    "clip 11": (11, "y = Clip(x, , top)", {"top": np.float32(0.5)}),
    "dropout 7": (7, "y, mask = Dropout(x)", {}),
    "dropout 13": (13, "y = Dropout(x, ratio)", {"ratio": np.float32(0.5)}),
    "squeeze 11": (11, "a = Unsqueeze <axes=[0, 3]> (x); y = Squeeze <axes=[0, -3]> (a)", {}),
    "squeeze 13": (13, "a = Unsqueeze(x, at); y = Squeeze(a)", {"at": ints(-1, 1)}),
    "slice 9": (9, "y = Slice <starts=[1, 0], ends=[1000, -1], axes=[3, 2]> (x)", {}),
    "slice 13": (13, "y = Slice(x, s, e)", {"s": ints(0, 1), "e": ints(2, 2)}),
    "transpose": (13, "y = Transpose(x)", {}),
    "sum of one": (13, "y = Sum(x)", {}),
    "reshape with zero": (13, "y = Reshape(x, s)", {"s": ints(0, -1, 2)}),
    "flatten": (13, "y = Flatten <axis=-2> (x)", {}),
    "softmax 12": (12, "y = Softmax(x)", {}),
    "softmax 13": (13, "y = Softmax(x)", {}),
    "split 11": (11, "a, b = Split <axis=1> (x); y = Add(a, b)", {}),
    "split 13": (13, "a, b = Split <axis=1> (x, s); y = Add(a, b)", {"s": ints(2, 2)}),
    "split 18": (18, "a, b, c = Split <axis=-1, num_outputs=3> (x); y = Concat <axis=-1> (c, a)", {}),
    "same upper": (13, 'y = MaxPool <kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_UPPER"> (x)', {}),
    "same lower": (13, 'y = AveragePool <kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_LOWER"> (x)', {}),
    "valid": (13, 'y = MaxPool <kernel_shape=[3, 2], auto_pad="VALID"> (x)', {}),
    "gemm without bias": (13, "a = Flatten <axis=2> (x); y = Gemm <transB=1, alpha=0.5> (a, a)", {}),
    "batch norm 7": (7, "y = BatchNormalization(x, c, c, c, c)", {"c": np.full(4, 2, "f")}),
    "batch norm 15": (15, "y = BatchNormalization(x, c, c, c, c)", {"c": np.full(4, 2, "f")}),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_of_other_opsets(tmp_path: Path, name: str) -> None:
    opset, nodes, weights = SPELLINGS[name]
    assert_equals_onnxruntime(write_onnx(tmp_path / "m.onnx", nodes, {"x": [2, 4, 6, 7]}, weights, opset=opset))


def test_outputs_without_names_get_names(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, [node("Split", ["x"], ["", "y"], "s", axis=0, split=[1, 3])], {"x": [4]}, opset=11)
    assert graph.nodes[0].outputs == ("s.output0", "y")
    np.testing.assert_array_equal(evaluate_graph(graph, {"x": noise(4)})["y"], noise(4)[1:])


def test_attributes_are_resolved_to_one_spelling(tmp_path: Path) -> None:
    nodes = """a = Conv <auto_pad="SAME_UPPER"> (x, w); b = MaxPool <kernel_shape=[2, 2]> (a); c, d = Split <axis=-3> (b)
        y = Slice <starts=[0], ends=[2], axes=[2]> (d)"""
    graph = graph_of(tmp_path, nodes, {"x": [1, 4, 6, 6]}, {"w": noise(4, 4, 3, 3)}, opset=9)
    assert [each.op for each in graph.nodes] == [
        Conv((1, 1), (1, 1, 1, 1), (1, 1), 1),
        MaxPool((2, 2), (1, 1), (0, 0, 0, 0), (1, 1)),
        Split(1, (2, 2)),
        Slice((0,), (2,), (2,), (1,)),
    ]


@pytest.mark.parametrize("where", ["graph", "branch", "function"])
def test_nodes_in_any_order(where: str, tmp_path: Path) -> None:
    """Nodes are sorted, as runtimes do, with local functions inlined; nodes in order keep their order."""
    backwards = nodes_of("[last] r = Relu(c); [first] c = Neg(x)")
    if where == "branch":
        made = [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)]
        graph = helper.make_graph(backwards, "branch", [], made)
        nodes = [node("If", ["on"], ["y"], "if", then_branch=graph, else_branch=graph)]
    else:
        nodes = [node("Identity", ["r"], ["y"], "end"), *backwards]
    functions = []
    if where == "function":
        functions = [helper.make_function("own", "f", ["x"], ["y"], nodes, [helper.make_opsetid("", 13)])]
        nodes = [node("f", ["x"], ["y"], "call", domain="own")]
    path = tmp_path / "m.onnx"
    write_onnx(path, nodes, {"x": [2, 3]}, {"on": np.array(True)}, domains=["own"], functions=functions)
    found = canonicalise(import_onnx(path))
    assert [each.op.kind for each in found.nodes] == ["unary", "relu"]
    (y,) = evaluate_graph(found, {"x": noise(2, 3)}).values()
    np.testing.assert_array_equal(y, np.maximum(-noise(2, 3), 0))


def test_a_group_normalization_of_channels_is_one_op(tmp_path: Path) -> None:
    nodes, weights = [node("GroupNormalization", list("xsb"), ["y"], num_groups=3)], {"s": noise(6), "b": noise(6)}
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": [2, 6, 4, 5]}, weights, opset=21)
    assert [made.op for made in import_onnx(path).nodes] == [GroupNorm(3)]
    assert_equals_onnxruntime(path)
