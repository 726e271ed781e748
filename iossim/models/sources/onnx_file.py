"""ONNX files: read, bound, translated, canonicalised, partitioned."""

from __future__ import annotations

import os
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


def _absent_remarks(graph: Graph) -> list[str]:
    """Remarks on weights without values."""
    reasons = [constant.reason for constant in graph.constants.values() if isinstance(constant, AbsentConstant)]
    if not reasons:
        return []
    without = "1 weight is" if len(reasons) == 1 else f"{len(reasons)} weights are"
    return [f"{without} priced without values, which running and writing the network take: {reasons[0]}."]


def _branch_remarks(graph: Graph) -> list[str]:
    """A remark on each input that chooses the branch of an ``If``."""
    chosen = {node.inputs[0] for node in graph.of_kind.get("foreign", ()) if node.op.unit_kind == "If"}
    text = "Input {0!r} chooses a branch of the network: choose it now (--dim {0}=1)."
    return [text.format(name) for name in graph.inputs if name in chosen]


def network_of_model(model: OnnxModel, options: LoadOptions) -> Network:
    """A parsed model, from a file or from memory, as a network."""
    from iossim.models.onnx.export import given_units, has_units
    from iossim.models.onnx.file import trained_weights
    from iossim.models.onnx.inputs import bind
    from iossim.models.onnx.translate import decomposition_remarks, translate
    from iossim.models.passes.integer_products import IntegerProducts, integer_remarks
    from iossim.models.passes.pipeline import apply_plugins, canonicalise, spelt_remarks
    from iossim.models.passes.softmax_recognition import check_remarks

    def given(graph: Graph, precision: Precision) -> Network | None:
        return given_units(model.proto, graph, model.name, precision)

    bound = bind(model, options)
    weights = trained_weights(model) if options.training else None
    graph = translate(bound, weights or frozenset())
    notes_units = options.units == MODEL and not options.training and has_units(model.proto)
    spelt = IntegerProducts().apply(graph) if notes_units else graph  # two nodes in the file
    is_as_noted = notes_units and given(spelt, options.precision) is not None
    canonical = spelt if is_as_noted else canonicalise(graph, weights)
    changed = apply_plugins(canonical, options.passes)
    network = partition_graph(changed, model.name, str(model.path), options, *([given] if is_as_noted else []))
    read = *_absent_remarks(graph), *_branch_remarks(canonical), *decomposition_remarks(model.proto)
    recognised = *check_remarks(graph, canonical), *spelt_remarks(graph, canonical)
    remarks = (*bound.remarks, *read, *recognised, *integer_remarks(canonical))
    if notes_units and not is_as_noted:
        remarks += ("The units noted in the file do not fit its graph, which was changed; they are made anew.",)
    return replace(network, reading=(*network.reading, *remarks), weights=weights)
