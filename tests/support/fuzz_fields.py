"""Mutations of the fields of an ONNX model: each a function of the model, which it changes, and of a source of random choices.

Files that ask for terabytes, functions that double and deep conditions are among the hostile ones
(``tests/fuzz/hostile_models.yaml``, :mod:`fuzz_adversarial`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

Random = random.Random
#: Numbers at the edges of what files, runtimes and NumPy hold.
INTEGERS = (-1, 0, 1, 2, 3, -100, 2**16, 2**31 - 1, 2**31, 2**33, 2**40, 2**62, 2**63 - 1, -(2**63), -(2**31))
FLOATS = (float("nan"), float("inf"), -float("inf"), 0.0, -1.0, 1e-45, 3e38, -1e30)
NAMES = ("", "x", "nowhere", "a b", "näme", "line\nbreak", "n" * 100_000, "../../etc/passwd", "\x00")
BYTES = (b"", b"\xff\xfe", b"linear", b"SAME_UPPER", b"VALID", b"ij,jk->ik", b"x" * 10**6, b"\0" * 4, b"\1" * 1000)

#: Operators that a node may become: of each kind that the importer treats in its own way.
OPERATORS = (
    "Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "LSTM", "GRU", "Gemm", "MatMul", "Reshape",
    "Transpose", "Concat", "Split", "Slice", "Gather", "GatherND", "Scatter", "ScatterND", "Expand", "Tile", "Pad", "Resize",
    "Upsample", "ReduceMean", "ReduceSum", "ArgMax", "TopK", "Softmax", "LayerNormalization", "BatchNormalization",
    "InstanceNormalization", "LRN", "PRelu", "Clip", "Cast", "Where", "Equal", "Not", "Add", "Div", "Mod", "Pow", "Max",
    "Shape", "Size", "Constant", "ConstantOfShape", "Range", "NonZero", "If", "Loop", "Scan", "QLinearConv", "QuantizeLinear",
    "DequantizeLinear", "DynamicQuantizeLinear", "DepthToSpace", "SpaceToDepth", "Einsum", "OneHot", "CumSum", "Identity",
    "Dropout", "Flatten", "Squeeze", "Unsqueeze", "EyeLike", "GridSample", "RoiAlign", "Attention", "Col2Im", "DFT", "STFT",
    "TfIdfVectorizer", "MelWeightMatrix", "HannWindow", "SequenceConstruct", "SequenceAt", "SplitToSequence", "ConcatFromSequence", "RandomNormal", "MaxUnpool", "Compress", "Trilu",
    "Mystery",
)  # fmt: skip
#: Names of attributes of them.
ATTRIBUTES = (
    "axis", "axes", "kernel_shape", "strides", "pads", "dilations", "group", "auto_pad", "ceil_mode", "perm", "to", "shape",
    "value", "keepdims", "epsilon", "alpha", "output_shape", "output_padding", "hidden_size", "direction", "mode", "blocksize",
    "num_outputs", "split", "scales", "height_scale", "transA", "batch_dims", "start", "end", "allowzero", "k",
)  # fmt: skip


def _nodes(model: ModelProto) -> list[NodeProto]:
    return list(model.graph.node)


def _tensors(model: ModelProto) -> list[TensorProto]:
    held = [attribute.t for node in model.graph.node for attribute in node.attribute if attribute.HasField("t")]
    return [*model.graph.initializer, *held]


def _declared(model: ModelProto) -> list[Any]:
    return [*model.graph.input, *model.graph.output, *model.graph.value_info]


#: The messages of a model by what they are.
MESSAGES: dict[str, Callable[[ModelProto], list[Any]]] = {
    "model": lambda model: [model, *model.opset_import],
    "graph": lambda model: [model.graph],
    "operator": _nodes,
    "operands": _nodes,
    "attribute": lambda model: [attribute for node in model.graph.node for attribute in node.attribute],
    "weight": _tensors,
    "declared": _declared,
    "shape": lambda model: [
        part for value in _declared(model) for part in (value.type.tensor_type, *value.type.tensor_type.shape.dim)
    ],
}
#: Fields of a message that are changed; others where this says nothing.
FIELDS = {
    "operator": ("op_type", "attribute", "domain"),
    "operands": ("input", "output"),
    "attribute": ("i", "f", "s", "ints", "floats", "t", "type", "name"),
    "weight": ("dims", "dims", "data_type", "raw_data", "float_data", "name", "data_location", "external_data"),
    "shape": ("elem_type", "shape", "dim_value", "dim_param"),
}


def change(model: ModelProto, choose: Random, what: str) -> None:
    """A field of one of the messages: an element less, twice, elsewhere or another; another value; or nothing."""
    messages = MESSAGES[what](model)
    if not messages:
        return
    message = choose.choice(messages)
    fields = {field.name: field for field in message.DESCRIPTOR.fields}
    held = [field.name for field, _ in message.ListFields()]
    wanted = [name for name in FIELDS.get(what, fields) if name in fields]
    name = choose.choice([each for each in wanted if each in held and choose.random() < 0.9] or wanted)
    value = getattr(message, name)
    if isinstance(value, bool | int | float | str | bytes):
        setattr(message, name, _scalar(model, fields[name], choose))
    elif not hasattr(value, "insert") or choose.random() < 0.05:
        message.ClearField(name)
    else:
        _change_list(model, value, fields[name], choose)


def _change_list(model: ModelProto, held: Any, field: Any, choose: Random) -> None:
    place = choose.randrange(len(held)) if held else 0
    action = choose.choice(("delete", "move", "copy", "set", "set")) if held else "add"
    count = choose.choice((1, 1, 2, 300))
    if field.message_type is None:
        if action == "delete":
            del held[place]
        elif action == "set":
            held[place] = _scalar(model, field, choose)
        else:
            held.extend([_scalar(model, field, choose) for _ in range(count)])
    elif action == "add":
        held.add()
    else:
        moved = type(held[place]).FromString(held[place].SerializeToString())
        if action in ("delete", "move"):
            del held[place]
        if action != "delete":
            held.insert(choose.randrange(len(held) + 1), moved)


def _scalar(model: ModelProto, field: Any, choose: Random) -> Any:
    """A value for a field: of the model's own names, or at the edge of its type."""
    if field.type == field.TYPE_STRING:
        known = {
            "op_type": OPERATORS,
            "domain": ("ai.onnx", "ai.onnx.ml", "com.microsoft"),
            "dim_param": ("N", "batch"),
        }
        own = [value for node in model.graph.node[:500] for value in (*node.input, *node.output)]
        own += [each.name for each in (*model.graph.initializer, *model.graph.input)]
        own = own if field.containing_type.name != "AttributeProto" else list(ATTRIBUTES)
        return choose.choice(NAMES if choose.random() < 0.1 else known.get(field.name) or own or NAMES)
    if field.type == field.TYPE_BYTES:
        return choose.choice(BYTES)
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return choose.choice(FLOATS)
    if field.name in ("version", "type", "data_type", "elem_type"):
        return choose.choice((*range(27), 99))
    short = field.type in (field.TYPE_INT32, field.TYPE_ENUM)
    return choose.choice([value for value in INTEGERS if not short or abs(value) < 2**31])


def weight_values(model: ModelProto, choose: Random) -> None:
    """Numbers of small weights, which may be shapes, axes, counts and scales."""
    small = [
        tensor
        for tensor in _tensors(model)
        if tensor.data_type in (1, 6, 7, 9, 11)
        and len(tensor.dims) < 3
        and tensor.data_location != TensorProto.EXTERNAL
    ]
    if not small:
        return
    tensor = choose.choice(small)
    array = numpy_helper.to_array(tensor).copy().reshape(-1)
    if not array.size:
        return
    new = choose.choice(FLOATS if array.dtype.kind == "f" else INTEGERS)
    with np.errstate(all="ignore"):
        array[choose.randrange(array.size)] = np.array(new).astype(array.dtype)
    tensor.CopyFrom(numpy_helper.from_array(array.reshape(tuple(tensor.dims)), tensor.name))


Mutation = Callable[[ModelProto, Random], None]
ON_FIELDS: dict[str, Mutation] = {f"change_{what}": partial(change, what=what) for what in MESSAGES}
ON_FIELDS["weight_values"] = weight_values
