"""Mutations of the fields of an ONNX model: each a function of the model, which it changes, and of a source of random choices."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

Random = random.Random
#: Numbers at the edges of what files, runtimes and NumPy hold.
INTEGERS = (-1, 0, 1, 2, 3, -100, 2**16, 2**31 - 1, 2**31, 2**33, 2**40, 2**62, 2**63 - 1, -(2**63), -(2**31))
FLOATS = (float("nan"), float("inf"), -float("inf"), 0.0, -1.0, 1e-45, 3e38, -1e30)
NAMES = ("", "x", "nowhere", "a b", "näme", "line\nbreak", "n" * 100_000, "../../etc/passwd", "\x00")
#: Sizes of tensors that would take terabytes, or more bytes than 64 bits count.
HUGE = ((2**40,), (2**20, 2**20), (2**31, 2**31, 2**31), (2**62, 4), (10**6, 10**6), (2**33,), (65536, 65536, 16))


def delete_node(model: ModelProto, choose: Random) -> None:
    if model.graph.node:
        del model.graph.node[choose.randrange(len(model.graph.node))]


def duplicate_node(model: ModelProto, choose: Random) -> None:
    node = _node(model, choose)
    model.graph.node.insert(choose.randrange(len(model.graph.node) + 1), node)


def move_node(model: ModelProto, choose: Random) -> None:
    node = NodeProto()
    place = choose.randrange(len(model.graph.node))
    node.CopyFrom(model.graph.node[place])
    del model.graph.node[place]
    model.graph.node.insert(choose.randrange(len(model.graph.node) + 1), node)


def rename_operator(model: ModelProto, choose: Random) -> None:
    """Another operator of the model's on the same operands, or one that there is not."""
    node = _node(model, choose)
    node.op_type = choose.choice([each.op_type for each in model.graph.node] + list(OPERATORS))
    if choose.random() < 0.1:
        node.op_type = choose.choice(NAMES)
    if choose.random() < 0.05:
        node.domain = choose.choice(("ai.onnx", "ai.onnx.ml", "com.microsoft", *NAMES))


def rewire_input(model: ModelProto, choose: Random) -> None:
    """Another value in the place of one read: of later nodes too, so that there are cycles."""
    node = _node(model, choose)
    if node.input:
        node.input[choose.randrange(len(node.input))] = choose.choice([*_values(model), *NAMES[:3]])


def count_of_inputs(model: ModelProto, choose: Random) -> None:
    node = _node(model, choose)
    if node.input and choose.random() < 0.5:
        del node.input[choose.randrange(len(node.input))]
    else:
        node.input.extend([choose.choice([*_values(model), ""])] * choose.choice((1, 1, 2, 300)))


def count_of_outputs(model: ModelProto, choose: Random) -> None:
    node = _node(model, choose)
    if node.output and choose.random() < 0.5:
        del node.output[choose.randrange(len(node.output))]
    else:
        node.output.append(choose.choice(("extra", "", *_values(model))))


def rename_output(model: ModelProto, choose: Random) -> None:
    node = _node(model, choose)
    if node.output:
        node.output[choose.randrange(len(node.output))] = choose.choice([*_values(model), *NAMES])


def rename_anything(model: ModelProto, choose: Random) -> None:
    """Names of nodes, weights, inputs, outputs and dimensions: twice the same, empty, unprintable, huge."""
    graph = model.graph
    named: list[Any] = [*graph.node, *graph.initializer, *graph.input, *graph.output, *graph.value_info]
    if named:
        choose.choice(named).name = choose.choice([*_values(model), *NAMES])


def graph_outputs(model: ModelProto, choose: Random) -> None:
    outputs = model.graph.output
    if outputs and choose.random() < 0.3:
        del outputs[choose.randrange(len(outputs))]
    else:
        outputs.append(helper.make_empty_tensor_value_info(choose.choice(_values(model) or ["x"])))


