"""What a user is told: the one exception that a mistake raises, and notices.

Every error names the input, the reason and the remedy in one line; the command line prints that line and
exits with code 2. Anything else that escapes is a defect of iossim, and shows its traceback.

A notice is told once, on standard error, unless the program that uses iossim has set up logging otherwise.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import cache, wraps
from typing import ParamSpec, TypeVar

#: Characters of an error's line; what a damaged file has for names may be longer.
_LONGEST_LINE = 1600


class IossimError(Exception):
    """A mistake in what the user gave: ``str(error)`` is one line naming the input, the reason, the remedy.

    It is one line, and of a length that can be read, whatever stands in the input that it quotes. What is to be given
    otherwise is named as Python names it, in backquotes (```max_groups```); the command line says ``--max-groups``.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(_one_line(message))


class GraphError(IossimError):
    """A graph that is not well formed, or an op that cannot take its inputs."""


class ModelError(IossimError):
    """A model that is not known, or a model file that cannot be read."""


class DeviceError(IossimError):
    """A device that is not known, or a device profile that is not valid."""


class ScheduleError(IossimError):
    """A schedule that is not valid, or that does not fit its graph."""


class PlanError(ScheduleError):
    """What a schedule or plan asks for, and what is to price or run it cannot do."""


class ScenarioError(IossimError):
    """A scenario of a study that is not known, or whose file is not valid."""


class OptionError(IossimError):
    """An option with a value that it cannot have."""


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """A remedy for a misspelt name: the nearest known one, and all of them; what is no name is near none."""
    names = sorted(known)
    wanted = name.lower() if isinstance(name, str) else ""
    begun = [known_name for known_name in names if wanted and known_name.startswith(wanted)]
    near = begun or difflib.get_close_matches(wanted, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}known: {', '.join(names)}"


def once(names: Sequence[str], option: str) -> Sequence[str]:
    """The names that an option was given; raises OptionError for one that is there twice."""
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"{option} names {name!r} {names.count(name)} times; give it once")
    return names


def first_line(error: BaseException) -> str:
    """What an error of a library begins with; the name of its class if it says nothing."""
    return _lines(error)[0]


def last_line(error: BaseException) -> str:
    """What an error of a library ends with, where above it stand the places in its sources."""
    return _lines(error)[-1]


def _lines(error: BaseException) -> list[str]:
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]


def _one_line(text: str) -> str:
    """The text without breaks and characters that cannot be printed, and without the middle where it is too long."""
    if len(text) > _LONGEST_LINE:
        half = _LONGEST_LINE // 2
        text = f"{text[:half]} [...] {text[-half:]}"
    if text.isprintable():
        return text
    words = " ".join(text.split())
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in words)


@cache
def warn_once(line: str) -> None:
    """A warning."""
    logging.getLogger("iossim").warning("warning: %s", line)


@cache
def note_once(line: str) -> None:
    """What is no warning: how something that was given is taken."""
    logging.getLogger("iossim").warning("note: %s", line)


P = ParamSpec("P")
R = TypeVar("R")


def public(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which raises OptionError for a keyword argument that it does not take, naming the nearest one."""
    code = function.__code__
    names = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]

    @wraps(function)
    def checked(*arguments: P.args, **keywords: P.kwargs) -> R:
        for name in keywords:
            if name not in names:
                raise OptionError(f"{function.__name__} takes no `{name}`; {did_you_mean(name, names)}")
        return function(*arguments, **keywords)

    return checked


def is_count(value: object, least: int = 1) -> bool:
    """Whether a value is a whole number of at least ``least``; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
