"""One search over everything: rewritings, joins of branches, micro-batches and kernels, with the schedule.

Each ingredient is a layer: a graph is priced by the best of its joins, joins by the best of their micro-batches, and
these by their optimal schedule. So the price of a proposal is that of the schedule which it allows, together with all
that its schedule makes worth while. A search without some ingredients is the same without their layers. All of these
are searched, at prices and blocks that are solved once: first each ingredient by itself, then all together, begun at
what each found, then all but one. The best of them is the result, and what is lost without an ingredient is what it
brought. Kernels are chosen for their company, and streams without barriers, in the schedules of the networks that were
found.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from math import inf

from iossim.base.errors import OptionError, ignore
from iossim.base.registry import guest_part
from iossim.cost.capabilities import VariantCostModel, pricing_streams
from iossim.cost.model import CostModel
from iossim.ir.network import Network
from iossim.models.passes.joins import joins_of
from iossim.schedule.schedule import AnySchedule
from iossim.search.anytime import Clock, Steps, TimeIsUp
from iossim.search.ios import STRATEGIES, options_of
from iossim.search.memo import SearchMemo
from iossim.search.scheduler import schedule_any, without_search
from iossim.transforms.choices import BySchedule, Choices, GraphCost, refuse_measuring
from iossim.transforms.fused_joins import JoinChoices
from iossim.transforms.rewriting.backtracking import Candidate
from iossim.transforms.rewriting.graph_costs import OptimalSchedule
from iossim.transforms.rewriting.rewritten import with_rewriting
from iossim.transforms.rewriting.scheduled import ByOperators, Rewrite
from iossim.transforms.rewriting.verdict import trusted
from iossim.transforms.transform import Outcome, Setting

REWRITING, JOINS, DIVISION, COMPANY, STREAMS = "rewriting", "joins", "micro_batches", "company", "streams"
#: Some of them in words.
_WORDS = {
    JOINS: "the choice of joins",
    DIVISION: "micro-batches",
    COMPANY: "kernels chosen for concurrency",
    STREAMS: "streams without barriers",
}
#: A schedule's option that says what each ingredient brought.
OPTION = "joint"
#: Fraction of the search's seconds for this; the rest is for the schedule of its network.
_PART = 0.75
#: Fraction of the time of the first search over rewritings for each of those that are for the sum of operators.
_GUIDES = 0.2


@dataclass(frozen=True, eq=False)
class Tried:
    """The best network that is found with some ingredients, by the units divided in it, and its cost in us; the
    ``schedule`` that takes so long, if it was not searched by the scheduler of stages alone.
    """

    network: Network
    us: float
    units: Mapping[str, int] = field(default_factory=dict)
    graph: Candidate | None = None
    schedule: AnySchedule | None = None


@dataclass(frozen=True, eq=False)
class JointlyFound(Outcome):
    """``network`` is the best of what was found with each set of ``ingredients`` (``tried``, the empty set among them:
    the network as given), ``us`` what its schedule takes. ``ended`` says why sets were left out; empty if none was.
    """

    network: Network
    ingredients: tuple[str, ...]
    tried: Mapping[frozenset[str], Tried]
    seen: int = 0
    ended: str = ""
    interrupted: bool = False

    name = "joint"

    @property
    def us(self) -> float:
        return self.best.us

    @property
    def best(self) -> Tried:
        """Network and schedule of the set of ingredients that takes least."""
        return min(self.tried.values(), key=lambda each: each.us)

    @property
    def alternatives(self) -> Mapping[str, Network]:
        return {"jointly": self.network}

    @property
    def alone_us(self) -> dict[str, float]:
        """By ingredient, what is found with it alone."""
        return {name: self.tried[own].us for name in self.ingredients if (own := frozenset([name])) in self.tried}

    @property
    def without_us(self) -> dict[str, float]:
        """By ingredient, what is found without it: the best of all others together, and of fewer."""
        every = frozenset(self.ingredients)
        fewer = {name: [each.us for own, each in self.tried.items() if name not in own] for name in self.ingredients}
        return {name: min(others_us) for name, others_us in fewer.items() if every - {name} in self.tried}

    def figures(self) -> dict[str, object]:
        return {
            "given_us": self.tried[frozenset()].us,
            "us": self.us,
            "alone_us": self.alone_us,
            "without_us": self.without_us,
            "brought_us": {name: us - self.us for name, us in self.without_us.items()},
            "seen": self.seen,
        }

    def sentence(self) -> str:
        """The outcome, and the cost without each ingredient, in words."""
        ended = f"; not all was looked at: {self.ended}" if self.ended else ""
        given_us = self.tried[frozenset()].us
        if self.us >= given_us:
            return f"Joint search: nothing is faster than the network as given; {self.seen:,} ways tried{ended}."
        without = (f"{us / 1e3:.3f} ms without {_WORDS.get(name, name)}" for name, us in self.without_us.items())
        left_out = f" ({', '.join(without)})" if self.without_us else ""
        gain = f"{given_us / 1e3:.3f} ms -> {self.us / 1e3:.3f} ms{left_out}"
        return f"Joint search: {gain}; {self.seen:,} ways tried{ended}."

    def noted(self) -> dict[str, object]:
        units = dict(self.best.units)
        return {OPTION: self.figures()} | ({DIVISION: units} if units else {})


@dataclass(frozen=True)
class JointSearch:
    """Search rewritings (``rewrite`` says by which rules), joins, micro-batches and, where the search's options ask
    for ``company``, kernels, together with the schedule; with a scheduler of ``streams``, these too.

    Never slower than any of them by itself, or than one after another. Ends within three quarters of the seconds of
    the search, and after KeyboardInterrupt, with the best so far.
    """

    rewrite: Rewrite | None = None
    streams: str = ""

    def check(self, prices: CostModel, scheduler: str) -> None:
        """Raise OptionError for a scheduler that gives graphs no cost, and for a cost model that measures."""
        if scheduler not in STRATEGIES:
            raise OptionError(f"`search` joint needs a `scheduler` that searches; give one of {', '.join(STRATEGIES)}")
        refuse_measuring(prices, "`search` joint")
        if self.streams:
            pricing_streams(prices, f"`scheduler` {self.streams} orders streams")

    def apply(self, network: Network, setting: Setting) -> JointlyFound:
        self.check(setting.prices, setting.scheduler)
        if setting.options.workspace_limit_bytes is not None and self.streams:
            raise OptionError(
                f"`workspace_limit` is for stages, and `scheduler` {self.streams} has none; leave one of them out"
            )
        return _Search(self, network, setting).found()


class _Search:
    def __init__(self, asked: JointSearch, network: Network, setting: Setting) -> None:
        seconds, self.bar = setting.options.seconds, setting.progress("joint search (ways)")
        self.now = Clock(None if seconds is None else _PART * seconds)
        self.steps, self.seen = Steps(self.now), 0
        limited = setting.options.workspace_limit_bytes is not None
        setting = setting.limited(network)
        prices, scheduler = setting.prices, setting.scheduler
        self.network, self.prices, self.scheduler = network, prices, scheduler
        self.options = options = replace(setting.options, seconds=None)
        plain = replace(options, company=False)
        self.memo = memo = SearchMemo.of(setting.memo, prices)
        self.rewrite = rewrite = asked.rewrite
        self.rules = () if rewrite is None else trusted(rewrite.rules, rewrite.unproved)[0]
        #: By what is chosen in the schedule of a network alone, the scheduler that chooses it.
        self.finishes: dict[str, str] = {}
        if options.company and isinstance(prices, VariantCostModel):
            self.finishes[COMPANY] = scheduler
        if asked.streams:
            self.finishes[STREAMS] = asked.streams
        own = BySchedule(prices, scheduler, plain, memo, self.check)
        schedules: GraphCost = OptimalSchedule(prices, options_of(scheduler, plain), self.check)
        self.costs = {frozenset[str](): schedules, frozenset([JOINS]): JoinChoices(schedules, own, self.tell)}
        self.divides = False
        if (micro_batches := guest_part("transform", DIVISION, "DivisionChoices")) is not None:
            self.divides = micro_batches.fits(network)
            divisions = micro_batches(schedules, scheduler, limited, self.tell)
            self.costs[frozenset([DIVISION])] = divisions
            self.costs[frozenset([JOINS, DIVISION])] = JoinChoices(divisions, own, self.tell)
        for cost in self.costs.values():
            if isinstance(cost, Choices):
                cost.exhausts = cost.climbs = True
        self.by_operators: ByOperators | None = None
        #: Whether the time of any step was up before its end.
        self.cut = False
        self.tried: dict[frozenset[str], Tried] = {}

    def check(self) -> None:
        """Raise TimeIsUp once the time of this step is."""
        self.now.check()

    def tell(self, seen: int) -> None:
        self.seen += 1
        self.bar(self.seen, self.seen)
        self.check()

    @property
    def ingredients(self) -> list[str]:
        """Those that there is anything to choose of."""
        there = {REWRITING: bool(self.rules), JOINS: bool(joins_of(self.network)), DIVISION: self.divides}
        return [name for name, is_there in there.items() if is_there]

    def found(self) -> JointlyFound:
        names = self.ingredients
        every = frozenset(names)
        sets = [frozenset(own) for count in range(len(names) + 1) for own in combinations(names, count)]
        alone = [own for own in sets if len(own) <= 1]
        todo = list(dict.fromkeys((*alone, every, *sets)))
        left = len(todo) + len(every) * len(self.finishes)
        for place, own in enumerate(todo):
            # Each has an equal part of the time that is left, and what it has found by then counts.
            self.now = Clock(self.steps.clock.part_s(1 / (left - place)))
            if (found := self.steps.take(None, self._searched, own)) is not None:
                self.tried[own] = found
            self.cut |= self.now.is_up
        self.now = self.steps.clock
        if frozenset() not in self.tried:  # the time was up, or an interrupt came, before its schedule
            begun = without_search(self.network, self.prices, self.scheduler)
            self.tried[frozenset()] = Tried(self.network, begun.latency_us)
        if REWRITING in every and every in self.tried and not self.steps.ended:
            self._again(every)
        self._finished()
        ended = self.steps.cause if self.steps.ended or self.cut else ""
        best = min(self.tried.values(), key=lambda each: each.us)
        ingredients = *names, *self.finishes
        return JointlyFound(best.network, ingredients, dict(self.tried), self.seen, ended, self.steps.interrupted)

    def _seeds(self) -> list[Candidate]:
        return [each.graph for each in self.tried.values() if each.graph is not None and each.graph.steps]

    def _searched(self, own: frozenset[str]) -> Tried:
        cost = self.costs[own - {REWRITING}]
        if REWRITING not in own:
            with suppress(TimeIsUp):
                cost.us(self.network)
            return self._made(Candidate(self.network, (), inf), cost)
        assert self.rewrite is not None
        if self.by_operators is None:
            budget = self.rewrite.budget
            if (part_s := self.now.part_s(_GUIDES)) is not None:
                budget = replace(budget, seconds=min(part_s, budget.seconds or inf))
            alpha = self.rewrite.alpha
            told = lambda seen, best_us: self.tell(seen)  # noqa: E731
            by_operators = ByOperators(self.network, self.rules, self.prices, alpha, budget, told)
            is_cut = by_operators.interrupted
            by_operators.budget = self.rewrite.budget
            self.by_operators = None if is_cut else by_operators  # to be looked for anew once there is time
        else:
            by_operators = self.by_operators
        found, _ = by_operators.search(cost, self._seeds())
        self.steps.interrupted |= found.interrupted and not self.now.is_up
        return self._made(found.best, cost)

    def _again(self, every: frozenset[str]) -> None:
        """Price the graphs that were found without some ingredients with all of them."""
        cost = self.costs[every - {REWRITING}]
        for graph in self._seeds():
            if self.steps.take(inf, cost.us, graph.network) < self.tried[every].us:
                self.tried[every] = self._made(graph, cost)

    def _made(self, graph: Candidate, cost: GraphCost) -> Tried:
        """The network of a graph in the best ways that were found, whose source says how it is made."""
        if isinstance(cost, Choices):
            us = cost.tried(graph.network)[cost.best(graph.network)][0]
        else:
            us = cost.us(graph.network)
        network, now = with_rewriting(graph.network, graph.steps, self.rules), graph.network
        units: dict[str, int] = {}
        while isinstance(cost, Choices):
            network, divided = cost.applied(now, network)
            units |= divided
            now, cost = cost.tried(now)[cost.best(now)][1], cost.inner
        return Tried(network, us, units, graph)

    def _finished(self) -> None:
        """Choose kernels and streams in the schedules of the networks that were found, the best first, and all of them
        before fewer.
        """
        known: dict[tuple[object, ...], AnySchedule] = {}
        counts = range(len(self.finishes), 0, -1)
        finishes = [names for count in counts for names in combinations(self.finishes, count)]
        found = sorted(self.tried.items(), key=lambda item: item[1].us)
        for (own, each), names in product(found, finishes):
            key = each.network.graph.hash, *(unit.nodes for unit in each.network.units), *names
            if key not in known:
                asked = replace(self.options, seconds=self.steps.clock.part_s(), company=COMPANY in names)
                by, told = self.finishes[names[-1]], self.steps.clock.telling(ignore)
                made = self.steps.take(None, schedule_any, each.network, self.prices, by, asked, told, self.memo)
                if made is None or not made.complete:
                    break
                known[key] = made
            made = known[key]
            better = made.latency_us < each.us
            self.tried[own | {*names}] = replace(each, us=made.latency_us, schedule=made) if better else each
