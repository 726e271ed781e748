"""A model file that cannot be read gets one line: the file, what is wrong in it, what to do."""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_import import import_onnx
from onnx_models import write_onnx
from seeded_weights import LIGHT_MODELS

from iossim.base.errors import GraphError, IossimError, ModelError, OptionError
from iossim.models.load import load, load_source

node = helper.make_node
RELU = [node("Relu", ["x"], ["y"], "r")]


def message(path, kind: type[IossimError] = ModelError, **options) -> str:
    with pytest.raises(kind) as caught:
        import_onnx(path, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


WHOLE = (LIGHT_MODELS / "light_squeezenet.onnx").read_bytes()
EMPTY = helper.make_model(helper.make_graph([], "g", [], [helper.make_empty_tensor_value_info("y")]))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "m.onnx does not exist"),
        (b"", "m.onnx is empty"),
        (b"\x89PNG\r\n\x1a\n not a model", "is not an ONNX file"),
        (b"hello, this is text\n" * 9, "is not an ONNX file"),
        (bytes(range(256)), "is not an ONNX file"),
        *((WHOLE[: int(len(WHOLE) * part)], "is not an ONNX file, or is damaged") for part in (0.1, 0.5, 0.9, 0.999)),
        (onnx.ModelProto(ir_version=8, producer_name="nobody").SerializeToString(), "holds no graph"),
        (EMPTY.SerializeToString(), "without operators"),
    ],
    ids=range(11),
)
def test_a_file_that_is_no_model(content, reason, tmp_path):
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    assert reason in message(path)


def test_folder(tmp_path):
    assert "is a folder; give the .onnx file" in message(tmp_path)


def test_a_file_larger_than_protobuf_reads(tmp_path):
    path = tmp_path / "m.onnx"
    with path.open("wb") as stream:
        stream.truncate(2**31)
    assert "more than the 2 GiB that an ONNX file can hold" in message(path)


@pytest.mark.parametrize("attributes", [{"strides": [1]}, {"strides": [0, 1]}, {"dilations": [1] * 3}])
@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER"])
def test_attributes_that_do_not_fit(tmp_path, attributes, auto_pad):
    attributes = {"kernel_shape": [2, 2], "auto_pad": auto_pad, **attributes}
    nodes = [node("MaxPool", ["x"], ["y"], "p", **attributes)]
    assert "MaxPool 'p'" in message(write_onnx(tmp_path / "m.onnx", nodes, {"x": [1, 3, 8, 8]}))


@pytest.mark.parametrize(("opset", "reason"), [(5, "iossim reads 6 and later"), (999, "update onnx")])
def test_operator_set(tmp_path, opset, reason):
    path = write_onnx(tmp_path / "m.onnx", RELU, {"x": [1]}, opset=opset)
    assert f"uses operator set {opset}" in (text := message(path))
    assert reason in text


def test_operators_that_cannot_be_taken_are_all_named_at_once(tmp_path):
    nodes = [
        node("NonZero", ["x"], ["a"], "first"),
        node("Relu", ["x"], ["b"], "r"),
        node("NonZero", ["b"], ["c"], "second"),
        node("Mystery", ["b"], ["d"], "odd"),
        node("FusedConv", ["b"], ["e"], "fused", domain="com.microsoft"),
        node("RandomNormalLike", ["b"], ["f"], "dice"),
        node("Sigmoid", ["d"], ["y"], "s"),
    ]
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": [2]}, domains=["com.microsoft"])
    text = message(path)
    assert "Mystery ('odd'): ONNX has no such operator; " in text
    assert "NonZero ('first' and 1 more): the shape of its output depends on data; " in text
    assert "RandomNormalLike ('dice'): it draws random numbers; " in text
    assert "com.microsoft.FusedConv ('fused'): neither ONNX nor the file determines the shape of its output" in text
    assert text.endswith("; export the model without them")


@pytest.mark.parametrize(
    "bad",
    [
        node("Resize", ["x", "", "few"], ["y"], "n"),
        node("Sub", ["x", ""], ["y"], "n"),
        node("Clip", ["x", "several"], ["y"], "n"),
        node("Split", ["x"], ["y"], "n", num_outputs=0),
        node("Reshape", ["x", "table"], ["y"], "n"),
        node("Shape", [""], ["y"], "n"),
        node("Range", ["few", "few"], ["y"], "n"),
        node("Range", ["few", "few", "nothing"], ["y"], "n"),
    ],
)
def test_operands_that_make_no_sense(tmp_path, bad):
    weights = {
        "few": np.ones(2, np.float32),
        "several": np.ones(2, np.float32),
        "nothing": np.zeros(1, np.float32),
        "table": np.ones((2, 2), dtype=np.int64),
    }
    path = write_onnx(tmp_path / "m.onnx", [bad], {"x": [2, 3, 4]}, weights, opset=18)
    assert f"{bad.op_type} 'n'" in message(path)


