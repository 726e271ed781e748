"""The weights of a graph on the device, in the forms that kernels read: as is, transposed, stacked, folded.

Each form is loaded and uploaded when a plan first needs it, and stays as long as the network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from iossim.backends.cupy_cudnn.driver import Allocation, Driver
from iossim.backends.cupy_cudnn.views import Memory, View, dense
from iossim.execution.backend import BackendError
from iossim.ir.graph import Graph, Node
from iossim.ir.merging import MergedConvolution
from iossim.ir.op import Array
from iossim.ir.ops.normalization import BatchNorm, multiplier_and_shift


class Weights:
    """What is constant in one graph. Views name what they need; :meth:`address` uploads it."""

    def __init__(self, graph: Graph, driver: Driver) -> None:
        self._graph, self._driver = graph, driver
        self._makers: dict[str, Callable[[], Array]] = {}
        self._uploaded: dict[str, Allocation] = {}

    def knows(self, value: str) -> bool:
        return value in self._graph.constants

    def value(self, name: str) -> View:
        """A constant as it is."""
        return self._form(f"as it is: {name}", self._graph.types[name].shape, lambda: self._load(name))

    def filters(self, name: str, *, transposed: bool, scale: float = 1.0) -> View:
        """A matrix ``[filters, inputs]`` (or its transpose) times ``scale``, as 1x1 filters."""
        rows, columns = self._graph.types[name].shape
        shape = (columns, rows, 1, 1) if transposed else (rows, columns, 1, 1)

        def make() -> Array:
            matrix = self._load(name)
            return np.ascontiguousarray(matrix.T if transposed else matrix).reshape(shape) * np.float32(scale)

        return self._form(f"filters {transposed} {scale!r}: {name}", shape, make)

    def vector(self, name: str, scale: float = 1.0) -> View:
        """A constant of one value a column, times ``scale``, flat."""
        size = self._graph.types[name].elements
        return self._form(
            f"vector {scale!r}: {name}", (size,), lambda: self._load(name).reshape(-1) * np.float32(scale)
        )

    def zeros(self, size: int) -> View:
        return self._form(f"zeros {size}", (size,), lambda: np.zeros(size, np.float32))

    def normalisation(self, node: Node) -> tuple[View, View]:
        """Multiplier and shift of a batch normalisation, each ``[C]``; raises BackendError unless constant."""
        assert isinstance(node.op, BatchNorm)
        if not all(self.knows(name) for name in node.inputs[1:]):
            raise BackendError(f"op {node.name!r}: no kernel normalises by values computed at run time")
        epsilon = node.op.epsilon
        size = self._graph.types[node.inputs[1]].elements

        def part(index: int) -> Array:
            scale, bias, mean, variance = (self._load(name) for name in node.inputs[1:])
            return multiplier_and_shift(scale, bias, mean, variance, epsilon)[index]

        key = f"{epsilon!r}: {' '.join(node.inputs[1:])}"
        return (
            self._form(f"multiplier {key}", (size,), lambda: part(0)),
            self._form(f"shift {key}", (size,), lambda: part(1)),
        )

    def merged(self, merged: MergedConvolution, parts: Sequence[Node]) -> tuple[View, View | None]:
        """Weight and bias of the stacked convolution of ``parts``; no bias where none of them has one."""

        def stack() -> tuple[Array, Array | None]:
            return merged.stack(
                [self._load(node.inputs[1]) for node in parts],
                [self._load(node.inputs[2]) if len(node.inputs) > 2 else None for node in parts],
            )

        def bias() -> Array:
            stacked = stack()[1]
            assert stacked is not None
            return stacked

        key = " ".join(node.name for node in parts)
        weight = self._form(f"stacked weight: {key}", merged.weight.shape, lambda: stack()[0])
        if not merged.has_bias:
            return weight, None
        return weight, self._form(f"stacked bias: {key}", merged.weight.shape[:1], bias)

    def address(self, memory: Memory) -> int:
        """Where a form begins; loads and uploads it the first time."""
        name = memory.name
        if name not in self._uploaded:
            array = self._makers[name]().astype(np.float32, copy=False)
            allocation = self._driver.allocate(array.nbytes)
            self._driver.write(allocation.address, np.ascontiguousarray(array))
            self._uploaded[name] = allocation
        return self._uploaded[name].address

    def _form(self, name: str, shape: tuple[int, ...], make: Callable[[], Array]) -> View:
        self._makers.setdefault(name, make)
        return dense(Memory("weight", name), shape)

    def _load(self, name: str) -> Array:
        return self._graph.constants[name].load()
