"""What a command does while it works: progress bars on standard error, and what Ctrl-C means.

There are no bars without a terminal. While a command shows none of its own, one that pulses shows that it is at work,
until it prints its first words. Ctrl-C ends a command; during a search once ends that with the best schedule so far,
twice ends the program.
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
    """The second interrupt. No KeyboardInterrupt, which a search takes as a wish to come to an end."""


#: While these compile or hand values over, an exception is lost, a SystemError or the process's end.
_NATIVE = ("numba.", "llvmlite.")
_SOON_S = 0.01

#: Was there an interrupt before there was anything to keep?
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

    Raises KeyboardInterrupt where there was one before, which did not end the command.
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
    """SIGINT raises KeyboardInterrupt once it can be raised, after ``told`` was called with how many there were."""
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
    """Whether the interrupt comes where none can be raised; then it comes again in a moment."""
    while frame is not None and not _is_native(frame):
        frame = frame.f_back
    if frame is None:
        return False
    again = threading.Timer(_SOON_S, _interrupt_main_thread)
    again.daemon = True
    again.start()
    return True


def _interrupt_main_thread() -> None:
    """As Ctrl-C does, so that whatever it waits for ends, too."""
    main = threading.main_thread().ident
    if sys.platform == "win32" or main is None:
        signal.raise_signal(signal.SIGINT)
    else:
        signal.pthread_kill(main, signal.SIGINT)


def _is_native(frame: FrameType) -> bool:
    """Whether numba runs, and not only its modules are being imported."""
    return frame.f_globals.get("__name__", "").startswith(_NATIVE) and frame.f_code.co_name != "<module>"


#: How long a command shows nothing before a bar tells that it is at work.
SILENCE_S = 1.0


@contextmanager
def tells_of_work() -> Iterator[None]:
    """Show a bar that pulses whenever nothing was shown for a second, until something is printed to standard output."""
    if sys.stdout is None or not sys.stderr.isatty():
        yield
        return
    work, printed_to = _Work(), sys.stdout
    _at_work.append(work)
    on_long_compiling[:] = [_tell_of_compiling]
    sys.stdout = _FirstWrite(printed_to, work.end)
    work.wait()
    try:
        yield
    finally:
        work.end()
        sys.stdout = printed_to
        _at_work.remove(work)
        on_long_compiling.clear()


def _tell_of_compiling() -> None:
    print("compiling (once)", file=sys.stderr)  # above the bars, if there are any


class _Work:
    """Shows that a command without a bar of its own is at work. A timer's thread shows the bar, hence the lock."""

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
        """Show nothing until there is something to wait for again."""
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
    """Standard output that tells of what is written first, before it is."""

    def __init__(self, stream: Any, tell: Callable[[], None]) -> None:
        self._stream, self._tell = stream, tell

    def write(self, text: str) -> int:
        self._tell()
        written: int = self._stream.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


#: The commands that run: one, or one that another runs.
_at_work: list[_Work] = []


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
