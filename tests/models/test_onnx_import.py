"""What the importer makes of ONNX files: bound dimensions, folded shape arithmetic, lazy weights, older spellings."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_import import import_onnx
from onnx_models import write_onnx
from onnx_of_op import run_onnxruntime

from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.base.errors import OptionError
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.pool import MaxPool
from iossim.ir.ops.reshape import Reshape
from iossim.ir.ops.slice import Slice, Split
from iossim.ir.types import DType, TensorType
from iossim.models.onnx.constants import ExternalConstant
from iossim.models.passes.pipeline import canonicalise

node = helper.make_node


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def assert_equals_onnxruntime(path, **options) -> None:
    graph = import_onnx(path, **options)
    inputs = {name: noise(*graph.types[name].shape) for name in graph.inputs}
    (made,) = evaluate_graph(graph, inputs).values()
    (expected,) = run_onnxruntime(str(path), inputs)
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)


def test_value_names_are_the_files_and_unused_weights_are_dropped(tmp_path):
    weights = {"w": noise(4, 3, 1, 1), "unused": noise(7)}
    path = write_onnx(tmp_path / "m.onnx", [node("Conv", ["x", "w"], ["y"], "c")], {"x": [1, 3, 8, 8]}, weights)
    graph = import_onnx(path)
    assert (graph.inputs, graph.outputs, set(graph.constants)) == (("x",), ("y",), {"w"})
    assert graph.nodes[0].name == "c"
    np.testing.assert_array_equal(graph.constants["w"].load(), weights["w"])


def test_weights_that_are_listed_as_inputs_are_no_inputs(tmp_path):
    inputs = {"x": [1, 3, 8, 8], "w": [4, 3, 1, 1]}
    path = write_onnx(tmp_path / "m.onnx", [node("Conv", ["x", "w"], ["y"])], inputs, {"w": noise(4, 3, 1, 1)})
    graph = import_onnx(path)
    assert graph.inputs == ("x",)
    assert set(graph.constants) == {"w"}


def test_ops_without_names_or_with_the_same_get_names_of_their_own(tmp_path):
    nodes = [node("Relu", ["x"], ["a"], "r"), node("Relu", ["a"], ["b"], "r"), node("Relu", ["b"], ["y"])]
    graph = import_onnx(write_onnx(tmp_path / "m.onnx", nodes, {"x": [2]}))
    assert [each.name for each in graph.nodes] == ["r", "r_2", "Relu_2"]


def test_ops_are_called_as_the_modules_that_pytorch_noted(tmp_path):
    nodes = [node("Relu", ["x"], ["a"], "node_relu"), node("Relu", ["a"], ["b"], "node_relu_1"), node("Relu", ["b"], ["c"], "r"), node("Relu", ["c"], ["y"], "end")]  # fmt: skip
    for each, modules in zip(
        nodes, ["['', 'layer.0', 'relu']", "['', 'layer.0', 'relu_1']", "['', 'relu_2']"], strict=False
    ):
        each.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=modules)
    graph = import_onnx(write_onnx(tmp_path / "m.onnx", nodes, {"x": [2]}))
    assert [each.name for each in graph.nodes] == ["layer.0.Relu", "layer.0.Relu_2", "r", "end"]


def test_shape_arithmetic_of_classic_exporters_folds(tmp_path):
    """Flatten as PyTorch spelt it: x.view(x.size(0), -1), through operators that iossim does not know."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Constant", [], ["zero"], value=numpy_helper.from_array(np.array(0, dtype=np.int64))),
        node("Gather", ["shape", "zero"], ["batch"], axis=0),
        node("Unsqueeze", ["batch"], ["front"], axes=[0]),
        node("Constant", [], ["rest"], value_ints=[-1]),
        node("Concat", ["front", "rest"], ["target"], axis=0),
        node("Cast", ["target"], ["as_float"], to=TensorProto.FLOAT),
        node("Floor", ["as_float"], ["floored"]),
        node("Cast", ["floored"], ["as_int"], to=TensorProto.INT64),
        node("Reshape", ["x", "as_int"], ["y"], "view"),
    ]
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": ["N", 3, 4]}, opset=12)
    graph = import_onnx(path, batch=5)
    assert [each.op for each in graph.nodes] == [Reshape((5, 12))]
    assert not graph.constants
    assert_equals_onnxruntime(path, batch=5)


