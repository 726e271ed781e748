"""A command at work: progress bars on standard error, and the effect of Ctrl-C.

There are no bars without a terminal (:mod:`iossim.cli.bars` draws them). Ctrl-C ends a command; during a search the
first one ends it with the best schedule so far, the second ends the program.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from iossim.base.errors import Progress


class StopNow(BaseException):
    """The second interrupt. It is no KeyboardInterrupt, which a search takes as a request to finish."""


#: While these compile or pass values, an exception is lost, or becomes a SystemError or the process's end.
_NATIVE = ("numba.", "llvmlite.")
_SOON_S = 0.01

#: True once an interrupt came before there was anything to keep.
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
    """True where the interrupt came in code that can raise none; then it is sent again shortly."""
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
    """True where a frame runs numba itself, not merely the import of its modules."""
    return frame.f_globals.get("__name__", "").startswith(_NATIVE) and frame.f_code.co_name != "<module>"


@contextmanager
def tells_of_work() -> Iterator[None]:
    """Show a pulsing bar whenever nothing was shown for a second, until something is printed to standard output."""
    if sys.stdout is None or not sys.stderr.isatty():
        yield
        return
    from iossim.cli.bars import pulsing_bar

    with pulsing_bar():
        yield


@contextmanager
def progress_bars(quiet: bool, unit: str = "units", tells_rest: bool = False) -> Iterator[Callable[[str], Progress]]:
    """Yields a function that starts a bar under a label, which counts ``unit``; it may show the remaining time."""
    if quiet or not sys.stderr.isatty():
        yield lambda label: lambda done, total: None
        return
    from iossim.cli.bars import counting_bars

    with counting_bars(unit, tells_rest) as start:
        yield start
