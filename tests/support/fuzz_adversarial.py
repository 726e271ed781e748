"""Model files made to hurt an importer: what would take terabytes, never end, or mean nothing; and what is said of each.

A case is a file and a part of its one-line error; one without imports after all, and takes no more than others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from fuzz_hostile_models import (
    IMAGE,
    calling,
    circling,
    conv,
    external,
    field,
    floats,
    ints,
    least_and_most,
    looped_list,
    made_huge,
    model,
    nested,
    no_outputs,
    node,
    of_graphs,
    set_ir,
    too_deep,
    twice_initialised,
    weight,
    wrong_attribute,
)
from onnx import GraphProto, TensorProto, helper, numpy_helper
from onnx_models import nodes_of


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
    weights |= {name: np.float32(number) for name, number in case.get("numbers", {}).items()}
    if "huge" in case:
        (operator,) = nodes_of(case["huge"])
        return Hostile(made_huge(operator, weights), case["says"])
    given = {name: case[name] for name in ("opset", "output") if name in case}
    return Hostile(model(nodes_of(case["nodes"]), weights, case.get("x", IMAGE), **given), case["says"])


FILE = Path(__file__).resolve().parents[1] / "fuzz" / "hostile_models.yaml"
CASES = {name: read(case) for name, case in yaml.safe_load(FILE.read_text(encoding="utf-8")).items()} | {
    "fill as a shape": Hostile(
        model(
            [
                node("ConstantOfShape", ["s"], ["f"], "n", value=numpy_helper.from_array(ints(1))),
                node("Reshape", ["x", "f"], ["y"], "r"),
            ],
            {"s": ints(2**40)},
        ),
        "'f' should say a shape, axes or counts",
    ),
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
    "resize by infinity": Hostile(
        model([node("Resize", ["x", "", "s"], ["y"], "n")], {"s": np.array([1, 1, np.inf, 1], np.float32)}),
        "Resize 'n' is not valid",
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
    "least of terabytes": Hostile(least_and_most(2**36), ""),
    "shape of two thousand million": Hostile(
        model(
            [node("Expand", ["one", "s"], ["y"], "n")],
            {"one": floats(1)},
            change=lambda made: made.graph.input.append(helper.make_tensor_value_info("s", TensorProto.INT64, [2**31])),
        ),
        "its shape ('s') is computed at run time",
    ),
    "size of a sequence's parts": Hostile(
        model(
            [
                node("ConstantOfShape", ["s"], ["f"], value=numpy_helper.from_array(ints(1))),
                node("SplitToSequence", ["x", "f"], ["parts"], "n", axis=0),
                node("ConcatFromSequence", ["parts"], ["y"], axis=0),
            ],
            {"s": ints(2**30)},
        ),
        "SplitToSequence 'n': 'f' should say a shape",
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
