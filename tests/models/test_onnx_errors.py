"""A model file that cannot be read gets one line: the file, what is wrong in it, what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import nodes_of, write_onnx
from onnx_of_op import import_onnx
from seeded_weights import LIGHT_MODELS

from iossim.base.errors import GraphError, IossimError, ModelError, OptionError
from iossim.models.load import load, load_source

RELU = "[r] y = Relu(x)"


def message(path: Path, kind: type[IossimError] = ModelError, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        import_onnx(path, **options)
    return str(caught.value)


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
def test_a_file_that_is_no_model(content: bytes | None, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    assert reason in message(path)
    assert "is a folder; give the .onnx file" in message(tmp_path)


def test_a_file_larger_than_protobuf_reads(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with path.open("wb") as stream:
        stream.truncate(2**31)
    assert "more than the 2 GiB that an ONNX file can hold" in message(path)


@pytest.mark.parametrize(("opset", "reason"), [(5, "iossim reads 6 and later"), (999, "update onnx")])
def test_operator_set(tmp_path: Path, opset: int, reason: str) -> None:
    text = message(write_onnx(tmp_path / "m.onnx", RELU, {"x": [1]}, opset=opset))
    assert f"uses operator set {opset}" in text
    assert reason in text


def test_operators_that_cannot_be_taken_are_all_named_at_once(tmp_path: Path) -> None:
    nodes = """[first] a = NonZero(x); [r] b = Relu(x); [second] c = NonZero(b); [t] t = Transpose(c); [odd] d = Mystery(b)
        [fused] e = com.microsoft.Inverse(b); [dice] f = RandomNormalLike(b); [s] y = Sigmoid(d)"""
    text = message(write_onnx(tmp_path / "m.onnx", nodes, {"x": [2]}, domains=["com.microsoft"]))
    assert "Mystery ('odd'): ONNX has no such operator; " in text
    assert "NonZero ('first' and 1 more): the shape of its output depends on data; " in text
    assert "RandomNormalLike ('dice'): it draws random numbers; " in text
    assert "com.microsoft.Inverse ('fused'): neither ONNX nor the file determines the shape of its output" in text
    assert "Transpose" not in text  # what reads them would be read if they were
    assert text.endswith("; give `static_part` for the part before them, or export the model without them")


DETECTION = """[h] a = Relu(x); [s] y = Sigmoid(a); [n] b = NonZero(a); [t] c = Transpose(b); [g] d = GatherND(y, c)
    [u] e = custom.Odd(d)"""


def test_the_part_before_data_dependent_shapes_is_read(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", DETECTION, {"x": [1, 4]}, output="e y", domains=["custom"])
    assert "custom.Odd ('u'): it reads what these make" in message(path)
    network = load(path, static_part=True)
    assert network.graph.outputs == ("y", "a")
    assert [node.name for node in network.graph.nodes] == ["h", "s"]
    assert "what makes e is in no price" in network.reading[0]
    assert load_source(network.source).graph.hash == network.graph.hash
    assert load(path, static_part=True, batch=3).graph.types["y"].shape == (3, 4)
    whole = load(write_onnx(tmp_path / "whole.onnx", RELU, {"x": [1, 4]}), static_part=True)
    assert (whole.graph.outputs, whole.reading) == (("y",), ())


def test_a_part_is_not_read_if_it_is_empty_or_another_at_another_batch(tmp_path: Path) -> None:
    empty = write_onnx(tmp_path / "m.onnx", "[n] y = NonZero(x)", {"x": [1, 4]})
    assert "NonZero ('n'): the shape of its output depends on data; " in message(empty, static_part=True)
    nodes, declared = "[r] a = Relu(x); [o] y = custom.Odd(a)", {"y": [1, 4]}
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": [1, 4]}, output=declared, domains=["custom"])
    assert import_onnx(path, static_part=True).outputs == ("y",)
    assert "so that batch 1 of the file cannot become 2" in message(path, static_part=True, batch=2)


@pytest.mark.parametrize("batch", ["N", None])
def test_an_open_batch_is_one_with_a_remark(tmp_path: Path, batch: str | None) -> None:
    """As in trtexec."""
    path = write_onnx(tmp_path / "m.onnx", RELU, {"x": [batch, 3, 8, 8]})
    network = load(path)
    assert network.graph.types["y"].shape == (1, 3, 8, 8)
    spelled = f"{batch or '?'}x3x8x8"
    assert network.remarks == (f"The file leaves the batch open (x {spelled}); it is taken as 1 (`batch`).",)
    assert load(path, batch=1).remarks == ()
    assert load_source(network.source).graph.types == network.graph.types


def test_a_batch_that_another_input_binds_is_not_open(tmp_path: Path) -> None:
    """Only what nothing binds is taken as 1; and what is computed of names is no batch."""

    def joined(x: int | str, past: str) -> Path:
        return write_onnx(tmp_path / "m.onnx", "[c] y = Concat <axis=0> (x, past)", {"x": [x, 4], "past": [past, 4]})

    graph = import_onnx(joined("N", "M"), dimensions={"M": 3})
    assert (graph.types["x"].shape, graph.types["past"].shape) == ((1, 4), (3, 4))
    assert import_onnx(joined("N", "2*N")).types["y"].shape == (3, 4)
    assert "dimension 0 ('M + N') of input 'past' is open" in message(joined(2, "M + N"))


def test_a_file_without_open_dimensions_says_how_to_change_its_batch(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", RELU, {"x": [1, 3, 8, 8]})
    text = message(path, OptionError, dimensions={"batch": 8})
    assert "has no open dimension, so no 'batch': its inputs are x 1x3x8x8; export it with" in text


def test_open_dimension(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", RELU, {"x": ["N", 3, "height", None]})
    assert (
        "dimension 2 ('height') of input 'x' is open; bind it with `dimensions` height=8 or `shapes` x=Nx3xheightx?"
        in message(path, batch=1)
    )
    assert "dimension 3 of input 'x' is open" in message(path, batch=1, dimensions={"height": 8})


def test_all_open_dimensions_are_named_at_once(tmp_path: Path) -> None:
    inputs = {"x": ["N", "new"], "mask": ["N", "past + new"], "key": ["N", "past"]}
    path = write_onnx(tmp_path / "m.onnx", "a = Concat <axis=1> (key, x); y = Add(a, mask)", inputs)
    assert (
        "dimension 1 ('new') of input 'x' is open, and so is past; bind them with `dimensions` new=8 "
        "`dimensions` past=8 or `shapes` x=Nxnew" in message(path)
    )
    assert (
        "dimension 1 ('past + new') of input 'mask' is open; bind it with `dimensions` past=8 or `shapes`"
        in message(path, dimensions={"new": 1})
    )
    remark, *_ = load(path, dimensions={"new": 1, "past": 7}).reading
    assert remark == "The file leaves the batch open (x Nxnew, mask Nxpast+new ...); it is taken as 1 (`batch`)."


def test_input_without_shape(tmp_path: Path) -> None:
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
def test_binding_that_does_not_fit(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    bindings = {name: value for name, value in options.items() if name != "declared"}
    path = write_onnx(tmp_path / "m.onnx", RELU, {"x": options.get("declared", ["N", 3, "L"])})
    assert reason in message(path, OptionError, **bindings)


def test_dimension_computed_of_names(tmp_path: Path) -> None:
    """As exporters write the length of a cache and what is added to it."""
    inputs = {"x": ["N", "new", 4], "past": ["N", "2*(all - new)//2", 4]}
    path = write_onnx(tmp_path / "m.onnx", "[c] y = Concat <axis=1> (x, past)", inputs)
    text = message(path, dimensions={"N": 2, "new": 3})
    assert "('2*(all - new)//2') of input 'past' is open; bind it with `dimensions` all=8 or `shapes`" in text
    graph = import_onnx(path, dimensions={"N": 2, "new": 3, "all": 8})
    assert (graph.types["past"].shape, graph.types["y"].shape) == ((2, 5, 4), (2, 8, 4))
    assert import_onnx(path, dimensions={"N": 2}, shapes={"x": (2, 3, 4), "past": (2, 9, 4)}).types["y"].shape[1] == 12


@pytest.mark.parametrize("name", ["a ** b", "f(a)", "a.b", "(a", "1e9", "lambda: 0", "a if b else c"])
def test_dimension_that_is_no_arithmetic_is_a_name(tmp_path: Path, name: str) -> None:
    path = write_onnx(tmp_path / "m.onnx", RELU, {"x": [name, 3]})
    assert import_onnx(path, dimensions={name: 2}).types["y"].shape == (2, 3)


@pytest.mark.parametrize(
    "nodes",
    [
        "[t] y = Transpose <perm=[1, 0, 2]> (x)",
        "[t] y = Slice(x, zero, one)",
        "[t] y = Softmax <axis=0> (x)",
        "[t] y = Concat <axis=0> (x, x)",
        "f = Reshape(x, flat); [t] y = Transpose <perm=[1, 0]> (f)",
        "[t] y = Concat <axis=1> (token, x)",
        "[t] y = CumSum(x, zero)",
        "[t] y = GatherND(x, row)",
        "i = Cast <to=7> (x); [t] y = GatherElements <axis=1> (token, i)",
        "z = Add(x, x); f = Reshape(z, flat); [t] y = Gemm <transB=1> (f, f)",
        "[t] y = LayerNormalization <axis=0> (x, scale)",
        "[t] y = Tile(x, twice)",
        "[t] y = Gather <axis=0> (x, zero)",
        "[t] y = LSTM <hidden_size=2> (x, w, r)",
        "[t] y = Trilu(x)",
    ],
)
def test_batch_that_cannot_be_changed(tmp_path: Path, nodes: str) -> None:
    numbers = {"zero": [0], "one": [1], "flat": [3, 4], "row": [[0]], "twice": [2, 1, 1]}
    shapes = {"scale": (1, 3, 4), "w": (1, 8, 4), "r": (1, 8, 2), "token": (1, 1, 4)}
    weights = {name: np.array(value, dtype=np.int64) for name, value in numbers.items()}
    weights |= {name: np.ones(shape, dtype=np.float32) for name, shape in shapes.items()}
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": [1, 3, 4]}, weights, opset=17)
    import_onnx(path)
    text = message(path, batch=2)
    assert f"{nodes_of(nodes)[-1].op_type} 't' does not keep the batch in front" in text
    assert text.endswith("export the model for the batch that you want, or with an open one")


def test_inputs_without_a_common_batch(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", "y = Add(a, b)", {"a": [4, 2], "b": [1, 2]})
    assert import_onnx(path, batch=4).types["y"].shape == (4, 2)
    assert "no common batch to set to 2; use `shapes`" in message(path, OptionError, batch=2)


def test_shape_computed_at_run_time(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", "[view] y = Reshape(x, s)", {"x": [4], "s": (TensorProto.INT64, [2])})
    assert "Reshape 'view': its shape ('s') is computed at run time" in message(path)


IMAGE = [1, 3, 8, 8]


@pytest.mark.parametrize(
    ("nodes", "shape", "options", "reason"),
    [
        ("[drop] y = Dropout(x, , on)", IMAGE, {}, "Dropout 'drop' is in training mode"),
        ("[c] y = Conv(x)", IMAGE, {}, "Conv 'c' is not valid"),
        ("[c] y = Conv(x, w)", IMAGE, {}, "Conv 'c': its input has 3 channels, its weight takes 5"),
        ("[pool] y = MaxPool(x)", IMAGE, {}, "MaxPool 'pool' is not valid"),
        ("[p] y = MaxPool <kernel_shape=[9, 9]> (x)", IMAGE, {}, "MaxPool 'p' would make an empty tensor"),
        ('[text] y = Constant <value_string="no"> ()', IMAGE, {}, "given as value_string"),
        ("[r] y = Reshape(x, words)", IMAGE, {}, "has element type STRING"),
        ("[s] y, z = Split <split=[1, 1, 2]> (x)", [4], {"opset": 11}, "'s' makes 3 outputs, but names 2"),
        ("[list] y = SequenceConstruct(x)", [2], {}, "output 'y' is no tensor"),
        ("[r] y = own.Relu(x)", [2], {}, "own.Relu ('r'): the file imports no operators of 'own'"),
        ("[r] y = own.Relu(x)", [2], {"domains": ["own"]}, "own.Relu ('r')"),
        ('[e] y = Einsum <equation="ab->b"> (x)', [2], {}, "Einsum 'e' is not valid: "),
        *(
            (f'[p] y = MaxPool <kernel_shape=[2, 2], auto_pad="{pad}", {each}> (x)', IMAGE, {}, "MaxPool 'p'")
            for each in ("strides=[1]", "strides=[0, 1]", "dilations=[1, 1, 1]")
            for pad in ("NOTSET", "SAME_UPPER")
        ),
        # Operands that make no sense.
        *(
            (f"[n] y = {each}", [2, 3, 4], {"opset": 18}, f"{re.split('[ (]', each)[0]} 'n'")
            for each in (
                *("Resize(x, , few)", "Sub(x, )", "Clip(x, several)", "Split <num_outputs=0> (x)", "Reshape(x, table)"),
                *('Shape("")', "Range(few, few)", "Range(few, few, nothing)"),
            )
        ),
        # Shape inference never finishes reading these.
        *(
            (f'[e] y = Einsum <equation="{each}"> (x)', [2, 3], {}, "'e': its equation is none")
            for each in ("ab#->a", "...a1->a", "....ab", "a\u00e9->a")
        ),
    ],
)
def test_node_that_cannot_be_read(
    tmp_path: Path, nodes: str, shape: list[int], options: dict[str, Any], reason: str
) -> None:
    """Values that nothing makes, and weights that are not whole, are among the files of ``tests/fuzz``."""
    weights = {"on": np.array(True), "words": np.array(["a"], dtype=object), "w": np.zeros((4, 5, 1, 1), np.float32)}
    weights |= dict.fromkeys(("few", "several"), np.ones(2, np.float32))
    weights |= {"nothing": np.zeros(1, np.float32), "table": np.ones((2, 2), dtype=np.int64)}
    assert reason in message(write_onnx(tmp_path / "m.onnx", nodes, {"x": shape}, weights, **options))


@pytest.fixture
def external(tmp_path: Path) -> Path:
    """A model whose weight is in ``weights.bin``, with a link and a file outside its folder."""
    folder = tmp_path / "model"
    folder.mkdir()
    weights = {"w": np.zeros((4, 3, 1, 1), dtype=np.float32)}
    path = write_onnx(folder / "m.onnx", "y = Conv(x, w)", {"x": [1, 3, 8, 8]}, weights)
    onnx.save_model(onnx.load(path), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "secret.bin").write_bytes(bytes(48))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    return path


def test_missing_weights_are_told_to_whoever_loads_them(external: Path) -> None:
    """Prices need no values."""
    weights = external.parent / "weights.bin"
    constant = import_onnx(external).constants["w"]
    weights.write_bytes(bytes(40))
    with pytest.raises(ModelError, match="have become shorter"):
        constant.load()
    assert "weight 'w' is not whole" in message(external)
    weights.unlink()
    with pytest.raises(ModelError, match="cannot read weights"):
        constant.load()
    with pytest.raises(GraphError, match=r"weight 'w' is stored in .*weights.bin, which does not exist; put it into"):
        import_onnx(external).constants["w"].load()


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "sub/../../secret.bin", "", "link.bin"])
def test_weights_outside_the_folder(external: Path, location: str) -> None:
    model = onnx.load(external, load_external_data=False)
    model.graph.initializer[0].external_data[0].value = location
    external.write_bytes(model.SerializeToString())
    assert "outside the model's folder" in message(external)
