"""Progress bars on standard error: one for each piece of work, gone when all is done; nothing where nobody looks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iossim.scheduling.scheduler import Progress


@contextmanager
def progress_bars(quiet: bool, unit: str = "blocks") -> Iterator[Callable[[str], Progress]]:
    """Gives a function that starts a bar under a label, which counts ``unit``."""
    if quiet or not sys.stderr.isatty():
        yield lambda label: lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:

        def start(label: str) -> Progress:
            task = bars.add_task(label, total=None)
            return lambda done, total: bars.update(task, completed=done, total=total)

        yield start
