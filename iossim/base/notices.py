"""What a user is told once, on standard error, unless the program that uses iossim has set up logging otherwise."""

from __future__ import annotations

import logging
from functools import cache


@cache
def warn_once(line: str) -> None:
    """A warning."""
    logging.getLogger("iossim").warning("warning: %s", line)


@cache
def note_once(line: str) -> None:
    """What is no warning: how something that was given is taken."""
    logging.getLogger("iossim").warning("note: %s", line)
