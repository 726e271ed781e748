"""Blocks of pixels as channels, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from iossim.ir.op import Array, OnnxNode, Op, require
from iossim.ir.ops.broadcasting import one_input
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class DepthToSpace(Op):
    """``[N, C * b * b, H, W]`` as ``[N, C, H * b, W * b]`` for blocks of ``b = block``.

    With ``columns_first`` (ONNX ``CRD``) the channels of an input are ordered ``[C, b, b]``, else ``[b, b, C]``.
    """

    kind: ClassVar[str] = "depth_to_space"
    onnx_types: ClassVar[tuple[str, ...]] = ("DepthToSpace",)

    block: int
    columns_first: bool = False

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        n, c, h, w = _image(one_input(inputs))
        b = self.block
        require(b > 0 and c % (b * b) == 0, f"{c} channels are no blocks of {b} x {b}")
        return (TensorType((n, c // (b * b), h * b, w * b), inputs[0].dtype),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        n, c, h, w = inputs[0].shape
        b = self.block
        if self.columns_first:
            parts = inputs[0].reshape(n, c // (b * b), b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
        else:
            parts = inputs[0].reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2)
        return (parts.reshape(n, c // (b * b), h * b, w * b),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        return cls(int(node.attribute("blocksize", 0)), node.attribute("mode", "DCR") == "CRD"), node.data_inputs(1)

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        mode = {"mode": "CRD"} if self.columns_first else {}
        return "DepthToSpace", {"blocksize": self.block, **mode}


@dataclass(frozen=True)
class SpaceToDepth(Op):
    """``[N, C, H * b, W * b]`` as ``[N, C * b * b, H, W]``: the inverse of :class:`DepthToSpace`."""

    kind: ClassVar[str] = "space_to_depth"
    onnx_types: ClassVar[tuple[str, ...]] = ("SpaceToDepth",)

    block: int
    columns_first: bool = False

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        n, c, h, w = _image(one_input(inputs))
        b = self.block
        require(b > 0 and h % b == 0 and w % b == 0, f"{h} x {w} pixels are no blocks of {b} x {b}")
        return (TensorType((n, c * b * b, h // b, w // b), inputs[0].dtype),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        n, c, h, w = inputs[0].shape
        b = self.block
        order = (0, 1, 3, 5, 2, 4) if self.columns_first else (0, 3, 5, 1, 2, 4)
        parts = inputs[0].reshape(n, c, h // b, b, w // b, b).transpose(order)
        return (parts.reshape(n, c * b * b, h // b, w // b),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        return cls(int(node.attribute("blocksize", 0)), node.attribute("mode", "DCR") == "CRD"), node.data_inputs(1)

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        mode = {"mode": "CRD"} if self.columns_first else {}
        return "SpaceToDepth", {"blocksize": self.block, **mode}


def _image(x: TensorType) -> tuple[int, ...]:
    require(len(x.shape) == 4, f"its input {x} is no batch of images")
    return x.shape
