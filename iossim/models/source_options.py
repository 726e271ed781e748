"""The options of :func:`iossim.load`, read from the texts that a network's source keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from iossim.base.errors import ModelError, did_you_mean
from iossim.ir.network import ModelSource
from iossim.ir.types import Precision
from iossim.models.options import DECLARED, LoadOptions


def _plain(_: str, text: str) -> str:
    return text


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ModelError(f"option {name!r} is {text!r}, which is not a whole number") from None


#: Options kept in a source, and the function from name (for errors) and text to the value.
_READ: dict[str, Callable[[str, str], object]] = {
    "dtype": lambda _, text: Precision.named(text),
    "graphs": _plain,
    "units": _plain,
    "max_block": _integer,
    "seed": _integer,
    "passes": lambda _, text: tuple(filter(None, text.split(","))),
    "batch": lambda name, text: None if text == DECLARED else _integer(name, text),
    "training": lambda _, text: text == "True",
    "static_part": lambda _, text: text == "True",
    "block": _plain,
}
#: Options that are mappings, each item an option ``KEY.NAME`` of a source: by key the field, and the function.
_READ_ITEMS: dict[str, tuple[str, Callable[[str, str], object]]] = {
    "shape": ("shapes", lambda name, text: tuple(_integer(name, size) for size in text.split("x"))),
    "dimension": ("dimensions", _integer),
}


def options_of(source: ModelSource) -> LoadOptions:
    """The options of a network's loading; raises ModelError for text that :meth:`LoadOptions.source` does not write."""
    given: dict[str, Any] = {"batch": source.batch, "dtype": Precision.FP32}
    for option, text in source.options:
        key, _, item = option.partition(".")
        if option in _READ:
            given[option] = _READ[option](option, text)
        elif item and key in _READ_ITEMS:
            name, read = _READ_ITEMS[key]
            given.setdefault(name, {})[item] = read(option, text)
        else:
            known = {*_READ, *_READ_ITEMS}
            raise ModelError(f"model {source.model!r}: unknown option {option!r}; {did_you_mean(option, known)}")
    return LoadOptions(**given)