@pytest.mark.parametrize("batch", ["N", None])
def test_an_open_batch_is_one_with_a_remark(tmp_path, batch):
    """As in trtexec."""
    path = write_onnx(tmp_path / "m.onnx", RELU, {"x": [batch, 3, 8, 8]})
    network = load(path)
    assert network.graph.types["y"].shape == (1, 3, 8, 8)
    spelled = f"{batch or '?'}x3x8x8"
    assert network.remarks == (f"The file leaves the batch open (x {spelled}); it is taken as 1 (--batch).",)
    assert load(path, batch=1).remarks == ()
    assert load_source(network.source).graph.types == network.graph.types


def test_a_batch_that_another_input_binds_is_not_open(tmp_path):
    """Only what nothing binds is taken as 1; and what is computed of names is no batch."""
    add = [node("Concat", ["x", "past"], ["y"], "c", axis=0)]
    path = write_onnx(tmp_path / "m.onnx", add, {"x": ["N", 4], "past": ["M", 4]})
    graph = import_onnx(path, dimensions={"M": 3})
    assert (graph.types["x"].shape, graph.types["past"].shape) == ((1, 4), (3, 4))
    path = write_onnx(tmp_path / "m.onnx", add, {"x": ["N", 4], "past": ["2*N", 4]})
    assert import_onnx(path).types["y"].shape == (3, 4)
    path = write_onnx(tmp_path / "m.onnx", add, {"x": [2, 4], "past": ["M + N", 4]})
    assert "dimension 0 ('M + N') of input 'past' is open" in message(path)


def test_a_file_without_open_dimensions_says_how_to_change_its_batch(tmp_path):
    path = write_onnx(tmp_path / "m.onnx", RELU, {"x": [1, 3, 8, 8]})
    text = message(path, OptionError, dimensions={"batch": 8})
    assert "has no open dimension, so no 'batch': its inputs are x 1x3x8x8; give another batch with `batch` 8" in text


def test_open_dimension(tmp_path):
    path = write_onnx(tmp_path / "m.onnx", RELU, {"x": ["N", 3, "height", None]})
    assert (
        "dimension 2 ('height') of input 'x' is open; bind it with `dimensions` height=8 or `shapes` x=Nx3xheightx?"
        in message(path, batch=1)
    )
    assert "dimension 3 of input 'x' is open" in message(path, batch=1, dimensions={"height": 8})


def test_input_without_shape(tmp_path):
    path = write_onnx(tmp_path / "m.onnx", RELU, {"x": None})
    assert "input 'x' has no shape; give one with `shapes` x=NxCxHxW" in message(path, batch=1)
    assert import_onnx(path, shapes={"x": (1, 2)}).types["y"].shape == (1, 2)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"batch": 0}, "batch 0 is not possible"),
        ({"shapes": {"z": (1, 3)}}, "has no input 'z' to give the shape 1x3; known: x"),
        ({"shapes": {"x": (1, 3)}}, "shape 1x3 does not fit input 'x'"),
        ({"shapes": {"x": (1, 3, -1)}}, "shape 1x3x-1 does not fit input 'x'"),
        ({"shapes": {"x": (1, 3, 4)}, "batch": 2}, "batch 2 and shape 1x3x4 of input 'x' disagree"),
        ({"dimensions": {"K": 3}}, "has no open dimension 'K'; known: L, N"),
        ({"dimensions": {"L": -1}}, "dimension 'L' is -1"),
        ({"dimensions": {"K": 3}, "declared": ["N", "L", "N + L"]}, "has no open dimension 'K'; known: L, N, N + L"),
        ({"dimensions": {"N": 3, "L": 4}, "declared": ["N", "L", "N - L"]}, "('N - L') of input 'x' comes to -1"),
        ({"dimensions": {"N": 3, "L": 3, "N + L": 5}, "declared": ["N", "L", "N + L"]}, "to 5, but comes to 6"),
        ({"dimensions": {"N": 3}, "batch": 2}, "bound to both 3 and 2"),
    ],
)
def test_binding_that_does_not_fit(tmp_path, options, reason):
    bindings = {name: value for name, value in options.items() if name != "declared"}
    path = write_onnx(tmp_path / "m.onnx", RELU, {"x": options.get("declared", ["N", 3, "L"])})
    assert reason in message(path, OptionError, **bindings)


