"""Model files made to hurt an importer: what would take terabytes, never end, or mean nothing; and what is said of each.

A case is a file and a part of its one-line error; one without imports after all, and takes no more than others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from fuzz_hostile_models import (
    INT64,
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
    sequence_of,
    set_ir,
    too_deep,
    twice_initialised,
    weight,
    wrong_attribute,
)
from onnx import GraphProto, TensorProto, helper, numpy_helper


@dataclass(frozen=True)
class Hostile:
    """A file, which a large one makes when it is asked for, and what its refusal says; nothing where it imports."""

    data: bytes | Callable[[], bytes]
    says: str


LONG = floats(1000)
RELU = node("Relu", ["x"], ["y"], "r")

CASES: dict[str, Hostile] = {
    # Outputs that a few numbers ask for
    "fill": Hostile(
        made_huge(node("ConstantOfShape", ["s"], ["big"], "n"), {"s": ints(2**40)}),
        "'big' would be fp32[1099511627776], and no tensor has more than 1 TiB",
    ),
    "fill of overflowing size": Hostile(
        made_huge(node("ConstantOfShape", ["s"], ["big"], "n"), {"s": ints(2**62, 2**62)}),
        "no tensor has more than 1 TiB",
    ),
    "fill of negative size": Hostile(
        made_huge(node("ConstantOfShape", ["s"], ["big"], "n"), {"s": ints(-5)}),
        "ConstantOfShape 'n' fills the negative shape [-5]",
    ),
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
    "expand": Hostile(
        made_huge(node("Expand", ["one", "s"], ["big"], "n"), {"one": floats(1), "s": ints(2**40)}),
        "op 'n' (expand) would be fp32[1099511627776]",
    ),
    "expand of the input": Hostile(
        model([node("Expand", ["x", "s"], ["y"], "n")], {"s": ints(2**40, 2**30)}, (1,)), "op 'n' (expand) would be"
    ),
    "tile": Hostile(
        made_huge(node("Tile", ["one", "s"], ["big"], "n"), {"one": floats(1), "s": ints(2**40)}),
        "op 'n' (tile) would be",
    ),
    "range": Hostile(
        made_huge(
            node("Range", ["a", "b", "c"], ["big"], "n"),
            {"a": np.float32(0), "b": np.float32(1e12), "c": np.float32(1)},
        ),
        "op 'n' (foreign) would be",
    ),
    "range without an end": Hostile(
        made_huge(
            node("Range", ["a", "b", "c"], ["big"], "n"),
            {"a": np.float32(0), "b": np.float32(np.inf), "c": np.float32(1)},
        ),
        "from 0 to inf in steps of 1 has no end",
    ),
    "range of steps of nothing": Hostile(
        made_huge(
            node("Range", ["a", "b", "c"], ["big"], "n"), {"a": np.float32(0), "b": np.float32(9), "c": np.float32(0)}
        ),
        "in steps of 0 has no end",
    ),
    "pad": Hostile(
        made_huge(node("Pad", ["one", "s"], ["big"], "n"), {"one": floats(1), "s": ints(0, 2**40)}),
        "op 'n' (pad) would be",
    ),
    "resize": Hostile(
        made_huge(node("Resize", ["one", "", "", "s"], ["big"], "n"), {"one": floats(1), "s": ints(2**40)}),
        "op 'n' (resize) would be",
    ),
    "resize by infinity": Hostile(
        model([node("Resize", ["x", "", "s"], ["y"], "n")], {"s": np.array([1, 1, np.inf, 1], np.float32)}),
        "Resize 'n' is not valid",
    ),
    "one-hot": Hostile(
        made_huge(node("OneHot", ["at", "s", "v"], ["big"], "n"), {"at": ints(1), "s": ints(2**40), "v": floats(2)}),
        "op 'n' (foreign) would be",
    ),
    "einsum": Hostile(
        made_huge(node("Einsum", ["l"] * 4, ["big"], "n", equation="a,b,c,d->abcd"), {"l": LONG}),
        "op 'n' (foreign) would be",
    ),
    "where": Hostile(
        made_huge(
            node("Where", ["a", "b", "c"], ["big"], "n"),
            {"a": np.ones((1365, 1, 1), bool), "b": floats(1, 1365, 1), "c": floats(1, 1, 1365)},
        ),
        "",
    ),
    "sum of many": Hostile(
        made_huge(
            node("Max", ["a", "b", "c", "d"], ["big"], "n"),
            {name: floats(*[1000 if axis == place else 1 for axis in range(4)]) for place, name in enumerate("abcd")},
        ),
        "op 'n' (nary) would be",
    ),
    "padded convolution": Hostile(
        made_huge(
            node("Conv", ["i", "w"], ["big"], "n", pads=[10**6] * 4), {"i": floats(1, 1, 1, 1), "w": floats(1, 1, 1, 1)}
        ),
        "op 'n' (conv) would be",
    ),
    "strided transposed convolution": Hostile(
        made_huge(
            node("ConvTranspose", ["i", "w"], ["big"], "n", strides=[10**6] * 2),
            {"i": floats(1, 1, 3, 3), "w": floats(1, 1, 1, 1)},
        ),
        "op 'n' (conv_transpose) would be",
    ),
    "window": Hostile(
        made_huge(node("HannWindow", ["s"], ["big"], "n"), {"s": np.array(2**40)}), "op 'n' (foreign) would be"
    ),
    "regions": Hostile(
        made_huge(
            node("RoiAlign", ["i", "roi", "at"], ["big"], "n", output_height=10**6, output_width=10**6),
            {"i": floats(1, 1, 2, 2), "roi": floats(1, 4), "at": ints(0)},
        ),
        "op 'n' (foreign) would be",
    ),
    "samples of regions": Hostile(
        made_huge(
            node("RoiAlign", ["i", "roi", "at"], ["big"], "n", sampling_ratio=2**31 - 1),
            {"i": floats(1, 1, 2, 2), "roi": floats(1, 4), "at": ints(0)},
        ),
        "",
    ),
    "words": Hostile(
        made_huge(
            node(
                "TfIdfVectorizer",
                ["t"],
                ["big"],
                "n",
                max_gram_length=1,
                max_skip_count=0,
                min_gram_length=1,
                mode="TF",
                ngram_counts=[0],
                ngram_indexes=[2**40],
                pool_int64s=[1],
            ),
            {"t": ints(1)},
        ),
        "op 'n' (foreign) would be",
    ),
    "long split": Hostile(
        model(
            [
                node("SplitToSequence", ["x"], ["parts"], "n", axis=0),
                node("ConcatFromSequence", ["parts"], ["y"], axis=0),
            ],
            shape=(2**40, 2),
        ),
        "a sequence of 1099511627776 tensors, more than 1024",
    ),
    "weights in a map": Hostile(sequence_of(1024, 1 << 20), "its body is written out 1024 times, which is too large"),
    "list of terabytes": Hostile(
        model(
            [
                node("Range", ["a", "b", "c"], ["list"], "n"),
                node("Cast", ["list"], ["cast"], "cast", to=TensorProto.FLOAT8E4M3FN),
                node("Add", ["x", "list"], ["y"]),
            ],
            {"a": np.float32(0), "b": np.float32(2**35), "c": np.float32(1)},
            (1,),
            opset=19,
        ),
        "",
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
    # What doubles, or does not end
    "functions that double": Hostile(calling(40, 2), "functions that stand for 2,199,023,255,550 nodes"),
    "function that calls itself": Hostile(calling(1, 1, "f0"), "function 'f0' calls itself"),
    "functions in a circle": Hostile(calling(3, 1, "f0"), "function 'f0' calls itself"),
    "functions in a long row": Hostile(calling(3000, 1), "functions that cannot be inlined"),
    "conditions in conditions": Hostile(nested(25), ""),
    "conditions too deep": Hostile(too_deep(), "is not an ONNX file, or is damaged"),
    "equation without end": Hostile(
        model([node("Einsum", ["x"], ["y"], "n", equation="....a")]), "its equation is none"
    ),
    "more operators than can be read": Hostile(lambda: model([RELU] * (2**18 + 1)), "has 262,145 operators"),
    # Graphs that are none
    "split of nothing": Hostile(model([node("Split", [], ["y"], "n")]), "Split 'n' is not valid"),
    "joined with nothing": Hostile(model([node("Concat", ["x", ""], ["y"], "n", axis=0)]), "Concat 'n' is not valid"),
    "Identity in a circle": Hostile(circling(), "depend on one another"),
    "cycle": Hostile(
        model(
            [node("Add", ["x", "b"], ["a"], "first"), node("Relu", ["a"], ["b"], "second"), node("Relu", ["b"], ["y"])]
        ),
        "Relu 'second', Add 'first' depend on one another",
    ),
    "dangling input": Hostile(model([node("Relu", ["nowhere"], ["y"], "r")]), "Relu 'r' reads 'nowhere'"),
    "value made twice": Hostile(model([RELU, RELU]), "makes the value 'y', which something else makes too"),
    "weight made again": Hostile(
        model([node("Relu", ["x"], ["w"], "r"), node("Add", ["x", "w"], ["y"])], {"w": floats(1)}),
        "makes the value 'w', which something else makes too",
    ),
    "input made again by a constant": Hostile(
        model([node("Shape", ["x"], ["x"], "n"), node("Relu", ["x"], ["y"])]), "Shape 'n' reads what it makes"
    ),
    "constant of another type": Hostile(
        model([node("Constant", [], ["c"], "n", value_float=1.0), node("Add", ["x", "c"], ["y"])], change=of_graphs),
        "Constant 'n' has a value_float of another type",
    ),
    "weight given twice": Hostile(
        model([node("Add", ["x", "w"], ["y"])], {"w": floats(1)}, change=twice_initialised), "weight 'w' is there twice"
    ),
    "input made again": Hostile(model([node("Relu", ["x"], ["x"], "r")], output="x"), "Relu 'r' reads what it makes"),
    "output that nothing makes": Hostile(model([RELU], output="z"), "graph output 'z' is made by no op"),
    "no outputs": Hostile(model([RELU], change=no_outputs), "a graph without outputs"),
    "nothing to compute": Hostile(model([node("Identity", ["w"], ["y"])], {"w": floats(1)}), "computes nothing"),
    # Shapes
    "negative dimension": Hostile(model([RELU], shape=(1, -3)), "dimension 1 of input 'x' is open"),
    "empty dimension": Hostile(model([RELU], shape=(1, 0)), "dimension 1 of input 'x' is open"),
    "overflowing input": Hostile(model([RELU], shape=(2**40, 2**40)), "'x' would be"),
    "largest dimension": Hostile(model([RELU], shape=(2**63 - 1, 2)), "'x' would be"),
    "many dimensions": Hostile(model([RELU], shape=(1,) * 5000), "or 64 dimensions"),
    "shapes that do not fit": Hostile(
        model([node("Add", ["x", "w"], ["y"], "sum")], {"w": floats(5)}), "fp32[1x3x8x8] and fp32[5] do not broadcast"
    ),
    "product that does not fit": Hostile(
        model([node("MatMul", ["x", "w"], ["y"], "m")], {"w": floats(5, 5)}), "do not multiply: 8 is not 5"
    ),
    "overflowing reshape": Hostile(
        model([node("Reshape", ["x", "s"], ["y"], "n")], {"s": ints(2**40, 2**40)}), "does not fit the shape"
    ),
    "overflowing pads": Hostile(
        model([node("Pad", ["x", "s"], ["y"], "n")], {"s": ints(0, 0, 0, 2**62, 0, 0, 0, 2**62)}),
        "op 'n' (pad) would be",
    ),
    # Weights
    "weight of terabytes": Hostile(weight([2**40], raw_data=b"1234"), "does not hold the data of fp32[1099511627776]"),
    "weight of overflowing size": Hostile(weight([2**40, 2**40], raw_data=b"1234"), "does not hold the data of"),
    "weight of negative size": Hostile(weight([-1], raw_data=b"1234"), "weight 'w' cannot be fp32[-1]"),
    "weight cut short": Hostile(weight([2], raw_data=b"1234"), "does not hold the data of fp32[2]"),
    "weight too long": Hostile(weight([1], raw_data=b"12345678"), "does not hold the data of fp32[1]"),
    "weight in two fields": Hostile(
        weight([1], raw_data=b"1234", float_data=[1.0]), "does not hold the data of fp32[1]"
    ),
    "weight in the wrong field": Hostile(weight([1], int64_data=[1]), "does not hold the data of fp32[1]"),
    "weight of no type": Hostile(weight([1], 0, raw_data=b"1234"), "element type UNDEFINED"),
    "weight of unknown type": Hostile(weight([1], 99, raw_data=b"1234"), "element type 99"),
    "weight of text": Hostile(weight([1], TensorProto.STRING, string_data=[b"a"]), "element type STRING"),
    "weight of complex numbers": Hostile(
        weight([1], TensorProto.COMPLEX64, raw_data=bytes(8)), "element type COMPLEX64"
    ),
    "weight of another type": Hostile(weight([1], INT64, raw_data=bytes(8)), "differ in element type"),
    "external outside": Hostile(external(location="../weights.bin"), "'../weights.bin', outside the model's folder"),
    "external absolute": Hostile(external(location="/etc/passwd"), "outside the model's folder"),
    "external a device": Hostile(external(location="/dev/zero"), "outside the model's folder"),
    "external folder": Hostile(external(location="."), ""),
    "external without a name": Hostile(external(), ""),
    "external name too long": Hostile(external(location="n" * 5000), "which is not a file"),
    "external name of no text": Hostile(external(location="a\0b"), "which is not a file"),
    "external name of two lines": Hostile(external(location="a\nb"), ""),
    "external name of bytes": Hostile(
        external(location="weights.bin").replace(b"weights.bin", b"w\xff\xfeghts.bin"), "is no text"
    ),
    "external far offset": Hostile(external(location="weights.bin", offset=str(2**62)), "is not whole in"),
    "external negative offset": Hostile(external(location="weights.bin", offset="-4"), "from -4 on"),
    "external offset of words": Hostile(
        external(location="weights.bin", offset="far"), "offset or length that is no number"
    ),
    "external offset of many digits": Hostile(
        external(location="weights.bin", offset="9" * 5000), "offset or length that is no number"
    ),
    "external length": Hostile(external(location="weights.bin", length=str(2**60)), "is not whole in"),
    # Attributes
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
    "strides of zero": Hostile(conv(strides=[0, 0]), "strides [0, 0]"),
    "strides below zero": Hostile(conv(strides=[-1, -1]), "strides [-1, -1]"),
    "strides of a terabyte": Hostile(conv(strides=[2**40, 2**40]), ""),
    "dilations of zero": Hostile(conv(dilations=[0, 0]), "dilations [0, 0]"),
    "pads without end": Hostile(conv(pads=[2**62] * 4), "op 'c' (conv) would be"),
    "pads below zero": Hostile(conv(pads=[-(2**40)] * 4), "no negative pads such as -1099511627776"),
    "no groups": Hostile(conv(group=0), "needs at least one group"),
    "more groups than channels": Hostile(conv(group=2**40), "in 1099511627776 groups"),
    "kernel that is not the weight's": Hostile(
        conv(kernel_shape=[2**40, 5]), "its kernel_shape is [1099511627776, 5], but its weight fp32[4x3x3x3]"
    ),
    "attribute of another type": Hostile(
        model([node("Softmax", ["x"], ["y"], "n", axis=1)], change=wrong_attribute), "Softmax 'n' is not valid"
    ),
    "axis that there is not": Hostile(
        model([node("Softmax", ["x"], ["y"], "n", axis=2**40)]), "axis 1099511627776 is not one"
    ),
    "permutation that is none": Hostile(
        model([node("Transpose", ["x"], ["y"], "n", perm=[0, 0, 0, 0])]), "permutation [0, 0, 0, 0]"
    ),
    "type that there is not": Hostile(model([node("Cast", ["x"], ["y"], "n", to=99)]), "element type 99"),
    "best of none": Hostile(model([node("TopK", ["x", "k"], ["y", "i"], "n")], {"k": ints(0)}), "no 0 elements"),
    "best of more than there are": Hostile(
        model([node("TopK", ["x", "k"], ["y", "i"], "n")], {"k": ints(2**40)}), "no 1099511627776 elements"
    ),
    # Headers
    "operator set of the future": Hostile(model([RELU], opset=2**31 - 1), "update onnx"),
    "operator set below zero": Hostile(model([RELU], opset=-1), "operator set -1"),
    "operator set without end": Hostile(model([RELU], opset=2**62), "which there is not"),
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
    # Bytes
    "length without end": Hostile(b"\x3a" + b"\xff" * 9 + b"\x01" + bytes(16), "is not an ONNX file, or is damaged"),
    "small nodes": Hostile(lambda: field(7, b"\x0a\x00" * (5 << 20)), "has more than 4,194,304 fields"),
    "small numbers": Hostile(
        lambda: field(7, field(5, field(7, bytes(130 << 20)))), "small numbers that take more than 2 GiB"
    ),
    "group that never ends": Hostile(b"\x3b" * 10_000, "is not an ONNX file, or is damaged"),
    "zeros": Hostile(bytes(4096), "is not an ONNX file, or is damaged"),
}
