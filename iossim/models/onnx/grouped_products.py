"""Grouped products in ONNX, which has no operator for them: calls of functions that a file brings along.

A call is of domain ``iossim``. Any runtime computes it by the function's body, which splits the rows at the ends of
groups and multiplies each part by the weights of its expert: every row once, whatever the routing. The number of
experts is part of a function's name, since it is that of the branches in its body. The importer reads a call as the op,
and no body.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from onnx import FunctionProto, NodeProto, parser

from iossim.base.errors import ModelError

#: The domain of functions that stand for ops of iossim's, its version, and the first operator set that can be theirs.
DOMAIN, VERSION, LEAST_OPSET = "iossim", 1, 18
_OP = "GroupedMatMul"


def call_of(experts: int) -> str:
    """The operator type of calls for so many experts."""
    return f"{_OP}.{experts}"


def is_own(domain: str, name: str) -> bool:
    """True for a call, or a function, of this module; a file may have others of the same domain."""
    return domain == DOMAIN and re.fullmatch(rf"{_OP}(\.\d+)?", name) is not None


def op_type(node: NodeProto) -> str:
    """The operator type of a call for any number of experts; of any other node its own."""
    return _OP if is_own(node.domain, node.op_type) else node.op_type


def functions_for(nodes: Iterable[NodeProto], opset: int) -> list[FunctionProto]:
    """The functions that nodes call, each once; raises ModelError for an operator set in which these have no body."""
    called = sorted({node.op_type for node in nodes if is_own(node.domain, node.op_type)})
    if called and opset < LEAST_OPSET:
        raise ModelError(f"operator set {opset} has no form of a grouped product; write {LEAST_OPSET} or a later one")
    return [_function(name, int(name.partition(".")[2]), opset) for name in called]


def _function(name: str, experts: int, opset: int) -> FunctionProto:
    """Parts of rows ``x0``, ``x1``, ..., by their sizes; the last one, of rows after all groups, becomes zeros."""
    xs, ws, ys = ([f"{part}{expert}" for expert in range(experts)] for part in "xwy")
    function = parser.parse_function(
        f'<domain: "{DOMAIN}", opset_import: ["" : {opset}]> named (x, weight, ends) => (y) {{'
        "first = Constant <value_ints = [0]> () one = Constant <value_ints = [1]> ()"
        "until = Cast <to = 7> (ends) rows = Shape <start = 0, end = 1> (x) width = Shape <start = 2> (weight)"
        "after = Concat <axis = 0> (until, rows) before = Concat <axis = 0> (first, until) sizes = Sub (after, before)"
        f"{', '.join(xs)}, rest = Split <axis = 0> (x, sizes)"
        f"{', '.join(ws)} = Split <axis = 0, num_outputs = {experts}> (weight)"
        f"{' '.join(f'{y} = MatMul ({x}, {w})' for x, w, y in zip(xs, ws, ys, strict=True))}"
        "left = Shape <start = 0, end = 1> (rest) shape = Concat <axis = 0> (one, left, width)"
        "none = ConstantOfShape (shape) zeros = CastLike (none, x)"
        f"all = Concat <axis = 1> ({', '.join(ys)}, zeros) y = Squeeze (all, first) }}"
    )
    function.name = name
    return function
