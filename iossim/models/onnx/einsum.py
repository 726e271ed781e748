"""Einsum decomposed into matrix products of transposed and reshaped operands, into Mul, and into ReduceSum."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from iossim.ir.types import DType
from iossim.models.onnx.constants import Known, constant_node, nodes_with_list
from iossim.models.onnx.file import is_standard

_TERM = rb"[A-Za-z ]*(\.\.\.)?[A-Za-z ]*"
EQUATION = re.compile(_TERM + rb"(," + _TERM + rb")*(->" + _TERM + rb")?")
#: A value, and the sizes of its axes by their labels, in order.
_Term = tuple[str, dict[str, int]]


def einsum_written_out(node: NodeProto, name: str, known: Known, opset: int) -> list[NodeProto]:
    """The nodes that replace an Einsum; none for any other node, or for one that takes a diagonal or is not valid."""
    if node.op_type != "Einsum" or not is_standard(node.domain):
        return []
    types = known.types_of(node.input)
    equation = next((each.s for each in node.attribute if each.name == "equation"), b"")
    labels = _labels(equation, [len(each.shape) for each in types])
    known_type = types[0].dtype.is_floating or types[0].dtype in (DType.INT32, DType.INT64)
    if labels is None or not known_type or not all(map(all, (each.shape for each in types))):
        return []
    *read, output = labels
    sizes = [dict(zip(each, of.shape, strict=True)) for each, of in zip(read, types, strict=True)]
    if any(len({dims.get(label, 1) for dims in sizes} - {1}) > 1 for label in chain(*read)):
        return []
    written = _Written(name, opset)
    term, *others = zip(node.input, sizes, strict=True)
    for place, other in enumerate(others, 2):
        later = {*output, *chain(*read[place:])}
        between = [label for label in term[1] | other[1] if label in later]
        term = written.joined(term, other, between if read[place:] else output)
    value, _ = written.transposed(written.summed(term, output), output)
    if not written.made:
        written.add("Identity", [value])
    written.made[-1].output[0] = node.output[0]
    for each in written.made:
        each.metadata_props.extend(node.metadata_props)
    return written.made


def _labels(equation: bytes, ranks: Sequence[int]) -> list[list[str]] | None:
    """The labels of the axes of each operand, and then of the output: letters, and numbers from the right for those of
    an ellipsis. None if they do not fit the ranks, or if one has a label twice.
    """
    given, arrow, wanted = equation.decode(errors="replace").replace(" ", "").partition("->")
    found = []
    for text, rank in zip(given.split(","), ranks, strict=False):
        before, dots, after = text.partition("...")
        hidden = rank - len(before) - len(after)
        if hidden < 0 or (hidden and not dots):
            return None
        found.append([*before, *map(str, range(hidden, 0, -1)), *after])
    counts = Counter(chain(*found))
    hidden_labels = sorted(filter(str.isdigit, counts), key=int, reverse=True)
    if not arrow:
        wanted = "..." + "".join(sorted(label for label in counts if label.isalpha() and counts[label] == 1))
    before, dots, after = wanted.partition("...")
    found.append([*before, *(hidden_labels if dots else ()), *after])
    is_valid = EQUATION.fullmatch(equation) and given.count(",") + 1 == len(ranks) and counts.keys() >= {*found[-1]}
    is_simple = all(len(set(each)) == len(each) for each in found) and (dots or not hidden_labels)
    return found if is_valid and is_simple else None


@dataclass
class _Written:
    """The nodes of an Einsum that is being decomposed."""

    name: str
    opset: int
    made: list[NodeProto] = field(default_factory=list)

    def joined(self, a: _Term, b: _Term, output: Sequence[str]) -> _Term:
        """The sum of the products of two terms over all labels that are not in the output, in the output's order."""
        a, b = (
            self.summed(one, [label for label, size in one[1].items() if size > 1 or other[1].get(label, 1) == 1])
            for one, other in ((a, b), (b, a))
        )
        a, b = self.summed(a, {*b[1], *output}), self.summed(b, {*a[1], *output})
        inner = [label for label in a[1] if label in b[1] and label not in output]
        if not inner or a[1].keys() == b[1].keys():
            axes, sizes = [*output, *inner], a[1] | b[1]
            firsts = (min(map(axes.index, dims), default=len(axes)) for _, dims in (a, b))
            factors = [self._grouped(each, [*zip(axes[first:])]) for each, first in zip((a, b), firsts, strict=True)]
            return self.summed((self.add("Mul", factors), {label: sizes[label] for label in axes}), output)
        ways = [replace(self, made=[*self.made]) for _ in "ab"]
        terms = ways[0]._product(a, b, output), ways[1]._product(b, a, output)
        transposes = [sum(each.op_type == "Transpose" for each in way.made) for way in ways]
        best = transposes.index(min(transposes))
        self.made = ways[best].made
        return terms[best]

    def _product(self, a: _Term, b: _Term, output: Sequence[str]) -> _Term:
        """The product of matrices ``[*batch, rows, inner] @ [*batch, inner, columns]``, in the output's order.

        Leading labels of the output that lead one term, and that the other lacks, are in the batch as well.
        """
        batch = [*(_leading(a[1], b[1], output) or _leading(b[1], a[1], output))]
        batch += [label for label in output if label in a[1] and label in b[1]]
        inner = [label for label in a[1] if label in b[1] and label not in batch]
        rows, columns = ([label for label in output if label in one and label not in batch] for one in (a[1], b[1]))
        stacks = [[*zip(filter(one.__contains__, batch))] for one in (a[1], b[1])]
        # A term that is a vector has no rows or columns.
        groups = [rows] if rows or stacks[0] else [], [columns] if columns or stacks[1] else []
        left = self._grouped(a, [*stacks[0], *groups[0], inner])
        right = self._grouped(b, [*stacks[1], inner, *groups[1]])
        sizes = a[1] | b[1]
        dims = {label: sizes[label] for label in (*batch, *rows, *columns)}
        shape = [math.prod(map(sizes.__getitem__, group)) for group in (*zip(batch), *chain(*groups))]
        made = self._reshaped(self.add("MatMul", [left, right]), shape, [*dims.values()])
        return self.transposed((made, dims), output)

    def summed(self, term: _Term, kept: Collection[str]) -> _Term:
        """The sum over all labels but the ``kept`` ones."""
        value, dims = term
        axes = [axis for axis, label in enumerate(dims) if label not in kept]
        left = {label: size for label, size in dims.items() if label in kept}
        if math.prod(left.values()) == math.prod(dims.values()):
            return self._reshaped(value, [*dims.values()], [*left.values()]), left
        made = f"{self.name}.{len(self.made)}"
        self.made += nodes_with_list("ReduceSum", value, [made], ("axes", axes), self.opset, keepdims=0)
        return made, left

    def transposed(self, term: _Term, labels: Iterable[str]) -> _Term:
        """The term with its axes in this order."""
        value, dims = term
        order = [label for label in labels if label in dims]
        if order == [*dims]:
            return term
        perm = [[*dims].index(label) for label in order]
        return self.add("Transpose", [value], perm=perm), {label: dims[label] for label in order}

    def _grouped(self, term: _Term, groups: Sequence[Sequence[str]]) -> str:
        """The term with one axis for each group of labels; those that it lacks count as 1."""
        value, dims = self.transposed(term, chain(*groups))
        shape = [math.prod(dims.get(label, 1) for label in group) for group in groups]
        return self._reshaped(value, [*dims.values()], shape)

    def _reshaped(self, value: str, before: Sequence[int], shape: Sequence[int]) -> str:
        if shape == before:
            return value
        self.made.append(constant_node(f"{self.name}.{len(self.made)}.shape", np.array(shape, dtype=np.int64)))
        return self.add("Reshape", [value, self.made[-1].name])

    def add(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        """The output of a new node."""
        name = f"{self.name}.{len(self.made)}"
        self.made.append(helper.make_node(op_type, inputs, [name], name, **attributes))
        return name


def _leading(one: dict[str, int], other: Collection[str], output: Sequence[str]) -> list[str]:
    """The labels that lead both ``one`` and the output, and that ``other`` lacks; one that it lacks is left."""
    own = [label for label in one if label not in other][:-1]
    pairs = zip(own, one, output, strict=False)
    return [label for label, *_ in takewhile(lambda each: len(set(each)) == 1, pairs)]
