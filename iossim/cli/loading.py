"""From command-line options to a network, and back to what the user sees while it works."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.errors import OptionError

if TYPE_CHECKING:
    from iossim.ir.network import Network
    from iossim.scheduling.scheduler import Progress


def load_network(
    model: str,
    batch: int | None = None,
    dtype: str = "fp32",
    shapes: Sequence[str] | None = None,
    graphs: Path | None = None,
    units: str = "model",
    max_block: int = 64,
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


@contextmanager
def progress_bar(label: str, quiet: bool) -> Iterator[Progress]:
    """A bar on standard error that goes away when done; nothing where nobody looks."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TextColumn("blocks"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
