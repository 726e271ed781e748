"""Attentions that no op represents directly, decomposed into ONNX's own operators.

ONNX's Attention adds a mask of numbers of any type to the scores: it is cast. ONNX Runtime's Attention and
MultiHeadAttention (domain ``com.microsoft``; `ContribOperators.md`, microsoft/onnxruntime) are made by its
transformer optimiser. Their masks are integers: visibility by key, or by query and key, or the number of keys. A
cache of earlier keys and packed operands are not decomposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from iossim.ir.onnx_spelling import onnx_code
from iossim.ir.op import Array
from iossim.ir.types import DType
from iossim.models.onnx.constants import Known, constant_node, node_view, nodes_with_list
from iossim.models.onnx.file import is_standard
from iossim.models.onnx.quantised_operators import DOMAIN

#: The number that ONNX Runtime adds to the scores of masked keys by default.
_MASKED = -10000.0
#: By operator: the positions of its mask and of the term added to scores, and the last position of its operands.
_PLACES = {"Attention": (3, 5, 6), "MultiHeadAttention": (4, 5, 6)}


def attention_written_out(node: NodeProto, name: str, known: Known, opset: int) -> list[NodeProto]:
    """The nodes that replace an attention; none for any other node, or for one that an op represents directly."""
    if is_standard(node.domain) and node.op_type == "Attention":
        return _with_cast_mask(node, name, known)
    if node.domain != DOMAIN or node.op_type not in _PLACES:
        return []
    return _Written(node, name, known, opset).nodes()


def _with_cast_mask(node: NodeProto, name: str, known: Known) -> list[NodeProto]:
    mask = node.input[3] if len(node.input) > 3 else ""
    if mask not in known.types or known.types[mask].dtype in (DType.BOOL, known.types[node.input[0]].dtype):
        return []
    to = onnx_code(known.types[node.input[0]].dtype)
    kept = NodeProto.FromString(node.SerializeToString())
    kept.input[3] = f"{name}.mask"
    return [helper.make_node("Cast", [mask], [kept.input[3]], f"{name}.mask", to=to), kept]


class _Written:
    """An attention of ONNX Runtime that is being decomposed."""

    def __init__(self, node: NodeProto, name: str, known: Known, opset: int) -> None:
        self.node, self.name, self.known, self.opset = node_view(node, name, known, opset), name, known, opset
        self.made: list[NodeProto] = []

    def nodes(self) -> list[NodeProto]:
        node = self.node
        heads = int(node.attribute("num_heads", 0))
        mask_at, bias_at, most = _PLACES[node.op_type]
        projected = self._projected(heads) if heads > 0 else None
        further = any(node.inputs[most:]) or any(node.outputs[1:]) or node.attribute("do_rotary", 0)
        past = node.op_type == "Attention" and node.has_input(4)
        if projected is None or further or past or len(self.known.types[node.inputs[0]].shape) != 3:
            return []
        (q, k, v), batch, queries, keys, features = projected
        q, v = (self._heads(value, place, heads, (0, 2, 1, 3)) for value, place in ((q, "query"), (v, "value")))
        scores = self._add("MatMul", [q, self._heads(k, "key", heads, (0, 2, 3, 1))], "scores")
        scale = float(node.attribute("scale", 0.0)) or (features / heads) ** -0.5
        scores = self._add("Mul", [scores, self._number(scale, "scale")], "scaled")
        masks = []
        if node.has_input(mask_at):
            masks.append(self._mask(node.inputs[mask_at], batch, queries, keys))
        if node.has_input(bias_at):
            masks.append(node.inputs[bias_at])
        if node.attribute("unidirectional", 0):
            causal = np.triu(np.full((queries, keys), -np.inf), 1 + keys - queries)
            masks.append(self._constant(causal.astype(self._dtype.numpy), "causal"))
        for place, mask in enumerate(masks):
            if mask is None:
                return []
            scores = self._add("Add", [scores, mask], f"masked{place}")
        weights = self._add("Softmax", [scores], "softmax", axis=-1)
        mixed = self._add("Transpose", [self._add("MatMul", [weights, v], "weighted")], "mixed", perm=(0, 2, 1, 3))
        joined = helper.make_node("Reshape", [mixed, self._shape((0, 0, -1), "joined")], [node.outputs[0]], self.name)
        return [*self.made, joined]

    def _projected(self, heads: int) -> tuple[Sequence[str], int, int, int, int] | None:
        """Queries, keys and values, each ``[batch, tokens, features]``, the sizes of the scores, and the features of
        queries; None for packed ones.
        """
        types, node = self.known.types, self.node
        if node.op_type == "Attention":
            if not all(node.has_input(place) for place in (0, 1)) or len(types[node.inputs[1]].shape) != 2:
                return None
            whole = self._add("MatMul", list(node.inputs[:2]), "projected")
            if node.has_input(2):
                whole = self._add("Add", [whole, node.inputs[2]], "biased")
            width = types[node.inputs[1]].shape[1]
            sizes = tuple(node.attribute("qkv_hidden_sizes") or (width // 3,) * 3)
            batch, tokens, _ = types[node.inputs[0]].shape if len(types[node.inputs[0]].shape) == 3 else (0, 0, 0)
            if len(sizes) != 3 or sum(sizes) != width or any(size % heads for size in sizes):
                return None
            return self._split(whole, sizes, "projected"), batch, tokens, tokens, sizes[0]
        operands = [node.inputs[place] if node.has_input(place) else "" for place in (0, 1, 2)]
        if not all(each and len(types[each].shape) == 3 for each in operands):
            return None
        (batch, queries, features), (_, keys, _), (_, _, last) = (types[each].shape for each in operands)
        if features % heads or last % heads:
            return None
        if node.has_input(3):
            parts = self._split(node.inputs[3], (features, features, last), "bias")
            operands = [
                self._add("Add", pair, f"biased{i}") for i, pair in enumerate(zip(operands, parts, strict=True))
            ]
        return operands, batch, queries, keys, features

    def _mask(self, mask: str, batch: int, queries: int, keys: int) -> str | None:
        """The value to add to the scores for a mask; None for a mask of another kind."""
        shape = self.known.types[mask].shape
        if shape == (batch,):
            counts = self._add("Reshape", [mask, self._shape((-1, 1, 1, 1), "counts")], "counts")
            places = self._constant(np.arange(keys, dtype=self.known.types[mask].dtype.numpy), "places")
            seen = self._add("Less", [places, counts], "seen")
        elif shape in ((batch, keys), (batch, queries, keys)):
            wide = (-1, 1, 1, keys) if len(shape) == 2 else (-1, 1, queries, keys)
            zero = self._constant(np.zeros((), self.known.types[mask].dtype.numpy), "zero")
            reshaped = self._add("Reshape", [mask, self._shape(wide, "wide")], "wide")
            seen = self._add("Greater", [reshaped, zero], "seen")
        else:
            return None
        masked = float(self.node.attribute("mask_filter_value", _MASKED))
        return self._add("Where", [seen, self._number(0.0, "none"), self._number(masked, "filter")], "mask")

    def _heads(self, value: str, what: str, heads: int, order: tuple[int, ...]) -> str:
        """``[batch, tokens, features]`` split into heads, with its axes in this order."""
        apart = self._add("Reshape", [value, self._shape((0, 0, heads, -1), f"{what}.heads")], f"{what}.heads")
        return self._add("Transpose", [apart], what, perm=order)

    def _split(self, value: str, sizes: Sequence[int], what: str) -> list[str]:
        outputs = [f"{self.name}.{what}.{part}" for part in ("query", "key", "value")]
        self.made += nodes_with_list("Split", value, outputs, ("split", sizes), self.opset, axis=-1)
        self.made[-1].name = f"{self.name}.{what}.split"
        return outputs

    @property
    def _dtype(self) -> DType:
        return self.known.types[self.node.inputs[0]].dtype

    def _number(self, value: float, what: str) -> str:
        return self._constant(np.array(value).astype(self._dtype.numpy), what)

    def _shape(self, shape: Sequence[int], what: str) -> str:
        return self._constant(np.array(shape, dtype=np.int64), f"{what}.shape")

    def _constant(self, array: Array, what: str) -> str:
        self.made.append(constant_node(f"{self.name}.{what}", array))
        return self.made[-1].name

    def _add(self, op_type: str, inputs: Sequence[str], what: str, **attributes: Any) -> str:
        """The output of a new node."""
        name = f"{self.name}.{what}"
        self.made.append(helper.make_node(op_type, list(inputs), [name], name, **attributes))
        return name
