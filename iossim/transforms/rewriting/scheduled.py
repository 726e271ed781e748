"""A network rewritten for a scheduler: substitutions searched together with the schedule.

A graph that costs least one operator after another need not have the fastest schedule: two convolutions that are merged
no longer run concurrently, and added work may fill idle units. So graphs are compared by their optimal
schedules. The graphs that are best one operator after another, by backtracking and by equality saturation, are seeds of
that search, so that its result is never worse than scheduling the network as it is, nor than rewriting it first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf
from time import perf_counter
from typing import Literal, get_args

from iossim.base.display import counted
from iossim.base.errors import OptionError, did_you_mean, ignore
from iossim.cost.model import CostModel
from iossim.ir.network import Network
from iossim.search.ios import STRATEGIES, options_of
from iossim.transforms.choices import GraphCost, refuse_measuring
from iossim.transforms.rewriting.backtracking import ALPHA, Candidate, Found, RewriteBudget, RewriteProgress, cheaper
from iossim.transforms.rewriting.graph_costs import OptimalSchedule, SumOfOperators
from iossim.transforms.rewriting.parts import MOST_OPS, search_in_parts
from iossim.transforms.rewriting.rewritten import with_rewriting
from iossim.transforms.rewriting.rule import Rule
from iossim.transforms.rewriting.saturation import SaturationLimits, saturate
from iossim.transforms.rewriting.verdict import trusted
from iossim.transforms.transform import Outcome, Setting

#: Methods of rewriting: backtracking or saturation for the least sum of operators, or a search for the fastest
#: schedule from the results of both.
RewriteSearch = Literal["joint", "saturation", "backtracking"]
#: Networks of up to this many ops are one e-graph; larger ones have one for each part.
WHOLE_OPS = 100
#: E-nodes of an e-graph: with more of them the solver takes long, and the search begins again anyway.
_NODES, _NODES_PER_OP = 200, 5
#: Graphs expanded to recover the steps at a place.
_GRAPHS = 100


def _names(network: Network) -> tuple[str, ...]:
    return tuple(node.name for node in network.graph.nodes)


@dataclass(eq=False)
class ByOperators:
    """The networks of the least sum of operators, by backtracking (``summed``) and by saturation (``saturated``), each
    found once for all searches that they guide. Networks and parts of them are saturated once each; seconds of the
    budget are for all of them together, and its graphs limit the search for steps.
    """

    network: Network
    rules: Sequence[Rule]
    cost_model: CostModel
    alpha: float = ALPHA
    budget: RewriteBudget = field(default_factory=RewriteBudget)
    progress: RewriteProgress = ignore

    def __post_init__(self) -> None:
        self.operators = SumOfOperators(self.cost_model)
        self._saturation_budget, self._spent_s = self.budget, 0.0
        self._known: dict[tuple[str, ...], Found] = {}
        self._in_parts = partial(search_in_parts, self.network, self.rules, progress=self.progress)

    @cached_property
    def summed(self) -> Found:
        return self._in_parts(self.operators, alpha=self.alpha, budget=self.budget)

    @cached_property
    def saturated(self) -> Found:
        """The best of the whole network, or of its parts where it is large."""
        most_ops = WHOLE_OPS if len(self.network.graph.nodes) <= WHOLE_OPS else MOST_OPS
        none = RewriteBudget(graphs=0)
        proposed = self._in_parts(
            self.operators, budget=none, proposes=self._saturate, blocks_whole=True, most_ops=most_ops
        )
        whole = self._known.get(_names(self.network))
        return proposed if whole is None else replace(proposed, complete=whole.complete)

    @property
    def interrupted(self) -> bool:
        """True if an interrupt ended one of them; backtracking comes first."""
        return self.summed.interrupted or self.saturated.interrupted

    @property
    def seen(self) -> int:
        """Number of graphs that both have seen."""
        return self.summed.seen + (1 if self.summed.interrupted else self.saturated.seen)

    def _saturate(self, network: Network) -> Found:
        """The best of one e-graph after another."""
        names, budget = _names(network), self._saturation_budget
        if names not in self._known:
            started = perf_counter()
            limits = SaturationLimits(
                nodes=max(_NODES, _NODES_PER_OP * len(network.graph.nodes)),
                graphs=min(_GRAPHS, budget.graphs or _GRAPHS),
                seconds=inf if budget.seconds is None else budget.seconds - self._spent_s,
            )
            self._known[names] = saturate(network, self.rules, self.operators, limits, self.progress).found
            self._spent_s += perf_counter() - started
        return self._known[names]

    def of(self, search: RewriteSearch) -> Found:
        """The network that one of the searches finds; for ``joint`` the better one."""
        if search == "saturation":
            return self.saturated
        if search == "backtracking" or self.summed.interrupted:
            return self.summed
        return replace(
            self.saturated,
            best=cheaper(self.summed.best, self.saturated.best),
            seen=self.seen,
            expanded=self.summed.expanded + self.saturated.expanded,
            complete=self.summed.complete and not self.saturated.interrupted,
        )

    def search(self, cost: GraphCost, seeds: Sequence[Candidate] = ()) -> tuple[Found, dict[RewriteSearch, Candidate]]:
        """The network of the least cost, never worse than those found here or than the seeds; and those found here, at
        that cost. KeyboardInterrupt ends it with the best so far, and without some of the latter.
        """
        before_us = cost.us(self.network)
        known, interrupted = Candidate(self.network, (), before_us), self.interrupted
        first: dict[RewriteSearch, Candidate] = {}
        try:
            for seed in seeds:
                known = cheaper(known, replace(seed, cost_us=cost.us(seed.network)))
            ways: tuple[RewriteSearch, ...] = ("backtracking", "saturation")
            for name in ways[:1] if self.summed.interrupted else ways:
                best = self.of(name).best
                first[name] = replace(best, cost_us=cost.us(best.network))
                known = cheaper(known, first[name])
        except KeyboardInterrupt:
            interrupted = True
        if interrupted:
            joint = Found(known, before_us, 1, 0, False, True, self.summed.matched)
        else:
            joint = self._in_parts(
                cost,
                alpha=self.alpha,
                budget=self.budget,
                guides=[self.operators],
                proposes=self._saturate,
                blocks_whole=True,
            )
        return replace(joint, best=cheaper(joint.best, known)), first


#: Budget unless another one is given.
DEFAULT_BUDGET = RewriteBudget(graphs=200)
#: Names in tables of the network that each search finds.
_LABELS: Mapping[RewriteSearch, str] = {"backtracking": "rewritten", "saturation": "saturated", "joint": "jointly"}


@dataclass(frozen=True, eq=False)
class Rewriting(Outcome):
    """``network`` is the rewritten one, and says how in its source; or the original, where none is faster.

    ``found`` has its steps and costs by the scheduler that it was rewritten for, and counts graphs of all searches.
    ``search`` is how; where it was jointly with the schedule, ``first`` are the networks that each search rewrote for
    the least sum of operators. ``left_out`` counts rules that were not used since they are not proved.
    """

    network: Network
    found: Found
    scheduler: str
    search: RewriteSearch
    left_out: int = 0
    first: Mapping[RewriteSearch, Candidate] = field(default_factory=dict)

    name = "rewriting"

    @cached_property
    def interrupted(self) -> bool:  # type: ignore[override]
        return self.found.interrupted

    @property
    def alternatives(self) -> Mapping[str, Network]:
        """The networks that each search found, by what tables call them."""
        first = {_LABELS[name]: each.network for name, each in self.first.items()}
        return first | {_LABELS[self.search]: self.network}

    def sentence(self) -> str:
        """The outcome, in words."""
        if not self.left_out:
            return self._found()
        rules = "1 rule is" if self.left_out == 1 else f"{self.left_out} rules are"
        return f"{self._found()}; {rules} not used, being unproved (see 'iossim rules verify')"

    def figures(self) -> dict[str, object]:
        own = {"scheduler": self.scheduler, "search": self.search}
        counts = {name: getattr(self.found, name) for name in ("seen", "complete", "matched")}
        return own | counts | {"left_out": self.left_out}

    def remark(self) -> str:
        said = self.sentence()
        return f"{said[0].upper()}{said[1:]}."

    def _found(self) -> str:
        found = self.found
        if not found.matched and not found.interrupted:
            return "no rule matches: the graph is unchanged"
        ended = "" if found.complete else " before the budget ended"
        looked = f"{counted(found.seen, 'graph')} searched{ended}"
        if not found.best.steps:
            return f"no rewriting is faster: the graph is unchanged; {looked}"
        gain = f"{found.before_us / 1e3:.3f} ms -> {found.best.cost_us / 1e3:.3f} ms by {self.scheduler}"
        first_us = ", ".join(f"{each.cost_us / 1e3:.3f} ms by {name}" for name, each in self.first.items())
        first = f"; rewriting first and scheduling afterwards gives {first_us}" if self.first else ""
        return f"{rewritten_by(len(found.best.steps))}, {gain}{first}; {looked}"


def rewritten_by(steps: int) -> str:
    """Number of steps that rewrote a network, in words."""
    return "rewritten by 1 substitution" if steps == 1 else f"rewritten by {steps} substitutions"


@dataclass(frozen=True)
class Rewrite:
    """Search for the rewritten network with the fastest schedule by a scheduler; never slower than the network is.

    For ``sequential`` that is the one with the least sum of operators; for the schedulers of IOS it is searched
    together with the schedule, both under the limit on workspace of the search's options. A ``search`` other than
    ``joint`` minimises the sum of operators whatever the scheduler, so that the schedule of its result by IOS may be
    slower than before, as in the papers that rewrite first.

    Graphs that cost up to ``alpha`` times the best are expanded, within ``budget``. Only proved rules are used, or with
    ``unproved`` all that are not refuted. Raises OptionError for an unknown search and an impossible alpha.
    """

    rules: tuple[Rule, ...]
    search: RewriteSearch = "joint"
    alpha: float = ALPHA
    budget: RewriteBudget = DEFAULT_BUDGET
    unproved: bool = False

    def __post_init__(self) -> None:
        if self.search not in get_args(RewriteSearch):
            raise OptionError(
                f"`rewrite_search` {self.search!r} is not known; {did_you_mean(self.search, get_args(RewriteSearch))}"
            )

    def check(self, prices: CostModel, scheduler: str) -> None:
        """Raise OptionError for a scheduler that gives graphs no cost, and for a cost model that measures."""
        if scheduler != "sequential" and scheduler not in STRATEGIES:
            known = ", ".join(("sequential", *STRATEGIES))
            raise OptionError(f"`rewrite` cannot price graphs for `scheduler` {scheduler}; give one of {known}")
        refuse_measuring(prices, "`rewrite`")

    def apply(self, network: Network, setting: Setting) -> Rewriting:
        """The rewritten network. KeyboardInterrupt ends the search with the best so far."""
        self.check(setting.prices, setting.scheduler)
        bar = setting.progress("rewriting (graphs)")
        setting = setting.limited(network)
        prices, scheduler = setting.prices, setting.scheduler
        used, without_proof = trusted(self.rules, self.unproved)
        every = ByOperators(network, used, prices, self.alpha, self.budget, lambda seen, best_us: bar(seen, seen))
        first: dict[RewriteSearch, Candidate] = {}
        if scheduler == "sequential":
            found = every.of(self.search)
        else:
            cost = OptimalSchedule(prices, options_of(scheduler, setting.options))
            if self.search == "joint":
                found, first = every.search(cost)
                found = replace(found, seen=every.seen + found.seen)
            else:
                found = every.of(self.search)
                best = replace(found.best, cost_us=cost.us(found.best.network))
                found = replace(found, best=best, before_us=cost.us(network))

        def rewritten(best: Candidate) -> Network:
            return with_rewriting(best.network, best.steps, used)

        first = {name: replace(best, network=rewritten(best)) for name, best in first.items()}
        return Rewriting(rewritten(found.best), found, scheduler, self.search, len(without_proof), first)
