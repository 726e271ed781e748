"""Lookup of entries by index (embedding tables, selection of slices), and its gradient."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from iossim.base.errors import GraphError
from iossim.ir.op import AlongAxis, Array, Op, Work, normal_axis, require
from iossim.ir.types import DType, TensorType

INDEX_TYPES = (DType.INT32, DType.INT64)


class _Picking(Op):
    """Base of ops that look up entries of data by index: they read only the selected entries, not all data."""

    def work(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Work:
        return Work(0, min(inputs[0].bytes, outputs[0].bytes) + inputs[1].bytes, outputs[0].bytes)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        try:
            return (self._picked(*inputs),)
        except IndexError as error:
            raise GraphError(f"gathers outside its data: {error}") from None

    @abstractmethod
    def _picked(self, data: Array, indices: Array) -> Array:
        """The output; raises IndexError for an index outside the data."""


@dataclass(frozen=True)
class _PickingAlongAxis(AlongAxis, _Picking, onnx_names="axis"):
    axis: int = 0

    def mixes_images(self, first_varies: bool) -> bool:
        return self.axis == 0 and first_varies  # in a lookup in a weight table each image has its own entries


class Gather(_PickingAlongAxis, kind="gather", onnx_types="Gather"):
    """``data`` at ``indices`` along ``axis``: ``[..., *indices, ...]``; a negative index counts from the end."""

    def output(self, data: TensorType, indices: TensorType) -> TensorType:
        _check_indices(indices)
        axis = normal_axis(self.axis, len(data.shape))
        return TensorType((*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]), data.dtype)

    def permutes(self, inputs: Sequence[TensorType]) -> bool:
        return len(inputs[1].shape) == 1 and self.infer(inputs)[0].shape == inputs[0].shape

    def _picked(self, data: Array, indices: Array) -> Array:
        return np.asarray(np.take(data, indices, axis=self.axis))


class GatherElements(_PickingAlongAxis, kind="gather_elements", onnx_types="GatherElements"):
    """``data[..., indices[..., i, ...], ...]`` for each entry of ``indices``, which has the rank of ``data``."""

    def output(self, data: TensorType, indices: TensorType) -> TensorType:
        _check_indices(indices)
        axis = normal_axis(self.axis, len(data.shape))
        require(
            len(indices.shape) == len(data.shape)
            and all(
                small <= large or place == axis
                for place, (small, large) in enumerate(zip(indices.shape, data.shape, strict=True))
            ),
            f"its indices {indices} do not fit its data {data}",
        )
        return TensorType(indices.shape, data.dtype)

    def _picked(self, data: Array, indices: Array) -> Array:
        axis = normal_axis(self.axis, data.ndim)
        part = data[tuple(slice(None) if at == axis else slice(size) for at, size in enumerate(indices.shape))]
        whole = np.where(indices < 0, indices + data.shape[axis], indices)
        return np.take_along_axis(part, whole, axis=axis)


@dataclass(frozen=True)
class GatherND(_Picking, kind="gather_nd", onnx_types="GatherND", onnx_names="batch_dims"):
    """``data`` at each index of ``indices [..., depth]``: ``[..., *data.shape[batch_dims + depth:]]``.

    The first ``batch_dims`` axes of both are the same; an index is a position on the following ``depth`` axes of
    ``data``, where a negative number counts from the end.
    """

    batch_dims: int = 0

    def output(self, data: TensorType, indices: TensorType) -> TensorType:
        _check_indices(indices)
        together = self.batch_dims
        depth = indices.shape[-1] if indices.shape else 0
        require(
            0 <= together < len(indices.shape)
            and data.shape[:together] == indices.shape[:together]
            and 1 <= depth <= len(data.shape) - together,
            f"its indices {indices} do not fit its data {data}",
        )
        return TensorType((*indices.shape[:-1], *data.shape[together + depth :]), data.dtype)

    def mixes_images(self, first_varies: bool) -> bool:
        return self.batch_dims == 0 and first_varies  # in a lookup in a weight table each image has its own entries

    def _picked(self, data: Array, indices: Array) -> Array:
        places: list[Array] = list(np.ix_(*map(range, indices.shape[: self.batch_dims])))
        ones = (1,) * (indices.ndim - 1 - self.batch_dims)
        places = [place.reshape(place.shape + ones) for place in places] + list(np.moveaxis(indices, -1, 0))
        return np.asarray(data[tuple(places)])


def _check_indices(indices: TensorType) -> None:
    require(indices.dtype in INDEX_TYPES, f"its indices {indices} are no whole numbers of 32 or 64 bits")


@dataclass(frozen=True)
class GatherBackward(Op, kind="gather_backward", flops_per_read_element=1):
    """Inputs ``grad_output [..., *indices, ...]`` and ``indices``; the output is the gradient of the data.

    The data has ``size`` entries along ``axis``.
    """

    axis: int
    size: int

    def output(self, grad_output: TensorType, indices: TensorType) -> TensorType:
        after = self.axis + len(indices.shape)
        data = TensorType((*grad_output.shape[: self.axis], self.size, *grad_output.shape[after:]), grad_output.dtype)
        (picked,) = Gather(normal_axis(self.axis, len(data.shape))).infer((data, indices))
        require(picked == grad_output, f"is the gradient of what {indices} picks of {data}, which is not {grad_output}")
        return data

    def mixes_images(self, first_varies: bool) -> bool:
        return True

    def compute(self, grad_output: Array, indices: Array) -> Array:
        after = grad_output.shape[self.axis + indices.ndim :]
        total = np.zeros((*grad_output.shape[: self.axis], self.size, *after), grad_output.dtype)
        places: tuple[Any, ...] = (*[slice(None)] * self.axis, indices)
        try:
            np.add.at(total, places, grad_output)
        except IndexError as error:
            raise GraphError(f"was gathered outside its data: {error}") from None
        return total
