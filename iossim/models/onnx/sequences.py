"""Sequences and optionals of ONNX resolved at import: the tensors in each are known.

Exporters write them around splits and stacks. ``SplitToSequence`` becomes a split, ``SequenceAt`` the tensor at that
position, ``ConcatFromSequence`` a concat; no sequence is left at run time.

Tensors without elements, such as the cache of a first token, are known at import, too, and become constants: nodes that
read only empty tensors are folded, concats drop them, and splits do not produce them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import NodeProto, helper

from iossim.base.errors import GraphError
from iossim.ir.onnx_spelling import NotCoveredError, OnnxNode
from iossim.ir.op import Array, Op, normal_axis, require
from iossim.ir.types import TensorType
from iossim.models.onnx.constants import Known, attributes_of, constant_node, node_view, nodes_with_list
from iossim.models.onnx.file import is_standard

#: Ops that may make an empty tensor from a non-empty one; for any other kind, the input is too small.
_MAY_MAKE_EMPTY = ("expand", "foreign", "slice", "tile")


def is_empty(value: TensorType) -> bool:
    return value.elements == 0


def may_make_empty(op: Op, inputs: Sequence[TensorType]) -> bool:
    """True if an op can validly make an empty tensor."""
    return op.kind in _MAY_MAKE_EMPTY or any(map(is_empty, inputs))


def without_empty_terms(op: Op, data: tuple[str, ...], types: Mapping[str, TensorType]) -> tuple[str, ...]:
    """The operands of an op: of a concat those with elements, if there are any."""
    return tuple(value for value in data if op.kind != "concat" or not is_empty(types[value])) or data


def without_empty_parts(node: NodeProto, known: Known) -> list[NodeProto]:
    """The nodes that replace a split into empty parts among others; none for any other node."""
    if node.op_type != "Split" or not is_standard(node.domain):
        return []
    attributes, x = attributes_of(node), known.types[node.input[0]]
    given = node.input[1] if len(node.input) > 1 else ""
    sizes = known.parameter(given).reshape(-1).tolist() if given in known.constants else attributes.get("split", [])
    axis = attributes.get("axis", 0)
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

    def taken_apart(self, node: NodeProto, name: str, known: Known, opset: int) -> list[NodeProto]:
        """The nodes on plain tensors that replace a node; sequences that it makes are known from then on.

        Raises NotCoveredError, to follow the node's name, if that depends on data; GraphError for invalid operands.
        """
        if not is_standard(node.domain) or node.op_type not in _READERS:
            raise NotCoveredError("it reads a sequence or an optional, of which iossim only follows the tensors")
        made, nodes = _READERS[node.op_type](node_view(node, name, known, opset), self._parts)
        self._written_out += len(nodes)
        if any(len(parts or ()) > _LONGEST for parts in made.values()) or self._written_out > _MOST_NODES:
            raise NotCoveredError(
                f"it makes a sequence of more than {_LONGEST} tensors, or all make {_MOST_NODES} nodes"
            )
        self._parts.update(made)
        return nodes


#: The sequences that a node makes, and the nodes on tensors that replace it.
_Made = tuple[dict[str, Parts], list[NodeProto]]
#: The sequences of a model by name.
_Known = Mapping[str, Parts]


def _sequence(node: OnnxNode, parts: _Known) -> tuple[str, ...]:
    """The tensors in the sequence that a node reads first."""
    found = parts.get(node.given(0))
    if found is None:
        raise GraphError(f"its input {node.given(0)!r} is no sequence")
    return found


def _position(node: OnnxNode, index: int, count: int, last: int) -> int:
    """A position in a sequence of ``count`` tensors; defaults to ``last``, the largest allowed."""
    if not node.has_input(index):
        return last
    array = node.constant(index, "position")
    place = int(array.item()) if array.size == 1 else count + 1
    require(-count <= place <= last, f"there is no place {array.tolist()} in a sequence of {count}")
    return place % count if place < 0 else place


def _constant(node: OnnxNode, value: Array) -> _Made:
    return {}, [constant_node(node.outputs[0], value)]


def _same(node: OnnxNode, source: str, parts: _Known) -> _Made:
    """The output aliases another value, tensor or not."""
    if source in parts:
        return {node.outputs[0]: parts[source]}, []
    return {}, [helper.make_node("Identity", [source], [node.outputs[0]], node.name)]


def _insert(node: OnnxNode, parts: _Known) -> _Made:
    tensors = _sequence(node, parts)
    place = _position(node, 2, len(tensors), len(tensors))
    return {node.outputs[0]: (*tensors[:place], node.given(1), *tensors[place:])}, []


def _erase(node: OnnxNode, parts: _Known) -> _Made:
    tensors = _sequence(node, parts)
    place = _position(node, 1, len(tensors), len(tensors) - 1)
    return {node.outputs[0]: (*tensors[:place], *tensors[place + 1 :])}, []


def _at(node: OnnxNode, parts: _Known) -> _Made:
    tensors = _sequence(node, parts)
    return _same(node, tensors[_position(node, 1, len(tensors), len(tensors) - 1)], parts)


def _get_element(node: OnnxNode, parts: _Known) -> _Made:
    require(parts.get(node.given(0), ()) is not None, "its optional holds nothing")
    return _same(node, node.given(0), parts)


def _has_element(node: OnnxNode, parts: _Known) -> _Made:
    return _constant(node, np.array(node.has_input(0) and parts.get(node.given(0), ()) is not None))


def _split(node: OnnxNode, parts: _Known) -> _Made:
    """Parts of size one, of a given size (the last may be smaller), or of given sizes."""
    x, output = node.input_type(0), node.outputs[0]
    axis = normal_axis(int(node.attribute("axis", 0)), len(x.shape))
    length = x.shape[axis]
    if not node.has_input(1):
        sizes = [1] * _at_most(length)
    elif length == 0 and len(node.input_type(1).shape) == 1:
        sizes = [0] * _at_most(node.input_type(1).elements)  # whatever they are at run time, their sum is zero
    elif not (split := node.constant(1, "sizes")).shape:
        size = int(split)
        require(size > 0, f"it splits into parts of {size}")
        sizes = [min(size, length - size * place) for place in range(_at_most(-(-length // size)))]
    else:
        _at_most(split.size)
        sizes = [int(size) for size in split]
    fits = sum(sizes) == length and min(sizes, default=0) >= 0
    require(fits, f"its sizes {sizes} do not add up to dimension {axis} of {x}")
    made = tuple(f"{output}[{index}]" for index in range(len(sizes)))
    if not made:
        return {output: ()}, []
    squeezes = not node.has_input(1) and not int(node.attribute("keepdims", 1))
    split_parts = [f"{part}.kept" for part in made] if squeezes else list(made)
    nodes = nodes_with_list("Split", node.given(0), split_parts, sizes, axis=axis)
    if squeezes:
        for kept, part in zip(split_parts, made, strict=True):
            nodes += nodes_with_list("Squeeze", kept, [part], [axis])
    return {output: made}, nodes


def _at_most(count: int) -> int:
    """The number of parts of a sequence, checked against the limit."""
    if count > _LONGEST:
        raise NotCoveredError(f"it makes a sequence of {count} tensors, more than {_LONGEST}")
    return count


def _concat(node: OnnxNode, parts: _Known) -> _Made:
    tensors, output, nodes = list(_sequence(node, parts)), node.outputs[0], list[NodeProto]()
    require(bool(tensors), "its sequence is empty")
    axis = int(node.attribute("axis", 0))
    if int(node.attribute("new_axis", 0)):
        axis = normal_axis(axis, len(node.types[tensors[0]].shape) + 1)
        for index, part in enumerate(tensors):
            tensors[index] = f"{output}[{index}]"
            nodes += nodes_with_list("Unsqueeze", part, [tensors[index]], [axis])
    return {}, [*nodes, helper.make_node("Concat", tensors, [output], node.name, axis=axis)]


_READERS: dict[str, Callable[[OnnxNode, _Known], _Made]] = {
    "SequenceEmpty": lambda node, parts: ({node.outputs[0]: ()}, []),
    "SequenceConstruct": lambda node, parts: ({node.outputs[0]: tuple(node.inputs)}, []),
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceAt": _at,
    "SequenceLength": lambda node, parts: _constant(node, np.array(len(_sequence(node, parts)), dtype=np.int64)),
    "SplitToSequence": _split,
    "ConcatFromSequence": _concat,
    "Identity": lambda node, parts: _same(node, node.given(0), parts),
    "Optional": lambda node, parts: (
        _same(node, node.given(0), parts) if node.has_input(0) else ({node.outputs[0]: None}, [])
    ),
    "OptionalGetElement": _get_element,
    "OptionalHasElement": _has_element,
}