def test_what_a_few_numbers_make_terabytes_of_is_not_computed(tmp_path):
    nodes = [node("Expand", ["one", "large"], ["e"], "e"), node("Gather", ["e", "x"], ["y"], "g")]
    weights = {"one": noise(1), "large": ints(1 << 20, 1 << 18)}
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": (TensorProto.INT64, [1])}, weights)
    graph = canonicalise(import_onnx(path))
    assert [each.op.kind for each in graph.nodes] == ["gather"]
    assert graph.constants["e"].type == TensorType((1 << 20, 1 << 18))


def test_weights_of_many_gigabytes_beside_the_model(tmp_path):
    """Only what is asked for is read: the file has a hole of four gigabytes."""
    size = 4 << 30
    weight = TensorProto(name="w", dims=[3], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "w.bin"), ("offset", str(size)), ("length", "12")):
        weight.external_data.add(key=key, value=value)
    with (tmp_path / "w.bin").open("wb") as stream:
        stream.seek(size)
        stream.write(np.arange(3, dtype=np.float32).tobytes())
    path = write_onnx(tmp_path / "m.onnx", [node("Add", ["x", "w"], ["y"])], {"x": [3]}, {"w": weight})
    np.testing.assert_array_equal(import_onnx(path).constants["w"].load(), [0, 1, 2])


def test_fills_and_small_weights_become_constants(tmp_path):
    fill = helper.make_tensor("fill", TensorProto.FLOAT, [1], [0.5])
    nodes = [node("ConstantOfShape", ["shape"], ["w"], value=fill), node("Conv", ["x", "w"], ["y"])]
    graph = import_onnx(write_onnx(tmp_path / "m.onnx", nodes, {"x": [1, 3, 8, 8]}, {"shape": ints(4, 3, 2, 2)}))
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
def test_open_dimensions_are_bound(tmp_path, options, shape):
    path = write_onnx(tmp_path / "m.onnx", [node("Relu", ["x"], ["y"])], {"x": ["N", 3, "H", "W"]})
    assert import_onnx(path, **options).types["y"].shape == shape


def test_a_dimension_bound_once_is_bound_everywhere(tmp_path):
    path = write_onnx(tmp_path / "m.onnx", [node("Add", ["a", "b"], ["y"])], {"a": ["N", "C"], "b": ["N", "C"]})
    assert import_onnx(path, shapes={"a": (2, 5)}).types["b"].shape == (2, 5)
    with pytest.raises(OptionError, match="dimension 'N' of input 'b' is bound to both 2 and 3"):
        import_onnx(path, shapes={"a": (2, 5), "b": (3, 5)})


@pytest.mark.parametrize(
    ("shape", "remedy"),
    [((1, 3, 20, 8), "export it with these dimensions open"), ((4, 3, 8, 8), "give that with `batch`")],
)
def test_a_shape_replaces_no_sizes_that_the_file_fixes(tmp_path, shape, remedy):
    """The file may say them elsewhere too, as in a reshape to ``[1, -1]``."""
    nodes = [node("GlobalAveragePool", ["x"], ["y"])]
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": [1, 3, 8, "W"]})
    with pytest.raises(OptionError) as caught:
        import_onnx(path, shapes={"x": shape})
    spelled = "x".join(map(str, shape))
    assert str(caught.value) == f"shape {spelled} of input 'x' is not that of {path}, 1x3x8xW; {remedy}"
    assert import_onnx(path, shapes={"x": (1, 3, 8, 9)}).types["y"].shape == (1, 3, 1, 1)


def test_another_batch_leaves_reshaped_weights_alone(tmp_path):
    nodes = [
        node("Reshape", ["flat_weight", "weight_shape"], ["w"]),
        node("Reshape", ["x", "x_shape"], ["rows"]),
        node("Gemm", ["rows", "w"], ["y"]),
    ]
    weights = {"flat_weight": noise(120, 50), "weight_shape": ints(12, 500), "x_shape": ints(1, -1)}
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": [1, 3, 4]}, weights)
    graph = import_onnx(path, batch=3)
    assert graph.types["y"].shape == (3, 500)
    x = noise(3, 3, 4)
    (made,) = evaluate_graph(graph, {"x": x}).values()
    expected = np.concatenate([run_onnxruntime(str(path), {"x": x[index : index + 1]})[0] for index in range(3)])
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4)


