"""A builder of a graph with its inputs, as tests of small graphs begin."""

from collections.abc import Sequence
from typing import Any

from iossim.ir.builder import GraphBuilder
from iossim.ir.types import Precision


def builder_with(name: str, precision: Precision = Precision.FP32, /, **shapes: Sequence[int]) -> tuple[Any, ...]:
    """A builder and the inputs of these names and shapes: ``b, x, y = builder_with("sums", x=(1, 2), y=(1, 2))``."""
    b = GraphBuilder(name, precision)
    return b, *(b.input(given, shape) for given, shape in shapes.items())
