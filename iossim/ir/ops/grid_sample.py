"""Sampling of images at computed positions: spatial transformers, optical flow, deformable attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Self

import numpy as np

from iossim.ir.onnx_spelling import OnnxNode
from iossim.ir.op import Array, Op, Work, require
from iossim.ir.types import TensorType

#: Paddings: values read outside of an image.
PADDINGS = ("zeros", "border", "reflection")


@dataclass(frozen=True)
class GridSample(Op, kind="grid_sample", onnx_types="GridSample", onnx_names="mode padding=padding_mode align_corners"):
    """Images ``[N, C, H, W]`` at the positions ``[N, h, w, 2]``, each across and down: ``[N, C, h, w]``.

    -1 and 1 are the edges of an image, or with ``align_corners`` the centres of its outermost elements. ``mode`` is
    ``nearest`` or ``linear``; outside of an image are ``zeros``, its ``border``, or its ``reflection``.
    """

    mode: str = "linear"
    padding: str = "zeros"
    align_corners: bool = False
    flops_per_element = 8  # multiply-adds of four neighbours

    def output(self, x: TensorType, grid: TensorType) -> TensorType:
        fits = len(x.shape) == len(grid.shape) == 4 and x.shape[0] == grid.shape[0] and grid.shape[3] == 2
        require(fits, f"its positions {grid} do not fit its images {x}")
        is_known = self.mode in ("nearest", "linear") and self.padding in PADDINGS
        require(is_known, f"has no mode {self.mode!r}, or no padding {self.padding!r}")
        return TensorType((*x.shape[:2], *grid.shape[1:3]), x.dtype)

    def work(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Work:
        read = min(inputs[0].bytes, outputs[0].bytes) + inputs[1].bytes
        return Work(self.flops(inputs, outputs), read, outputs[0].bytes)

    def compute(self, x: Array, grid: Array) -> Array:
        total, images = np.zeros((), x.dtype), np.arange(len(x))[:, None, None]
        sides = [self._neighbours(grid[..., place], x.shape[3 - place]) for place in (0, 1)]
        for (column, across), (row, down) in product(*sides):
            is_seen = ((column >= 0) & (row >= 0))[..., None]
            total = total + np.where(is_seen, x[images, :, row, column] * (across * down)[..., None], 0)
        return np.moveaxis(total, -1, 1)

    @np.errstate(invalid="ignore")  # infinitely far away is outside, wherever that is
    def _neighbours(self, positions: Array, size: int) -> list[tuple[Array, Array]]:
        """The entries of an axis at or beside positions, -1 for zeros, and their weights."""
        aligned = int(self.align_corners)
        at = (positions + 1) * (0.5 * (size - aligned)) - 0.5 * (1 - aligned)
        if self.mode == "nearest":
            return [(self._entry(np.rint(at), size), np.ones_like(at))]
        first = np.floor(at)
        return [(self._entry(first, size), 1 + first - at), (self._entry(first + 1, size), at - first)]

    def _entry(self, found: Array, size: int) -> Array:
        place = found.astype(np.int64)
        if self.padding == "reflection":
            period = max(1, 2 * (size - self.align_corners))
            rest = place % period
            return np.where(rest < size, rest, period - 1 + self.align_corners - rest)
        inside = np.clip(place, 0, size - 1)
        return inside if self.padding == "border" else np.where(inside == place, place, -1)

    def completed(self, node: OnnxNode) -> Self:
        """Below opset 20 modes have the names of images: ``bilinear``."""
        x = node.input_type(0)
        differs = len(x.shape) != 4 or not x.dtype.is_floating or self.mode in ("cubic", "bicubic")
        node.refuse(differs, f"samples {x} by mode {self.mode}")
        return replace(self, mode="linear") if self.mode == "bilinear" else self
