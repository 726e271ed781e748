"""Load a model, a network that is ready to be scheduled: of the zoo by name, an ONNX file, or a file of the IOS engine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from iossim.errors import ModelError, OptionError, did_you_mean
from iossim.ir.graph import Graph
from iossim.ir.network import Block, ModelSource, Network
from iossim.ir.types import Precision
from iossim.models.catalogue import BuildOptions, ZooModel, zoo_model, zoo_models
from iossim.passes.blocks import check_max_block, cut_blocks, split_blocks
from iossim.passes.unit_fusion import MODEL, unit_policy, with_units
from iossim.schedule.problem import MAX_UNITS

#: The option of a source that says: inputs as the file declares them, since they have no common batch.
_BATCH, _DECLARED = "batch", "declared"


def load(
    model: str | Path,
    *,
    batch: int | None = None,
    dtype: str = Precision.FP32,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dimensions: Mapping[str, int] | None = None,
    graphs: str | Path | None = None,
    units: str = MODEL,
    max_block: int = MAX_UNITS,
    seed: int = 0,
    strict: bool = False,
    passes: Sequence[str] = (),
) -> Network:
    """The network of a zoo name or an ONNX file (a ``Path``, a name ending in ``.onnx``, or any existing file).

    A name ending in ``.json`` is a network and schedule that the published IOS engine saved (:mod:`iossim.models.ios_file`).

    ``batch`` is the number of images; by default one, or what ``shapes`` or an ONNX file say. ``dtype`` names a
    :class:`~iossim.ir.types.Precision`. ``shapes`` gives whole shapes of graph inputs by name, batch included;
    ``dimensions`` binds symbolic dimensions of an ONNX file. ``graphs`` is a folder of edge lists, for ``randwire``.
    ``units`` names a unit policy (:mod:`iossim.passes.unit_fusion`). Blocks of more than ``max_block`` units are split.
    ``seed`` is that of the zoo's weights and random graphs. ``strict`` refuses operators that iossim does not know and
    would price as memory traffic (:attr:`~iossim.ir.network.Network.foreign`). ``passes`` names passes of plugins that
    rewrite an ONNX file's graph behind the standard ones (:mod:`iossim.plugins`).

    Raises ModelError, OptionError or GraphError.
    """
    if not isinstance(model, str | Path):
        raise ModelError(f"model {model!r} is no name: give a model of the zoo, or the path of an ONNX file")
    if batch is not None and (not isinstance(batch, int) or batch < 1):
        raise OptionError(f"batch {batch!r} is not possible: give a whole number, 1 or more")
    check_max_block(max_block)
    precision = Precision.named(dtype)
    unit_policy(units)  # an unknown one is an error before anything is read
    whole_shapes = {name: tuple(shape) for name, shape in (shapes or {}).items()}
    dimensions = dict(dimensions or {})
    is_ios_file = str(model).lower().endswith(".json")
    path = None if is_ios_file else _onnx_path(model)
    if passes and path is None:
        raise OptionError(f"passes {', '.join(passes)} are for ONNX files, whose ops have no units yet, not {model}")
    if is_ios_file:
        if whole_shapes or dimensions or graphs is not None:
            raise OptionError(f"an IOS file holds all of its shapes: give {str(model)!r} none, and no graphs")
        network = _from_ios_file(Path(model), batch or 1, precision, seed)
        network = split_blocks(with_units(network, units), max_block)
    elif path is None:
        zoo = _zoo_model(str(model))
        if dimensions:
            raise OptionError(f"model {zoo.name!r} has no symbolic dimensions to bind; leave them out")
        network = _from_zoo(zoo, batch, precision, whole_shapes, graphs, seed)
        network = split_blocks(with_units(network, units), max_block)
    else:
        if graphs is not None:
            raise OptionError(f"graphs {str(graphs)!r} are for models of the zoo that are made from them, not {path}")
        network = _from_onnx(path, batch, precision, whole_shapes, dimensions, units, passes)
        if strict:
            refuse_foreign(network, path)
        network = cut_blocks(network, max_block)
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
    source = ModelSource(str(model), batch or 1, tuple(options.items()))
    return replace(network, source=source)


def refuse_foreign(network: Network, where: str | Path) -> None:
    """Raise ModelError, beginning with ``where``, for a network with operators that iossim does not know."""
    if network.foreign:
        listed = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in network.foreign.items())
        raise ModelError(
            f"{where} has operators that iossim does not know: {listed}; leave out --strict to price them"
        )


def load_source(source: ModelSource) -> Network:
    """Load a network again from where it came from; raises ModelError for options that :func:`load` did not write."""
    options = dict(source.options)
    shapes: dict[str, tuple[int, ...]] = {}
    dimensions: dict[str, int] = {}
    for name in list(options):
        kind, dot, of = name.partition(".")
        if dot and kind == "shape":
            shapes[of] = tuple(_integer(name, size) for size in options.pop(name).split("x"))
        elif dot and kind == "dimension":
            dimensions[of] = _integer(name, options.pop(name))
    known = {"dtype", "graphs", "units", "max_block", "seed", "passes", _BATCH}
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


def _from_onnx(
    path: Path,
    batch: int | None,
    precision: Precision,
    shapes: Mapping[str, tuple[int, ...]],
    dimensions: Mapping[str, int],
    units: str,
    passes: Sequence[str],
) -> Network:
    """All units in one block, still to be cut."""
    from iossim.models.onnx_import import import_onnx  # onnx takes long to import
    from iossim.passes.pipeline import apply_plugins, canonicalise
    from iossim.passes.retype import retype

    graph = canonicalise(import_onnx(path, batch=batch, shapes=shapes, dimensions=dimensions))
    graph = retype(apply_plugins(graph, passes), precision)
    if not graph.nodes:
        raise ModelError(f"model {path} computes nothing: no op is left once its constants are folded")
    return network_of(graph, path.stem, precision, units)


def network_of(graph: Graph, name: str, precision: Precision = Precision.FP32, units: str = MODEL) -> Network:
    """A graph as a network, its ops fused by a unit policy, all units in one block; raises OptionError for an unknown one."""
    fused = unit_policy(units)(graph)
    return Network(name, graph, fused, (Block("all", tuple(range(len(fused)))),), precision)


def _from_ios_file(path: Path, batch: int, precision: Precision, seed: int) -> Network:
    from iossim.models.ios_file import network_and_scheduler, read_ios_file
    from iossim.models.ios_import import network_of_file

    file = read_ios_file(path)
    name, _ = network_and_scheduler(file.name)
    original = None
    for zoo in zoo_models():
        if zoo.name == name and zoo.input_shape == file.input.output_shape:
            original = zoo.build(BuildOptions((batch, *zoo.input_shape), precision, None, seed))
    return network_of_file(file, path, batch, precision, seed, original)


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
