"""Operators that move elements and compute nothing."""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch.utils._pytree import tree_map

from iossim.backends.torch_cuda.operators.registry import Operand, Types, computes, constant, register
from iossim.backends.torch_cuda.tensors import DTYPES
from iossim.ir.op import Array, Op
from iossim.ir.ops.foreign import Foreign
from iossim.ir.ops.gather import Gather, GatherBackward, GatherElements, GatherND
from iossim.ir.ops.reshape import DepthToSpace, Pad, SpaceToDepth
from iossim.ir.ops.slice import Slice
from iossim.ir.types import DType
from iossim.models.onnx.constants import attributes_of
from iossim.models.sources.torch_operators import named, reason_against

#: ONNX's modes of padding as torch calls them.
_PADDING = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


register(
    {
        "identity": lambda op, types, x: x,
        "concat": lambda op, types, *terms: torch.cat(list(terms), dim=op.axis),
        "split": lambda op, types, x: _parts(torch.split(x, list(op.sizes), dim=op.axis), len(op.sizes)),
        "tile": lambda op, types, x: torch.tile(x, op.repeats),
        "transpose": lambda op, types, x: torch.permute(x, op.permutation),
        "expand": lambda op, types, x: torch.broadcast_to(x, op.infer(types)[0].shape),
    }
)


def _parts(made: Operand, count: int) -> tuple[Operand, ...]:
    """Items of what may be traced, and then has no length."""
    return tuple(made[index] for index in range(count))


@computes("reshape", "flatten")
def _reshape(op: Op, types: Types, x: Operand) -> Operand:
    return torch.reshape(x, op.infer(types)[0].shape)


@computes("slice")
def _slice(op: Slice, types: Types, x: Operand) -> Operand:
    """torch has no steps backwards: along such an axis elements are picked."""
    shape = types[0].shape
    index = [slice(None)] * len(shape)
    for axis, *bounds in zip(op.axes, op.starts, op.ends, op.steps, strict=True):
        taken = range(*slice(*bounds).indices(shape[axis]))
        if taken.step < 0:
            x = torch.index_select(x, axis, constant(np.array(taken), x))
        else:
            index[axis] = slice(taken.start, taken.stop, taken.step)
    return operator.getitem(x, tuple(index))


@computes("gather")
def _gather(op: Gather, types: Types, x: Operand, indices: Operand) -> Operand:
    places = torch.reshape(_from_front(indices, types[0].shape[op.axis]), (-1,))
    return _reshape(op, types, torch.index_select(x, op.axis, places))


@computes("gather_backward")
def _gather_backward(op: GatherBackward, types: Types, x: Operand, indices: Operand) -> Operand:
    (made,) = op.infer(types)
    places = torch.reshape(_from_front(indices, op.size), (-1,))
    picked = torch.reshape(x, (*made.shape[: op.axis], -1, *made.shape[op.axis + 1 :]))
    return torch.index_add(x.new_zeros(made.shape), op.axis, places, picked)


@computes("gather_elements")
def _gather_elements(op: GatherElements, types: Types, x: Operand, indices: Operand) -> Operand:
    return torch.gather(x, op.axis, _from_front(indices, types[0].shape[op.axis]).to(torch.int64))


@computes("gather_nd")
def _gather_nd(op: GatherND, types: Types, x: Operand, given: Operand) -> Operand:
    batch, rank = types[0].shape[: op.batch_dims], len(types[1].shape) - 1
    own = [np.arange(size).reshape(-1, *[1] * (rank - 1 - axis)) for axis, size in enumerate(batch)]
    return operator.getitem(x, (*(constant(places, x) for places in own), *_index(given, types[1].shape[-1])))


def _index(given: Operand, axes: int) -> tuple[Operand, ...]:
    """ONNX's indices of elements, whose last axis has one number for each of the axes that they index."""
    return tuple(torch.select(given, -1, axis).to(torch.int64) for axis in range(axes))


