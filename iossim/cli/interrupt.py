"""Ctrl-C: it ends a command; during a search, once ends it with the best schedule so far, twice ends the program."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class StopNow(BaseException):
    """The second interrupt. No KeyboardInterrupt, which a search takes as a wish to come to an end."""


#: While these compile, load compiled code or hand values over, an exception is lost, a SystemError or the process's end.
_NATIVE = ("numba.", "llvmlite.")
_SOON_S = 0.01

#: Was there an interrupt before there was anything to keep?
_heard = False


@contextmanager
def hears_interrupts() -> Iterator[None]:
    """While a command runs, SIGINT raises KeyboardInterrupt; libraries that swallow it as they are imported do not undo it."""
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