def test_dimension_computed_of_names(tmp_path):
    """As exporters write the length of a cache and what is added to it."""
    concat = [node("Concat", ["x", "past"], ["y"], "c", axis=1)]
    path = write_onnx(tmp_path / "m.onnx", concat, {"x": ["N", "new", 4], "past": ["N", "2*(all - new)//2", 4]})
    text = message(path, dimensions={"N": 2, "new": 3})
    assert "('2*(all - new)//2') of input 'past' is open; bind it with `dimensions` all=8 or `shapes`" in text
    graph = import_onnx(path, dimensions={"N": 2, "new": 3, "all": 8})
    assert graph.types["past"].shape == (2, 5, 4)
    assert graph.types["y"].shape == (2, 8, 4)
    assert import_onnx(path, dimensions={"N": 2}, shapes={"x": (2, 3, 4), "past": (2, 9, 4)}).types["y"].shape[1] == 12


@pytest.mark.parametrize("name", ["a ** b", "f(a)", "a.b", "(a", "1e9", "lambda: 0", "a if b else c"])
def test_dimension_that_is_no_arithmetic_is_a_name(tmp_path, name):
    path = write_onnx(tmp_path / "m.onnx", RELU, {"x": [name, 3]})
    assert import_onnx(path, dimensions={name: 2}).types["y"].shape == (2, 3)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Transpose", ["x"], ["y"], "t", perm=[1, 0, 2])],
        [node("Slice", ["x", "zero", "one"], ["y"], "t")],
        [node("Softmax", ["x"], ["y"], "t", axis=0)],
        [node("Concat", ["x", "x"], ["y"], "t", axis=0)],
        [node("Reshape", ["x", "flat"], ["f"]), node("Transpose", ["f"], ["y"], "t", perm=[1, 0])],
        [node("Concat", ["token", "x"], ["y"], "t", axis=1)],
        [node("CumSum", ["x", "zero"], ["y"], "t")],
        [node("GatherND", ["x", "row"], ["y"], "t")],
        [node("Cast", ["x"], ["i"], to=TensorProto.INT64), node("GatherElements", ["token", "i"], ["y"], "t", axis=1)],
        [
            node("Add", ["x", "x"], ["z"]),
            node("Reshape", ["z", "flat"], ["f"]),
            node("Gemm", ["f", "f"], ["y"], "t", transB=1),
        ],
        [node("LayerNormalization", ["x", "scale"], ["y"], "t", axis=0)],
        [node("Tile", ["x", "twice"], ["y"], "t")],
        [node("Gather", ["x", "zero"], ["y"], "t", axis=0)],
        [node("LSTM", ["x", "w", "r"], ["y"], "t", hidden_size=2)],
        [node("Einsum", ["x", "x"], ["y"], "t", equation="nab,mab->nab")],
    ],
)
def test_batch_that_cannot_be_changed(tmp_path, nodes):
    weights = {
        name: np.array(value, dtype=np.int64)
        for name, value in (("zero", [0]), ("one", [1]), ("flat", [3, 4]), ("row", [[0]]), ("twice", [2, 1, 1]))
    }
    shapes = {"scale": (1, 3, 4), "w": (1, 8, 4), "r": (1, 8, 2), "token": (1, 1, 4)}
    weights |= {name: np.ones(shape, dtype=np.float32) for name, shape in shapes.items()}
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": [1, 3, 4]}, weights, opset=17)
    import_onnx(path)
    text = message(path, batch=2)
    assert f"{nodes[-1].op_type} 't' does not keep the batch in front" in text
    assert text.endswith("export the model for the batch that you want, or with an open one")


def test_inputs_without_a_common_batch(tmp_path):
    nodes = [node("Add", ["a", "b"], ["y"])]
    path = write_onnx(tmp_path / "m.onnx", nodes, {"a": [4, 2], "b": [1, 2]})
    assert import_onnx(path, batch=4).types["y"].shape == (4, 2)
    assert "no common batch to set to 2; use `shapes`" in message(path, OptionError, batch=2)


def test_shape_computed_at_run_time(tmp_path):
    nodes = [node("Reshape", ["x", "s"], ["y"], "view")]
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": [4], "s": (TensorProto.INT64, [2])})
    assert "Reshape 'view': its shape ('s') is computed at run time" in message(path)