def declared_shape(model: ModelProto, choose: Random) -> None:
    value = _declared(model, choose)
    if value is None:
        return
    dimensions = value.type.tensor_type.shape.dim
    action = choose.randrange(5)
    if action == 0 and dimensions:
        del dimensions[choose.randrange(len(dimensions))]
    elif action == 1:
        for _ in range(choose.choice((1, 1, 40))):
            dimensions.add().dim_value = choose.choice(INTEGERS)
    elif action == 2 and dimensions:
        choose.choice(dimensions).dim_param = choose.choice(("N", "batch", *NAMES))
    elif action == 3:
        value.type.tensor_type.ClearField("shape")
    elif dimensions:
        choose.choice(dimensions).dim_value = choose.choice(INTEGERS)


def declared_type(model: ModelProto, choose: Random) -> None:
    value = _declared(model, choose)
    if value is None:
        return
    if choose.random() < 0.2:
        value.type.sequence_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT
    else:
        value.type.tensor_type.elem_type = choose.choice((*range(27), 99, -1, 2**31 - 1))


def weight_shape(model: ModelProto, choose: Random) -> None:
    tensor = _tensor(model, choose)
    if tensor is None:
        return
    if tensor.dims and choose.random() < 0.6:
        tensor.dims[choose.randrange(len(tensor.dims))] = choose.choice(INTEGERS)
    elif choose.random() < 0.5:
        tensor.dims.append(choose.choice(INTEGERS))
    else:
        del tensor.dims[:]


def weight_type(model: ModelProto, choose: Random) -> None:
    if (tensor := _tensor(model, choose)) is not None:
        tensor.data_type = choose.choice((*range(27), 99, -1))


def weight_data(model: ModelProto, choose: Random) -> None:
    """Data of another length, in another field, or of two at once."""
    if (tensor := _tensor(model, choose)) is None:
        return
    action = choose.randrange(4)
    if action == 0:
        tensor.raw_data = tensor.raw_data[: choose.randrange(len(tensor.raw_data) + 1)]
    elif action == 1:
        tensor.raw_data = tensor.raw_data + choose.randbytes(choose.choice((1, 4, 1000)))
    elif action == 2:
        tensor.float_data.extend([choose.choice(FLOATS)] * choose.choice((1, 5)))
    else:
        tensor.ClearField("raw_data")


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


def external_weight(model: ModelProto, choose: Random) -> None:
    """Weights said to stand in another file: outside the folder, beyond its end, at absurd places."""
    if (tensor := _tensor(model, choose)) is None:
        return
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    entries = {
        "location": choose.choice(("weights.bin", "../weights.bin", "/etc/passwd", "", ".", "/dev/zero", *NAMES)),
        "offset": str(choose.choice((*INTEGERS, "x", 10**30, "-0"))),
        "length": str(choose.choice((*INTEGERS, "x", 10**30))),
    }
    for key, text in entries.items():
        if choose.random() < 0.8:
            tensor.external_data.add(key=key, value=text)


def attribute_value(model: ModelProto, choose: Random) -> None:
    if (attribute := _attribute(model, choose)) is None:
        return
    if attribute.type == AttributeProto.INT:
        attribute.i = choose.choice(INTEGERS)
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = choose.choice(FLOATS)
    elif attribute.type == AttributeProto.STRING:
        attribute.s = choose.choice((b"", b"\xff\xfe", b"linear", b"SAME_UPPER", b"VALID", b"ij,jk->ik", b"x" * 10**6))
    elif attribute.type == AttributeProto.INTS:
        values = [choose.choice(INTEGERS) if choose.random() < 0.5 else value for value in attribute.ints]
        values = values[: choose.choice((None, None, -1, 0))]
        values += [choose.choice(INTEGERS)] * choose.choice((0, 0, 1, 100))
        del attribute.ints[:]
        attribute.ints.extend(values)
    elif attribute.type == AttributeProto.FLOATS:
        attribute.floats.extend([choose.choice(FLOATS)] * choose.choice((1, 100)))


