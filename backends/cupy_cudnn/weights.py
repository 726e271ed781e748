"""The weights of a graph on the device, in the forms that kernels read: as is, transposed, stacked, channels last.

Each form is loaded and uploaded when a plan first needs it, and stays as long as the network; where somebody has a
constant on the device already, in the order in which a form wants it, the form is that memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from iossim.backends.cupy_cudnn.driver import Allocation, Driver
from iossim.backends.cupy_cudnn.views import Memory, View, dense
from iossim.execution.backend import BackendError
from iossim.execution.layouts import ImageLayout
from iossim.ir.graph import Graph, Node
from iossim.ir.merging import MergedConvolution
from iossim.ir.op import Array
from iossim.ir.ops.normalization import BatchNorm, multiplier_and_shift
from iossim.ir.types import DType, TensorType


class Weights:
    """Constants of one graph, its values that lie channels last, and whether TF32 will do for fp32.

    Views name what they need; :meth:`address` uploads it. Without a driver there is nothing but the names.
    """

    def __init__(self, graph: Graph, driver: Driver | None, channels_last: bool = False, tf32: bool = False) -> None:
        self._graph, self._driver, self.tf32 = graph, driver, tf32
        self.layout = ImageLayout(graph, channels_last)
        #: The maker of each form. It may refer back to these weights, a cycle that would keep their device memory.
        self.makers: dict[str, tuple[Callable[[], Array], DType]] = {}
        #: The constant that a form is, and the order of its axes in it.
        self._orders: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._uploaded: dict[str, Allocation] = {}
        #: The memory of a constant where it is on the device, dense in that order of its axes.
        self.at_hand: Callable[[str, tuple[int, ...]], Allocation | None] = lambda name, order: None

    def knows(self, value: str) -> bool:
        return value in self._graph.constants

    def value(self, name: str) -> View:
        """A constant as it is."""
        lies = name, tuple(range(len(self._graph.types[name].shape)))
        return self.form(f"as it is: {name}", self._graph.types[name], lambda: self.load(name), lies)

    def laid_out(self, filters: View) -> View:
        """Filters, all of a form of theirs, with their channels innermost."""
        rank = len(filters.shape)
        return self._ordered(filters, (0, *range(2, rank), 1)).permuted((0, rank - 1, *range(1, rank - 1)))

    def taps(self, filters: View) -> View:
        """All of a constant's filters as ``[*kernel, channels, filters]``."""
        return self._ordered(filters, (*range(2, len(filters.shape)), 1, 0))

    def padded(self, constant: View, shape: Sequence[int]) -> View:
        """A whole constant, padded with zeros at the end of each axis to a larger shape."""
        make, _ = self.makers[constant.memory.name]
        zeros = [(0, large - own) for large, own in zip(shape, constant.shape, strict=True)]
        name = f"padded {tuple(shape)}: {constant.memory.name}"
        return self.form(
            name, TensorType(tuple(shape), constant.dtype), lambda: np.pad(make().reshape(constant.shape), zeros)
        )

    def _ordered(self, constant: View, order: Sequence[int]) -> View:
        own = constant.memory.name
        make, _ = self.makers[own]
        of_type = TensorType(tuple(constant.shape[axis] for axis in order), constant.dtype)
        base, axes = self._orders.get(own, ("", ()))
        if len(axes) == len(order):
            axes = tuple(axes[axis] for axis in order)
        elif order[0] != 0:
            base, axes = "", ()  # 1x1 filters of a matrix lie as it does as long as they come first
        name = f"{' '.join(map(str, order))}: {own}"
        return self.form(name, of_type, lambda: make().reshape(constant.shape).transpose(order), (base, axes))

    def filters(self, name: str, *, transposed: bool, scale: float = 1.0) -> View:
        """A matrix ``[filters, inputs]`` (or its transpose) times ``scale``, as 1x1 filters."""
        matrix = self.value(name) if scale == 1 else self.scaled(name, scale)
        matrix = self._ordered(matrix, (1, 0)) if transposed else matrix
        return matrix.with_ones((*matrix.shape, 1, 1))

    def scaled(self, name: str, factor: float) -> View:
        """A constant times a factor."""
        of_type, text = self._graph.types[name], f"{factor!r} times: {name}"
        return self.form(text, of_type, lambda: self.load(name) * np.float32(factor))

    def number(self, name: str) -> float:
        """A constant of one element."""
        return float(self.load(name).reshape(-1)[0])

    def zeros(self, size: int, dtype: DType) -> View:
        return self.form(f"zeros {size} {dtype}", TensorType((size,), dtype), lambda: np.zeros(size, np.float32))

    def seen(self, name: str, dtype: DType) -> View:
        """A constant mask of truth values as what is added to scores: minus infinity where they are not seen.

        Raises BackendError where it is no constant, and when it is uploaded where a row sees nothing.
        """
        if not self.knows(name):
            raise BackendError(f"its mask {name!r} has truth values computed at run time; give numbers that are added")

        def make() -> Array:
            mask = self.load(name)
            if not mask.any(axis=-1).all():
                raise BackendError(f"mask {name!r} has a row that sees nothing; let each row see something")
            return mask

        return self._mask(f"seen {dtype}: {name}", TensorType(self._graph.types[name].shape, dtype), make)

    def causal(self, queries: int, keys: int, dtype: DType) -> View:
        """Mask that is added to scores ``[queries, keys]`` so that no query sees later keys."""
        of_type = TensorType((queries, keys), dtype)
        return self._mask(f"causal {queries} {keys} {dtype}", of_type, lambda: np.tri(queries, keys, dtype=np.bool_))

    def _mask(self, name: str, of_type: TensorType, make: Callable[[], Array]) -> View:
        return self.form(name, of_type, lambda: np.where(make(), np.float32(0), np.float32(-np.inf)))

    def normalisation(self, node: Node) -> list[View]:
        """Multiplier and shift of a batch normalisation, each ``[C]`` in fp32; raises BackendError unless constant."""
        assert isinstance(node.op, BatchNorm)
        if not all(self.knows(name) for name in node.inputs[1:]):
            raise BackendError(f"op {node.name!r}: no kernel normalises by values computed at run time")
        epsilon = node.op.epsilon
        of_type = TensorType((self._graph.types[node.inputs[1]].elements,))

        def part(index: int) -> Array:
            scale, bias, mean, variance = (self.load(name).astype(np.float32) for name in node.inputs[1:])
            return multiplier_and_shift(scale, bias, mean, variance, epsilon)[index]

        key = f"{epsilon!r}: {' '.join(node.inputs[1:])}"
        names = f"multiplier {key}", f"shift {key}"
        return [self.form(name, of_type, partial(part, index)) for index, name in enumerate(names)]

    def merged(self, merged: MergedConvolution, parts: Sequence[Node]) -> tuple[View, View | None]:
        """Weight and bias of the stacked convolution of ``parts``; no bias where none of them has one."""

        def stacked(index: int) -> Array:
            found = merged.stack([[*map(self.load, node.inputs[1:])] for node in parts])[index]
            assert found is not None, "asked for where there is one"
            return found

        key = " ".join(node.name for node in parts)
        weight = self.form(f"stacked weight: {key}", merged.weight, lambda: stacked(0))
        of_type = TensorType(merged.weight.shape[:1], merged.weight.dtype)
        bias = self.form(f"stacked bias: {key}", of_type, lambda: stacked(1)) if merged.has_bias else None
        return weight, bias

    def address(self, memory: Memory) -> int:
        """Address of a form; loads and uploads it the first time."""
        name = memory.name
        if name not in self._uploaded and (found := self.at_hand(*self._orders.get(name, ("", ())))) is not None:
            self._uploaded[name] = found
        if name not in self._uploaded:
            make, dtype = self.makers[name]
            assert self._driver is not None, "weights without a driver are only named"
            array = make().astype(dtype.numpy, copy=False)
            allocation = self._driver.allocate(array.nbytes)
            self._driver.write(allocation.address, np.ascontiguousarray(array))
            self._uploaded[name] = allocation
        return self._uploaded[name].address

    def form(
        self, name: str, of_type: TensorType, make: Callable[[], Array], lies: tuple[str, tuple[int, ...]] = ("", ())
    ) -> View:
        """Array that ``make`` returns, under a name of its own; it is called when the form is uploaded.

        ``lies`` names the constant whose elements these are, and the order of its axes in which they are dense.
        """
        self.makers.setdefault(name, (make, of_type.dtype))
        self._orders.setdefault(name, lies)
        return dense(Memory("weight", name), of_type.shape, dtype=of_type.dtype)

    def load(self, name: str) -> Array:
        """A constant on the host."""
        return self._graph.constants[name].load()
