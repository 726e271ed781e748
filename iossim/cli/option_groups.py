"""Options that several commands have together, each group declared once: what it holds is what it makes of them.

A command has a group by a parameter of its class, under :func:`takes_options`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, get_type_hints

from iossim.base.errors import OptionError
from iossim.cli import options

if TYPE_CHECKING:
    from iossim.cost.model import CostModel
    from iossim.execution.backend import Timing
    from iossim.ir.network import Network
    from iossim.search.options import SearchOptions


class OptionGroup:
    """The base of groups: frozen dataclasses whose fields are options, by their names."""


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of its parameters that are groups written out in their place, for typer to read."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {}
    written: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if isinstance(kind, type) and issubclass(kind, OptionGroup):
            groups[parameter.name] = kind
            own = get_type_hints(kind, include_extras=True)
            written += [
                inspect.Parameter(
                    field.name, parameter.KEYWORD_ONLY, default=field.default, annotation=own[field.name]
                )
                for field in fields(kind)  # type: ignore[arg-type]
            ]
        else:
            written.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=kind))

    @functools.wraps(command)
    def run(**given: Any) -> None:
        made = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            for name, kind in groups.items()
        }
        command(**given, **made)

    run.__signature__ = inspect.Signature(written)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in written}
    return run


@dataclass(frozen=True)
class ModelOptions(OptionGroup):
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
    training: options.Training = False

    def network(self, model: str) -> Network:
        """Load a model as the options say."""
        from iossim.models.load import load

        return load(
            model,
            batch=self.batch,
            dtype=self.dtype,
            shapes=_shapes(self.shape or ()),
            graphs=self.graphs,
            units=self.units,
            max_block=self.max_block,
            dimensions=_dimensions(self.dim or ()),
            strict=self.strict,
            passes=self.passes or (),
            training=self.training,
        )


@dataclass(frozen=True)
class PricingOptions(OptionGroup):
    """What stages may be formed, under which engine, and what prices them."""

    engine: options.Engine = "paper"
    max_group_size: options.MaxGroupSize = None
    max_groups: options.MaxGroups = None
    workspace_limit: options.WorkspaceLimit = None
    stages: options.Stages = "general"
    cost_model: options.CostModelName = "simulator"
    store: options.Store = None

    @property
    def search(self) -> SearchOptions:
        """The options of the search; raises OptionError."""
        from iossim.api import search_options

        return search_options(self.stages, self.max_group_size, self.max_groups, self.workspace_limit)

    def prices(self, network: Network, device: str | None) -> CostModel:
        """The cost model; raises OptionError."""
        from iossim import api

        return api.cost_model(self.cost_model, device, network.precision, self.engine, self.store)


@dataclass(frozen=True)
class TransformOptions(OptionGroup):
    """What changes the network for its schedule: the options of :func:`iossim.api.task` of these names."""

    rewrite: options.Rewrite = None
    rewrite_search: options.RewriteSearch = "joint"
    alpha: options.Alpha = 1.05
    rewrite_budget: options.RewriteBudget = "200"
    unproved: options.Unproved = False
    micro_batch: options.MicroBatch = None


@dataclass(frozen=True)
class TimingOptions(OptionGroup):
    """How plans are timed."""

    rounds: options.Rounds = 30
    warm_up: options.WarmUp = 3
    seed: options.Seed = 0
    cold: options.Cold = False

    def timing(self) -> Timing:
        """Raises OptionError for what is no number of rounds, or no seed."""
        from iossim.execution.backend import Timing

        for name, value, least in (
            ("--rounds", self.rounds, 1),
            ("--warm-up", self.warm_up, 0),
            ("--seed", self.seed, 0),
        ):
            if value < least:
                raise OptionError(f"{name} {value} is too few; give {least} or more")
        return Timing(self.rounds, self.warm_up, self.seed, self.cold)


def _shapes(given: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """``["x=1x3x224x224"]`` as ``{"x": (1, 3, 224, 224)}``; raises OptionError naming the one at fault."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in given:
        name, equals, dimensions = text.rpartition("=")
        sizes = dimensions.split("x")
        if not equals or not name or not all(size.isdecimal() for size in sizes):
            raise OptionError(f"--shape {text!r} is not a shape; write NAME=1x3x224x224")
        shapes[name] = tuple(int(size) for size in sizes)
    return shapes


def _dimensions(given: Sequence[str]) -> dict[str, int]:
    """``["batch=8"]`` as ``{"batch": 8}``; raises OptionError naming the one at fault."""
    sizes: dict[str, int] = {}
    for text in given:
        name, equals, size = text.rpartition("=")
        if not equals or not name or not size.isdecimal():
            raise OptionError(f"--dim {text!r} is not a dimension; write NAME=8")
        if sizes.setdefault(name, int(size)) != int(size):
            raise OptionError(f"--dim {name!r} is given as both {sizes[name]} and {size}; give it once")
    return sizes
