"""Build a graph op by op, with units and blocks if the author knows them.

b = GraphBuilder("tiny")
x = b.input("x", (1, 3, 32, 32))
with b.block("stem"), b.unit("conv1", "Conv-Relu"):
    x = b.add(Relu(), b.conv(x, 16, kernel=3, padding=1))
network = b.network([x])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from iossim.base.errors import GraphError
from iossim.ir.constants import ArrayConstant, Constant, FilledConstant, SeededConstant
from iossim.ir.graph import Graph, Node
from iossim.ir.network import Block, ModelSource, Network, make_unit
from iossim.ir.op import Array, Op
from iossim.ir.ops.conv import Conv
from iossim.ir.types import DType, Precision, TensorType


class GraphBuilder:
    """Collects nodes; an op added inside ``with builder.unit(...)`` is part of that unit, else a unit of its own."""

    def __init__(self, name: str, precision: Precision = Precision.FP32, seed: int = 0) -> None:
        self.name = name
        self.precision = precision
        self.dtype: DType = precision.storage
        self.types: dict[str, TensorType] = {}
        self._seed = seed
        self._inputs: dict[str, TensorType] = {}
        self._nodes: list[Node] = []
        self._constants: dict[str, Constant] = {}
        self._units: list[tuple[str, str, list[int]]] = []
        self._blocks: list[tuple[str, list[int]]] = []
        self._open_unit: list[int] | None = None
        self._open_block: list[int] | None = None

    def input(self, name: str, shape: Sequence[int]) -> str:
        self._inputs[name] = self.types[name] = TensorType(tuple(shape), self.dtype)
        return name

    def constant(self, name: str, shape: Sequence[int], dtype: DType | None = None, value: float | None = None) -> str:
        """A weight: ``value`` everywhere, or noise that depends only on ``name`` and the builder's seed."""
        kind = TensorType(tuple(shape), dtype or self.dtype)
        constant = SeededConstant(kind, name, self._seed) if value is None else FilledConstant(kind, value)
        self._constants[name] = constant
        self.types[name] = constant.type
        return name

    def numbers(self, name: str, array: Array) -> str:
        """A constant with the given elements."""
        self._constants[name] = constant = ArrayConstant(array)
        self.types[name] = constant.type
        return name

    def add(self, op: Op, *inputs: str, name: str | None = None, unit: tuple[str, str] | None = None) -> str:
        """Add an op with one output; returns the name of that value, which is the op's name.

        ``unit`` is the name and the kind of a unit of this op alone.
        """
        with nullcontext() if unit is None else self.unit(*unit):
            (value,) = self.add_all(op, *inputs, name=name)
        return value

    def add_all(self, op: Op, *inputs: str, name: str | None = None) -> tuple[str, ...]:
        """Add an op; returns the names of its outputs: the op's name, with a number appended if there are several."""
        name = name or f"{op.kind}_{len(self._nodes)}"
        try:
            types = op.infer([self.types[value] for value in inputs])
        except GraphError as error:
            raise GraphError(f"op {name!r} ({op.kind}): {error}") from None
        values = (name,) if len(types) == 1 else tuple(f"{name}.{index}" for index in range(len(types)))
        self.types.update(zip(values, types, strict=True))
        index = len(self._nodes)
        self._nodes.append(Node(name, op, inputs, values))
        if self._open_unit is not None:
            self._open_unit.append(index)
        else:
            self._start_unit(name, op.kind.capitalize(), [index])
        return values

    def conv(
        self,
        x: str,
        channels: int,
        kernel: int | tuple[int, int] = 1,
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
        groups: int = 1,
        dilation: int = 1,
        name: str | None = None,
    ) -> str:
        """A 2-D convolution with bias, symmetric padding and new weights."""
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        vertical, horizontal = (padding, padding) if isinstance(padding, int) else padding
        name = name or f"conv_{len(self._nodes)}"
        weight = self.constant(f"{name}.weight", (channels, self.types[x].shape[1] // groups, height, width))
        bias = self.constant(f"{name}.bias", (channels,))
        pads = (vertical, horizontal, vertical, horizontal)
        op = Conv((stride, stride), pads, (dilation, dilation), groups)
        return self.add(op, x, weight, bias, name=name)

    @contextmanager
    def unit(self, name: str, kind: str) -> Iterator[None]:
        """Ops added inside form one schedule unit."""
        if self._open_unit is not None:
            raise GraphError(f"unit {name!r} begins inside another unit")
        self._open_unit = []
        yield
        nodes, self._open_unit = self._open_unit, None
        self._start_unit(name, kind, nodes)

    @contextmanager
    def block(self, name: str) -> Iterator[None]:
        """Units added inside form one block; units outside any block get a block of their own."""
        if self._open_block is not None:
            raise GraphError(f"block {name!r} begins inside another block")
        self._open_block = []
        yield
        units, self._open_block = self._open_block, None
        self._blocks.append((name, units))

    def graph(self, outputs: Sequence[str]) -> Graph:
        return Graph.create(self._inputs, outputs, self._nodes, self._constants)

    def network(self, outputs: Sequence[str], source: ModelSource | None = None) -> Network:
        graph = self.graph(outputs)
        units = tuple(
            make_unit(graph, name, kind, [graph.position[self._nodes[index].name] for index in nodes])
            for name, kind, nodes in self._units
        )
        blocks = tuple(Block(name, tuple(members)) for name, members in self._blocks)
        return Network(self.name, graph, units, blocks, self.precision, source or ModelSource(self.name))

    def _start_unit(self, name: str, kind: str, nodes: list[int]) -> None:
        index = len(self._units)
        self._units.append((name, kind, nodes))
        if self._open_block is not None:
            self._open_block.append(index)
        else:
            self._blocks.append((name, [index]))
