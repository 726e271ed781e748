"""Load a model as a network that is ready to be scheduled.

Sources are the zoo by name, an ONNX file, a file of the IOS engine, or a PyTorch module: one file each in
:mod:`iossim.models.sources`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.base.errors import ModelError, OptionError, public
from iossim.base.registry import needed_part
from iossim.ir.network import ModelSource, Network
from iossim.ir.types import Precision
from iossim.models.options import TORCH, LoadOptions
from iossim.models.passes.unit_fusion import MODEL
from iossim.models.sources.zoo import known

if TYPE_CHECKING:
    from torch import nn


@public
def load(
    model: str | Path | nn.Module,
    example_inputs: object = None,
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
    static_part: bool = False,
    passes: Sequence[str] = (),
    onnx_file: str | Path | None = None,
    training: bool = False,
    block: str | int | None = None,
) -> Network:
    """The network of a zoo name, an ONNX file (a ``Path``, a name in ``.onnx``, or any existing file), or a module.

    A name ending in ``.json`` is what the published IOS engine saved (:mod:`iossim.models.ios_engine.file`).

    ``batch`` is the number of images; it defaults to one, or to that of ``shapes`` or an ONNX file. ``dtype`` names a
    :class:`~iossim.ir.types.Precision`; it defaults to that of the file's or module's weights, otherwise to fp32. Any
    other one replaces every floating-point type; with the weights' own one, parts that a file casts to another keep it.
    ``shapes`` gives complete shapes of graph inputs by name, batch included; ``dimensions`` binds symbolic dimensions
    of an ONNX file, and its inputs of one truth value or whole number, such as ``use_cache_branch``. ``graphs`` is a
    folder of edge lists, for ``randwire``. ``units`` names a unit policy (:mod:`iossim.models.passes.unit_fusion`).
    Blocks of more than ``max_block`` units are split. ``seed`` is that of the zoo's weights and random graphs.
    ``strict`` refuses operators unknown to iossim, which are otherwise priced as memory traffic
    (:attr:`~iossim.ir.network.Network.foreign`). ``static_part`` leaves out of an ONNX file the operators that cannot
    be priced at all, since the shapes of their outputs depend on data, and all that reads them. ``passes`` names plugin
    passes that rewrite an ONNX file's graph after the standard ones (:mod:`iossim.base.registry`). ``training`` adds
    the gradients of activations and weights (:mod:`iossim.microbatching.training_pass`); the batch norms of an ONNX
    file or a module then use batch statistics.
    ``block`` selects a single block, by its name or number (:func:`iossim.models.passes.block_parts.single_block`).

    A ``torch.nn.Module`` (extra ``torch``) is traced by ``torch.export`` on ``example_inputs``: a tuple of the
    arguments of its ``forward``, a dict of them by name, or one tensor. Their shapes are the network's; ``batch``
    sets another leading dimension. Inputs are named after the arguments, outputs after the keys of a returned dict.
    The module must be in eval mode, since dropout and batch norms behave differently in training, and schedules are of
    inference (``training`` adds gradients to it). Its weights are not copied: leave them unchanged while the network is
    in use. A schedule of such a network does not record where to load it from, so that reading the schedule needs
    ``network=``, or a file: with ``onnx_file`` the module is exported there, as ONNX, and the network is that file's.

    Raises ModelError, OptionError or GraphError.
    """
    try:
        sizes = {name: tuple(map(index, shape)) for name, shape in dict(shapes or {}).items()}
        bound = {name: index(size) for name, size in dict(dimensions or {}).items()}
    except (TypeError, ValueError):
        raise OptionError(f"shapes {shapes!r}, dimensions {dimensions!r}: give whole numbers by name") from None
    options = LoadOptions(
        batch=batch,
        dtype=None if dtype is None else Precision.named(dtype),
        shapes=sizes,
        dimensions=bound,
        graphs=graphs,
        units=units,
        max_block=max_block,
        seed=seed,
        strict=strict,
        static_part=static_part,
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
    """Raise ModelError for a name that is neither a file nor in the zoo; nothing is built or read."""
    if source_of(model) == "zoo":
        known(model)


def load_source(source: ModelSource) -> Network:
    """Load a network again from its recorded source.

    Raises ModelError for one that was made in memory, or whose file has moved.
    """
    if source_of(source.model) in ("ios_file", "onnx_file") and not os.path.isfile(source.model):
        raise ModelError(f"model file {source.model!r} does not exist; say where it is now with `model`")
    from iossim.models.source_options import options_of  # few networks are loaded again

    return _loaded(source.model, options_of(source))


def _loaded(model: str | Path | nn.Module, options: LoadOptions) -> Network:
    # Gradients count towards a block's size: only the whole is split.
    load_from = import_module(f"iossim.models.sources.{source_of(model)}").load
    network: Network = load_from(model, replace(options, max_block=None) if options.training else options)
    source = options.source(network)
    if options.training:
        network = needed_part("pass", "training", "training_network", "training")(network, options.max_block)
    if options.block is not None:
        from iossim.models.passes.block_parts import single_block

        network = single_block(network, options.block)
    return replace(network, source=source)


def source_of(model: str | Path | nn.Module) -> str:
    """The source of a model, judging by its type and name; a name without a file is one of the zoo."""
    if not isinstance(model, str | Path) or str(model).startswith(TORCH):
        return "torch_module"
    if str(model).lower().endswith(".json"):
        return "ios_file"
    is_file = isinstance(model, Path) or model.lower().endswith(".onnx") or os.path.isfile(model)
    return "onnx_file" if is_file else "zoo"
