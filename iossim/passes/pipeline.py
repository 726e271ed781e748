"""The standard sequence of passes for models that were read from a file."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from iossim.errors import GraphError, OptionError, did_you_mean
from iossim.ir.graph import Graph
from iossim.passes.batch_norm_folding import BatchNormFolding
from iossim.passes.common_subexpressions import CommonSubexpressionElimination
from iossim.passes.constant_folding import ConstantFolding
from iossim.passes.dead_op_elimination import DeadOpElimination
from iossim.passes.graph_pass import GraphPass
from iossim.passes.identity_elimination import IdentityElimination
from iossim.plugins import PASSES, PluginError, plugin, plugins

#: Dead readers and identities go first, since either would keep a batch norm from its convolution. No later pass
#: makes work for an earlier one, so that once through is a fixed point.
STANDARD: tuple[GraphPass, ...] = (
    ConstantFolding(),
    DeadOpElimination(),
    IdentityElimination(),
    CommonSubexpressionElimination(),
    BatchNormFolding(),
)


def apply_passes(graph: Graph, passes: Iterable[GraphPass]) -> Graph:
    """The graph after the passes, one after another."""
    for each in passes:
        graph = each.apply(graph)
    return graph


def canonicalise(graph: Graph) -> Graph:
    """An imported graph as it is scheduled: constants and batch norms folded, dead ops, identities and repetitions gone."""
    return apply_passes(graph, STANDARD)


def apply_plugins(graph: Graph, names: Iterable[str]) -> Graph:
    """The graph after passes that others add (:mod:`iossim.plugins`), by name, one after another.

    Raises OptionError for an unknown name, PluginError for a pass that does not work.
    """
    for name in names:
        added = plugin(PASSES, name)
        if added is None:
            known = did_you_mean(name, plugins(PASSES)) if plugins(PASSES) else "no installed package adds any"
            raise OptionError(f"`passes` {name!r} is not known; {known}")
        rewrite: GraphPass = added.load()
        try:
            rewritten = added.run(partial(rewrite.apply, graph))
        except GraphError as error:
            raise PluginError(f"{added} does not work: {error}; update or uninstall {added.package}") from None
        if not isinstance(rewritten, Graph) or set(rewritten.outputs) != set(graph.outputs):
            raise PluginError(f"{added} returns no graph of the same outputs; update or uninstall {added.package}")
        graph = rewritten
    return graph
