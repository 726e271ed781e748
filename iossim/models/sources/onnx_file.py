"""ONNX files: read, bound, translated, canonicalised, partitioned."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.base.errors import OptionError
from iossim.ir.constants import AbsentConstant
from iossim.ir.graph import Graph
from iossim.ir.network import ModelSource, Network
from iossim.ir.types import Precision
from iossim.models.options import LoadOptions, no_such_file
from iossim.models.partition import partition_graph
from iossim.models.passes.unit_fusion import MODEL

if TYPE_CHECKING:
    from iossim.models.onnx.file import OnnxModel


def load(model: str | Path, options: LoadOptions) -> Network:
    from iossim.models.onnx.file import read_model  # onnx is slow to import

    path = Path(model)
    if not os.path.isfile(path):  # unlike Path.is_file, this is false for too long a name
        raise no_such_file(model)
    if options.graphs is not None:
        raise OptionError(
            f"graphs {str(options.graphs)!r} are for models of the zoo that are made from them, not {path}"
        )
    return replace(network_of_model(read_model(path), options), source=ModelSource(str(model)))


def values_of_nodes(path: str) -> dict[str, tuple[str, ...]]:
    """The outputs of each node of a file, by the node's name in the file; a network renames some."""
    from iossim.models.onnx.file import read_model

    return {node.name: tuple(node.output) for node in read_model(Path(path)).proto.graph.node if node.name}


def _reading_remarks(model: OnnxModel, graph: Graph, canonical: Graph) -> Iterator[str]:
    """Remarks on outputs that are left out, weights without values, and inputs that choose the branch of an ``If``."""
    missing = [value.name for value in model.proto.graph.output if value.name not in graph.outputs]
    if missing:
        listed = ", ".join(missing[:3]) + " ..." * (len(missing) > 3)
        yield f"Read up to operators that iossim cannot take (--static-part): what makes {listed} is in no price."
    reasons = [constant.reason for constant in graph.constants.values() if isinstance(constant, AbsentConstant)]
    if reasons:
        without = "1 weight is" if len(reasons) == 1 else f"{len(reasons)} weights are"
        yield f"{without} priced without values, which running and writing the network take: {reasons[0]}."
    chosen = {node.inputs[0] for node in canonical.of_kind.get("foreign", ()) if node.op.unit_kind == "If"}
    for name in filter(chosen.__contains__, canonical.inputs):
        yield f"Input {name!r} chooses a branch of the network: choose it now (--dim {name}=1)."


def network_of_model(model: OnnxModel, options: LoadOptions) -> Network:
    """A parsed model, from a file or from memory, as a network."""
    from iossim.models.onnx.export import given_units, has_units
    from iossim.models.onnx.file import trained_weights
    from iossim.models.onnx.inputs import bind
    from iossim.models.onnx.translate import decomposition_remarks, translate
    from iossim.models.passes.integer_products import integer_products, integer_remarks
    from iossim.models.passes.pipeline import apply_plugins, canonicalise, spelt_remarks
    from iossim.models.passes.simplification import dead_op_elimination
    from iossim.models.passes.softmax_recognition import check_remarks
    from iossim.models.passes.value_recognition import function_recognition

    def given(graph: Graph, precision: Precision) -> Network | None:
        return given_units(model.proto, graph, model.name, precision)

    bound = bind(model, options)
    weights = trained_weights(model) if options.training else None
    graph = translate(bound, weights or frozenset(), options.static_part)
    notes_units = options.units == MODEL and not options.training and has_units(model.proto)
    # Integer products and some activations are several nodes in the file.
    spelt = dead_op_elimination(function_recognition(integer_products(graph))) if notes_units else graph
    is_as_noted = notes_units and given(spelt, options.precision) is not None
    canonical = spelt if is_as_noted else canonicalise(graph, weights)
    changed = apply_plugins(canonical, options.passes)
    network = partition_graph(changed, model.name, str(model.path), options, *([given] if is_as_noted else []))
    read = *_reading_remarks(model, graph, canonical), *decomposition_remarks(model.proto)
    recognised = *check_remarks(graph, canonical), *spelt_remarks(spelt, canonical), *integer_remarks(canonical)
    remarks = (*bound.remarks, *read, *recognised)
    if notes_units and not is_as_noted:
        remarks += ("The units noted in the file do not fit its graph, which was changed; they are made anew.",)
    return replace(network, reading=(*network.reading, *remarks), weights=weights)
