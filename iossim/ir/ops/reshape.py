"""Ops that change a tensor's shape or layout: reshape, flatten, transpose, expand, depth to space and back, pad."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from iossim.base.errors import ModelError
from iossim.ir.onnx_spelling import OnnxNode
from iossim.ir.op import Array, Op, Role, broadcast, normal_axis, require
from iossim.ir.types import TensorType, permuted


@dataclass(frozen=True)
class Reshape(Op, kind="reshape", onnx_types="Reshape Squeeze Unsqueeze", onnx_names="shape", role=Role.VIEW):
    """The same elements in another shape.

    In ``shape`` a 0 copies the input's dimension at that position, and one -1 is inferred. Both are resolved when
    read from ONNX.
    """

    shape: tuple[int, ...]

    def output(self, x: TensorType) -> TensorType:
        return TensorType(resolve_shape(self.shape, x), x.dtype)

    def making(self, shape: tuple[int, ...]) -> Reshape:
        return Reshape(shape)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        shape = [x.shape[axis] if size == 0 else size for axis, size in enumerate(self.shape)]
        return (x.reshape(shape),)

    def completed(self, node: OnnxNode) -> Self:
        x = node.input_type(0)
        view = np.broadcast_to(np.int8(0), x.shape)
        if node.op_type == "Squeeze":
            shape = np.squeeze(view, node.parameter("axes", "tuple")).shape
        elif node.op_type == "Unsqueeze":
            shape = np.expand_dims(view, node.parameter("axes", "tuple") or ()).shape
        else:
            if node.attribute("allowzero", 0) and 0 in self.shape:
                raise ModelError(f"Reshape {node.name!r} makes an empty tensor, which iossim does not support")
            shape = resolve_shape(self.shape, x)
        return replace(self, shape=shape)


def resolve_shape(shape: Sequence[int], x: TensorType) -> tuple[int, ...]:
    """``shape`` with 0 and -1 resolved against ``x``; raises GraphError if it does not have as many elements."""
    listed = ", ".join(map(str, shape))
    require(sum(size == -1 for size in shape) <= 1, f"its shape [{listed}] leaves more than one dimension open")
    require(all(size >= -1 for size in shape), f"its shape [{listed}] has a negative dimension")
    require(
        all(size != 0 or axis < len(x.shape) for axis, size in enumerate(shape)),
        f"its shape [{listed}] copies a dimension that its input {x} does not have",
    )
    copied = [x.shape[axis] if size == 0 else size for axis, size in enumerate(shape)]
    known = math.prod(size for size in copied if size != -1)
    resolved = tuple(x.elements // known if size == -1 else size for size in copied)
    require(math.prod(resolved) == x.elements, f"its input {x} does not fit the shape [{listed}]")
    return resolved


@dataclass(frozen=True)
class Flatten(Op, kind="flatten", onnx_types="Flatten", onnx_names="axis", role=Role.VIEW):
    """Dimensions before ``axis`` become the rows of a matrix, the others its columns; ``axis`` may be the rank."""

    axis: int = 1

    def output(self, x: TensorType) -> TensorType:
        return TensorType(self._shape(x.shape), x.dtype)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0].reshape(self._shape(inputs[0].shape)),)

    def _shape(self, shape: Sequence[int]) -> tuple[int, int]:
        axis = normal_axis(self.axis, len(shape), last=len(shape))
        return math.prod(shape[:axis]), math.prod(shape[axis:])

    def completed(self, node: OnnxNode) -> Self:
        rank = len(node.input_type(0).shape)
        return replace(self, axis=normal_axis(self.axis, rank, last=rank))


@dataclass(frozen=True)
class Transpose(Op, kind="transpose", onnx_types="Transpose", onnx_names="permutation=perm"):
    """Axis ``i`` of the output is axis ``permutation[i]`` of the input."""

    permutation: tuple[int, ...]

    def output(self, x: TensorType) -> TensorType:
        require(
            sorted(self.permutation) == list(range(len(x.shape))),
            f"its permutation {list(self.permutation)} is not one of the axes of {x}",
        )
        return permuted(x, self.permutation)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0].transpose(self.permutation),)

    def completed(self, node: OnnxNode) -> Self:
        return replace(self, permutation=self.permutation or (*range(len(node.input_type(0).shape)),)[::-1])


@dataclass(frozen=True)
class Expand(Op, kind="expand", onnx_types="Expand", onnx_names="shape"):
    """The input broadcast against ``shape``."""

    shape: tuple[int, ...]

    def output(self, x: TensorType) -> TensorType:
        return broadcast([x, TensorType(self.shape, x.dtype)])

    def making(self, shape: tuple[int, ...]) -> Expand:
        return Expand(shape)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        return (np.broadcast_to(x, np.broadcast_shapes(x.shape, self.shape)),)


@dataclass(frozen=True)
class Tile(Op, kind="tile", onnx_types="Tile", onnx_names="repeats"):
    """The input repeated, ``repeats`` times along each axis."""

    repeats: tuple[int, ...]

    def output(self, x: TensorType) -> TensorType:
        require(len(self.repeats) == len(x.shape), f"its repeats {list(self.repeats)} are not one for each axis of {x}")
        return TensorType(tuple(s * r for s, r in zip(x.shape, self.repeats, strict=True)), x.dtype)

    def mixes_images(self, first_varies: bool) -> bool:
        return self.repeats[:1] != (1,)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.tile(inputs[0], self.repeats),)


@dataclass(frozen=True)
class _Blocks(Op, onnx_names="block=blocksize"):
    """Base of the two ops below, for blocks of ``b = block``.

    With ``columns_first`` (ONNX ``CRD``) the deeper tensor's channels are ordered ``[C, b, b]``, else ``[b, b, C]``.
    """

    block: int
    columns_first: bool = False

    @abstractmethod
    def parts(self, shape: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The six axes that an input of a shape is taken apart into, and their order in the output."""

    def compute(self, x: Array) -> Array:
        parts, order = self.parts(x.shape)
        (made,) = self.infer([TensorType(x.shape)])
        return x.reshape(parts).transpose(order).reshape(made.shape)

    def completed(self, node: OnnxNode) -> Self:
        return replace(self, columns_first=node.attribute("mode", "DCR") == "CRD")

    def to_onnx(self) -> tuple[str, dict[str, object]]:
        op_type, given = super().to_onnx()
        return op_type, given | ({"mode": "CRD"} if self.columns_first else {})