def test_another_batch_scales_what_stands_in_front_with_the_batch(tmp_path):
    """Tokens and windows of all images in front, as exporters write a product, and back."""
    nodes = [
        node("Reshape", ["x", "tokens"], ["rows"]),
        node("Gemm", ["rows", "w"], ["products"]),
        node("Reshape", ["products", "windows"], ["z"]),
        node("MatMul", ["z", "z"], ["zz"]),
        node("Reshape", ["zz", "images"], ["y"]),
    ]
    weights = {"w": noise(4, 4), "tokens": ints(8, 4), "windows": ints(2, 4, 4), "images": ints(1, 8, 4)}
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": [1, 8, 4]}, weights)
    graph = import_onnx(path, batch=3)
    x = noise(3, 8, 4)
    (made,) = evaluate_graph(graph, {"x": x}).values()
    expected = np.concatenate([run_onnxruntime(str(path), {"x": x[index : index + 1]})[0] for index in range(3)])
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4)


def test_external_weights_are_read_when_loaded(tmp_path):
    weights = {"w": noise(4, 3, 1, 1), "b": noise(4)}
    path = write_onnx(tmp_path / "m.onnx", [node("Conv", ["x", "w", "b"], ["y"])], {"x": [1, 3, 8, 8]}, weights)
    model = onnx.load(path)
    onnx.save_model(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    graph = import_onnx(path)
    assert all(isinstance(constant, ExternalConstant) for constant in graph.constants.values())
    for name, array in weights.items():
        np.testing.assert_array_equal(graph.constants[name].load(), array)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.bool_, "bfloat16"])
@pytest.mark.parametrize("raw", [True, False])
def test_weights_of_each_type_are_loaded(tmp_path, dtype, raw):
    import ml_dtypes

    element = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    array = np.array([[0, 1], [1, 0]]).astype(element)
    code = helper.np_dtype_to_tensor_dtype(element)
    tensor = (
        numpy_helper.from_array(array, "w") if raw else helper.make_tensor("w", code, array.shape, array.reshape(-1))
    )
    nodes = [node("Relu", ["x"], ["y"]), node("Identity", ["w"], ["z"])]
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": [4]}, {"w": tensor}, output={"y": None, "z": (code, None)})
    loaded = import_onnx(path).constants["z"].load()
    assert loaded.dtype == element
    np.testing.assert_array_equal(loaded, array)


def test_local_functions_are_inlined(tmp_path):
    body = [node("Relu", ["a"], ["b"]), node("Add", ["b", "b"], ["c"])]
    function = helper.make_function("own", "Twice", ["a"], ["c"], body, [helper.make_opsetid("", 13)])
    call = [node("Twice", ["x"], ["y"], domain="own")]
    path = write_onnx(tmp_path / "m.onnx", call, {"x": [3]}, domains=["own"], functions=[function])
    assert [each.op.kind for each in import_onnx(path).nodes] == ["relu", "add"]


