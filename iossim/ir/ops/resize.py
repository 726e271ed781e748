"""Resampling of images: ONNX Resize and Upsample, whose many cases the reference implementation computes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Self

import numpy as np

from iossim.ir.onnx_node import compute_standard
from iossim.ir.onnx_spelling import OnnxNode
from iossim.ir.op import Array, Op, require
from iossim.ir.types import TensorType

#: The operator set whose terms are used.
_OPSET = 19


@dataclass(frozen=True)
class Resize(
    Op,
    kind="resize",
    onnx_types="Resize Upsample",
    onnx_names="scales sizes mode coordinates=coordinate_transformation_mode rounding=nearest_mode cubic=cubic_coeff_a "
    "exclude_outside antialias",
):
    """The input resampled by ``scales``, or to ``sizes`` if given: one number per axis.

    ``mode`` is ``nearest``, ``linear`` or ``cubic``; ``coordinates`` maps an output position to the input, and
    ``rounding`` selects the nearest neighbour, as named in ONNX. Counted as a multiply-add per weighted neighbour.
    """

    scales: tuple[float, ...] = ()
    sizes: tuple[int, ...] = ()
    mode: str = "nearest"
    coordinates: str = "half_pixel"
    rounding: str = "round_prefer_floor"
    cubic: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False

    def output(self, x: TensorType) -> TensorType:
        given = self.sizes or self.scales
        require(len(given) == len(x.shape), f"its input {x} does not have {len(given)} dimensions")
        require(all(factor > 0 for factor in given), "needs positive scales or sizes")
        scaled = (math.floor(size * scale) for size, scale in zip(x.shape, self.scales, strict=not self.sizes))
        return TensorType(self.sizes or tuple(scaled), x.dtype)

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        resized = sum(now != then for now, then in zip(outputs[0].shape, inputs[0].shape, strict=True))
        neighbours = {"linear": 2, "cubic": 4}.get(self.mode, 0) ** resized
        return 2 * neighbours * outputs[0].elements if self.mode != "nearest" else 0

    def making(self, shape: tuple[int, ...]) -> Resize | None:
        return replace(self, sizes=shape) if self.sizes else None

    def compute(self, x: Array) -> Array:
        attributes = self.to_onnx()[1]
        given = np.array(attributes.pop("sizes" if self.sizes else "scales"), None if self.sizes else np.float32)
        return compute_standard("Resize", _OPSET, [x, None, *[None] * bool(self.sizes), given], attributes)

    def tables(self, shape: Sequence[int], made: Sequence[int]) -> dict[int, Array]:
        """For each axis that is resampled from ``shape`` to ``made`` the matrix ``[its size made, its size]`` of it."""
        given = enumerate(zip(self.sizes or self.scales, shape, made, strict=True))
        changed = [axis for axis, (factor, size, to) in given if size != to or factor not in (1, size)]
        return {axis: _table(self, axis, shape[axis], made[axis]) for axis in changed}

    def completed(self, node: OnnxNode) -> Self:
        """Below opset 11 (and for Upsample) an output maps to its index divided by the scale, rounded down."""
        policy = node.attribute("keep_aspect_ratio_policy", "stretch")
        node.refuse(self.coordinates == "tf_crop_and_resize" or policy != "stretch", "crops or keeps an aspect ratio")
        x, rank = node.input_type(0), len(node.input_type(0).shape)
        node.refuse(not x.dtype.is_floating, f"resamples {x.dtype}")
        if node.opset < 11:
            return replace(self, coordinates="asymmetric", rounding="floor")
        places = dict(enumerate(x.shape if self.sizes else (1.0,) * rank))
        axes = (axis % rank for axis in node.attribute("axes", range(rank)))
        places |= zip(axes, self.sizes or self.scales, strict=True)
        whole = (*places.values(),)
        return replace(self, scales=(), sizes=(*map(int, whole),)) if self.sizes else replace(self, scales=whole)

    def to_onnx(self) -> tuple[str, dict[str, object]]:
        op_type, given = super().to_onnx()
        del given["scales" if self.sizes else "sizes"]
        return op_type, given


@cache
def _table(op: Resize, axis: int, size: int, made: int) -> Array:
    """The op on the unit vectors of an axis alone."""
    alone = replace(op, scales=(op.scales[axis], 1.0), sizes=()) if op.scales else replace(op, sizes=(made, size))
    return np.asarray(alone.evaluate((np.eye(size, dtype=np.float32),))[0])
