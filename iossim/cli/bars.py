"""Progress bars on standard error, for a terminal.

While a command shows no bar of its own, a pulsing one shows that it is working, until it prints its first words.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock, Timer
from typing import TYPE_CHECKING, TextIO

from iossim.base.compile_time import on_long_compiling

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from iossim.base.errors import Progress
    from iossim.search.scheduler import MeasuredProgress

#: A command that shows nothing for this long gets a bar.
SILENCE_S = 1.0


@contextmanager
def pulsing_bar() -> Iterator[None]:
    """A bar without a number, whenever nothing was shown for a second."""
    work, printed_to = _Work(), sys.stdout
    _at_work.append(work)
    on_long_compiling[:] = [lambda: print("compiling (once)", file=sys.stderr)]  # above the bars, if there are any
    sys.stdout = _FirstWrite(printed_to, work.end)
    work.wait()
    try:
        yield
    finally:
        work.end()
        sys.stdout = printed_to
        _at_work.remove(work)
        on_long_compiling.clear()


class _Work:
    """A bar for a command without its own. A timer's thread shows the bar, hence the lock."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._timer: Timer | None = None
        self._bars: Bars | None = None
        self._ended = False

    def wait(self) -> None:
        with self._lock:
            if not self._ended:
                self._timer = Timer(SILENCE_S, self._show)
                self._timer.daemon = True
                self._timer.start()

    def pause(self) -> None:
        """Show nothing until :meth:`wait` is called again."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._bars is not None:
                self._bars.stop()
                self._bars = None

    def end(self) -> None:
        with self._lock:
            self._ended = True
            self.pause()

    def _show(self) -> None:
        with self._lock:
            if self._timer is not None and self._bars is None:  # it was not paused meanwhile, nor paused and resumed
                self._bars = _new_bars("working", counted=False)
                self._bars.add_task("", total=None)
                self._bars.start()


class _FirstWrite:
    """Standard output that announces the first write before it happens."""

    def __init__(self, stream: TextIO, tell: Callable[[], None]) -> None:
        self._stream, self._tell = stream, tell

    def write(self, text: str) -> int:
        self._tell()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


#: Running commands: one, or one that another runs.
_at_work: list[_Work] = []


@contextmanager
def counting_bars(unit: str, tells_rest: bool) -> Iterator[Callable[[str], Progress]]:
    """Yields a function that starts a bar under a label, which counts ``unit``."""
    with _bars(unit, "{task.description}", tells_rest) as bars:

        def start(label: str) -> Progress:
            task = bars.add_task(label, total=None)
            return lambda done, total: bars.update(task, completed=done, total=total)

        yield start


@contextmanager
def measuring_bar(quiet: bool) -> Iterator[MeasuredProgress]:
    """A bar that counts measurements, with the best measured latency and a lower estimate of the best possible one."""
    if quiet or not sys.stderr.isatty():
        yield lambda measurements, most, best_us, bound_us: None
        return
    with _bars("measured {task.description}") as bars:
        # The bar is invisible before the first measurement: a search at known prices has a bar of its own.
        task = bars.add_task("", visible=False)

        def show(measurements: int, most: int | None, best_us: float, bound_us: float) -> None:
            words = f"best {best_us / 1e3:.3f} ms, hoped for {bound_us / 1e3:.3f} ms"
            bars.update(task, completed=measurements, total=most, description=words, visible=True)

        yield show


@contextmanager
def _bars(after: str, before: str = "", tells_rest: bool = False) -> Iterator[Bars]:
    for work in _at_work:
        work.pause()
    with _new_bars(before, after=after, tells_rest=tells_rest) as bars:
        yield bars
    for work in _at_work:
        work.wait()


def _new_bars(before: str, after: str = "", counted: bool = True, tells_rest: bool = False) -> Bars:
    from rich import progress
    from rich.console import Console

    columns = [progress.SpinnerColumn(), progress.TextColumn(before)] if before else []
    columns += [progress.BarColumn()]
    columns += [progress.MofNCompleteColumn(), progress.TextColumn(after)] if counted else []
    columns += [progress.TimeElapsedColumn()]
    columns += [progress.TextColumn("left"), progress.TimeRemainingColumn()] if tells_rest else []
    return progress.Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=counted)
