"""The options of :func:`iossim.load`, read from the texts that a network's source keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from iossim.base.errors import ModelError, did_you_mean
from iossim.ir.network import ModelSource
from iossim.ir.types import Precision
from iossim.models.options import DECLARED, LoadOptions

#: Options kept in a source, and the function from the text to the value, which raises ValueError.
_READ: dict[str, Callable[[str], object]] = {
    "dtype": Precision.named,
    **dict.fromkeys(("graphs", "units", "block"), str),
    **dict.fromkeys(("max_block", "seed"), int),
    "passes": lambda text: tuple(filter(None, text.split(","))),
    "batch": lambda text: None if text == DECLARED else int(text),
    **dict.fromkeys(("training", "static_part"), "True".__eq__),
}
#: Options that are mappings, each item an option ``KEY.NAME`` of a source: by key the field, and the function.
_READ_ITEMS: dict[str, tuple[str, Callable[[str], object]]] = {
    "shape": ("shapes", lambda text: tuple(map(int, text.split("x")))),
    "dimension": ("dimensions", int),
}


def options_of(source: ModelSource) -> LoadOptions:
    """The options of a network's loading; raises ModelError for text that :meth:`LoadOptions.source` does not write."""
    given: dict[str, Any] = {"batch": source.batch, "dtype": Precision.FP32}
    for option, text in source.options:
        key, _, item = option.partition(".")
        if option not in _READ and not (item and key in _READ_ITEMS):
            known = {*_READ, *_READ_ITEMS}
            raise ModelError(f"model {source.model!r}: unknown option {option!r}; {did_you_mean(option, known)}")
        try:
            if option in _READ:
                given[option] = _READ[option](text)
            else:
                name, read = _READ_ITEMS[key]
                given.setdefault(name, {})[item] = read(text)
        except ValueError:
            raise ModelError(f"option {option!r} is {text!r}, which is not of whole numbers") from None
    return LoadOptions(**given)
