"""Load a model, a network that is ready to be scheduled.

It is one of the zoo by name, an ONNX file, a file of the IOS engine, or a PyTorch module: each a file of
:mod:`iossim.models.sources`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from iossim.base.errors import ModelError, OptionError, public
from iossim.ir.network import ModelSource, Network
from iossim.ir.types import Precision
from iossim.models.options import LoadOptions
from iossim.models.passes.blocks import single_block
from iossim.models.passes.unit_fusion import MODEL
from iossim.models.sources import ios_file, onnx_file, torch_module, zoo

if TYPE_CHECKING:
    from torch import nn


class Source(Protocol):
    """Where models come from: a module of :mod:`iossim.models.sources`."""

    def takes(self, model: Any) -> bool:
        """Whether it is a model of this source, going by its type and name."""
        ...

    def load(self, model: Any, options: LoadOptions) -> Network:
        """The network; its source names the model alone. Raises OptionError for options that it cannot take."""
        ...


#: The first that takes a model loads it; a name that no file has is one of the zoo.
_SOURCES: tuple[Source, ...] = (torch_module, ios_file, onnx_file, zoo)


@public
def load(
    model: str | Path | nn.Module,
    example_inputs: Any = None,
    *,
    batch: int | None = None,
    dtype: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dimensions: Mapping[str, int] | None = None,
    graphs: str | Path | None = None,
    units: str = MODEL,
    max_block: int | None = None,
    seed: int = 0,
    strict: bool = False,
    passes: Sequence[str] = (),
    onnx_file: str | Path | None = None,
    training: bool = False,
    block: str | int | None = None,
) -> Network:
    """The network of a zoo name, an ONNX file (a ``Path``, a name in ``.onnx``, or any existing file), or a module.

    A name ending in ``.json`` is a network and schedule that the published IOS engine saved
    (:mod:`iossim.models.ios_engine.file`).

    ``batch`` is the number of images; by default one, or what ``shapes`` or an ONNX file say. ``dtype`` names a
    :class:`~iossim.ir.types.Precision`; by default it is that of the file's or module's weights, fp32 otherwise.
    ``shapes`` gives whole shapes of graph inputs by name, batch included; ``dimensions`` binds symbolic dimensions of
    an ONNX file. ``graphs`` is a folder of edge lists, for ``randwire``. ``units`` names a unit policy
    (:mod:`iossim.models.passes.unit_fusion`). Blocks of more than ``max_block`` units are split. ``seed`` is that of
    the zoo's weights and random graphs. ``strict`` refuses operators that iossim does not know and would price as
    memory traffic (:attr:`~iossim.ir.network.Network.foreign`). ``passes`` names passes of plugins that rewrite an
    ONNX file's graph behind the standard ones (:mod:`iossim.base.registry`). ``training`` adds the gradients of its
    maps and weights (:func:`iossim.models.passes.training.training_network`); the batch norms of an ONNX file or a
    module then take the statistics of the batch. ``block`` takes one block alone, by its name or number
    (:func:`iossim.models.passes.blocks.single_block`).

    A ``torch.nn.Module`` (extra ``torch``) is traced by ``torch.export`` on ``example_inputs``: a tuple of the
    arguments of its ``forward``, a dict of them by name, or one tensor. Their shapes are the network's; ``batch``
    sets another leading dimension. Inputs are called as the arguments, outputs as the keys of a returned dict. The
    module must be in eval mode, since dropout and batch norms do something else in training, and no schedule is for
    that. Its weights are not copied: while the network is used, leave them as they are. A schedule of such a network
    does not say where to load it from, so that reading the schedule needs ``network=``, or a file: with ``onnx_file``
    the module is written there, as ONNX, and the network is that file's.

    Raises ModelError, OptionError or GraphError.
    """
    options = LoadOptions(
        batch=batch,
        dtype=None if dtype is None else Precision.named(dtype),
        shapes={name: tuple(shape) for name, shape in (shapes or {}).items()},
        dimensions=dict(dimensions or {}),
        graphs=graphs,
        units=units,
        max_block=max_block,
        seed=seed,
        strict=strict,
        passes=tuple(passes),
        training=training,
        block=block,
        example_inputs=example_inputs,
        onnx_file=None if onnx_file is None else Path(onnx_file),
    )
    if isinstance(model, str | Path) and (example_inputs is not None or onnx_file is not None):
        raise OptionError(f"example inputs and onnx_file are for PyTorch modules; leave them out for {str(model)!r}")
    return _loaded(model, options)


def check_known(model: str) -> None:
    """Raise ModelError for a name that is no file's and none of the zoo; nothing is built or read."""
    if _source(model) is zoo:
        zoo.known(model)


def load_source(source: ModelSource, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Network:
    """Load a network again from where it came from, with inputs of other ``shapes`` if they are given.

    Raises ModelError for one that was made in memory, or has moved.
    """
    if _source(source.model) in (ios_file, onnx_file) and not os.path.isfile(source.model):
        raise ModelError(f"model file {source.model!r} does not exist; say where it is now with `model`")
    options = LoadOptions.of_source(source)
    return _loaded(
        source.model, options if shapes is None else replace(options, shapes=shapes, dimensions={}, batch=None)
    )


def _loaded(model: Any, options: LoadOptions) -> Network:
    # What training adds to a block counts for its size: the whole is split.
    network = _source(model).load(model, replace(options, max_block=None) if options.training else options)
    source = options.source(network)
    if options.training:
        from iossim.models.passes.training import training_network

        network = training_network(network, options.max_block)
    if options.block is not None:
        network = single_block(network, options.block)
    return replace(network, source=source)


def _source(model: Any) -> Source:
    return next(source for source in _SOURCES if source.takes(model))
