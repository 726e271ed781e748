"""Batch evaluation of many terms of one op over the prime field, and a fingerprint of each result.

A stack is an array with one value per term along its first axis. Two terms of one shape have the same fingerprint if
they compute the same; otherwise they share one with a probability of about 2^-64, or if their polynomials agree at
every element by chance: each does so with the probability of the degree over the prime.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from iossim.ir.op import Array, Op
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.nary import Mul
from iossim.ir.ops.reshape import Pad, Transpose
from iossim.ir.ops.slice import Concat, Split
from iossim.ir.ops.unary import Relu
from iossim.proving.refute import PRIME, evaluate_op

Fingerprints = NDArray[np.uint64]
#: Odd multipliers without a pattern in their bits: those of SplitMix64 (Steele et al., OOPSLA 2014).
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def evaluate_stacked(op: Op, operands: Sequence[Array]) -> tuple[Array, ...]:
    """Stacks of the op's outputs from stacks of its operands: :func:`iossim.proving.refute.evaluate_op`
    for each term.
    """
    match op:
        case Conv(strides=(1, 1), dilations=(1, 1)):
            return (np.mod(_convolve(op, *operands), PRIME),)
        case Conv():
            each = [evaluate_op(op, term)[0] for term in zip(*operands, strict=True)]
            return (np.stack(each),)
        case Concat(axis) | Split(axis):
            return evaluate_op(replace(op, axis=axis + 1), operands)
        case Pad(pads):
            rank = len(pads) // 2
            return evaluate_op(replace(op, pads=(0, *pads[:rank], 0, *pads[rank:])), operands)
        case Transpose(permutation):
            return evaluate_op(replace(op, permutation=(0, *(axis + 1 for axis in permutation))), operands)
        case Relu():
            return (_idempotent(operands[0]),)
        case Mul():
            rank = max(each.ndim for each in operands)
            return evaluate_op(
                op, [each.reshape(len(each), *[1] * (rank - each.ndim), *each.shape[1:]) for each in operands]
            )
    return evaluate_op(op, operands)


def _idempotent(x: Array) -> Array:
    """A pseudo-random idempotent function, whose fixed points are its values: the multiples of 128, including zero.

    That of :mod:`iossim.proving.refute` makes half of all elements zero, as the real one does, and keeps
    the others. Small tensors, and products of them, would become zero too often, and such terms agree by chance.
    """
    step = np.uint64(128)
    scrambled = mixed(x.astype(np.uint64)) % (np.uint64(PRIME) // step) * step
    result: Array = np.where(np.mod(x, float(step)) == 0, x, scrambled.astype(np.float64))
    return result


def _convolve(op: Conv, x: Array, weight: Array) -> Array:
    """``x [T, N, C, H, W]`` with ``weight [T, M, C/groups, KH, KW]`` at stride one: a matrix product per term and
    group.
    """
    top, left, bottom, right = op.pads
    padded = np.pad(x, [(0, 0), (0, 0), (0, 0), (top, bottom), (left, right)])
    kernel = weight.shape[3:]
    patches = np.lib.stride_tricks.sliding_window_view(padded, kernel, axis=(3, 4))
    terms, images, channels, height, width = patches.shape[:5]
    groups = op.groups
    columns = patches.reshape(terms, images, groups, channels // groups, height, width, *kernel)
    columns = columns.transpose(0, 2, 3, 6, 7, 1, 4, 5).reshape(terms, groups, -1, images * height * width)
    y = weight.reshape(terms, groups, weight.shape[1] // groups, -1) @ columns
    result: Array = y.reshape(terms, weight.shape[1], images, height, width).transpose(0, 2, 1, 3, 4)
    return result


def fingerprints(values: Array) -> Fingerprints:
    """Fingerprint of each value of a stack; it depends on the shape, too."""
    shape = values.shape[1:]
    flat = values.reshape(len(values), -1).astype(np.uint64)
    flat += (np.arange(1, math.prod(shape) + 1, dtype=np.uint64) << np.uint64(20)) + np.uint64(_salt(shape))
    found: Fingerprints = mixed(flat).sum(axis=1, dtype=np.uint64)
    return found


def mixed(numbers: Fingerprints) -> Fingerprints:
    """A permutation of 64-bit numbers without a pattern: sums of its results distinguish sets."""
    z = numbers * np.uint64(_GOLDEN)
    z ^= z >> np.uint64(30)
    z *= np.uint64(_FIRST)
    z ^= z >> np.uint64(27)
    z *= np.uint64(_SECOND)
    z ^= z >> np.uint64(31)
    return z


def _salt(shape: tuple[int, ...]) -> int:
    salt = len(shape)
    for size in shape:
        salt = salt * 1009 + size
    return (salt << 40) % (1 << 64)