def attribute_type(model: ModelProto, choose: Random) -> None:
    """A type that is not that of the value, or that the operator does not take."""
    if (attribute := _attribute(model, choose)) is None:
        return
    if choose.random() < 0.4:
        attribute.type = choose.randrange(16)
        return
    value = choose.choice((1, 1.5, "text", [1, 2], [0.5], ["a"], TensorProto(dims=[2], data_type=7), GraphProto()))
    attribute.CopyFrom(helper.make_attribute(attribute.name or "a", value))


def add_attribute(model: ModelProto, choose: Random) -> None:
    node = _node(model, choose)
    name = choose.choice(ATTRIBUTES)
    value: object = choose.choice((choose.choice(INTEGERS), [choose.choice(INTEGERS)] * 2, 0.5, "SAME_LOWER"))
    node.attribute.append(helper.make_attribute(name, value))


def delete_attribute(model: ModelProto, choose: Random) -> None:
    node = _node(model, choose)
    if node.attribute:
        del node.attribute[choose.randrange(len(node.attribute))]


def operator_set(model: ModelProto, choose: Random) -> None:
    versions = (*range(5, 30), -1, 0, 2**31 - 1, 2**31, 2**62)
    if model.opset_import and choose.random() < 0.8:
        choose.choice(model.opset_import).version = choose.choice(versions)
    elif choose.random() < 0.5:
        model.opset_import.add(domain=choose.choice(("", "ai.onnx", "own", *NAMES)), version=choose.choice(versions))
    else:
        del model.opset_import[:]
    if choose.random() < 0.2:
        model.ir_version = choose.choice((0, 3, 4, 99, 2**62, -1))


def wrap_in_branches(model: ModelProto, choose: Random) -> None:
    """Deep subgraphs: an If in an If in an If, each of which could fold."""
    graph = model.graph
    if not graph.output:
        return
    given = graph.output[0].name
    inner = helper.make_graph(
        [helper.make_node("Identity", [given], ["wrapped"])],
        "inner",
        [],
        [helper.make_empty_tensor_value_info("wrapped")],
    )
    for _ in range(choose.choice((1, 3, 20, 30, 120))):
        node = helper.make_node(
            "If", ["yes"], ["wrapped"], then_branch=inner, else_branch=inner if choose.random() < 0.1 else GraphProto()
        )
        inner = helper.make_graph([node], "outer", [], [helper.make_empty_tensor_value_info("wrapped")])
        if inner.ByteSize() > 1 << 20:
            break
    graph.node.extend(inner.node)
    graph.initializer.append(numpy_helper.from_array(np.array(choose.random() < 0.7), "yes"))
    graph.output[0].name = "wrapped"


def wrap_in_functions(model: ModelProto, choose: Random) -> None:
    """Local functions that call each other: once, themselves, or twice each so that they double."""
    node = _node(model, choose)
    depth, calls = choose.choice(((1, 1), (5, 1), (3, 2), (30, 2), (60, 2), (1, 0)))
    imports = [helper.make_opsetid("", 13), helper.make_opsetid("own", 1)]
    for level in range(depth):
        last = level == depth - 1
        called = f"f{level}" if not calls else "Relu" if last else f"f{level + 1}"
        domain = "" if last and calls else "own"
        nodes = [helper.make_node(called, ["a"], ["b"], domain=domain)]
        for call in range(1, calls):
            nodes.append(helper.make_node(called, ["b"], [f"b{call}"], domain=domain))
        nodes.append(helper.make_node("Relu", [nodes[-1].output[0]], ["c"]))
        model.functions.append(helper.make_function("own", f"f{level}", ["a"], ["c"], nodes, imports))
    node.op_type, node.domain = "f0", "own"
    del node.attribute[:]
    model.opset_import.append(helper.make_opsetid("own", 1))


