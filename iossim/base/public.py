"""Functions that users call from Python: a misspelt keyword argument is a user's mistake, reported in one line."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from iossim.base.errors import OptionError, did_you_mean

P = ParamSpec("P")
R = TypeVar("R")


def public(function: Callable[P, R]) -> Callable[P, R]:
    """The function, raising OptionError for an unknown keyword argument and naming the nearest known one."""
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
    """Whether a value is an integer of at least ``least``; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