IMAGE, OWN = [1, 3, 8, 8], node("Relu", ["x"], ["y"], "r", domain="own")


@pytest.mark.parametrize(
    ("operator", "shape", "options", "reason"),
    [
        (node("Dropout", ["x", "", "on"], ["y"], "drop"), IMAGE, {}, "Dropout 'drop' is in training mode"),
        (node("Conv", ["x"], ["y"], "c"), IMAGE, {}, "Conv 'c' is not valid"),
        (node("Conv", ["x", "w"], ["y"], "c"), IMAGE, {}, "Conv 'c': its input has 3 channels, its weight takes 5"),
        (node("MaxPool", ["x"], ["y"], "pool"), IMAGE, {}, "MaxPool 'pool' is not valid"),
        (node("MaxPool", ["x"], ["y"], "p", kernel_shape=[9, 9]), IMAGE, {}, "MaxPool 'p' would make an empty tensor"),
        (node("Constant", [], ["y"], "text", value_string="no"), IMAGE, {}, "given as value_string"),
        (node("Reshape", ["x", "words"], ["y"], "r"), IMAGE, {}, "has element type STRING"),
        (
            node("Split", ["x"], ["y", "z"], "s", split=[1, 1, 2]),
            [4],
            {"opset": 11},
            "'s' makes 3 outputs, but names 2",
        ),
        (node("SequenceConstruct", ["x"], ["y"], "list"), [2], {}, "output 'y' is no tensor"),
        (OWN, [2], {}, "own.Relu ('r'): the file imports no operators of 'own'"),
        (OWN, [2], {"domains": ["own"]}, "own.Relu ('r')"),
        (node("Einsum", ["x"], ["y"], "e", equation="ab->b"), [2], {}, "Einsum 'e' is not valid: "),
        # Shape inference never finishes reading these.
        *(
            (node("Einsum", ["x"], ["y"], "e", equation=equation), [2, 3], {}, "'e' is not valid: its equation is none")
            for equation in ("ab#->a", "...a1->a", "....ab", "a\u00e9->a")
        ),
    ],
)
def test_node_that_cannot_be_read(tmp_path, operator, shape, options, reason):
    """Values that nothing makes, and weights that are not whole, are among the files of ``tests/fuzz``."""
    weights = {"on": np.array(True), "words": np.array(["a"], dtype=object), "w": np.zeros((4, 5, 1, 1), np.float32)}
    assert reason in message(write_onnx(tmp_path / "m.onnx", [operator], {"x": shape}, weights, **options))


class TestExternalWeights:
    @pytest.fixture
    def path(self, tmp_path):
        folder = tmp_path / "model"
        folder.mkdir()
        weights = {"w": np.zeros((4, 3, 1, 1), dtype=np.float32)}
        path = write_onnx(folder / "m.onnx", [node("Conv", ["x", "w"], ["y"])], {"x": [1, 3, 8, 8]}, weights)
        model = onnx.load(path)
        onnx.save_model(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
        return path

    def redirect(self, path, location: str) -> None:
        model = onnx.load(path, load_external_data=False)
        model.graph.initializer[0].external_data[0].value = location
        path.write_bytes(model.SerializeToString())

    def test_missing(self, path):
        """Prices need no values; whoever loads them is told."""
        (path.parent / "weights.bin").unlink()
        constant = import_onnx(path).constants["w"]
        with pytest.raises(
            GraphError, match=r"weight 'w' is stored in .*weights.bin, which does not exist; put it into"
        ):
            constant.load()

    def test_too_short(self, path):
        (path.parent / "weights.bin").write_bytes(bytes(40))
        assert "weight 'w' is not whole" in message(path)

    def test_gone_or_cut_later(self, path):
        constant = import_onnx(path).constants["w"]
        (path.parent / "weights.bin").write_bytes(bytes(40))
        with pytest.raises(ModelError, match="have become shorter"):
            constant.load()
        (path.parent / "weights.bin").unlink()
        with pytest.raises(ModelError, match="cannot read weights"):
            constant.load()

    @pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "sub/../../secret.bin", "", "link.bin"])
    def test_outside_the_folder(self, path, location):
        secret = path.parent.parent / "secret.bin"
        secret.write_bytes(bytes(48))
        os.symlink(secret, path.parent / "link.bin")
        self.redirect(path, location)
        assert "outside the model's folder" in message(path)