def _from_front(places: Operand, size: int) -> Operand:
    """Indices of which negative ones counted from the end."""
    return torch.where(places < 0, places + size, places)


@computes("pad")
def _pad(op: Pad, types: Types, x: Operand) -> Operand:
    (given,) = types
    rank = len(given.shape)
    before, after = op.pads[:rank], op.pads[rank:]
    if op.mode == "constant":
        exact = {True: float, False: bool if given.dtype is DType.BOOL else int}[given.dtype.is_floating]
        return padded(x, before, after, exact(op.value))
    spatial = rank - 2
    of_images = 1 <= spatial <= 3 and not any(before[:2] + after[:2]) and min(op.pads) >= 0
    if of_images and given.dtype.is_floating:
        return F.pad(x, _torch_pads(before[2:], after[2:]), mode=_PADDING[op.mode])
    for axis, size in enumerate(given.shape):
        alone = Pad((before[axis], after[axis]), op.mode)
        if any(alone.pads):
            (places,) = alone.evaluate((np.arange(size),))
            x = torch.index_select(x, axis, constant(places, x))
    return x


def resampled(x: Operand, axis: int, table: Array, dtype: DType) -> Operand:
    """An axis of ``x``, of element type ``dtype``, by a matrix ``[entries, weights of x's entries]``."""
    places = table.argmax(axis=1)
    if np.array_equal(table, np.eye(table.shape[1])[places]):
        return torch.index_select(x, axis, constant(places, x))
    wide = DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32
    rows = torch.movedim(x, axis, -1).to(DTYPES[wide])
    return torch.movedim(torch.matmul(rows, constant(table.T, x, wide)), -1, axis).to(DTYPES[dtype])


def padded(x: Operand, before: Sequence[int], after: Sequence[int], value: float) -> Operand:
    """``x`` padded along its last axes with a number; negative widths take elements away."""
    pads = _torch_pads(before, after)
    return F.pad(x, pads, value=value) if any(pads) else x


def _torch_pads(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """torch lists the last axis first."""
    return [pad for pair in zip(reversed(before), reversed(after), strict=True) for pad in pair]


@computes("depth_to_space", "space_to_depth")
def _blocks(op: DepthToSpace | SpaceToDepth, types: Types, x: Operand) -> Operand:
    parts, order = op.parts(types[0].shape)
    return _reshape(op, types, torch.permute(torch.reshape(x, parts), order))


def _foreign_refusal(op: Foreign, types: Types) -> str:
    scatters = op.op_type in ("ScatterElements", "ScatterND")
    if scatters and attributes_of(op.parsed()).get("reduction", "none") in ("none", "add"):
        return ""
    own = named(op.op_type.removeprefix("torch."))
    return "it has no function in torch" if own is None or reason_against(own) else ""


@computes("foreign", refuses=_foreign_refusal)
def _foreign(op: Foreign, types: Types, *operands: Operand) -> Operand:
    """Scatters; and what is carried, ``torch.LIBRARY.NAME.OVERLOAD``, in whose call each ``{}`` is the next operand."""
    attributes = attributes_of(op.parsed())
    if (function := named(op.op_type.removeprefix("torch."))) is not None:
        left = iter(operands)
        call = json.loads(attributes["call"])
        given, names, more = tree_map(lambda e: next(left) if e == {} else e, call, is_leaf=lambda e: e == {})
        made = function(*given, **dict(zip(names, more, strict=True)))
        return made if len(op.outputs) == 1 else _parts(made, len(op.outputs))
    x, places, values = operands
    adds, axis = attributes.get("reduction") == "add", attributes.get("axis", 0)
    if op.op_type == "ScatterND":
        return torch.index_put(x, _index(places, types[1].shape[-1]), values, adds)
    scatter = torch.scatter_add if adds else torch.scatter
    return scatter(x, axis, _from_front(places, types[0].shape[axis]).to(torch.int64), values)
