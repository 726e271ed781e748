"""Load a model, a network that is ready to be scheduled.

It is one of the zoo by name, an ONNX file, a file of the IOS engine, or a PyTorch module.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iossim.errors import ModelError, OptionError, did_you_mean
from iossim.ir.graph import Graph
from iossim.ir.network import Block, ModelSource, Network
from iossim.ir.types import DType, Precision
from iossim.models.catalogue import BuildOptions, ZooModel, zoo_model, zoo_models
from iossim.passes.blocks import check_max_block, cut_blocks, split_blocks
from iossim.passes.single_block import single_block
from iossim.passes.unit_fusion import MODEL, unit_policy, with_units
from iossim.schedule.problem import MAX_UNITS

if TYPE_CHECKING:
    from torch import nn

#: Element types that networks compute in.
_PRECISIONS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
#: The option of a source that says: inputs as the file declares them, since they have no common batch.
_BATCH, _DECLARED = "batch", "declared"
#: The option that says which block alone was taken.
_BLOCK = "block"
#: What the source of a network begins with that was made in memory from a PyTorch module; its class follows.
_TORCH = "torch:"


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
    max_block: int = MAX_UNITS,
    seed: int = 0,
    strict: bool = False,
    passes: Sequence[str] = (),
    onnx_file: str | Path | None = None,
    block: str | int | None = None,
) -> Network:
    """The network of a zoo name, an ONNX file (a ``Path``, a name ending in ``.onnx``, or any existing file), or a module.

    A name ending in ``.json`` is a network and schedule that the published IOS engine saved (:mod:`iossim.models.ios_engine.file`).

    ``batch`` is the number of images; by default one, or what ``shapes`` or an ONNX file say. ``dtype`` names a
    :class:`~iossim.ir.types.Precision`; by default it is that of the file's or module's weights, fp32 otherwise. ``shapes`` gives whole shapes of graph inputs by name, batch included;
    ``dimensions`` binds symbolic dimensions of an ONNX file. ``graphs`` is a folder of edge lists, for ``randwire``.
    ``units`` names a unit policy (:mod:`iossim.passes.unit_fusion`). Blocks of more than ``max_block`` units are split.
    ``seed`` is that of the zoo's weights and random graphs. ``strict`` refuses operators that iossim does not know and
    would price as memory traffic (:attr:`~iossim.ir.network.Network.foreign`). ``passes`` names passes of plugins that
    rewrite an ONNX file's graph behind the standard ones (:mod:`iossim.plugins`). ``block`` takes one block alone, by its
    name or number (:func:`iossim.passes.single_block.single_block`).

    A ``torch.nn.Module`` (extra ``torch``) is traced by ``torch.export`` on ``example_inputs``: a tuple of the arguments of
    its ``forward``, a dict of them by name, or one tensor. Their shapes are the network's; ``batch`` sets another leading
    dimension. Inputs are called as the arguments, outputs as the keys of a returned dict. The module must be in eval mode,
    since dropout and batch norms do something else in training, and no schedule is for that. Its weights are not copied:
    while the network is used, leave them as they are. A schedule of such a network does not say where to load it from,
    so that reading the schedule needs ``network=``, or a file: with ``onnx_file`` the module is written there, as ONNX, and
    the network is that file's.

    Raises ModelError, OptionError or GraphError.
    """
    if isinstance(model, str | Path):
        if example_inputs is not None or onnx_file is not None:
            raise OptionError(
                f"example inputs and onnx_file are for PyTorch modules; leave them out for {str(model)!r}"
            )
    elif example_inputs is None and not _is_module(model):
        raise ModelError(
            f"model {model!r} is no name: give a model of the zoo, the path of an ONNX file, or a PyTorch module"
        )
    elif shapes or dimensions or graphs is not None:
        raise OptionError(
            "a PyTorch module has the shapes of its example inputs; leave shapes, dimensions and graphs out"
        )
    if batch is not None and (not isinstance(batch, int) or batch < 1):
        raise OptionError(f"batch {batch!r} is not possible: give a whole number, 1 or more")
    check_max_block(max_block)
    wanted = None if dtype is None else Precision.named(dtype)
    unit_policy(units)  # an unknown one is an error before anything is read
    whole_shapes = {name: tuple(shape) for name, shape in (shapes or {}).items()}
    dimensions = dict(dimensions or {})
    if onnx_file is not None:
        from iossim.models.torch_import import save_module

        if Path(onnx_file).suffix.lower() != ".onnx":
            raise OptionError(f"onnx_file {str(onnx_file)!r} does not end in .onnx; name it so")
        save_module(model, example_inputs, Path(onnx_file))
        model = Path(onnx_file)
    is_ios_file = isinstance(model, str | Path) and str(model).lower().endswith(".json")
    path = _onnx_path(model) if isinstance(model, str | Path) and not is_ios_file else None
    if isinstance(model, str | Path) and passes and path is None:
        raise OptionError(f"passes {', '.join(passes)} are for ONNX files, whose ops have no units yet, not {model}")
    if not isinstance(model, str | Path):
        from iossim.models.torch_import import import_module, module_name

        graph, name = import_module(model, example_inputs, batch), module_name(model)
        network = _of_ops(graph, name, f"module {name}", wanted, units, passes, max_block, strict)
        model = f"{_TORCH}{name}"
    elif is_ios_file:
        if whole_shapes or dimensions or graphs is not None:
            raise OptionError(f"an IOS file holds all of its shapes: give {str(model)!r} none, and no graphs")
        network = _from_ios_file(Path(model), batch or 1, wanted or Precision.FP32, seed)
        network = split_blocks(with_units(network, units), max_block)
    elif path is None:
        zoo = _zoo_model(str(model))
        if dimensions:
            raise OptionError(f"model {zoo.name!r} has no symbolic dimensions to bind; leave them out")
        network = _from_zoo(zoo, batch, wanted or Precision.FP32, whole_shapes, graphs, seed)
        network = split_blocks(with_units(network, units), max_block)
    else:
        if graphs is not None:
            raise OptionError(f"graphs {str(graphs)!r} are for models of the zoo that are made from them, not {path}")
        from iossim.models.onnx.translate import import_onnx  # onnx takes long to import

        graph = import_onnx(path, batch=batch, shapes=whole_shapes, dimensions=dimensions)
        network = _of_ops(graph, path.stem, str(path), wanted, units, passes, max_block, strict)
    precision = network.precision
    options = {
        **({"dtype": str(precision)} if precision is not Precision.FP32 else {}),
        **({"graphs": str(graphs)} if graphs is not None else {}),
        **({"units": units} if units != MODEL else {}),
        **({"max_block": str(max_block)} if max_block != MAX_UNITS else {}),
        **({"seed": str(seed)} if seed else {}),
        **({"passes": ",".join(passes)} if passes else {}),
        **{f"shape.{name}": "x".join(map(str, shape)) for name, shape in sorted(whole_shapes.items())},
        **{f"dimension.{name}": str(size) for name, size in sorted(dimensions.items())},
    }
    leading = {network.graph.types[name].shape[:1] for name in network.graph.inputs}
    if batch is None and len(leading) == 1 and leading != {()}:
        ((batch,),) = leading
    if batch is None:
        options[_BATCH] = _DECLARED
    if block is not None:
        options[_BLOCK] = str(block)
        network = single_block(network, block)
    source = ModelSource(str(model), batch or 1, tuple(options.items()))
    return replace(network, source=source)


def refuse_foreign(network: Network, where: str | Path) -> None:
    """Raise ModelError, beginning with ``where``, for a network with operators that iossim does not know."""
    if network.foreign:
        listed = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in network.foreign.items())
        raise ModelError(
            f"{where} has operators that iossim does not know: {listed}; leave out `strict` to price them"
        )


def load_source(source: ModelSource) -> Network:
    """Load a network again from where it came from.

    Raises ModelError for a network that was made in memory, and for options that :func:`load` did not write.
    """
    if source.model.startswith(_TORCH):
        raise ModelError(
            f"network {source.model!r} was made in memory, of a PyTorch module; give network=iossim.load(module, inputs), "
            "or as `model` an ONNX file of it, which iossim.load(module, inputs, onnx_file=PATH) writes"
        )
    options = dict(source.options)
    shapes: dict[str, tuple[int, ...]] = {}
    dimensions: dict[str, int] = {}
    for name in list(options):
        kind, dot, of = name.partition(".")
        if dot and kind == "shape":
            shapes[of] = tuple(_integer(name, size) for size in options.pop(name).split("x"))
        elif dot and kind == "dimension":
            dimensions[of] = _integer(name, options.pop(name))
    known = {"dtype", "graphs", "units", "max_block", "seed", "passes", _BATCH, _BLOCK}
    for name in options:
        if name not in known:
            raise ModelError(f"model {source.model!r}: unknown option {name!r}; {did_you_mean(name, known)}")
    return load(
        source.model,
        batch=None if options.get(_BATCH) == _DECLARED else source.batch,
        dtype=options.get("dtype", Precision.FP32),
        shapes=shapes,
        dimensions=dimensions,
        graphs=options.get("graphs"),
        units=options.get("units", MODEL),
        max_block=_integer("max_block", options.get("max_block", str(MAX_UNITS))),
        seed=_integer("seed", options.get("seed", "0")),
        passes=[name for name in options.get("passes", "").split(",") if name],
        block=options.get(_BLOCK),
    )


def _from_zoo(
    model: ZooModel,
    batch: int | None,
    precision: Precision,
    shapes: Mapping[str, tuple[int, ...]],
    graphs: str | Path | None,
    seed: int,
) -> Network:
    if graphs is not None and not model.takes_graphs:
        takers = ", ".join(other.name for other in zoo_models() if other.takes_graphs)
        raise OptionError(f"model {model.name!r} is not made from graphs; only these are: {takers}")
    shape = (batch or 1, *model.input_shape)
    for name, given in shapes.items():
        if name != "image":
            raise OptionError(f"model {model.name!r} has no input {name!r}; its input is 'image'")
        if len(given) != len(shape) or min(given) < 1 or (batch is not None and given[0] != batch):
            whole = "x".join(map(str, given))
            raise OptionError(
                f"shape {whole} of input {name!r} is not possible: give batch x channels x height x width, each at "
                "least 1, and no other batch besides"
            )
        shape = (given[0], given[1], given[2], given[3])
    folder = Path(graphs) if graphs is not None else None
    return model.build(BuildOptions(shape, precision, folder, seed))


def _of_ops(
    graph: Graph,
    name: str,
    where: str,
    wanted: Precision | None,
    units: str,
    passes: Sequence[str],
    max_block: int,
    strict: bool,
) -> Network:
    """The network of an imported graph, of ops that no unit holds yet; ``where`` begins the message of a ModelError.

    Its precision is its own where none is ``wanted``.
    """
    from iossim.passes.pipeline import apply_plugins, canonicalise
    from iossim.passes.retype import retype

    declared = apply_plugins(canonicalise(graph), passes)
    own = _weights_type(declared)
    precision = wanted or (Precision(own) if own in _PRECISIONS else Precision.FP32)
    graph = retype(declared, precision)
    if not graph.nodes:
        raise ModelError(f"{where} computes nothing: no op is left once its constants are folded")
    network = network_of(graph, name, precision, units)
    if strict:
        refuse_foreign(network, where)
    if own not in (DType.FLOAT32, precision.storage):
        network = replace(network, reading=(f"The model is in {own}; it is read here as {precision} (--dtype).",))
    return cut_blocks(network, max_block)


def _weights_type(graph: Graph) -> DType:
    """The floating-point type that most of a graph's weights are in; without weights that of most of its values."""
    sizes: Counter[DType] = Counter()
    for names in (graph.constants, graph.types):
        for name in names:
            if graph.types[name].dtype.is_floating:
                sizes[graph.types[name].dtype] += graph.types[name].elements
        if sizes:
            break
    return max(sorted(sizes), key=sizes.__getitem__, default=DType.FLOAT32)


