"""Tolerated difference of outputs from NumPy's in the same storage type, and the location of the largest.

A value is rounded when it is stored, on both sides but not to the same neighbour, since sums are computed in different
orders; values computed from it propagate the error. Errors of ``n`` successive roundings add up to the root of ``n``,
and so do those of the ``k`` terms of a sum in fp32. So an output may be off, relative to its largest value, by

    ``SAFETY * sqrt(n) * (u + sqrt(k) * 2**-24)`` (``2**-11`` where sums are of fp16)

with ``n`` ops on the longest path, ``k`` terms of the deepest sum, and ``u`` half a unit in the last place of the
stored type (for TF32: the multiplied type; for scaled integers: 8 bits; for fp8, which both sides round alike but for
near ties: 7, of sums in which some terms differ by a step). No tolerance is below ``LEAST``: convolution
transforms (Winograd's) lose that much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from iossim.ir.graph import Graph
from iossim.ir.network import Network
from iossim.ir.op import Array, Role
from iossim.ir.types import FP8, DType, Precision

SAFETY = 4.0
LEAST = 1e-3
#: Unit roundoff: the largest relative error of a rounding.
ROUNDOFF = {
    Precision.FP32: 2.0**-24,
    Precision.TF32: 2.0**-11,
    Precision.FP16: 2.0**-11,
    Precision.BF16: 2.0**-8,
    Precision.INT8: 2.0**-8,
    Precision.FP8: 2.0**-7,
}
#: Precisions of tensors that are stored in 8 bits.
_OF_8_BITS = {DType.INT8: Precision.INT8, DType.UINT8: Precision.INT8, **dict.fromkeys(FP8, Precision.FP8)}
#: Operators that order numbers.
_RANKINGS = ("top_k", "arg_extreme", "hardmax", "NonMaxSuppression", "Unique")
#: Remark on outputs that are :func:`ranked` and differ.
SWAPPED = "they depend on an order of numbers (TopK, ArgMax), in which rounding may swap those that are nearly equal"


def tolerance(network: Network, precision: Precision | None = None, sums: Precision = Precision.FP32) -> float:
    """Tolerated difference of outputs, relative to the largest value; for the network's own precision by default.

    ``sums`` is the accumulation type of products.
    """
    graph = network.graph
    terms = max((_terms(graph, index) for index in range(len(graph.nodes))), default=1)
    own = precision or network.precision
    stored = {_OF_8_BITS.get(value.dtype, own) for value in graph.types.values()}
    unit = max(ROUNDOFF[each] for each in (own, *stored)) + math.sqrt(terms) * ROUNDOFF[sums]
    return max(LEAST, SAFETY * math.sqrt(_roundings(graph)) * unit)


def _terms(graph: Graph, index: int) -> int:
    node = graph.nodes[index]
    types = graph.output_types(node)
    products = node.op.multiply_adds(graph.input_types(node), types)
    return max(1, products // max(1, types[0].elements))


def _roundings(graph: Graph) -> int:
    """Number of computing ops on the longest path."""
    longest: dict[str, int] = {}
    for node in graph.nodes:
        own = node.op.role not in (Role.VIEW, Role.CONCAT)
        found = max((longest.get(name, 0) for name in node.inputs), default=0) + own
        longest.update(dict.fromkeys(node.outputs, found))
    return max(1, *longest.values()) if longest else 1


def ranked(graph: Graph) -> frozenset[str]:
    """Values that depend on an order of numbers, as TopK finds it: rounding may swap those that are nearly equal."""
    found: set[str] = set()
    for node in graph.nodes:
        if getattr(node.op, "op_type", node.op.kind) in _RANKINGS or not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class Difference:
    """Largest difference of outputs: ``found`` instead of ``wanted``, ``relative`` to the largest value of that output.

    Infinite if only one of the two is finite.
    """

    output: str = ""
    index: tuple[int, ...] = ()
    found: float = 0.0
    wanted: float = 0.0
    relative: float = 0.0

    def __str__(self) -> str:
        if not self.output:
            return "equal"
        place = f"{self.output}[{', '.join(map(str, self.index))}]"
        off = "" if math.isinf(self.relative) else f", off by {self.relative:.2g} of the largest value"
        return f"{place} is {self.found:.6g} instead of {self.wanted:.6g}{off}"


def largest_difference(found: Mapping[str, Array], expected: Mapping[str, Array]) -> Difference:
    """Largest difference of any output over the largest expected value of that output."""
    worst = Difference()
    for name, array in expected.items():
        wanted, got = array.astype(np.float64), found[name].astype(np.float64)
        finite = np.isfinite(wanted)
        unlike = finite != np.isfinite(got)
        if unlike.any():
            return _difference(name, int(unlike.argmax()), got, wanted, math.inf)
        if finite.any():
            scale = float(np.abs(wanted[finite]).max()) or 1.0
            errors = np.where(finite, np.abs(np.where(finite, wanted, 0) - np.where(finite, got, 0)), 0.0) / scale
            place = int(errors.argmax())
            if errors.flat[place] > worst.relative:
                worst = _difference(name, place, got, wanted, float(errors.flat[place]))
    return worst


def _difference(name: str, place: int, got: Array, wanted: Array, relative: float) -> Difference:
    index = tuple(int(part) for part in np.unravel_index(place, wanted.shape))
    return Difference(name, index, float(got.flat[place]), float(wanted.flat[place]), relative)
