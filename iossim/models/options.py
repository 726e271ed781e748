"""Options of :func:`iossim.load` as one value, and as text in a network's source."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from iossim.base.errors import ModelError, OptionError, did_you_mean, is_count
from iossim.ir.graph import Graph
from iossim.ir.network import ModelSource, Network
from iossim.ir.types import Precision
from iossim.models.passes.blocks import check_max_block
from iossim.models.passes.unit_fusion import MODEL, check_policy

#: Prefix of the source of a network that was made from a PyTorch module; its class follows.
TORCH = "torch:"
#: The batch of inputs as declared in the file, since they have no common one.
_DECLARED = "declared"


@dataclass(frozen=True)
class _Text:
    """An option in a :class:`~iossim.ir.network.ModelSource`: its key, and its conversion to text and back.

    The ``omitted`` value is left out, as is one without text. ``read`` gets the name, for errors, and the text. For a
    mapping ``each`` item is an option ``KEY.NAME``.
    """

    key: str
    read: Callable[[str, str], Any]
    write: Callable[[Any], str] = str
    omitted: Any = None
    each: bool = False

    def written(self, value: Any) -> list[tuple[str, str]]:
        items = sorted(value.items()) if self.each else [("", value)]
        texts = ((name, "" if item == self.omitted else self.write(item)) for name, item in items)
        return [(f"{self.key}.{name}" if self.each else self.key, text) for name, text in texts if text]


def _plain(_: str, text: str) -> str:
    return text


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ModelError(f"option {name!r} is {text!r}, which is not a whole number") from None


_PRECISION = _Text("dtype", lambda _, text: Precision.named(text), omitted=Precision.FP32)
_TRAINING = _Text("training", lambda _, text: text == "True", omitted=False)
_PASSES = _Text("passes", lambda _, text: tuple(filter(None, text.split(","))), ",".join)
_SHAPE = _Text(
    "shape",
    lambda name, text: tuple(_integer(name, size) for size in text.split("x")),
    lambda shape: "x".join(map(str, shape)),
    each=True,
)
_BATCH = _Text(
    "batch",
    lambda name, text: None if text == _DECLARED else _integer(name, text),
    lambda batch: "" if batch else _DECLARED,
    omitted=0,
)


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Arguments of :func:`iossim.load` besides the model; those with a text are kept in a network's source."""

    dtype: Annotated[Precision | None, _PRECISION] = None
    graphs: Annotated[str | Path | None, _Text("graphs", _plain)] = None
    units: Annotated[str, _Text("units", _plain, omitted=MODEL)] = MODEL
    max_block: Annotated[int | None, _Text("max_block", _integer)] = None
    seed: Annotated[int, _Text("seed", _integer, omitted=0)] = 0
    passes: Annotated[tuple[str, ...], _PASSES] = ()
    shapes: Annotated[Mapping[str, tuple[int, ...]], _SHAPE] = field(default_factory=dict)
    dimensions: Annotated[Mapping[str, int], _Text("dimension", _integer, each=True)] = field(default_factory=dict)
    batch: Annotated[int | None, _BATCH] = None
    training: Annotated[bool, _TRAINING] = False
    block: Annotated[str | int | None, _Text("block", _plain)] = None
    strict: bool = False
    example_inputs: Any = None
    onnx_file: Path | None = None

    def __post_init__(self) -> None:
        if self.batch is not None and not is_count(self.batch):
            raise OptionError(f"batch {self.batch!r} is not possible: give a whole number, 1 or more")
        if not is_count(self.seed, 0):
            raise OptionError(f"seed {self.seed!r} is not possible: give a whole number, 0 or more")
        check_max_block(self.max_block)
        check_policy(self.units)  # report an unknown one before anything is read

    @property
    def precision(self) -> Precision:
        """The precision of models whose weights do not determine it."""
        return self.dtype or Precision.FP32

    @classmethod
    def of_source(cls, source: ModelSource) -> LoadOptions:
        """The options that a network was loaded with; raises ModelError for text that :meth:`source` does not write."""
        given: dict[str, Any] = {"batch": source.batch, "dtype": Precision.FP32}
        for option, text in source.options:
            key, dot, item = option.partition(".")
            name, kept = _KEPT.get(key, ("", None))
            if kept is None or kept.each != bool(dot):
                raise ModelError(f"model {source.model!r}: unknown option {option!r}; {did_you_mean(option, _KEPT)}")
            value = kept.read(option, text)
            given[name] = {**given.get(name, {}), item: value} if kept.each else value
        return cls(**given)

    def source(self, network: Network) -> ModelSource:
        """The source of ``network``, loaded with these options; its own source has the model only."""
        bound = replace(self, dtype=network.precision, batch=self.batch or _common_batch(network.graph))
        options = [option for name, kept in _KEPT.values() for option in kept.written(getattr(bound, name))]
        return ModelSource(network.source.model, bound.batch or 1, tuple(options))


#: By key in a source: each kept option's name here, and its text.
_KEPT: dict[str, tuple[str, _Text]] = {
    text.key: (name, text)
    for name, hint in get_type_hints(LoadOptions, include_extras=True).items()
    for text in getattr(hint, "__metadata__", ())
}


def _common_batch(graph: Graph) -> int | None:
    """The leading dimension of all inputs, None if they differ."""
    leading = {graph.types[name].shape[:1] for name in graph.inputs}
    return leading.pop()[0] if len(leading) == 1 and leading != {()} else None


def no_such_file(path: str | Path) -> ModelError:
    reason = "is a folder" if os.path.isdir(path) else "does not exist"
    return ModelError(f"model file {str(path)!r} {reason}; give an ONNX file, or a model of the zoo by name")
