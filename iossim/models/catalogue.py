"""The model zoo as a list: the name, description and construction of each network.

A network is one module of :mod:`iossim.models.zoo`, which defines its ``MODELS``; adding a file there adds one.
Listing the zoo builds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from pathlib import Path

from iossim.base.errors import ModelError
from iossim.base.registry import Group, module_names, modules
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.types import Precision

_PACKAGE = "iossim.models.zoo"


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Options to build a zoo network: ``input_shape`` with the batch first, ``seed`` of weights and random graphs.

    ``graphs`` is a folder of edge lists, for networks built from graphs; ``dimensions`` are the sizes of all
    dimensions that the network names.
    """

    input_shape: tuple[int, ...]
    precision: Precision = Precision.FP32
    graphs: Path | None = None
    seed: int = 0
    dimensions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ZooModel:
    """A network of the zoo. ``input_shape`` is the default, without the batch: channels, height, width."""

    name: str
    description: str
    input_shape: tuple[int, ...]
    #: Adds the network to a builder, given its input; returns its output, or several. With ``takes_graphs`` or
    #: ``dimensions`` it also gets the options.
    add: Callable[..., str | list[str]]
    takes_graphs: bool = False
    #: Name of its input.
    input_name: str = "image"
    #: Names of its input's dimensions.
    axes: str = "batch x channels x height x width"
    #: Sizes that may be bound by name, with their defaults. Those named in ``axes`` are the input's.
    dimensions: Mapping[str, int] = field(default_factory=dict)

    def build(self, options: BuildOptions) -> Network:
        b = GraphBuilder(self.name, options.precision, options.seed)
        x = b.input(self.input_name, options.input_shape)
        made = self.add(b, x, options) if self.takes_graphs or self.dimensions else self.add(b, x)
        return b.network([made] if isinstance(made, str) else made)


#: A network of sequences of tokens, given its name, description, input and construction.
token_model = partial(ZooModel, input_name="tokens", axes="batch x length x width")


@cache
def _by_name() -> dict[str, ZooModel]:
    models: list[ZooModel] = [model for module in modules(_PACKAGE) for model in module.MODELS]
    return {model.name: model for model in sorted(models, key=lambda model: model.name)}


def _own(name: str) -> ZooModel | None:
    """The network of that name; most are in a module of that name, and no other is loaded for them."""
    if name in module_names(_PACKAGE):
        models: list[ZooModel] = import_module(f"{_PACKAGE}.{name}").MODELS
        for model in models:
            if model.name == name:
                return model
    return _by_name().get(name)


ZOO: Group[ZooModel] = Group("unknown model {!r}", _by_name, _own, error=ModelError)


def zoo_models() -> list[ZooModel]:
    """All networks of the zoo, by name."""
    return list(_by_name().values())


def zoo_model(name: str) -> ZooModel:
    """The network of that name; raises ModelError suggesting the nearest one."""
    return ZOO.find(name)