SPELLINGS = {
    "clip 6": (6 + 3, [node("Clip", ["x"], ["y"], min=0.0, max=6.0)], {}),
    "clip 11": (11, [node("Clip", ["x", "", "top"], ["y"])], {"top": np.float32(0.5)}),
    "dropout 7": (7, [node("Dropout", ["x"], ["y", "mask"])], {}),
    "dropout 13": (13, [node("Dropout", ["x", "ratio"], ["y"])], {"ratio": np.float32(0.5)}),
    "squeeze 11": (11, [node("Unsqueeze", ["x"], ["a"], axes=[0, 3]), node("Squeeze", ["a"], ["y"], axes=[0, -3])], {}),
    "squeeze 13": (13, [node("Unsqueeze", ["x", "at"], ["a"]), node("Squeeze", ["a"], ["y"])], {"at": ints(-1, 1)}),
    "slice 9": (9, [node("Slice", ["x"], ["y"], starts=[1, 0], ends=[1000, -1], axes=[3, 2])], {}),
    "slice 13": (13, [node("Slice", ["x", "s", "e"], ["y"])], {"s": ints(0, 1), "e": ints(2, 2)}),
    "transpose": (13, [node("Transpose", ["x"], ["y"])], {}),
    "sum of one": (13, [node("Sum", ["x"], ["y"])], {}),
    "reshape with zero": (13, [node("Reshape", ["x", "s"], ["y"])], {"s": ints(0, -1, 2)}),
    "flatten": (13, [node("Flatten", ["x"], ["y"], axis=-2)], {}),
    "softmax 12": (12, [node("Softmax", ["x"], ["y"])], {}),
    "softmax 13": (13, [node("Softmax", ["x"], ["y"])], {}),
    "split 11": (11, [node("Split", ["x"], ["a", "b"], axis=1), node("Add", ["a", "b"], ["y"])], {}),
    "split 13": (
        13,
        [node("Split", ["x", "s"], ["a", "b"], axis=1), node("Add", ["a", "b"], ["y"])],
        {"s": ints(2, 2)},
    ),
    "split 18": (
        18,
        [node("Split", ["x"], ["a", "b", "c"], axis=-1, num_outputs=3), node("Concat", ["c", "a"], ["y"], axis=-1)],
        {},
    ),
    "same upper": (13, [node("MaxPool", ["x"], ["y"], kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_UPPER")], {}),
    "same lower": (
        13,
        [node("AveragePool", ["x"], ["y"], kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_LOWER")],
        {},
    ),
    "valid": (13, [node("MaxPool", ["x"], ["y"], kernel_shape=[3, 2], auto_pad="VALID")], {}),
    "gemm without bias": (
        13,
        [node("Flatten", ["x"], ["a"], axis=2), node("Gemm", ["a", "a"], ["y"], transB=1, alpha=0.5)],
        {},
    ),
    "batch norm 7": (7, [node("BatchNormalization", ["x", "c", "c", "c", "c"], ["y"])], {"c": np.full(4, 2, "f")}),
    "batch norm 15": (15, [node("BatchNormalization", ["x", "c", "c", "c", "c"], ["y"])], {"c": np.full(4, 2, "f")}),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_of_other_opsets(tmp_path, name):
    opset, nodes, weights = SPELLINGS[name]
    assert_equals_onnxruntime(write_onnx(tmp_path / "m.onnx", nodes, {"x": [2, 4, 6, 7]}, weights, opset=opset))


def test_outputs_without_names_get_names(tmp_path):
    nodes = [node("Split", ["x"], ["", "y"], "s", axis=0, split=[1, 3])]
    graph = import_onnx(write_onnx(tmp_path / "m.onnx", nodes, {"x": [4]}, opset=11))
    assert graph.nodes[0].outputs == ("s.output0", "y")
    np.testing.assert_array_equal(evaluate_graph(graph, {"x": noise(4)})["y"], noise(4)[1:])


def test_attributes_are_resolved_to_one_spelling(tmp_path):
    nodes = [
        node("Conv", ["x", "w"], ["a"], auto_pad="SAME_UPPER"),
        node("MaxPool", ["a"], ["b"], kernel_shape=[2, 2]),
        node("Split", ["b"], ["c", "d"], axis=-3),
        node("Slice", ["d"], ["y"], starts=[0], ends=[2], axes=[2]),
    ]
    graph = import_onnx(write_onnx(tmp_path / "m.onnx", nodes, {"x": [1, 4, 6, 6]}, {"w": noise(4, 4, 3, 3)}, opset=9))
    assert [each.op for each in graph.nodes] == [
        Conv((1, 1), (1, 1, 1, 1), (1, 1), 1),
        MaxPool((2, 2), (1, 1), (0, 0, 0, 0), (1, 1)),
        Split(1, (2, 2)),
        Slice((0,), (2,), (2,), (1,)),
    ]


@pytest.mark.parametrize("where", ["graph", "branch", "function"])
def test_nodes_in_any_order(where: str, tmp_path):
    """As runtimes load them; those that are in order stay so."""
    backwards = [node("Relu", ["c"], ["r"], "last"), node("Neg", ["x"], ["c"], "first")]
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
    weights = {"on": np.array(True)}
    path = tmp_path / "m.onnx"
    write_onnx(path, nodes, {"x": [2, 3]}, weights, domains=["own"], functions=functions)
    graph = canonicalise(import_onnx(path))
    assert [each.op.kind for each in graph.nodes] == ["unary", "relu"]
    (made,) = evaluate_graph(graph, {"x": noise(2, 3)}).values()
    np.testing.assert_array_equal(made, np.maximum(-noise(2, 3), 0))
