"""Operators that are decomposed at import: bodies of ONNX's own operators, in ONNX's text form.

A body calls operands and results by the names of the operator's documentation; other names are its own. A list of
integers among the operands of an operator (``Reshape(x, [0, -1])``) stands for a constant of these. Its operators
are of one operator set (:data:`OPSET`), whatever that of the file. An operator is added by one entry in a table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
import onnx.parser
from onnx import NodeProto

from iossim.ir.constants import Constant
from iossim.ir.onnx_spelling import OnnxNode
from iossim.ir.types import DType, TensorType
from iossim.models.onnx.constants import Known, UnpackedConstant, node_view

#: The operator set of bodies: the installed onnx checks them by it.
OPSET = 24


@dataclass(frozen=True)
class Call:
    """A node that is being decomposed: its values by their names in the operator's documentation."""

    node: OnnxNode
    operands: Mapping[str, str]
    results: Mapping[str, str]
    known: Known

    def has(self, *names: str) -> bool:
        """True if any of these operands is given."""
        return any(self.operands.get(name) for name in names)

    def makes(self, *names: str) -> bool:
        """True if any of these results is named."""
        return any(self.results.get(name) for name in names)

    def type(self, name: str) -> TensorType:
        return self.node.types[self.operands[name]]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.type(name).shape

    def get(self, name: str, default: object = 0) -> Any:
        """An attribute."""
        return self.node.attribute(name, default)

    def hold(self, own: str, constant: Constant) -> None:
        """Give the body a constant of its own, by name."""
        assert self.known.add is not None, "nodes are decomposed as they are read"
        self.known.add(f"{self.node.name}.{own}", constant)

    def unpacked(self, own: str, name: str, bits: int, rows: int, columns: int, dtype: DType) -> bool:
        """True if an operand is constant bytes, whose numbers ``[rows, columns]`` then are the constant ``own``."""
        packed = self.known.constants.get(self.operands[name])
        each, rest = divmod(packed.type.elements, rows) if packed and packed.type.dtype is DType.UINT8 else (0, 0)
        if packed is None or rest or columns * bits > 8 * each:
            return False
        self.hold(own, UnpackedConstant(TensorType((rows, columns), dtype), packed, bits))
        return True

    def attributes(self, *names: str) -> str:
        """The given ones of these attributes, or all, as text."""
        given = {name: value for name, value in self.node.attributes.items() if not names or name in names}
        return f"<{', '.join(f'{name} = {json.dumps(value)}' for name, value in given.items())}>" if given else ""


#: The operands and results of an operator (``A B -> C``; an asterisk stands for further operands, called x2, x3 and so
#: on by their positions), and its body: text, or a function that returns it. Without text the call is not covered.
Written = tuple[str, str | Callable[[Call], str]]


def written_by(bodies: Mapping[str, Written], node: NodeProto, name: str, known: Known, opset: int) -> list[NodeProto]:
    """The nodes that replace a node; none if no body covers it. The one that makes the first result keeps its name."""
    if node.op_type not in bodies:
        return []
    signature, body = bodies[node.op_type]
    operands, results = (part.split() for part in signature.split("->"))
    if operands[-1] == "*":
        operands[-1:] = [f"x{place}" for place in range(len(operands) - 1, len(node.input))]
    if len(node.input) > len(operands) or len(node.output) > len(results):
        return []
    read = dict.fromkeys(operands, "") | dict(zip(operands, node.input, strict=False))
    made = dict(zip(results, node.output, strict=False))
    text = body if isinstance(body, str) else body(Call(node_view(node, name, known, opset), read, made, known))
    names = read | {result: value for result, value in made.items() if value}
    nodes = list(parsed(text)) if text else []
    for each in nodes:
        first = each.output[0]
        each.name = name if first == results[0] else f"{name}.{first}"
        for values in (each.input, each.output):
            values[:] = [names.get(value, f"{name}.{value}") if value else "" for value in values]
        each.metadata_props.extend(node.metadata_props)
    return nodes


#: A list of integers that is an operand: the attributes of an operator are in angle brackets.
_LIST = re.compile(r"\[[-\d, ]+\](?=[^<>()]*\))")


def parsed(text: str) -> list[NodeProto]:
    """The nodes of a body."""
    lists: dict[str, str] = {}
    text = _LIST.sub(lambda found: lists.setdefault(found[0], f"integers{len(lists)}"), text)
    text = " ".join([*(f"{name} = Constant <value_ints = {values}> ()" for values, name in lists.items()), text])
    function = onnx.parser.parse_function(f'<domain: "body", opset_import: ["" : {OPSET}]> body () => () {{ {text} }}')
    return list(function.node)


def number(name: str, value: float, like: str) -> str:
    """Text that makes a number of the element type of another value."""
    return f"{name}_f = Constant <value_float = {float(value)}> () {name} = CastLike({name}_f, {like})"


def counted(name: str, begin: int, end: int) -> str:
    """Text that makes a list of consecutive integers, whose length a damaged file may say."""
    ends = [f"{name}_{place} = Constant <value_int = {value}> ()" for place, value in enumerate((begin, end, 1))]
    return f"{' '.join(ends)} {name} = Range({name}_0, {name}_1, {name}_2)"
