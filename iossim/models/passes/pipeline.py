"""The standard sequence of passes for imported models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from iossim.base.errors import GraphError
from iossim.base.registry import Extension, Group, Plugin, needed_part
from iossim.ir.graph import Graph
from iossim.models.passes.batch_norms import batch_norm_folding, layer_scale_folding, pad_folding
from iossim.models.passes.graph_pass import GraphPass, Pass
from iossim.models.passes.integer_products import integer_products
from iossim.models.passes.quantised_movement import advanced_quantisation, delayed_dequantisation
from iossim.models.passes.simplification import (
    common_subexpression_elimination,
    constant_folding,
    dead_op_elimination,
    expand_elimination,
    gather_slicing,
    identity_elimination,
    scatter_elimination,
)
from iossim.models.passes.softmax_recognition import (
    check_elimination,
    mask_joining,
    mask_recognition,
    score_scale_hoisting,
    softmax_recognition,
)
from iossim.models.passes.spelt_layers import (
    concat_nesting,
    flat_product_recognition,
    grouped_batch_recognition,
    partial_rotation_recognition,
    rotation_recognition,
)
from iossim.models.passes.transpose_sinking import (
    reduction_hoisting,
    softmax_turning,
    split_hoisting,
    transpose_sinking,
)
from iossim.models.passes.value_recognition import (
    FUNCTIONS,
    function_recognition,
    group_norm_recognition,
    norm_recognition,
)


def canonicalise(graph: Graph, trained: frozenset[str] | None = None) -> Graph:
    """An imported graph in its form for scheduling, after the standard passes.

    Products of quantised tensors and weights are recognised first, while weights still have their quantisation. For
    training, the ``trained`` weights are unchanged, and batch norms use batch statistics. The parts of a recognised
    softmax or norm are dead. Dead readers and identities are removed before the rest, since either would separate a
    batch norm from its convolution. No later pass makes work for an earlier one: this is a fixed point.
    """
    simplified = (identity_elimination, dead_op_elimination)
    if trained is None:
        passes: tuple[Pass, ...] = (
            delayed_dequantisation, flat_product_recognition, integer_products, gather_slicing,
            constant_folding, scatter_elimination, softmax_recognition, mask_recognition, score_scale_hoisting,
            norm_recognition, group_norm_recognition, rotation_recognition, partial_rotation_recognition,
            split_hoisting, reduction_hoisting, softmax_turning, *simplified, advanced_quantisation,
            delayed_dequantisation, transpose_sinking, expand_elimination, mask_joining,
            grouped_batch_recognition, check_elimination, function_recognition, layer_scale_folding,
            pad_folding, common_subexpression_elimination, concat_nesting, batch_norm_folding,
        )  # fmt: skip
    else:
        statistics = needed_part("pass", "training", "with_batch_statistics", "training")
        folding = partial(constant_folding, kept=trained)
        elimination = partial(common_subexpression_elimination, unequal=trained)
        passes = (folding, softmax_recognition, check_elimination, *simplified, elimination, statistics)
    for each in passes:
        graph = each(graph)
    return graph


#: Operations that exporters spell as several ops.
_SPELT = {"softmax", "layer_norm", "rms_norm", "group_norm", *FUNCTIONS}


def spelt_remarks(read: Graph, scheduled: Graph) -> tuple[str, ...]:
    """A remark on what an imported graph spells as several ops, if there is any."""
    now, before = (Counter(node.op.operation for node in graph.nodes) for graph in (scheduled, read))
    found = ", ".join(f"{name} ({count})" for name, count in (now - before).items() if name in _SPELT)
    return (f"The file spells these as several ops; read as one op each: {found}.",) if found else ()


def _of_plugin(added: Plugin, found: GraphPass) -> Callable[[Graph], Graph]:
    def rewrite(graph: Graph) -> Graph:
        try:
            rewritten = added.guarded(found.apply)(graph)
        except GraphError as error:
            raise added.error(f"does not work: {error}") from None
        if not isinstance(rewritten, Graph) or set(rewritten.outputs) != set(graph.outputs):
            raise added.error("returns no graph of the same outputs")
        return rewritten

    return rewrite


#: The passes that can be requested by name, all from plugins: iossim's own run on every graph.
PASSES: Group[Callable[[Graph], Graph]] = Group(
    "`passes` {!r} is not known",
    tuple,
    lambda name: None,
    Extension("iossim.passes", "a GraphPass", _of_plugin, lambda found: isinstance(found, GraphPass)),
)


def apply_plugins(graph: Graph, names: Iterable[str]) -> Graph:
    """The graph after plugin passes, by name; raises OptionError for an unknown name, else PluginError."""
    for name in names:
        graph = PASSES.find(name)(graph)
    return graph
