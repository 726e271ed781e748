"""Networks of the zoo, by name."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from iossim.base.errors import OptionError, did_you_mean
from iossim.ir.network import ModelSource, Network
from iossim.models.catalogue import ZOO, BuildOptions, ZooModel, zoo_model, zoo_models
from iossim.models.options import LoadOptions, no_such_file
from iossim.models.passes.blocks import split_blocks
from iossim.models.passes.unit_fusion import with_units


def known(name: str) -> ZooModel:
    """The network of that name, not built; raises ModelError."""
    is_named = ZOO.get(name) is not None
    if not is_named and ("/" in name or "\\" in name or "." in name or os.path.isdir(name)):
        raise no_such_file(name)
    return zoo_model(name)


def load(name: str, options: LoadOptions) -> Network:
    zoo = known(name)
    return partition_network(zoo.build(_bound(zoo, options)), name, options)


def _bound(model: ZooModel, options: LoadOptions) -> BuildOptions:
    """Build options of the network; raises OptionError for options that do not apply to it."""
    if options.graphs is not None and not model.takes_graphs:
        takers = ", ".join(other.name for other in zoo_models() if other.takes_graphs)
        raise OptionError(f"model {model.name!r} is not made from graphs; only these are: {takers}")
    shape: tuple[int, ...] = (options.batch or 1, *model.input_shape)
    for name, size in options.dimensions.items():
        if not model.dimensions:
            raise OptionError(f"model {model.name!r} has no symbolic dimensions to bind; leave them out")
        if name not in model.dimensions:
            raise OptionError(f"model {model.name!r} has no dimension {name!r}; {did_you_mean(name, model.dimensions)}")
        if size < int(name in model.axes):
            raise OptionError(f"dimension {name!r} of model {model.name!r} is {size}; give a size")
    axes = model.axes.split(" x ")
    shape = tuple(options.dimensions.get(axis, size) for axis, size in zip(axes, shape, strict=True))
    for name, given in options.shapes.items():
        if name != model.input_name:
            raise OptionError(f"model {model.name!r} has no input {name!r}; its input is {model.input_name!r}")
        if len(given) != len(shape) or min(given) < 1 or (options.batch is not None and given[0] != options.batch):
            whole = "x".join(map(str, given))
            raise OptionError(
                f"shape {whole} of input {name!r} is not possible: give {model.axes}, each at "
                "least 1, and no other batch besides"
            )
        bound = [axis for axis, size in zip(axes, given, strict=True) if options.dimensions.get(axis, size) != size]
        if bound:
            raise OptionError(f"dimension {bound[0]!r} and the shape of input {name!r} disagree; give one of them")
        shape = given
    graphs = None if options.graphs is None else Path(options.graphs)
    sizes = {**model.dimensions, **options.dimensions, **dict(zip(axes, shape, strict=True))}
    dimensions = {name: sizes[name] for name in model.dimensions}
    return BuildOptions(shape, options.precision, graphs, options.seed, dimensions)


def partition_network(network: Network, model: str, options: LoadOptions) -> Network:
    """A network of units and blocks, with those that the options ask for instead; raises OptionError for passes."""
    if options.passes:
        listed = ", ".join(options.passes)
        raise OptionError(f"passes {listed} are for ONNX files, whose ops have no units yet, not {model}")
    found = split_blocks(with_units(network, options.units), options.max_block)
    return replace(found, source=ModelSource(model))
