"""The standard sequence of passes for models that were read from a file."""

from __future__ import annotations

from collections.abc import Iterable

from iossim.ir.graph import Graph
from iossim.passes.batch_norm_folding import BatchNormFolding
from iossim.passes.constant_folding import ConstantFolding
from iossim.passes.dead_op_elimination import DeadOpElimination
from iossim.passes.graph_pass import GraphPass
from iossim.passes.identity_elimination import IdentityElimination

#: Dead readers and identities go first, since either would keep a batch norm from its convolution. No later pass
#: makes work for an earlier one, so that once through is a fixed point.
STANDARD: tuple[GraphPass, ...] = (
    ConstantFolding(),
    DeadOpElimination(),
    IdentityElimination(),
    BatchNormFolding(),
)


def apply_passes(graph: Graph, passes: Iterable[GraphPass]) -> Graph:
    """The graph after the passes, one after another."""
    for each in passes:
        graph = each.apply(graph)
    return graph


def canonicalise(graph: Graph) -> Graph:
    """An imported graph as it is scheduled: constants and batch norms folded, dead ops and identities gone."""
    return apply_passes(graph, STANDARD)