def network_of(graph: Graph, name: str, precision: Precision = Precision.FP32, units: str = MODEL) -> Network:
    """A graph as a network, its ops fused by a unit policy, all units in one block; raises OptionError for an unknown one."""
    fused = unit_policy(units)(graph)
    return Network(name, graph, fused, (Block("all", tuple(range(len(fused)))),), precision)


def _from_ios_file(path: Path, batch: int, precision: Precision, seed: int) -> Network:
    from iossim.models.ios_engine.file import network_and_scheduler, read_ios_file
    from iossim.models.ios_engine.translate import network_of_file

    file = read_ios_file(path)
    name, _ = network_and_scheduler(file.name)
    original = None
    for zoo in zoo_models():
        if zoo.name == name and zoo.input_shape == file.input.output_shape:
            original = zoo.build(BuildOptions((batch, *zoo.input_shape), precision, None, seed))
    return network_of_file(file, path, batch, precision, seed, original)


def _is_module(model: object) -> bool:
    """Whether it is a PyTorch module; there is none before torch is imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def _onnx_path(model: str | Path) -> Path | None:
    """The file that ``model`` names, or None where it is a name of the zoo."""
    if not isinstance(model, Path) and not model.lower().endswith(".onnx") and not os.path.isfile(model):
        return None
    path = Path(model)
    if not os.path.isfile(path):  # unlike Path.is_file false for a name too long to be one
        reason = "is a folder" if os.path.isdir(path) else "does not exist"
        raise ModelError(f"model file {str(path)!r} {reason}; give an ONNX file, or a model of the zoo by name")
    return path


def _zoo_model(name: str) -> ZooModel:
    if "/" in name or "\\" in name or "." in name:
        reason = "is a folder" if os.path.isdir(name) else "does not exist"
        raise ModelError(f"model file {name!r} {reason}; give an ONNX file, or a model of the zoo by name")
    return zoo_model(name)


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ModelError(f"option {name!r} is {text!r}, which is not a whole number") from None
