"""A command at work: progress bars on standard error, and the effect of Ctrl-C.

There are no bars without a terminal. While a command shows no bar of its own, a pulsing one shows that it is working,
until it prints its first words. Ctrl-C ends a command; during a search the first one ends it with the best schedule so
far, the second ends the program.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock, Timer
from types import FrameType
from typing import TYPE_CHECKING, Any

from iossim.base.compile_time import on_long_compiling

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from iossim.search.scheduler import MeasuredProgress, Progress


class StopNow(BaseException):
    """The second interrupt. It is no KeyboardInterrupt, which a search takes as a request to finish."""


#: While these compile or pass values, an exception is lost, or becomes a SystemError or the process's end.
_NATIVE = ("numba.", "llvmlite.")
_SOON_S = 0.01

#: Whether an interrupt came before there was anything to keep.
_heard = False


@contextmanager
def hears_interrupts() -> Iterator[None]:
    """While a command runs, SIGINT raises KeyboardInterrupt, even where an imported library swallows it."""
    global _heard  # noqa: PLW0603

    def hear(count: int) -> None:
        global _heard  # noqa: PLW0603
        _heard = True

    try:
        with _raising(hear):
            yield
    finally:
        _heard = False


@contextmanager
def interruptible() -> Iterator[None]:
    """The first SIGINT raises KeyboardInterrupt in the work, and says so; the second raises :class:`StopNow`.

    Raises KeyboardInterrupt if an earlier interrupt did not end the command.
    """

    def tell(count: int) -> None:
        if count > 1:
            raise StopNow
        print("interrupted: ending with the best schedule so far; once more to stop at once", file=sys.stderr)

    if _heard:
        raise KeyboardInterrupt
    with _raising(tell):
        yield


@contextmanager
def _raising(told: Callable[[int], None]) -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt as soon as possible, after ``told`` was called with the number of interrupts."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    count = 0

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal count
        if not _postponed(frame):
            count += 1
            told(count)
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _postponed(frame: FrameType | None) -> bool:
    """Whether the interrupt came where none can be raised; then it is sent again shortly."""
    while frame is not None and not _is_native(frame):
        frame = frame.f_back
    if frame is None:
        return False
    again = threading.Timer(_SOON_S, _interrupt_main_thread)
    again.daemon = True
    again.start()
    return True


def _interrupt_main_thread() -> None:
    """Interrupt the main thread as Ctrl-C does, so that whatever it waits for ends, too."""
    main = threading.main_thread().ident
    if sys.platform == "win32" or main is None:
        signal.raise_signal(signal.SIGINT)
    else:
        signal.pthread_kill(main, signal.SIGINT)


def _is_native(frame: FrameType) -> bool:
    """Whether a frame runs numba itself, not merely the import of its modules."""
    return frame.f_globals.get("__name__", "").startswith(_NATIVE) and frame.f_code.co_name != "<module>"


#: A command that shows nothing for this long gets a bar.
SILENCE_S = 1.0


@contextmanager
def tells_of_work() -> Iterator[None]:
    """Show a pulsing bar whenever nothing was shown for a second, until something is printed to standard output."""
    if sys.stdout is None or not sys.stderr.isatty():
        yield
        return
    work, printed_to = _Work(), sys.stdout
    _at_work.append(work)
    on_long_compiling[:] = [_report_compiling]
    sys.stdout = _FirstWrite(printed_to, work.end)
    work.wait()
    try:
        yield
    finally:
        work.end()
        sys.stdout = printed_to
        _at_work.remove(work)
        on_long_compiling.clear()


def _report_compiling() -> None:
    print("compiling (once)", file=sys.stderr)  # above the bars, if there are any


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

    def __init__(self, stream: Any, tell: Callable[[], None]) -> None:
        self._stream, self._tell = stream, tell

    def write(self, text: str) -> int:
        self._tell()
        written: int = self._stream.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


#: Running commands: one, or one that another runs.
_at_work: list[_Work] = []


@contextmanager
def progress_bars(quiet: bool, unit: str = "units", tells_rest: bool = False) -> Iterator[Callable[[str], Progress]]:
    """Yields a function that starts a bar under a label, which counts ``unit``; it may show the remaining time."""
    with _bars(quiet, unit, "{task.description}", tells_rest) as bars:

        def start(label: str) -> Progress:
            if bars is None:
                return lambda done, total: None
            task = bars.add_task(label, total=None)
            return lambda done, total: bars.update(task, completed=done, total=total)

        yield start


@contextmanager
def measuring_bar(quiet: bool) -> Iterator[MeasuredProgress]:
    """A bar that counts measurements, with the best measured latency and a lower estimate of the best possible one."""
    with _bars(quiet, "measured {task.description}") as bars:
        # The bar is invisible before the first measurement: a search at known prices has a bar of its own.
        tasks = [] if bars is None else [bars.add_task("", visible=False)]

        def show(measurements: int, most: int | None, best_us: float, bound_us: float) -> None:
            if bars is not None:
                words = f"best {best_us / 1e3:.3f} ms, hoped for {bound_us / 1e3:.3f} ms"
                bars.update(tasks[0], completed=measurements, total=most, description=words, visible=True)

        yield show


@contextmanager
def _bars(quiet: bool, behind: str, before: str = "", tells_rest: bool = False) -> Iterator[Bars | None]:
    if quiet or not sys.stderr.isatty():
        yield None
        return
    for work in _at_work:
        work.pause()
    with _new_bars(before, behind=behind, tells_rest=tells_rest) as bars:
        yield bars
    for work in _at_work:
        work.wait()


def _new_bars(before: str, behind: str = "", counted: bool = True, tells_rest: bool = False) -> Bars:
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

    columns = [SpinnerColumn(), TextColumn(before)] if before else []
    columns += [BarColumn(), *([MofNCompleteColumn(), TextColumn(behind)] if counted else []), TimeElapsedColumn()]
    columns += [TextColumn("left"), TimeRemainingColumn()] if tells_rest else []
    return Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=counted)