class DepthToSpace(_Blocks, kind="depth_to_space", onnx_types="DepthToSpace"):
    """``[N, C * b * b, H, W]`` as ``[N, C, H * b, W * b]``."""

    def output(self, x: TensorType) -> TensorType:
        n, c, h, w = _image(x)
        b = self.block
        require(b > 0 and c % (b * b) == 0, f"{c} channels are no blocks of {b} x {b}")
        return TensorType((n, c // (b * b), h * b, w * b), x.dtype)

    def parts(self, shape: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        n, c, h, w = shape
        b = self.block
        if self.columns_first:
            return (n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3)
        return (n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2)


class SpaceToDepth(_Blocks, kind="space_to_depth", onnx_types="SpaceToDepth"):
    """``[N, C, H * b, W * b]`` as ``[N, C * b * b, H, W]``: the inverse of :class:`DepthToSpace`."""

    def output(self, x: TensorType) -> TensorType:
        n, c, h, w = _image(x)
        b = self.block
        require(b > 0 and h % b == 0 and w % b == 0, f"{h} x {w} pixels are no blocks of {b} x {b}")
        return TensorType((n, c * b * b, h // b, w // b), x.dtype)

    def parts(self, shape: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        n, c, h, w = shape
        b = self.block
        return (n, c, h // b, b, w // b, b), (0, 1, 3, 5, 2, 4) if self.columns_first else (0, 3, 5, 1, 2, 4)


def _image(x: TensorType) -> tuple[int, ...]:
    require(len(x.shape) == 4, f"its input {x} is no batch of images")
    return x.shape


#: ONNX and NumPy use the same names.
_MODES = ("constant", "reflect", "edge", "wrap")


@dataclass(frozen=True)
class Pad(Op, kind="pad", onnx_types="Pad", onnx_names="pads mode value=constant_value|value"):
    """``pads`` are the elements added before each axis, then after each; a negative number crops.

    ``mode`` is ``constant`` (``value``), ``reflect`` (mirrored, without the edge itself), ``edge`` or ``wrap``.
    """

    pads: tuple[int, ...]
    mode: str = "constant"
    value: float = 0.0

    def output(self, x: TensorType) -> TensorType:
        rank = len(x.shape)
        require(len(self.pads) == 2 * rank, f"its pads {list(self.pads)} are not two for each axis of {x}")
        require(self.mode in _MODES, f"has no mode {self.mode!r}; known: {', '.join(_MODES)}")
        shape = []
        for size, before, after in zip(x.shape, self.pads[:rank], self.pads[rank:], strict=True):
            reach = max(before, after)
            require(
                self.mode not in ("reflect", "wrap") or reach <= size - (self.mode == "reflect"),
                f"cannot {self.mode} {reach} elements of an axis of {size}",
            )
            shape.append(size + before + after)
        return TensorType(tuple(shape), x.dtype)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        before, after = self.pads[: x.ndim], self.pads[x.ndim :]
        kept = tuple(
            slice(max(0, -low), size - max(0, -high)) for size, low, high in zip(x.shape, before, after, strict=True)
        )
        widths = [(max(0, low), max(0, high)) for low, high in zip(before, after, strict=True)]
        if self.mode == "constant":
            fill = np.asarray(self.value).astype(x.dtype)
            return (np.pad(x[kept], widths, constant_values=fill),)
        y: Array = np.pad(x[kept], widths, mode=self.mode)  # type: ignore[call-overload]
        return (y,)

    def completed(self, node: OnnxNode) -> Self:
        """Everything is an attribute below opset 11, an input from then on; from opset 18 axes may be selected."""
        x = node.input_type(0)
        node.refuse(x.dtype.is_narrow, f"pads {x.dtype}")
        if (axes := node.parameter("axes", "tuple")) is not None:
            rank, kept = len(x.shape), [normal_axis(axis, len(x.shape)) for axis in axes]
            pads = dict(zip([*kept, *(rank + axis for axis in kept)], self.pads, strict=True))
            return replace(self, pads=tuple(pads.get(place, 0) for place in range(2 * rank)))
        return self
