"""Progress bars on standard error: one for each piece of work, gone when all is done; nothing where nobody looks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iossim.scheduling.measured.search import MeasuredProgress
    from iossim.scheduling.scheduler import Progress


@contextmanager
def progress_bars(quiet: bool, unit: str = "units") -> Iterator[Callable[[str], Progress]]:
    """Gives a function that starts a bar under a label, which counts ``unit``."""
    if quiet or not sys.stderr.isatty():
        yield lambda label: lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        SpinnerColumn(),
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


@contextmanager
def measuring_bar(quiet: bool) -> Iterator[MeasuredProgress]:
    """A bar that counts measurements, with the best measured schedule and what the best there is may take, in hope."""
    if quiet or not sys.stderr.isatty():
        yield lambda measurements, most, best_us, bound_us: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("measured {task.description}"), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        # Not there before something was measured: a search at known prices has a bar of its own.
        tasks = [bars.add_task("", visible=False)]

        def show(measurements: int, most: int | None, best_us: float, bound_us: float) -> None:
            words = f"best {best_us / 1e3:.3f} ms, hoped for {bound_us / 1e3:.3f} ms"
            bars.update(tasks[0], completed=measurements, total=most, description=words, visible=True)

        yield show
