"""Cost-based backtracking search over substitutions (Z. Jia et al., Optimizing DNN computation with relaxed graph
substitutions, MLSys 2019, algorithm 1).

Graphs wait in a queue, the cheapest first. One is taken, every rule is applied at every place, and what costs at most
``alpha`` times the best is queued in turn, so that a substitution that costs at first may pay later. Where one costs
more, the search looks a step further: if a rule of several ops then applies to what the step made, and the result is
within alpha, both steps are taken as one. Graphs of equal :attr:`~iossim.ir.graph.Graph.hash` are visited once. At
equal costs the smaller hash goes first, so that the search is the same in every process.

Matching is incremental: matches away from a change are kept, and only places that touch it are matched again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite

from iossim.base.errors import OptionError
from iossim.ir.graph import Graph
from iossim.ir.network import Network
from iossim.transforms.choices import GraphCost
from iossim.transforms.rewriting.application import Step, apply
from iossim.transforms.rewriting.matching import Match, find_matches
from iossim.transforms.rewriting.rewritten import rewritten_network
from iossim.transforms.rewriting.rule import Rule

#: Graphs that cost up to this many times the best are expanded (MetaFlow's; TASO's code has 1.0).
ALPHA = 1.05
#: Number of further steps that are tried after one that costs more than alpha allows.
AHEAD = 1
#: Costs that differ by less than this fraction count as equal: rounding, not graphs.
RELATIVE_TOLERANCE = 1e-9
_REMEDY = "give a number of graphs (200), seconds (30s), or all"


@dataclass(frozen=True, slots=True)
class RewriteBudget:
    """Limits on the number of expanded graphs and on seconds; None for no limit."""

    graphs: int | None = None
    seconds: float | None = None

    def is_spent(self, graphs: int, seconds: float, part: float) -> bool:
        """True if ``part`` of the budget is spent after so many expanded graphs, or so many seconds."""
        limits = ((graphs, self.graphs), (seconds, self.seconds))
        return any(most is not None and spent >= part * most for spent, most in limits)

    @staticmethod
    def parse(text: str) -> RewriteBudget:
        """``200``, ``30s`` or ``all``; raises OptionError for anything else."""
        if text == "all":
            return RewriteBudget()
        try:
            value = float(text.removesuffix("s")) if text.endswith("s") else int(text)
        except ValueError:
            raise OptionError(f"`rewrite_budget` {text!r} is not a budget; {_REMEDY}") from None
        if not 0 < value < inf:
            raise OptionError(f"`rewrite_budget` {text!r} leaves nothing to search; {_REMEDY}")
        return RewriteBudget(seconds=value) if text.endswith("s") else RewriteBudget(graphs=int(value))

    def __str__(self) -> str:
        if self.seconds is not None:
            return f"{self.seconds:g}s"
        return "all" if self.graphs is None else str(self.graphs)


#: Callback of a search, with the number of graphs seen, and the cost of the best in us.
RewriteProgress = Callable[[int, float], None]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A network, the steps that lead to it from the first one, and its cost in us, or an upper bound of that."""

    network: Network
    steps: tuple[Step, ...]
    cost_us: float


@dataclass(frozen=True, eq=False)
class Found:
    """The best network of a search. ``seen`` counts distinct graphs, ``expanded`` those with all rules applied.

    ``complete``: nothing is left within alpha; otherwise the budget or an interrupt (``interrupted``) ended the
    search. ``matched``: some rule matches the original.
    """

    best: Candidate
    before_us: float
    seen: int
    expanded: int
    complete: bool
    interrupted: bool
    matched: bool


@dataclass(eq=False)
class _Node:
    """A graph of the search. ``parent`` is the graph that it was made from, until its own matches are known."""

    candidate: Candidate
    parent: _Node | None = None
    focus: frozenset[str] | None = None
    _matches: tuple[Match, ...] | None = field(default=None, repr=False)

    @property
    def graph(self) -> Graph:
        return self.candidate.network.graph

    def matches(self, rules: Sequence[Rule]) -> tuple[Match, ...]:
        """Matches in the order of the rules; those away from the change are the parent's."""
        if self._matches is None:
            near: frozenset[str] | None = None
            kept: dict[str, list[Match]] = {}
            if self.parent is not None and self.parent._matches is not None:
                near = touched(self.parent.graph, self.graph)
                there = self.graph.position.keys() - near
                for match in self.parent._matches:
                    if there.issuperset(match.nodes):
                        kept.setdefault(match.rule.name, []).append(match)
            self._matches = tuple(
                match for rule in rules for match in (*kept.get(rule.name, ()), *find_matches(self.graph, rule, near))
            )
            self.parent = None
        return self._matches


