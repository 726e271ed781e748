"""The standard sequence of passes for imported models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from iossim.base.errors import GraphError
from iossim.base.registry import Extension, Group, Plugin, needed_part
from iossim.ir.graph import Graph
from iossim.models.passes.batch_norms import BatchNormFolding, LayerScaleFolding, PadFolding
from iossim.models.passes.function_recognition import FUNCTIONS, FunctionRecognition
from iossim.models.passes.graph_pass import GraphPass
from iossim.models.passes.group_norms import GroupNormRecognition
from iossim.models.passes.integer_products import IntegerProducts
from iossim.models.passes.norm_recognition import NormRecognition
from iossim.models.passes.quantised_movement import AdvancedQuantisation, DelayedDequantisation
from iossim.models.passes.simplification import (
    CommonSubexpressionElimination,
    ConstantFolding,
    DeadOpElimination,
    ExpandElimination,
    GatherSlicing,
    IdentityElimination,
    ScatterElimination,
)
from iossim.models.passes.softmax_recognition import (
    CheckElimination,
    MaskJoining,
    MaskRecognition,
    ScoreScaleHoisting,
    SoftmaxRecognition,
)
from iossim.models.passes.spelt_layers import (
    ConcatNesting,
    FlatProductRecognition,
    PartialRotationRecognition,
    RotationRecognition,
)
from iossim.models.passes.transpose_sinking import ReductionHoisting, SplitHoisting, TransposeSinking


def canonicalise(graph: Graph, trained: frozenset[str] | None = None) -> Graph:
    """An imported graph in its form for scheduling, after the standard passes.

    Products of quantised tensors and weights are recognised first, while weights still have their quantisation. For
    training, the ``trained`` weights are unchanged, and batch norms use batch statistics. The parts of a recognised
    softmax or norm are dead. Dead readers and identities are removed before the rest, since either would separate a
    batch norm from its convolution. No later pass makes work for an earlier one: this is a fixed point.
    """
    simplified = (IdentityElimination(), DeadOpElimination())
    if trained is None:
        passes: tuple[GraphPass, ...] = (
            DelayedDequantisation(), FlatProductRecognition(), IntegerProducts(), GatherSlicing(), ConstantFolding(),
            ScatterElimination(), SoftmaxRecognition(), MaskRecognition(), ScoreScaleHoisting(), NormRecognition(),
            GroupNormRecognition(), RotationRecognition(), PartialRotationRecognition(), SplitHoisting(),
            ReductionHoisting(), *simplified, AdvancedQuantisation(), DelayedDequantisation(), TransposeSinking(),
            ExpandElimination(), MaskJoining(), CheckElimination(), FunctionRecognition(), LayerScaleFolding(),
            PadFolding(), CommonSubexpressionElimination(), ConcatNesting(), BatchNormFolding(),
        )  # fmt: skip
    else:
        statistics = needed_part("pass", "training", "BatchStatistics", "training")()
        folding, elimination = ConstantFolding(trained), CommonSubexpressionElimination(trained)
        passes = (folding, SoftmaxRecognition(), CheckElimination(), *simplified, elimination, statistics)
    for each in passes:
        graph = each.apply(graph)
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
