"""Mutations of ONNX files: seeded functions that damage a model, by bytes or by the fields of its protobuf.

A :class:`Mutant` names a seed model and the mutations done to it, each with the seed of its random choices, so that equal
mutants are equal bytes in every process. What a mutation cannot be done to (a model without weights) it leaves as it is.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, EncodeError
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


@dataclass(frozen=True)
class Mutant:
    """The model called ``seed``, after each of the mutations (a name, and the seed of its choices) in turn."""

    seed: str
    steps: tuple[tuple[str, int], ...]

    def data(self, models: dict[str, bytes]) -> bytes:
        """The bytes of its file."""
        data = models[self.seed]
        for name, seed in self.steps:
            data = mutated(data, name, seed)
        return data

    def __str__(self) -> str:
        return " ".join([self.seed, *(f"{name}:{seed}" for name, seed in self.steps)])


def mutated(data: bytes, name: str, seed: int) -> bytes:
    """The file after one mutation; as it was if it no longer is a model whose fields could be changed."""
    choose = Random(seed)
    if name in ON_BYTES:
        return ON_BYTES[name](data, choose) if data else data
    model = ModelProto()
    try:
        model.ParseFromString(data)
        ON_FIELDS[name](model, choose)
        return bytes(model.SerializeToString())
    except (DecodeError, EncodeError, UnicodeDecodeError, UnicodeEncodeError, ValueError, TypeError):
        return data  # damaged before, or of a kind that the mutation does not know


def mutant_of(seed: int, seeds: Sequence[str]) -> Mutant:
    """A mutant drawn by one number."""
    choose = Random(seed)
    names = [*ON_FIELDS] * 3 + [*ON_BYTES]
    count = choose.choice((1, 1, 1, 2, 2, 3, 5))
    steps = tuple((choose.choice(names), choose.randrange(2**32)) for _ in range(count))
    return Mutant(choose.choice(seeds), steps)


# On bytes


def truncate(data: bytes, choose: Random) -> bytes:
    return data[: choose.randrange(len(data))]


def flip_bits(data: bytes, choose: Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(choose.choice((1, 1, 2, 8))):
        damaged[choose.randrange(len(damaged))] ^= 1 << choose.randrange(8)
    return bytes(damaged)


def overwrite(data: bytes, choose: Random) -> bytes:
    damaged = bytearray(data)
    start = choose.randrange(len(damaged))
    length = min(choose.choice((1, 4, 64)), len(damaged) - start)
    damaged[start : start + length] = choose.randbytes(length)
    return bytes(damaged)


def insert(data: bytes, choose: Random) -> bytes:
    place = choose.randrange(len(data))
    return data[:place] + choose.randbytes(choose.choice((1, 3, 20))) + data[place:]


def splice(data: bytes, choose: Random) -> bytes:
    """A piece of the file again elsewhere, or left out."""
    start = choose.randrange(len(data))
    end = min(len(data), start + choose.choice((1, 16, 256)))
    if choose.random() < 0.5:
        return data[:start] + data[end:]
    place = choose.randrange(len(data))
    return data[:place] + data[start:end] + data[place:]


def huge_varint(data: bytes, choose: Random) -> bytes:
    """Lengths and numbers of protobuf as large as they can be written, or longer than may be."""
    place = choose.randrange(len(data))
    varint = b"\xff" * choose.choice((4, 9, 9, 12)) + bytes([choose.randrange(128)])
    return data[:place] + varint + data[place + choose.randrange(3) :]


ON_BYTES: dict[str, Callable[[bytes, Random], bytes]] = {
    function.__name__: function for function in (truncate, flip_bits, overwrite, insert, splice, huge_varint)
}
#: All mutations, the gentler ones first.
MUTATIONS = (*ON_BYTES, *ON_FIELDS)