def touched(before: Graph, after: Graph) -> frozenset[str]:
    """Names of the nodes of ``after`` near which matches may differ from those before.

    These are nodes that are new or have other inputs, with their readers; nodes whose outputs have other readers; and
    readers of a value that became a constant, or ceased to be one.
    """
    known = {node.name: node for node in before.nodes}
    near: set[str] = set()
    for node in after.nodes:
        old = known.get(node.name)
        if old is not node and old != node:
            near.add(node.name)
            near.update(reader.name for value in node.outputs for reader in after.consumers[value])
            continue
        for value in node.outputs:
            readers = {reader.name for reader in before.consumers[value]}
            if readers != {reader.name for reader in after.consumers[value]}:
                near.add(node.name)
        if any((value in before.constants) != (value in after.constants) for value in node.inputs):
            near.add(node.name)
    return frozenset(near)


class Search:
    """A search in steps: each applies all rules to the cheapest waiting graph.

    It begins with ``network`` and the ``seeds``, each with the steps to it. With a ``focus``, rules apply only where
    they match one of these nodes, by name, or nodes made from them. After a step that costs too much, ``ahead`` further
    steps are tried. ``best`` is never worse than what it begins with; ``seen`` counts distinct graphs, ``expanded``
    those to which all rules were applied; ``matched``: some rule matched.
    """

    def __init__(
        self,
        network: Network,
        rules: Sequence[Rule],
        cost: GraphCost,
        *,
        alpha: float = ALPHA,
        seeds: Iterable[Candidate] = (),
        focus: frozenset[str] | None = None,
        ahead: int = AHEAD,
    ) -> None:
        self.network = network
        self.before_us = cost.us(network)
        self.best = Candidate(network, (), self.before_us)
        self.expanded = 0
        self.matched = False
        self._rules, self._cost, self._alpha, self._ahead = rules, cost, alpha, ahead
        self._joining = [rule for rule in rules if len(rule.source) > 1]
        #: Number of further steps that were tried from each graph, by hash.
        self._seen: dict[str, int] = {}
        self._queue: list[tuple[float, str, _Node]] = []
        begun = (Candidate(seed.network, seed.steps, cost.us(seed.network)) for seed in seeds)
        for candidate in (self.best, *begun):
            if candidate.network.graph.hash not in self._seen:
                self._seen[candidate.network.graph.hash] = self._ahead
                self._wait(_Node(candidate, focus=focus))

    @property
    def seen(self) -> int:
        return len(self._seen)

    @property
    def complete(self) -> bool:
        """True if no waiting graph costs at most alpha times the best."""
        return not self._queue or self._queue[0][0] > self._alpha * self.best.cost_us

    def expand(self) -> None:
        """Apply all rules to the cheapest waiting graph."""
        _, _, node = heapq.heappop(self._queue)
        self.expanded += 1
        # Graphs made from it are bounded by its cost, which may be less than the estimate that it waited with.
        self._price(node)
        for match in node.matches(self._rules):
            if node.focus is None or not node.focus.isdisjoint(match.nodes):
                self.matched = True
                for made in self._made(node, match, self._ahead):
                    self._wait(made)

    def _price(self, node: _Node) -> None:
        """Replace a node's upper bound by its cost, and keep it if it is the best."""
        node.candidate = replace(node.candidate, cost_us=self._cost.us(node.candidate.network))
        self.best = cheaper(self.best, node.candidate)

    def _wait(self, node: _Node) -> None:
        """Queue a node by its upper bound; one that may be the best is priced exactly first."""
        if cheaper(self.best, node.candidate) is not self.best:
            self._price(node)
        heapq.heappush(self._queue, (node.candidate.cost_us, node.graph.hash, node))

    def _made(self, node: _Node, match: Match, ahead: int) -> Iterator[_Node]:
        """The graph that a match makes, if it is new and costs at most alpha times the best. If it costs more, graphs
        within alpha that rules of several ops make from it, where the step changed it.
        """
        application = apply(node.graph, match)
        if application is None or self._seen.get(application.graph.hash, -1) >= ahead:
            return
        self._seen[application.graph.hash] = ahead
        network = rewritten_network(self.network, application.graph)
        most_us = self._alpha * self.best.cost_us
        cost_us = self._cost.near_us(network, node.candidate.network, most_us)
        candidate = Candidate(network, (*node.candidate.steps, application.step), cost_us)
        made = _Node(candidate, node, None if node.focus is None else node.focus | application.made)
        if isfinite(cost_us) and cost_us <= most_us:
            self._seen[application.graph.hash] = self._ahead
            yield made
        elif ahead:
            for rule in self._joining:
                for further in find_matches(application.graph, rule, application.made):
                    yield from self._made(made, further, ahead - 1)


def cheaper(best: Candidate, other: Candidate) -> Candidate:
    """The cheaper one; the first of equals."""
    return other if other.cost_us < best.cost_us * (1 - RELATIVE_TOLERANCE) else best
