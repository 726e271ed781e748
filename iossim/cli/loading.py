"""From command-line options to a network."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, get_type_hints

from iossim.cli import options
from iossim.errors import OptionError

if TYPE_CHECKING:
    from iossim.ir.network import Network

#: The parameter of a command that :func:`takes_model_options` writes out as options.
_PARAMETER = "reading"


@dataclass(frozen=True)
class ModelOptions:
    """How a model is read: the options that all commands have which read one, each of a field's name."""

    batch: options.Batch = None
    dtype: options.ModelDataType = None
    shape: options.Shape = None
    dim: options.Dimension = None
    strict: options.Strict = False
    passes: options.Passes = None
    graphs: options.Graphs = None
    units: options.Units = "model"
    max_block: options.MaxBlock = 64

    def network(self, model: str) -> Network:
        """Load a model as the options say."""
        from iossim.models.load import load

        return load(
            model,
            batch=self.batch,
            dtype=self.dtype,
            shapes=parse_shapes(self.shape or ()),
            graphs=self.graphs,
            units=self.units,
            max_block=self.max_block,
            dimensions=parse_dimensions(self.dim or ()),
            strict=self.strict,
            passes=self.passes or (),
        )


def takes_model_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of :class:`ModelOptions` where it has the parameter ``reading``, for typer to read."""
    hints = get_type_hints(command, include_extras=True)
    own = get_type_hints(ModelOptions, include_extras=True)
    written: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name == _PARAMETER:
            written += [
                inspect.Parameter(
                    field.name, parameter.KEYWORD_ONLY, default=field.default, annotation=own[field.name]
                )
                for field in fields(ModelOptions)
            ]
        else:
            written.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[parameter.name]))

    @functools.wraps(command)
    def run(**given: Any) -> None:
        reading = ModelOptions(**{field.name: given.pop(field.name) for field in fields(ModelOptions)})
        command(**given, **{_PARAMETER: reading})

    run.__signature__ = inspect.Signature(written)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in written}
    return run


def parse_shapes(given: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """``["x=1x3x224x224"]`` as ``{"x": (1, 3, 224, 224)}``; raises OptionError naming the one at fault."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in given:
        name, equals, dimensions = text.rpartition("=")
        sizes = dimensions.split("x")
        if not equals or not name or not all(size.isdecimal() for size in sizes):
            raise OptionError(f"--shape {text!r} is not a shape; write NAME=1x3x224x224")
        shapes[name] = tuple(int(size) for size in sizes)
    return shapes


def parse_dimensions(given: Sequence[str]) -> dict[str, int]:
    """``["batch=8"]`` as ``{"batch": 8}``; raises OptionError naming the one at fault."""
    sizes: dict[str, int] = {}
    for text in given:
        name, equals, size = text.rpartition("=")
        if not equals or not name or not size.isdecimal():
            raise OptionError(f"--dim {text!r} is not a dimension; write NAME=8")
        if sizes.setdefault(name, int(size)) != int(size):
            raise OptionError(f"--dim {name!r} is given as both {sizes[name]} and {size}; give it once")
    return sizes
