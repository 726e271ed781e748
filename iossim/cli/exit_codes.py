"""What the exit code of the command line says."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Anything else is a defect of iossim."""

    DONE = 0
    DOES_NOT_HOLD = 1  #: what ``iossim check``, ``dataflow run`` or ``study diff`` was asked to check
    MISTAKE = 2  #: in the input: one line on standard error says which, nothing was written
    INCOMPLETE = 3  #: the search was interrupted; what was printed and written is the best schedule so far
    INTERRUPTED = 130  #: before there was a schedule, or twice (128 + SIGINT, as shells have it)
    NO_READER = 141  #: who read the output went away: a pager, head (128 + SIGPIPE)
