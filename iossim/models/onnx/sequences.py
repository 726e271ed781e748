"""Sequences and optionals of ONNX resolved at import: the tensors in each are known.

Exporters write them around splits and stacks. ``SplitToSequence`` becomes a split, ``SequenceAt`` the tensor at that
position, ``ConcatFromSequence`` a concat; no sequence is left at run time.

Tensors without elements, such as the cache of a first token, are known at import, too, and become constants: nodes that
read only empty tensors are folded, concats drop them, and splits do not produce them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, helper

from iossim.base.errors import ModelError
from iossim.ir.onnx_spelling import NotCoveredError, OnnxNode
from iossim.ir.op import Array, Op, normal_axis
from iossim.ir.types import TensorType
from iossim.models.onnx.constants import Known, constant_node, node_view, nodes_with_list
from iossim.models.onnx.file import is_standard

#: Ops that may make an empty tensor from a non-empty one; for any other kind, the input is too small.
_MAY_MAKE_EMPTY = ("expand", "foreign", "slice", "tile")


def is_empty(value: TensorType) -> bool:
    return value.elements == 0


def may_make_empty(op: Op, inputs: Sequence[TensorType]) -> bool:
    """True if an op can validly make an empty tensor."""
    return op.kind in _MAY_MAKE_EMPTY or any(map(is_empty, inputs))


def without_empty(node: NodeProto, known: Known) -> list[NodeProto]:
    """The nodes that replace a concat with empty terms among others, or a split into empty parts; else none."""
    if not is_standard(node.domain):
        return []
    if node.op_type == "Concat":
        return _concat_without(node, known)
    return _split_without(node, known) if node.op_type == "Split" else []


def _concat_without(node: NodeProto, known: Known) -> list[NodeProto]:
    axis = {attribute.name: attribute.i for attribute in node.attribute}.get("axis", 1)
    terms = [known.types[value] for value in node.input]
    kept = [value for value, term in zip(node.input, terms, strict=True) if not is_empty(term)]
    others = {tuple(np.delete(term.shape, axis)) for term in terms if -len(term.shape) <= axis < len(term.shape)}
    if not kept or len(kept) == len(terms) or len(others) > 1:  # if the terms do not fit each other, the op reports it
        return []
    joined = deepcopy(node)
    del joined.input[:]
    joined.input.extend(kept)
    return [joined]


def _split_without(node: NodeProto, known: Known) -> list[NodeProto]:
    attributes = {attribute.name: attribute for attribute in node.attribute}
    given = node.input[1] if len(node.input) > 1 else ""
    if given in known.constants:
        sizes = [int(size) for size in known.parameter(given).reshape(-1)]
    else:
        sizes = list(attributes["split"].ints) if "split" in attributes else []
    x = known.types[node.input[0]]
    axis = attributes["axis"].i if "axis" in attributes else 0
    is_whole = len(sizes) == len(node.output) and -len(x.shape) <= axis < len(x.shape) and sum(sizes) == x.shape[axis]
    if not is_whole or min(sizes) != 0 or max(sizes) == 0:
        return []
    empty = np.zeros((*x.shape[:axis], 0, *x.shape[axis:][1:]), x.dtype.numpy)
    nodes = [constant_node(value, empty) for value, size in zip(node.output, sizes, strict=True) if not size and value]
    kept = [value for value, size in zip(node.output, sizes, strict=True) if size]
    nodes += nodes_with_list("Split", node.input[0], kept, [*filter(None, sizes)], axis=axis)
    nodes[-1].name = node.name
    nodes[-1].metadata_props.extend(node.metadata_props)
    return nodes


#: Names of a sequence's tensors, in order. None for an empty optional.
Parts = tuple[str, ...] | None

#: Limits on the tensors of a resolved sequence, and on the nodes that all sequences are replaced by.
_LONGEST, _MOST_NODES = 1024, 100_000


class Sequences:
    """The sequences of one model so far, by name."""

    def __init__(self) -> None:
        self._parts: dict[str, Parts] = {}
        self._written_out = 0

    def __contains__(self, value: str) -> bool:
        return value in self._parts

    def takes(self, node: NodeProto, read: Sequence[str]) -> bool:
        """True if a node reads (values in ``read``) or makes a sequence or optional."""
        if is_standard(node.domain) and node.op_type in _READERS and node.op_type != "Identity":
            return True
        return any(name in self._parts for name in read)

    def taken_apart(self, node: NodeProto, name: str, known: Known, opset: int, where: str) -> list[NodeProto]:
        """The nodes on plain tensors that replace a node; sequences that it makes are known from then on.

        Raises NotCoveredError, to follow the node's name, if that depends on data; ModelError for invalid operands.
        """
        if not is_standard(node.domain) or node.op_type not in _READERS:
            raise NotCoveredError("it reads a sequence or an optional, of which iossim only follows the tensors")
        reading = _Reading(node_view(node, name, known, opset), where, self._parts)
        made, nodes = _READERS[node.op_type](reading)
        self._written_out += len(nodes)
        if any(len(parts or ()) > _LONGEST for parts in made.values()) or self._written_out > _MOST_NODES:
            raise NotCoveredError(
                f"it makes a sequence of more than {_LONGEST} tensors, or all make {_MOST_NODES} nodes"
            )
        self._parts.update(made)
        return nodes


#: The sequences that a node makes, and the nodes on tensors that replace it.
_Made = tuple[dict[str, Parts], list[NodeProto]]


@dataclass(frozen=True)
class _Reading:
    """One node with the context for reading it."""

    node: OnnxNode
    where: str
    parts: Mapping[str, Parts]

    def given(self, index: int) -> str:
        """The name of an input, empty if omitted."""
        return self.node.inputs[index] if index < len(self.node.inputs) else ""

    def sequence(self) -> tuple[str, ...]:
        found = self.parts.get(self.given(0))
        if found is None:
            raise self.invalid(f"its input {self.given(0)!r} is no sequence")
        return found

    def array(self, index: int, what: str) -> Array:
        name = self.given(index)
        if name not in self.node.constants:
            raise NotCoveredError(f"its {what} ({name!r}) is computed at run time")
        return self.node.load(name)

    def position(self, index: int, count: int, last: int) -> int:
        """A position in a sequence of ``count`` tensors; defaults to ``last``, the largest allowed."""
        if not self.given(index):
            return last
        array = self.array(index, "position")
        place = int(array.item()) if array.size == 1 else count + 1
        if not -count <= place <= last:
            raise self.invalid(f"there is no place {array.tolist()} in a sequence of {count}")
        return place % count if place < 0 else place

    def invalid(self, reason: str) -> ModelError:
        return ModelError(f"{self.where} is not valid: {reason}")

    @property
    def output(self) -> str:
        return self.node.outputs[0]

    def constant(self, value: Array) -> _Made:
        return {}, [constant_node(self.output, value)]

    def same(self, source: str) -> _Made:
        """The output aliases another value, tensor or not."""
        if source in self.parts:
            return {self.output: self.parts[source]}, []
        return {}, [helper.make_node("Identity", [source], [self.output], self.node.name)]


def _insert(reading: _Reading) -> _Made:
    parts = reading.sequence()
    place = reading.position(2, len(parts), len(parts))
    return {reading.output: (*parts[:place], reading.given(1), *parts[place:])}, []


def _erase(reading: _Reading) -> _Made:
    parts = reading.sequence()
    place = reading.position(1, len(parts), len(parts) - 1)
    return {reading.output: (*parts[:place], *parts[place + 1 :])}, []


def _at(reading: _Reading) -> _Made:
    parts = reading.sequence()
    return reading.same(parts[reading.position(1, len(parts), len(parts) - 1)])


def _get_element(reading: _Reading) -> _Made:
    if reading.parts.get(reading.given(0), ()) is None:
        raise reading.invalid("its optional holds nothing")
    return reading.same(reading.given(0))


def _has_element(reading: _Reading) -> _Made:
    name = reading.given(0)
    return reading.constant(np.array(bool(name) and reading.parts.get(name, ()) is not None))


def _split(reading: _Reading) -> _Made:
    """Parts of size one, of a given size (the last may be smaller), or of given sizes."""
    x = reading.node.types[reading.given(0)]
    axis = normal_axis(int(reading.node.attribute("axis", 0)), len(x.shape))
    length = x.shape[axis]
    split_type = reading.node.types.get(reading.given(1))
    if split_type is None:
        sizes = [1] * _at_most(length)
    elif length == 0 and len(split_type.shape) == 1:
        sizes = [0] * _at_most(split_type.elements)  # whatever they are at run time, their sum is zero
    elif not (split := reading.array(1, "sizes")).shape:
        size = int(split)
        if size < 1:
            raise reading.invalid(f"it splits into parts of {size}")
        sizes = [min(size, length - size * place) for place in range(_at_most(-(-length // size)))]
    else:
        _at_most(split.size)
        sizes = [int(size) for size in split]
    if sum(sizes) != length or min(sizes, default=0) < 0:
        raise reading.invalid(f"its sizes {sizes} do not add up to dimension {axis} of {x}")
    parts = tuple(f"{reading.output}[{index}]" for index in range(len(sizes)))
    if not parts:
        return {reading.output: ()}, []
    squeezes = not reading.given(1) and not int(reading.node.attribute("keepdims", 1))
    split_parts = [f"{part}.kept" for part in parts] if squeezes else list(parts)
    nodes = nodes_with_list("Split", reading.given(0), split_parts, sizes, axis=axis)
    if squeezes:
        for kept, part in zip(split_parts, parts, strict=True):
            nodes += nodes_with_list("Squeeze", kept, [part], [axis])
    return {reading.output: parts}, nodes


def _at_most(count: int) -> int:
    """The number of parts of a sequence, checked against the limit."""
    if count > _LONGEST:
        raise NotCoveredError(f"it makes a sequence of {count} tensors, more than {_LONGEST}")
    return count


def _concat(reading: _Reading) -> _Made:
    parts = list(reading.sequence())
    if not parts:
        raise reading.invalid("its sequence is empty")
    axis = int(reading.node.attribute("axis", 0))
    if not int(reading.node.attribute("new_axis", 0)):
        return {}, [helper.make_node("Concat", parts, [reading.output], reading.node.name, axis=axis)]
    axis = normal_axis(axis, len(reading.node.types[parts[0]].shape) + 1)
    stacked = [f"{reading.output}[{index}]" for index in range(len(parts))]
    nodes = [
        node
        for part, made in zip(parts, stacked, strict=True)
        for node in nodes_with_list("Unsqueeze", part, [made], [axis])
    ]
    return {}, [*nodes, helper.make_node("Concat", stacked, [reading.output], reading.node.name, axis=axis)]


_READERS: dict[str, Callable[[_Reading], _Made]] = {
    "SequenceEmpty": lambda reading: ({reading.output: ()}, []),
    "SequenceConstruct": lambda reading: ({reading.output: tuple(reading.node.inputs)}, []),
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceAt": _at,
    "SequenceLength": lambda reading: reading.constant(np.array(len(reading.sequence()), dtype=np.int64)),
    "SplitToSequence": _split,
    "ConcatFromSequence": _concat,
    "Identity": lambda reading: reading.same(reading.given(0)),
    "Optional": lambda reading: reading.same(reading.given(0)) if reading.given(0) else ({reading.output: None}, []),
    "OptionalGetElement": _get_element,
    "OptionalHasElement": _has_element,
}
