"""Einsum decomposed into matrix products of transposed and reshaped operands, into Mul, and into ReduceSum."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, dropwhile, takewhile
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from iossim.base.errors import GraphError
from iossim.models.onnx.constants import Known, constant_node, nodes_with_list
from iossim.models.onnx.file import is_standard

_TERM = rb"[A-Za-z ]*(\.\.\.)?[A-Za-z ]*"
_EQUATION = re.compile(_TERM + rb"(," + _TERM + rb")*(->" + _TERM + rb")?")
#: A value, and the sizes of its axes by their labels, in order.
_Term = tuple[str, dict[str, int]]


def einsum_written_out(node: NodeProto, name: str, known: Known) -> list[NodeProto]:
    """The nodes that replace an Einsum; none for any other node, or for one that takes a diagonal or is not valid."""
    if node.op_type != "Einsum" or not is_standard(node.domain):
        return []
    types = known.types_of(node.input)
    equation = next((each.s for each in node.attribute if each.name == "equation"), b"")
    if not _EQUATION.fullmatch(equation):  # on which ONNX's shape inference would loop forever, waiting for letters
        raise GraphError("its equation is none; write one like ij,jk->ik")
    labels = _labels(equation.decode(), [len(each.shape) for each in types])
    if labels is None or not types[0].dtype.is_floating or not all(map(all, (each.shape for each in types))):
        return []
    *read, output = labels
    sizes = [dict(zip(each, of.shape, strict=True)) for each, of in zip(read, types, strict=True)]
    if any(len({dims.get(label, 1) for dims in sizes} - {1}) > 1 for label in chain(*read)):
        return []
    written = _Written(name)
    term, *others = zip(node.input, sizes, strict=True)
    for place, other in enumerate(others, 2):
        later = {*output, *chain(*read[place:])}
        between = [label for label in term[1] | other[1] if label in later]
        term = written.joined(term, other, between if read[place:] else output)
    value = written.arranged(written.summed(term, output, {}), [*zip(output)])
    if not written.made:
        written.add("Identity", [value])
    written.made[-1].output[0] = node.output[0]
    for each in written.made:
        each.metadata_props.extend(node.metadata_props)
    return written.made


def _labels(equation: str, ranks: Sequence[int]) -> list[list[str]] | None:
    """The labels of the axes of each operand, and then of the output: letters, and numbers from the right for those of
    an ellipsis. None if they do not fit the ranks, or if one has a label twice.
    """
    given, arrow, output = equation.replace(" ", "").partition("->")
    counts = Counter(given)
    if not arrow:
        output = "..." + "".join(sorted(label for label in counts if label.isalpha() and counts[label] == 1))
    terms = given.split(",")
    if len(terms) != len(ranks) or not counts.keys() >= {*output} - {"."}:
        return None
    hidden = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    found = []
    for term, size in zip((*terms, output), (*hidden, max(hidden)), strict=True):
        before, dots, after = term.partition("...")
        found.append([*before, *map(str, range(size, 0, -1)), *after])
        if size < 0 or (size and not dots) or len({*found[-1]}) < len(found[-1]):
            return None
    return found


@dataclass
class _Written:
    """The nodes of an Einsum that is being decomposed."""

    name: str
    made: list[NodeProto] = field(default_factory=list)

    def joined(self, a: _Term, b: _Term, output: Sequence[str]) -> _Term:
        """The sum of the products of two terms over all labels that are not in the output, in the output's order."""
        a, b = self.summed(a, output, b[1]), self.summed(b, output, a[1])
        sizes = a[1] | b[1]
        inner = [label for label in a[1] if label in b[1] and label not in output]
        if not inner or a[1].keys() == b[1].keys():
            axes = [*output, *inner]
            lacks = ({*axes}.difference(dims).__contains__ for _, dims in (a, b))
            factors = map(self.arranged, (a, b), ([*zip(dropwhile(each, axes))] for each in lacks))
            return self.summed((self.add("Mul", [*factors]), {label: sizes[label] for label in axes}), output, {})
        ways = [replace(self, made=[*self.made]) for _ in "ab"]
        values = ways[0]._product(a, b, output), ways[1]._product(b, a, output)
        best = min((0, 1), key=lambda way: sum(each.op_type == "Transpose" for each in ways[way].made))
        self.made = ways[best].made
        return values[best], {label: sizes[label] for label in output}

    def _product(self, a: _Term, b: _Term, output: Sequence[str]) -> str:
        """The product of matrices ``[*batch, rows, inner] @ [*batch, inner, columns]``, in the output's order.

        Labels that lead both the output and one term, and that the other lacks, are in the batch; a vector has none.
        """
        left, right = a[1], b[1]
        batch = [*(_leading(left, right, output) or _leading(right, left, output))]
        batch += [label for label in output if label in left and label in right]
        inner = [label for label in left if label in right and label not in batch]
        rows, columns = ([label for label in output if label in dims and label not in batch] for dims in (left, right))
        stacks = [[(label,) for label in batch if label in dims] for dims in (left, right)]
        groups = [rows] if rows or stacks[0] else [], [columns] if columns or stacks[1] else []
        factors = [*stacks[0], *groups[0], inner], [*stacks[1], inner, *groups[1]]
        made = self.add("MatMul", [*map(self.arranged, (a, b), factors)])
        sizes = left | right
        shape = [math.prod(map(sizes.__getitem__, group)) for group in (*zip(batch), *chain(*groups))]
        dims = {label: sizes[label] for label in (*batch, *rows, *columns)}
        return self.arranged((self._reshaped(made, shape, [*dims.values()]), dims), [*zip(output)])

    def summed(self, term: _Term, output: Collection[str], other: dict[str, int]) -> _Term:
        """The sum over labels that neither the output nor the other term has; an axis of one element is dropped if the
        other has more.
        """
        value, dims = term
        alone = {label for label in output if dims.get(label, 0) > other.get(label, 0)}
        left = {label: size for label, size in dims.items() if label in alone or size == other.get(label)}
        axes = [axis for axis, label in enumerate(dims) if label not in left]
        if math.prod(left.values()) == math.prod(dims.values()):
            return self._reshaped(value, [*dims.values()], [*left.values()]), left
        made = f"{self.name}.{len(self.made)}"
        self.made += nodes_with_list("ReduceSum", value, [made], axes, keepdims=0)
        return made, left

    def arranged(self, term: _Term, groups: Sequence[Sequence[str]]) -> str:
        """The term with one axis for each group of labels; those that it lacks count as 1."""
        value, dims = term
        order = [label for label in chain(*groups) if label in dims]
        if order != [*dims]:
            value = self.add("Transpose", [value], perm=[[*dims].index(label) for label in order])
        shape = [math.prod(dims.get(label, 1) for label in group) for group in groups]
        return self._reshaped(value, [dims[label] for label in order], shape)

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


def _leading(one: dict[str, int], other: Collection[str], output: Sequence[str]) -> Sequence[str]:
    """The labels that lead both ``one`` and the output, and that ``other`` lacks; one that it lacks is left."""
    places = zip([label for label in one if label not in other][:-1], one, output, strict=False)
    return [label for label, *_ in takewhile(lambda labels: len({*labels}) == 1, places)]