def ask_for_terabytes(model: ModelProto, choose: Random) -> None:
    """A node on constants whose output would be huge, read by a node of the model, or returned."""
    sizes = np.array(choose.choice(HUGE), dtype=np.int64)
    rank = len(sizes)
    one, name = np.ones([1] * rank, np.float32), f"huge{choose.randrange(1000)}"
    arrays: dict[str, Any] = {f"{name}.sizes": sizes, f"{name}.one": one}
    attributes: dict[str, Any] = {}
    kind = choose.choice(
        ("ConstantOfShape", "Expand", "Tile", "Range", "Resize", "Pad", "OneHot", "Einsum", "Where", "Conv")
    )
    inputs = [f"{name}.one", f"{name}.sizes"]
    if kind == "ConstantOfShape":
        inputs = inputs[1:]
    elif kind == "Range":
        arrays |= {
            f"{name}.limit": np.array(2 ** choose.choice((33, 40, 62))),
            f"{name}.0": np.array(0),
            f"{name}.1": np.array(1),
        }
        inputs = [f"{name}.0", f"{name}.limit", f"{name}.1"]
    elif kind == "Resize":
        inputs = [f"{name}.one", "", "", f"{name}.sizes"]
    elif kind == "Pad":
        arrays[f"{name}.sizes"] = np.concatenate([np.zeros(rank, np.int64), sizes])
    elif kind == "OneHot":
        arrays |= {
            f"{name}.depth": sizes[:1],
            f"{name}.values": np.array([0, 1], np.float32),
            f"{name}.at": np.arange(8),
        }
        inputs = [f"{name}.at", f"{name}.depth", f"{name}.values"]
    elif kind == "Einsum":
        arrays[f"{name}.long"] = np.ones(1000, np.float32)
        inputs, attributes = [f"{name}.long"] * 4, {"equation": "a,b,c,d->abcd"}
    elif kind == "Where":
        for axis in range(3):
            shape = [1] * 3
            shape[axis] = 1365
            arrays[f"{name}.{axis}"] = np.ones(shape, bool if axis == 0 else np.float32)
        inputs = [f"{name}.{axis}" for axis in range(3)]
    elif kind == "Conv":
        arrays[f"{name}.w"] = np.ones((1, 1, 1, 1), np.float32)
        arrays[f"{name}.one"] = np.ones((1, 1, 1, 1), np.float32)
        inputs, attributes = [f"{name}.one", f"{name}.w"], {"pads": [10**6] * 4}
    model.graph.initializer.extend(numpy_helper.from_array(array, key) for key, array in arrays.items())
    reader = _node(model, choose)
    model.graph.node.insert(0, helper.make_node(kind, inputs, [name], name, **attributes))
    if reader.input and choose.random() < 0.8:
        reader.input[choose.randrange(len(reader.input))] = name
    else:
        model.graph.output.append(helper.make_empty_tensor_value_info(name))


def random_field(model: ModelProto, choose: Random) -> None:
    """Any field of any message of the model, by reflection."""
    messages = list(_messages(model))
    message = choose.choice(messages)
    fields = [field for field, _ in message.ListFields()]
    if not fields:
        return
    field = choose.choice(fields)
    held = getattr(message, field.name)
    if hasattr(held, "__len__") and not isinstance(held, str | bytes):
        if choose.random() < 0.5 or not len(held):
            message.ClearField(field.name)
        else:
            del held[choose.randrange(len(held))]
    elif isinstance(held, bool | int):
        setattr(message, field.name, choose.choice(INTEGERS))
    elif isinstance(held, float):
        setattr(message, field.name, choose.choice(FLOATS))
    elif isinstance(held, str):
        setattr(message, field.name, choose.choice(NAMES))
    elif isinstance(held, bytes):
        setattr(message, field.name, choose.randbytes(choose.choice((0, 1, len(held)))))
    else:
        message.ClearField(field.name)


