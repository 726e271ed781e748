"""Builds the files of :mod:`fuzz_adversarial`: small models, a node or a weight of which is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from google.protobuf.internal.encoder import _VarintBytes
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

node = helper.make_node
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
IMAGE = (1, 3, 8, 8)


def model(
    nodes: Sequence[NodeProto],
    weights: dict[str, Any] | None = None,
    shape: Sequence[int | str | None] | None = IMAGE,
    *,
    tensors: Sequence[TensorProto] = (),
    opset: int = 18,
    output: str = "y",
    functions: Sequence[Any] = (),
    change: Callable[[ModelProto], None] | None = None,
) -> bytes:
    """One fp32 input ``x``, and one output."""
    graph = helper.make_graph(
        nodes,
        "hostile",
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_empty_tensor_value_info(output)],
        [*(numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()), *tensors],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    made = helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=8)
    if change is not None:
        change(made)
    return bytes(made.SerializeToString())


def ints(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def floats(*shape: int) -> Any:
    return np.ones(shape, dtype=np.float32)


def made_huge(operator: NodeProto, weights: dict[str, Any], opset: int = 18) -> bytes:
    """A model that adds what ``operator`` makes of constants alone to its input."""
    return model([operator, node("Add", ["x", "big"], ["y"], "sum")], weights, (1,), opset=opset)


def nested(depth: int) -> bytes:
    """A condition in a condition, and so on: known ones, that fold."""
    inner = helper.make_graph([node("Relu", ["x"], ["z"])], "g", [], [helper.make_empty_tensor_value_info("z")])
    for _ in range(depth):
        both = {"then_branch": inner, "else_branch": GraphProto()}
        inner = helper.make_graph(
            [node("If", ["yes"], ["z"], **both)], "g", [], [helper.make_empty_tensor_value_info("z")]
        )
    return model([*inner.node], {"yes": np.array(True)}, output="z")


def field(number: int, contents: bytes) -> bytes:
    """A message or text as protobuf writes it."""
    return bytes(_VarintBytes(number << 3 | 2) + _VarintBytes(len(contents)) + contents)


def too_deep() -> bytes:
    """The same by hand, deeper than protobuf writes."""
    graph = b""
    for _ in range(1000):
        graph = field(1, field(5, field(6, graph)))  # a node of the graph, its attribute, a graph in it
    return field(7, graph)


def calling(count: int, calls: int, last: str = "") -> bytes:
    """Functions of which each calls the next ``calls`` times; the last calls an operator, or the function ``last``."""
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    functions = []
    for index in range(count):
        called = f"f{index + 1}" if index + 1 < count else last or "Relu"
        domain = "own" if called.startswith("f") else ""
        nodes = [
            node(called, ["a" if call == 0 else f"b{call}"], [f"b{call + 1}"], domain=domain) for call in range(calls)
        ]
        functions.append(helper.make_function("own", f"f{index}", ["a"], [f"b{calls}"], nodes, imports))
    return model([node("f0", ["x"], ["y"], "call", domain="own")], functions=functions)


def external(**entries: str) -> bytes:
    """A convolution whose weight lies in another file."""
    tensor = TensorProto(name="w", dims=[4, 3, 1, 1], data_type=FLOAT, data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return model([node("Conv", ["x", "w"], ["y"], "c")], tensors=[tensor])


def weight(dims: Sequence[int], data_type: int = FLOAT, raw: str | None = None, **fields: Any) -> bytes:
    bare = {} if raw is None else {"raw_data": raw.encode()}
    tensor = TensorProto(name="w", dims=dims, data_type=data_type, **bare, **fields)
    return model([node("Add", ["x", "w"], ["y"], "sum")], tensors=[tensor])


def looped_list(size: int) -> bytes:
    """A loop in whose body a list is made and cast: inference that followed its values would write down each of them."""
    inner = [
        node("Expand", ["one", "s"], ["list"]),
        node("Cast", ["list"], ["cast"], to=INT64),
        node("ReduceMax", ["cast"], ["most"], keepdims=0),
        node("Cast", ["most"], ["number"], to=FLOAT),
        node("Add", ["v", "number"], ["w"]),
    ]
    given = {"i": (INT64, ()), "c": (TensorProto.BOOL, ()), "v": (FLOAT, IMAGE)}
    values = [helper.make_tensor_value_info(name, code, shape) for name, (code, shape) in given.items()]
    body = helper.make_graph(inner, "body", values, [values[1], helper.make_empty_tensor_value_info("w")])
    loop = node("Loop", ["n", "", "x"], ["y"], "l", body=body)
    return model([loop], {"n": np.array(3), "one": floats(1), "s": ints(size)}, opset=13)


def least_and_most(size: int) -> bytes:
    """Two numbers that are known, if somebody makes a huge tensor to know them, in a chain of element-wise ops."""
    nodes = [
        node("Expand", ["one", "s"], ["large"]),
        node("ReduceMax", ["large"], ["most"], keepdims=0),
        node("ReduceMin", ["large"], ["least"], keepdims=0),
        node("Add", ["x", "most"], ["p"]),
        node("Add", ["x", "least"], ["q"]),
        node("Mul", ["p", "q"], ["y"]),
    ]
    return model(nodes, {"s": ints(size), "one": floats(1)}, opset=13)


def circling() -> bytes:
    """A loop whose body hands on a condition that is made of itself."""
    values = [
        helper.make_tensor_value_info(name, code, shape)
        for name, code, shape in (("i", INT64, ()), ("c", TensorProto.BOOL, ()), ("v", FLOAT, IMAGE))
    ]
    inner = [node("Identity", ["p"], ["q"]), node("Identity", ["q"], ["p"]), node("Relu", ["v"], ["w"])]
    outputs = [helper.make_tensor_value_info("p", TensorProto.BOOL, ()), helper.make_empty_tensor_value_info("w")]
    body = helper.make_graph(inner, "body", values, outputs)
    return model([node("Loop", ["n", "", "x"], ["y"], "l", body=body)], {"n": np.array(3)}, opset=13)


def conv(**attributes: Any) -> bytes:
    return model([node("Conv", ["x", "w"], ["y"], "c", **attributes)], {"w": floats(4, 3, 3, 3)})


def set_ir(version: int) -> Callable[[ModelProto], None]:
    def change(made: ModelProto) -> None:
        made.ir_version = version

    return change


def twice_initialised(made: ModelProto) -> None:
    made.graph.initializer.append(made.graph.initializer[0])


def no_outputs(made: ModelProto) -> None:
    del made.graph.output[:]


def of_graphs(made: ModelProto) -> None:
    made.graph.node[0].attribute[0].ClearField("f")
    made.graph.node[0].attribute[0].type = 10  # a list of graphs, of which there are none


def wrong_attribute(made: ModelProto) -> None:
    made.graph.node[0].attribute[0].type = 7  # a number that says it is a list
