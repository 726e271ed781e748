"""Progress bars on standard error, one for each piece of work, gone when all is done; none without a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from iossim.search.measured.search import MeasuredProgress
    from iossim.search.scheduler import Progress


@contextmanager
def progress_bars(quiet: bool, unit: str = "units", tells_rest: bool = False) -> Iterator[Callable[[str], Progress]]:
    """Gives a function that starts a bar under a label, which counts ``unit``; it may tell the time that is left."""
    with _bars(quiet, unit, "{task.description}", tells_rest) as bars:

        def start(label: str) -> Progress:
            if bars is None:
                return lambda done, total: None
            task = bars.add_task(label, total=None)
            return lambda done, total: bars.update(task, completed=done, total=total)

        yield start


@contextmanager
def measuring_bar(quiet: bool) -> Iterator[MeasuredProgress]:
    """A bar that counts measurements, with the best measured schedule and what the best there is may take, in hope."""
    with _bars(quiet, "measured {task.description}") as bars:
        # Not there before something was measured: a search at known prices has a bar of its own.
        tasks = [] if bars is None else [bars.add_task("", visible=False)]

        def show(measurements: int, most: int | None, best_us: float, bound_us: float) -> None:
            if bars is not None:
                words = f"best {best_us / 1e3:.3f} ms, hoped for {bound_us / 1e3:.3f} ms"
                bars.update(tasks[0], completed=measurements, total=most, description=words, visible=True)

        yield show


@contextmanager
def _bars(quiet: bool, behind: str, before: str = "", tells_rest: bool = False) -> Iterator[Bars | None]:
    """Bars with words before and behind them; None where standard error is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = [BarColumn(), MofNCompleteColumn(), TextColumn(behind), TimeElapsedColumn()]
    columns = [*([SpinnerColumn(), TextColumn(before)] if before else []), *columns]
    columns += [TextColumn("left"), TimeRemainingColumn()] if tells_rest else []
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield bars
