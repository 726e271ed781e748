"""From command-line options to a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.errors import OptionError

if TYPE_CHECKING:
    from iossim.ir.network import Network


def load_network(
    model: str,
    batch: int | None = None,
    dtype: str = "fp32",
    shapes: Sequence[str] | None = None,
    graphs: Path | None = None,
    units: str = "model",
    max_block: int = 64,
    dimensions: Sequence[str] | None = None,
    strict: bool = False,
    passes: Sequence[str] | None = None,
) -> Network:
    """Load a model as the options say."""
    from iossim.models.load import load

    return load(
        model,
        batch=batch,
        dtype=dtype,
        shapes=parse_shapes(shapes or ()),
        graphs=graphs,
        units=units,
        max_block=max_block,
        dimensions=parse_dimensions(dimensions or ()),
        strict=strict,
        passes=passes or (),
    )


def parse_shapes(given: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """``["x=1x3x224x224"]`` as ``{"x": (1, 3, 224, 224)}``; raises OptionError naming the one at fault."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in given:
        name, equals, dimensions = text.rpartition("=")
        sizes = dimensions.split("x")
        if not equals or not name or not all(size.isdecimal() and int(size) > 0 for size in sizes):
            raise OptionError(f"--shape {text!r} is not a shape; write NAME=1x3x224x224")
        shapes[name] = tuple(int(size) for size in sizes)
    return shapes


def parse_dimensions(given: Sequence[str]) -> dict[str, int]:
    """``["batch=8"]`` as ``{"batch": 8}``; raises OptionError naming the one at fault."""
    sizes: dict[str, int] = {}
    for text in given:
        name, equals, size = text.rpartition("=")
        if not equals or not name or not size.isdecimal() or int(size) < 1:
            raise OptionError(f"--dim {text!r} is not a dimension; write NAME=8")
        if sizes.setdefault(name, int(size)) != int(size):
            raise OptionError(f"--dim {name!r} is given as both {sizes[name]} and {size}; give it once")
    return sizes
