"""Model files made to hurt an importer: what would take terabytes, never end, or mean nothing; and what is said of each.

A case is a file and a part of its one-line error; one without imports after all, and takes no more than others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from google.protobuf.internal.encoder import _VarintBytes
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx_models import nodes_of

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
    cast = "list = Expand(one, s); cast = Cast <to=7> (list); most = ReduceMax <keepdims=0> (cast)"
    inner = nodes_of(f"{cast}; number = Cast <to=1> (most); w = Add(v, number)")
    given = {"i": (INT64, ()), "c": (TensorProto.BOOL, ()), "v": (FLOAT, IMAGE)}
    values = [helper.make_tensor_value_info(name, code, shape) for name, (code, shape) in given.items()]
    body = helper.make_graph(inner, "body", values, [values[1], helper.make_empty_tensor_value_info("w")])
    loop = node("Loop", ["n", "", "x"], ["y"], "l", body=body)
    return model([loop], {"n": np.array(3), "one": floats(1), "s": ints(size)}, opset=13)


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


@dataclass(frozen=True)
class Hostile:
    """A file, which a large one makes when it is asked for, and what its refusal says; nothing where it imports."""

    data: bytes | Callable[[], bytes]
    says: str


RELU = node("Relu", ["x"], ["y"], "r")


def read(case: dict[str, Any]) -> Hostile:
    """A case of ``hostile_models.yaml``."""
    for kind, make in (("conv", conv), ("external", external), ("weight", weight)):
        if kind in case:
            return Hostile(make(**case[kind]), case["says"])
    weights = {name: ints(*numbers) for name, numbers in case.get("ints", {}).items()}
    weights |= {name: floats(*shape) for name, shape in case.get("ones", {}).items()}
    weights |= {name: np.array(number, np.float32) for name, number in case.get("numbers", {}).items()}
    if "huge" in case:
        (operator,) = nodes_of(case["huge"])
        return Hostile(made_huge(operator, weights), case["says"])
    given = {name: case[name] for name in ("opset", "output") if name in case}
    return Hostile(model(nodes_of(case["nodes"]), weights, case.get("x", IMAGE), **given), case["says"])


FILE = Path(__file__).resolve().parents[1] / "fuzz" / "hostile_models.yaml"
CASES = {name: read(case) for name, case in yaml.safe_load(FILE.read_text(encoding="utf-8")).items()} | {
    "fill as a condition": Hostile(
        model(
            [
                node("ConstantOfShape", ["s"], ["f"], "n"),
                node("If", ["f"], ["y"], "i", then_branch=GraphProto(), else_branch=GraphProto()),
            ],
            {"s": ints(2**40)},
        ),
        "If 'i' has a condition of 1099511627776 values",
    ),
    "where": Hostile(
        made_huge(
            node("Where", ["a", "b", "c"], ["big"], "n"),
            {"a": np.ones((1365, 1, 1), bool), "b": floats(1, 1365, 1), "c": floats(1, 1, 1365)},
        ),
        "",
    ),
    "window": Hostile(
        made_huge(node("HannWindow", ["s"], ["big"], "n"), {"s": np.array(2**40)}), "op 'n' (foreign) would be"
    ),
    "list of terabytes in a loop": Hostile(looped_list(2**37), ""),
    "shape of two thousand million": Hostile(
        model(
            [node("Expand", ["one", "s"], ["y"], "n")],
            {"one": floats(1)},
            change=lambda made: made.graph.input.append(helper.make_tensor_value_info("s", TensorProto.INT64, [2**31])),
        ),
        "its shape ('s') is computed at run time",
    ),
    "functions that double": Hostile(calling(40, 2), "functions that stand for 2,199,023,255,550 nodes"),
    "function that calls itself": Hostile(calling(1, 1, "f0"), "function 'f0' calls itself"),
    "functions in a circle": Hostile(calling(3, 1, "f0"), "function 'f0' calls itself"),
    "functions in a long row": Hostile(calling(3000, 1), "functions that cannot be inlined"),
    "conditions in conditions": Hostile(nested(25), ""),
    "conditions too deep": Hostile(too_deep(), "is not an ONNX file, or is damaged"),
    "more operators than can be read": Hostile(lambda: model([RELU] * (2**18 + 1)), "has 262,145 operators"),
    "Identity in a circle": Hostile(circling(), "depend on one another"),
    "constant of another type": Hostile(
        model([node("Constant", [], ["c"], "n", value_float=1.0), node("Add", ["x", "c"], ["y"])], change=of_graphs),
        "Constant 'n' has a value_float of another type",
    ),
    "weight given twice": Hostile(
        model([node("Add", ["x", "w"], ["y"])], {"w": floats(1)}, change=twice_initialised), "weight 'w' is there twice"
    ),
    "no outputs": Hostile(model([RELU], change=no_outputs), "a graph without outputs"),
    "many dimensions": Hostile(model([RELU], shape=(1,) * 5000), "or 64 dimensions"),
    "weight of text": Hostile(weight([1], TensorProto.STRING, string_data=[b"a"]), "element type STRING"),
    "external name too long": Hostile(external(location="n" * 5000), "which is not a file"),
    "external name of bytes": Hostile(
        external(location="weights.bin").replace(b"weights.bin", b"w\xff\xfeghts.bin"), "is no text"
    ),
    "external offset of many digits": Hostile(
        external(location="weights.bin", offset="9" * 5000), "offset or length that is no number"
    ),
    "infinite slope": Hostile(model([node("LeakyRelu", ["x"], ["y"], "n", alpha=float("inf"))]), ""),
    "slope that is no number": Hostile(
        model([node("LeakyRelu", ["x"], ["y"], "n", alpha=float("nan"))]), "'alpha' is no number"
    ),
    "epsilon that is no number": Hostile(
        model(
            [node("BatchNormalization", ["x", "s", "s", "s", "s"], ["y"], "n", epsilon=float("nan"))], {"s": floats(3)}
        ),
        "'epsilon' is no number",
    ),
    "attribute of another type": Hostile(
        model([node("Softmax", ["x"], ["y"], "n", axis=1)], change=wrong_attribute), "Softmax 'n' is not valid"
    ),
    "version without end": Hostile(model([RELU], change=set_ir(2**62)), "which there is not"),
    "version below zero": Hostile(model([RELU], change=set_ir(-1)), "version -1"),
    "operator of a long name": Hostile(model([node("R" * 100_000, ["x"], ["y"], "n")]), "ONNX has no such operator"),
    "node of a name of two lines": Hostile(
        model([node("Relu", ["x"], ["y"], "a\nb")]), "is not an ONNX file, or is damaged"
    ),
    "many unknown operators": Hostile(
        model([node(f"Unknown{index}", ["x"], ["y" if not index else f"u{index}"]) for index in range(3000)]),
        "export the model without them",
    ),
    "length without end": Hostile(b"\x3a" + b"\xff" * 9 + b"\x01" + bytes(16), "is not an ONNX file, or is damaged"),
    "small nodes": Hostile(lambda: field(7, b"\x0a\x00" * (5 << 20)), "has more than 4,194,304 fields"),
    "small numbers": Hostile(
        lambda: field(7, field(5, field(7, bytes(130 << 20)))), "small numbers that take more than 2 GiB"
    ),
    "group that never ends": Hostile(b"\x3b" * 10_000, "is not an ONNX file, or is damaged"),
    "zeros": Hostile(bytes(4096), "is not an ONNX file, or is damaged"),
}
