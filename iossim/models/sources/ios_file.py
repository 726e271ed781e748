"""Files of the published IOS engine: the network of one, without its schedule."""

from __future__ import annotations

from pathlib import Path

from iossim.base.errors import OptionError
from iossim.ir.network import Network
from iossim.models.catalogue import BuildOptions, zoo_models
from iossim.models.options import LoadOptions
from iossim.models.sources.zoo import partition_network


def load(model: str | Path, options: LoadOptions) -> Network:
    if options.shapes or options.dimensions or options.graphs is not None:
        raise OptionError(f"an IOS file holds all of its shapes: give {str(model)!r} none, and no graphs")
    from iossim.models.ios_engine.file import network_and_scheduler, read_ios_file
    from iossim.models.ios_engine.translate import network_of_file

    file = read_ios_file(Path(model))
    batch, precision = options.batch or 1, options.precision
    name, _ = network_and_scheduler(file.name)
    original = None
    for zoo in zoo_models():
        if zoo.name == name and zoo.input_shape == file.input.output_shape:
            original = zoo.build(BuildOptions((batch, *zoo.input_shape), precision, seed=options.seed))
    network = network_of_file(file, Path(model), batch, precision, options.seed, original)
    return partition_network(network, str(model), options)