Mutation = Callable[[ModelProto, Random], None]
ON_FIELDS: dict[str, Mutation] = {
    function.__name__: function
    for function in (
        delete_node, duplicate_node, move_node, rename_operator, rewire_input, count_of_inputs, count_of_outputs,
        rename_output, rename_anything, graph_outputs, declared_shape, declared_type, weight_shape, weight_type,
        weight_data, weight_values, external_weight, attribute_value, attribute_type, add_attribute, delete_attribute,
        operator_set, wrap_in_branches, wrap_in_functions, ask_for_terabytes, random_field,
    )
}  # fmt: skip

#: Operators that a node may become: of each kind that the importer treats in its own way.
OPERATORS = (
    "Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "LSTM", "GRU", "Gemm", "MatMul", "Reshape",
    "Transpose", "Concat", "Split", "Slice", "Gather", "GatherND", "Scatter", "ScatterND", "Expand", "Tile", "Pad", "Resize",
    "Upsample", "ReduceMean", "ReduceSum", "ArgMax", "TopK", "Softmax", "LayerNormalization", "BatchNormalization",
    "InstanceNormalization", "LRN", "PRelu", "Clip", "Cast", "Where", "Equal", "Not", "Add", "Div", "Mod", "Pow", "Max",
    "Shape", "Size", "Constant", "ConstantOfShape", "Range", "NonZero", "If", "Loop", "Scan", "QLinearConv", "QuantizeLinear",
    "DequantizeLinear", "DynamicQuantizeLinear", "DepthToSpace", "SpaceToDepth", "Einsum", "OneHot", "CumSum", "Identity",
    "Dropout", "Flatten", "Squeeze", "Unsqueeze", "EyeLike", "GridSample", "RoiAlign", "Attention", "Col2Im", "DFT", "STFT",
    "TfIdfVectorizer", "MelWeightMatrix", "HannWindow", "SequenceConstruct", "RandomNormal", "MaxUnpool", "Compress", "Trilu",
    "Mystery",
)  # fmt: skip
#: Names of attributes of them.
ATTRIBUTES = (
    "axis", "axes", "kernel_shape", "strides", "pads", "dilations", "group", "auto_pad", "ceil_mode", "perm", "to", "shape",
    "value", "keepdims", "epsilon", "alpha", "output_shape", "output_padding", "hidden_size", "direction", "mode", "blocksize",
    "num_outputs", "split", "scales", "height_scale", "transA", "batch_dims", "start", "end", "allowzero", "k",
)  # fmt: skip


def _node(model: ModelProto, choose: Random) -> NodeProto:
    return choose.choice(model.graph.node) if model.graph.node else NodeProto()


def _values(model: ModelProto) -> list[str]:
    graph = model.graph
    made = [value for node in graph.node[:500] for value in (*node.input, *node.output)]
    return [*made, *(tensor.name for tensor in graph.initializer), *(value.name for value in graph.input)]


def _declared(model: ModelProto, choose: Random) -> ValueInfoProto | None:
    values = [*model.graph.input, *model.graph.input, *model.graph.output, *model.graph.value_info]
    return choose.choice(values) if values else None


def _tensors(model: ModelProto) -> list[TensorProto]:
    held = [attribute.t for node in model.graph.node for attribute in node.attribute if attribute.HasField("t")]
    return [*model.graph.initializer, *held]


def _tensor(model: ModelProto, choose: Random) -> TensorProto | None:
    tensors = _tensors(model)
    return choose.choice(tensors) if tensors else None


def _attribute(model: ModelProto, choose: Random) -> AttributeProto | None:
    attributes = [attribute for node in model.graph.node for attribute in node.attribute]
    return choose.choice(attributes) if attributes else None


def _messages(message: Any, limit: int = 2000) -> Iterator[Any]:
    """A message and the messages in it, the first of them."""
    waiting = [message]
    for _ in range(limit):
        if not waiting:
            return
        each = waiting.pop(0)
        yield each
        for field, held in each.ListFields():
            if field.message_type is not None:
                waiting += list(held) if hasattr(held, "__len__") else [held]
