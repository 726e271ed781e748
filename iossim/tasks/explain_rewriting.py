"""Effect of each substitution of a rewritten network, and its gain at the prices of its schedule.

The steps are replayed in order, and the network is priced after each as the schedule's own scheduler would. A step with
a cost makes room for a later one, of the same *change*: the steps that build on one another. Steps of a change that
lead back to the ops before them are left out.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain

from iossim.cost.capabilities import MeasuredBy, MeasuringCostModel
from iossim.cost.model import CostModel
from iossim.ir.graph import Graph, Node
from iossim.ir.network import boundary, subgraph
from iossim.models.load import load_source
from iossim.schedule.schedule import SavedSchedule
from iossim.search.ios import STRATEGIES, options_of
from iossim.search.options import SearchOptions
from iossim.tasks.alternatives import space_of
from iossim.transforms.choices import GraphCost
from iossim.transforms.replay import split_source
from iossim.transforms.rewriting.application import Application, applications
from iossim.transforms.rewriting.graph_costs import OptimalSchedule, SumOfOperators
from iossim.transforms.rewriting.rewritten import OPTION, rewritten_network, rules_and_steps


@dataclass(frozen=True)
class Part:
    """Some ops of a graph, in its order."""

    graph: Graph
    nodes: tuple[Node, ...]

    @property
    def lines(self) -> list[str]:
        """One line per op: ``y: conv(x, fp32[8x4x3x3]) -> fp32[1x8x6x6]``; constants are shown by their types."""
        types, constants = self.graph.types, self.graph.constants
        told = []
        for node in self.nodes:
            read = ", ".join(str(types[value]) if value in constants else value for value in node.inputs)
            made = ", ".join(str(types[value]) for value in node.outputs)
            told.append(f"{node.name}: {node.op.kind}({read}) -> {made}")
        return told


@dataclass(frozen=True)
class ExplainedStep:
    """An applied rule: ops and latency (None without prices) of the network before and after it. Its ``number`` among
    all begins at 1; the ``change`` that it belongs to has the number of its first step.
    """

    number: int
    change: int
    rule: str
    origin: str
    before: Part
    after: Part
    before_us: float | None
    after_us: float | None

    @property
    def saves_us(self) -> float | None:
        """Saving, us; negative for a step with a cost."""
        return None if self.before_us is None or self.after_us is None else self.before_us - self.after_us

    def to_json(self) -> dict[str, object]:
        return {**vars(self), "before": self.before.lines, "after": self.after.lines}


def explain_rewriting(
    schedule: SavedSchedule, prices: CostModel | None, model: str | None = None
) -> tuple[ExplainedStep, ...]:
    """Substitutions that led to a schedule's network, in order, net of those that cancel; none if it was not rewritten.

    Without ``prices``, or with ones that would have to measure, costs are unknown. ``model`` is the current path of the
    model, if its file has moved. Raises ReplayError for steps that cannot be replayed.
    """
    source, texts = split_source(schedule.source.to_source(model))
    if OPTION not in texts:
        return ()
    network = load_source(source)
    rules, steps = rules_and_steps(texts[OPTION])
    named = {rule.name: rule for rule in rules}
    cost = _cost(schedule, prices)
    graph, cost_us = network.graph, None if cost is None else cost.us(network)
    told: list[ExplainedStep] = []
    applied = list(applications(graph, steps, named))
    for number, one in enumerate(applied, 1):
        after_us = None if cost is None else cost.us(rewritten_network(network, one.graph))
        rule = named[one.step.rule]
        before, after = _part(graph, _touched(one)), _part(one.graph, one.made)
        told.append(ExplainedStep(number, number, rule.name, rule.origin, before, after, cost_us, after_us))
        graph, cost_us = one.graph, after_us
    change_of = {number: own[0] for own in _changes(applied) for number in _net(own, network.graph, applied)}
    return tuple(replace(step, change=change_of[step.number]) for step in told if step.number in change_of)


def _touched(applied: Application) -> Set[str]:
    return {*applied.step.nodes, *applied.gone, *applied.made}


def _changes(applied: Sequence[Application]) -> list[list[int]]:
    """Numbers of steps, from 1, that build on one another: each matches ops that another one made."""
    found: list[list[int]] = []
    for number, one in enumerate(applied, 1):
        joined = [own for own in found if any(applied[step - 1].made.intersection(one.step.nodes) for step in own)]
        found = [*(own for own in found if own not in joined), sorted([number, *chain(*joined)])]
    return found


def _net(change: Sequence[int], given: Graph, applied: Sequence[Application]) -> list[int]:
    """Steps of a change without those between two equal graphs of the ops that it touches."""
    graphs, names = (
        [given, *(one.graph for one in applied)],
        set[str]().union(*(_touched(applied[n - 1]) for n in change)),
    )

    def ops(graph: Graph) -> str:
        nodes = _part(graph, names).nodes
        return subgraph(graph, nodes, *boundary(graph, nodes)).hash

    kept: list[int] = []
    seen = [ops(graphs[change[0] - 1])]
    for step in change:
        kept.append(step)
        seen.append(ops(graphs[step]))
        place = seen.index(seen[-1])
        del kept[place:], seen[place + 1 :]
    return kept


def _part(graph: Graph, names: Set[str]) -> Part:
    return Part(graph, tuple(node for node in graph.nodes if node.name in names))


def _cost(schedule: SavedSchedule, prices: CostModel | None) -> GraphCost | None:
    """Cost that the network was rewritten for: the schedule of a scheduler that searches, or the sum of operators."""
    if prices is None or (isinstance(prices, MeasuringCostModel) and prices.measured_by is not MeasuredBy.STORE):
        return None
    if schedule.scheduler not in STRATEGIES:
        return SumOfOperators(prices)
    return OptimalSchedule(prices, options_of(schedule.scheduler, SearchOptions(space_of(schedule))))
