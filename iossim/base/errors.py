"""Messages to users: the one exception that a mistake raises, notices, and progress.

Every error names the input, the reason and the remedy in one line; the command line prints that line and
exits with code 2. Any other exception that escapes is a defect of iossim, and shows its traceback.

A notice is printed once, on standard error, unless the program that uses iossim has configured logging otherwise.
"""

from __future__ import annotations

import builtins
import difflib
import logging
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from inspect import Signature, signature
from numbers import Integral, Real
from reprlib import repr as short
from typing import Any, Literal, ParamSpec, TypeVar, get_origin

#: Characters of an error's line; the names in a damaged file may be longer.
_LONGEST_LINE = 1600


class IossimError(Exception):
    """A user's mistake: ``str(error)`` is one line naming the input, the reason, the remedy.

    It is one line of readable length, whatever the quoted input contains. The argument to change is named as Python
    names it, in backquotes (```max_groups```); the command line says ``--max-groups``.
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
    """A request of a schedule or plan that the cost model or backend cannot fulfil."""


class ScenarioError(IossimError):
    """A scenario of a study that is not known, or whose file is not valid."""


class OptionError(IossimError):
    """An option with an invalid value."""


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """A remedy for a misspelt name: the nearest known one (of those that begin so the shortest), and all of them."""
    names = sorted(map(str, known))
    wanted = name.lower() if isinstance(name, str) else ""
    begun = [known_name for known_name in names if wanted and known_name.startswith(wanted)]
    near = sorted(begun, key=len) or difflib.get_close_matches(wanted, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}known: {', '.join(names)}"


def once(names: Sequence[str], option: str) -> Sequence[str]:
    """The names given to an option; raises OptionError for a repeated one."""
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"{option} names {name!r} {names.count(name)} times; give it once")
    return names


def first_line(error: BaseException) -> str:
    """First line of a library's error; the name of its class if the message is empty."""
    return _lines(error)[0]


def last_line(error: BaseException) -> str:
    """Last line of a library's error, for libraries that print source locations above it."""
    return _lines(error)[-1]


def _lines(error: BaseException) -> list[str]:
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]


def _one_line(text: str) -> str:
    """The text without line breaks and unprintable characters, its middle elided if it is too long."""
    if len(text) > _LONGEST_LINE:
        half = _LONGEST_LINE // 2
        text = f"{text[:half]} [...] {text[-half:]}"
    if text.isprintable():
        return text
    words = " ".join(text.split())
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in words)


@cache
def say_once(line: str) -> None:
    """Log a line, once."""
    logging.getLogger("iossim").warning("%s", line)


def warn_once(line: str) -> None:
    """Log a warning, once."""
    say_once(f"warning: {line}")


def note_once(line: str) -> None:
    """Log a notice, once: how an input is interpreted."""
    say_once(f"note: {line}")


#: Told as a piece of work goes on: how much of it is done (units scheduled, plans timed), and how much there is.
Progress = Callable[[int, int], None]
#: Starts the progress of a piece of work under a label.
StartProgress = Callable[[str], Progress]


def ignore(*told: object) -> None:
    """Progress that is not reported."""


def silent(label: str) -> Progress:
    """Starts progress that is not reported."""
    return ignore


P = ParamSpec("P")
R = TypeVar("R")


def public(function: Callable[P, R]) -> Callable[P, R]:
    """The function, raising OptionError for an unknown keyword argument, whose nearest known one it names, and for an
    argument of a type that the signature excludes.
    """
    types = {name: each.annotation for name, each in signature(function).parameters.items()}

    @wraps(function)
    def checked(*arguments: P.args, **keywords: P.kwargs) -> R:
        for name in keywords:
            if name not in types:
                raise OptionError(f"{function.__name__} takes no `{name}`; {did_you_mean(name, types)}")
        check_types(function, types, dict(zip(types, arguments, strict=False)) | keywords)
        return function(*arguments, **keywords)

    return checked


def check_types(owner: Callable[..., object], types: Mapping[str, str], values: Mapping[str, object]) -> None:
    """Raise OptionError for the first value of a type that its annotation excludes: of a union, the type of no member.

    Annotations are text, in the names of the module of ``owner``. A name that it lacks (one imported for type checking)
    or that is no class admits everything but numbers, lists and sets.
    """
    names = vars(builtins) | {"None": type(None)} | vars(sys.modules[owner.__module__])
    for name, value in values.items():
        members = re.findall(r"(?:^|\| )([\w.]+)(?:\[(\w+)\])?", types[name])
        if not any(_admits(names.get(kind), value, names.get(of)) for kind, of in members):
            known = " or ".join(types[name].rsplit(" | ", 1)).replace(" | ", ", ")
            raise OptionError(f"`{name}` of {owner.__name__} cannot be {short(value)}; give a value of type {known}")


def _admits(kind: object, value: object, of: object = Any) -> bool:
    """False if a type, None if it is not known, or that of the elements of a sequence surely excludes a value."""
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if kind is Sequence:
        return isinstance(value, Sequence) and not isinstance(value, str | bytes) and all(_admits(of, v) for v in value)
    if get_origin(kind) is Callable:
        return callable(value)
    if isinstance(kind, type) and getattr(kind, "_is_runtime_protocol", True):
        return kind is Any or isinstance(value, kind)
    is_text = isinstance(value, str) and kind is not None and get_origin(kind) is not Literal
    return not is_text and not isinstance(value, int | float | complex | bytes | list | tuple | set | None)


def takes(options: type, other: Callable[..., object]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Names the ``**options`` of a function, those of a TypedDict, in its signature as another function has them."""

    def signed(function: Callable[P, R]) -> Callable[P, R]:
        *own, _ = signature(function).parameters.values()
        names = options.__annotations__.keys() - {each.name for each in own}
        shared = [each for name, each in signature(other).parameters.items() if name in names]
        function.__signature__ = Signature([*own, *shared])  # type: ignore[attr-defined]
        return function

    return signed


def is_count(value: object, least: int = 1) -> bool:
    """True if a value is an integer of at least ``least``; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
