"""Rules applied: a graph with a match of a rule's source replaced by its target.

What the target makes takes the names of the values that it replaces, so that what reads them, and the outputs of the graph, stay as
they are. What of the source nothing reads any more goes, and with it all that was computed for it alone; the rest stays. Target
ops that read constants alone become constants, which nothing computes before they are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iossim.base.errors import GraphError, IossimError, did_you_mean
from iossim.ir.graph import Graph
from iossim.ir.splicing import spliced
from iossim.transforms.rewriting.matching import Match, Value, find_matches
from iossim.transforms.rewriting.replacement import Change, Target
from iossim.transforms.rewriting.rule import Rule


class ReplayError(IossimError):
    """Steps that do not lead anywhere from this graph."""


@dataclass(frozen=True)
class Step:
    """A rule applied at a place, by the nodes of its source ops and the values of its inputs: enough to do it again."""

    rule: str
    rule_hash: str
    nodes: tuple[str, ...]
    inputs: tuple[Value, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "rule_hash": self.rule_hash,
            "nodes": list(self.nodes),
            "inputs": [list(value) if isinstance(value, tuple) else value for value in self.inputs],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Step:
        """Inverse of :meth:`to_json`; raises ReplayError for anything else."""
        try:
            inputs = tuple(tuple(value) if isinstance(value, list) else value for value in data["inputs"])
            return Step(str(data["rule"]), str(data["rule_hash"]), tuple(data["nodes"]), inputs)
        except (KeyError, TypeError) as error:
            raise ReplayError(f"{data!r} is no step of a rewriting: {error!r}; write one with Step.to_json") from None


@dataclass(frozen=True)
class Application:
    """A graph after a step. ``made`` are its nodes that are new or read something else than before, ``gone`` those of the graph
    before that it has no longer."""

    graph: Graph
    step: Step
    made: frozenset[str]
    gone: frozenset[str]


def apply(graph: Graph, match: Match) -> Application | None:
    """The graph with a match replaced; None where that would make a cycle or another type, or a condition on the target fails."""
    rule = match.rule
    try:
        target = Target(graph, match)
        change = Change(graph, match, target)
        changed = spliced(graph, change.gone, change.made, target.constants)
    except GraphError:
        return None
    step = Step(rule.name, rule.hash, match.nodes, tuple(match.tensors[name] for name in rule.inputs))
    touched = {node.name for node in change.made}
    for value in target.constants:
        touched.update(node.name for node in changed.consumers.get(value, ()))
    return Application(changed, step, frozenset(touched), frozenset(change.gone))


def replay(graph: Graph, steps: Sequence[Step], rules: Mapping[str, Rule]) -> Graph:
    """The graph after steps that were taken from it, one after another; raises ReplayError for one that cannot be taken."""
    for applied in applications(graph, steps, rules):
        graph = applied.graph
    return graph


def applications(graph: Graph, steps: Sequence[Step], rules: Mapping[str, Rule]) -> Iterator[Application]:
    """What each step makes of the graph that the one before it made; raises ReplayError for one that cannot be taken."""
    for number, step in enumerate(steps, 1):
        rule = rules.get(step.rule)
        where = f"step {number} ({step.rule})"
        if rule is None:
            raise ReplayError(f"{where}: no rule has this name; {did_you_mean(step.rule, rules)}")
        if rule.hash != step.rule_hash:
            raise ReplayError(f"{where}: the rule has changed since; search again")
        found = match_of(graph, step, rule)
        applied = apply(graph, found) if found else None
        if applied is None:
            raise ReplayError(
                f"{where}: the rule does not apply at {', '.join(step.nodes)}; take the steps from the graph that they were "
                "found in"
            )
        yield applied
        graph = applied.graph


def match_of(graph: Graph, step: Step, rule: Rule) -> Match | None:
    """The match that a step took, None where the graph has none."""
    if any(name not in graph.position for name in step.nodes):
        return None
    for match in find_matches(graph, rule, frozenset(step.nodes[:1])):
        if match.nodes == step.nodes and tuple(match.tensors[name] for name in rule.inputs) == step.inputs:
            return match
    return None
