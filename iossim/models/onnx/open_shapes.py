"""Export of a bound graph with dimensions open again: those that its file leaves open stay open.

The graph is exported for several sizes. If those models are equal except for the shapes of inputs and outputs
and the targets of reshapes and expansions, the model holds for all sizes: a target copies a dimension of its
input, or is computed from the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, numpy_helper

from iossim.base.errors import ModelError
from iossim.ir.constants import Constant
from iossim.ir.graph import Graph
from iossim.ir.onnx_spelling import onnx_code
from iossim.models.onnx.constants import WITH_LISTS
from iossim.models.onnx.export import export_graph

#: A dimension: a size, the name of an open one, or None for an open one without a name.
Dimension = int | str | None
#: The sizes of one dimension in each of several graphs.
_Sizes = tuple[int, ...]
#: The entry of a target shape that copies the dimension of the input, by operator.
_COPIED = {"Reshape": 0, "Expand": 1}


class _Target(NamedTuple):
    """An operator that makes a shape, and the values of its parameter: a shape, or axes."""

    op_type: str
    values: tuple[int, ...]


@dataclass(frozen=True)
class OpenShapes:
    """Shapes of inputs and outputs, open if possible, and new targets of reshapes, by name.

    A target keeps its operator, or becomes the axes of another one with the same effect at every size.
    """

    shapes: Mapping[str, tuple[Dimension, ...]]
    targets: Mapping[str, _Target]

    def open(self, model: onnx.ModelProto) -> None:
        """Open the dimensions of an exported model of the graph, in place."""
        for value in (*model.graph.input, *model.graph.output):
            for axis, size in zip(value.type.tensor_type.shape.dim, self.shapes[value.name], strict=True):
                axis.Clear()
                if isinstance(size, int):
                    axis.dim_value = size
                elif size is not None:
                    axis.dim_param = size
        for tensor in model.graph.initializer:
            if tensor.name in self.targets:
                target = np.array(self.targets[tensor.name].values, np.int64)
                tensor.CopyFrom(numpy_helper.from_array(target, tensor.name))
        for node in model.graph.node:
            for value in set(node.input) & self.targets.keys():
                node.op_type = self.targets[value].op_type


def open_shapes(graphs: Sequence[Graph], names: Mapping[str, Sequence[Dimension]]) -> OpenShapes:
    """The shapes that hold for a model's graphs, bound to several sizes; ``names`` has the dimensions of its inputs.

    Raises ModelError naming the first difference between sizes.
    """
    first = graphs[0]
    for value in first.constants:
        if not _are_equal([graph.constants.get(value) for graph in graphs]):
            raise ModelError(f"the constant {value!r} is another at another size")
    exported = [export_graph(graph, store=_without_data) for graph in graphs]
    models = [model.graph for model in exported]
    opset = next(each.version for each in exported[0].opset_import if not each.domain)
    if len({len(model.node) for model in models}) > 1:
        raise ModelError("there are other nodes at another size")
    parameters = [{tensor.name: tensor for tensor in model.initializer} for model in models]
    targets: dict[str, _Target] = {}
    for nodes in zip(*(model.node for model in models), strict=True):
        node = nodes[0]
        if any(one != node for one in nodes):
            raise _differs(node)
        for value in node.input:
            tensors = [own[value] for own in parameters if value in own]
            if value not in first.constants and any(one != tensors[0] for one in tensors):
                sizes = [tuple(numpy_helper.to_array(one).tolist()) for one in tensors]
                targets[value] = _target(node, sizes, graphs, opset)
    by_sizes = {
        sizes: name
        for value in first.inputs
        for sizes, name in zip(_dimensions(graphs, value), names.get(value, ()), strict=False)
        if isinstance(name, str)
    }
    shapes = {
        value: tuple(sizes[0] if _is_fixed(sizes) else by_sizes.get(sizes) for sizes in _dimensions(graphs, value))
        for value in (*first.inputs, *first.outputs)
    }
    return OpenShapes(shapes, targets)


def _target(node: NodeProto, targets: Sequence[tuple[int, ...]], graphs: Sequence[Graph], opset: int) -> _Target:
    """A target that gives a reshape or an expansion the right shape at all sizes."""
    copied = _COPIED.get(node.op_type)
    if copied is None or len({len(target) for target in targets}) > 1:
        raise _differs(node)
    made = list(zip(*targets, strict=True))
    read = _dimensions(graphs, node.input[0]) if node.input[0] in graphs[0].types else []
    first = len(made) - len(read) if node.op_type == "Expand" else 0  # an expansion shares the last axes
    common = [0 <= axis - first < len(read) and read[axis - first] == sizes for axis, sizes in enumerate(made)]
    values = [
        sizes[0] if _is_fixed(sizes) else copied if is_common else -1
        for sizes, is_common in zip(made, common, strict=True)
    ]
    if values.count(-1) <= (node.op_type == "Reshape"):
        return _Target(node.op_type, tuple(values))
    for op_type, longer, shorter in (("Squeeze", read, made), ("Unsqueeze", made, read)):
        axes = _ones_between(longer, shorter)
        if node.op_type == "Reshape" and axes is not None and opset >= WITH_LISTS:
            return _Target(op_type, axes)
    raise _differs(node)


def _ones_between(longer: Sequence[_Sizes], shorter: Sequence[_Sizes]) -> tuple[int, ...] | None:
    """The axes of size 1 whose removal makes one shape the other; None if there are none."""
    rest, axes = list(shorter), []
    for axis, sizes in enumerate(longer):
        if rest and rest[0] == sizes:
            rest.pop(0)
        elif set(sizes) == {1}:
            axes.append(axis)
        else:
            return None
    return None if rest else tuple(axes)


def _differs(node: NodeProto) -> ModelError:
    return ModelError(f"node {node.name!r} ({node.op_type}) is another at another size")


def _dimensions(graphs: Sequence[Graph], value: str) -> list[_Sizes]:
    """The sizes of each dimension of a value in all graphs; raises ModelError if the ranks differ."""
    shapes = [graph.types[value].shape for graph in graphs]
    if len({len(shape) for shape in shapes}) > 1:
        raise ModelError(f"{value!r} has other dimensions at another size")
    return list(zip(*shapes, strict=True))


def _is_fixed(sizes: _Sizes) -> bool:
    return len(set(sizes)) == 1


def _are_equal(constants: Sequence[Constant | None]) -> bool:
    """True if constants have the same elements, wherever they are stored."""
    first = constants[0]
    return all(
        one is not None
        and first is not None
        and (one == first or (one.type == first.type and np.array_equal(one.load(), first.load())))
        for one in constants[1:]
    )


def _without_data(name: str, constant: Constant) -> TensorProto:
    return TensorProto(name=name, dims=constant.type.shape, data_type=onnx_code(constant.type.dtype))
