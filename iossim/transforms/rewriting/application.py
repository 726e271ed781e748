"""Rules applied: a graph with a match of a rule's source replaced by its target.

Values that the target makes take the names of those that they replace, so that readers and the outputs of the graph
stay as they are. Source nodes that are no longer read are removed, with all that was computed for them alone; the rest
stays. Target ops that read only constants become constants, which are computed when they are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from iossim.base.errors import GraphError, IossimError, did_you_mean
from iossim.ir.constants import FilledConstant
from iossim.ir.graph import Graph, Node
from iossim.ir.op import Op
from iossim.ir.ops.unary import Identity
from iossim.ir.splicing import spliced
from iossim.ir.types import TensorType
from iossim.models.passes.simplification import FoldedConstant
from iossim.transforms.rewriting.instance import NotMadeError, Side, Value, filled_constant, holds
from iossim.transforms.rewriting.matching import Match, binding_of, find_matches
from iossim.transforms.rewriting.rule import PatternOp, Rule


class Target(Side):
    """The target at one place: nodes and constants under new names. Raises NotMadeError if it is impossible."""

    def __init__(self, graph: Graph, match: Match) -> None:
        # Constants that the target brings have the type of the first value that the source reads.
        first = graph.nodes[graph.position[match.nodes[0]]].inputs[0]
        super().__init__(match.rule, binding_of(graph, match), graph.types[first].dtype)
        self._graph, self._match = graph, match
        self._names: set[str] = set()
        self.values |= {name: match.tensors[name] for name in match.rule.inputs}
        for name, filled in match.rule.filled:
            constant = filled_constant(filled, self.binding, self.dtype)
            self.add_constant(name, self.new_name(match.nodes[0]), constant)
        for op in match.rule.target:
            self.add(op)
        if not holds(match.rule.conditions, self.binding):
            raise NotMadeError("a condition of the rule does not hold")

    def value(self, tensor: str) -> str:
        """The value that a tensor of the target stands for."""
        value = self.values[tensor]
        if not isinstance(value, str):
            raise NotMadeError(f"{tensor} is left out, or many")
        return value

    def put(self, pattern: PatternOp, op: Op, inputs: tuple[str, ...], made: tuple[TensorType, ...]) -> None:
        name = self.new_name(self._origin(pattern))
        outputs = (name,) if len(made) == 1 else tuple(f"{name}.{place}" for place in range(len(made)))
        given = [self.constants.get(value) or self._graph.constants.get(value) for value in inputs]
        known = tuple(each for each in given if each is not None)
        for place, (tensor, value, value_type) in enumerate(zip(pattern.outputs, outputs, made, strict=True)):
            if len(known) == len(inputs):
                self.add_constant(tensor, value, FoldedConstant(value_type, op, known, place))
            else:
                self.values[tensor], self.types[value], self.shapes[tensor] = value, value_type, value_type.shape
        if len(known) < len(inputs):
            self.nodes.append(Node(name, op, inputs, outputs))

    def zeros(self, tensor: str) -> str:
        name = self.new_name(self._match.nodes[0])
        self.add_constant(tensor, name, FilledConstant(TensorType(self.shapes[tensor], self.dtype), 0.0))
        return name

    def type(self, value: str) -> TensorType:
        return self.types[value] if value in self.types else self._graph.types[value]

    def _origin(self, pattern: PatternOp) -> str:
        """The node that a new one is named after: of the same kind, if there is one."""
        alike = [name for op, name in zip(self.rule.source, self._match.nodes, strict=True) if op.kind == pattern.kind]
        return (alike or self._match.nodes)[0]

    def new_name(self, origin: str) -> str:
        """A name that neither a node nor a value has: that of the node in the model, and a number."""
        base, number = origin.partition("~")[0], 1
        graph = self._graph
        while (name := f"{base}~{number}") in graph.position or name in graph.types or name in self._names:
            number += 1
        self._names.add(name)
        return name


class Change:
    """Change of the graph: ``gone`` names removed nodes, ``made`` are nodes that are new or have other inputs."""

    def __init__(self, graph: Graph, match: Match, target: Target) -> None:
        self._graph = graph
        self._target = target
        pairs = [(match.tensors[source], target.value(by)) for source, by in match.rule.outputs]
        self._replaced = {str(old) for old, _ in pairs}
        #: For new values, and for existing ones, the replaced value whose name they take.
        self._takes: dict[str, str] = {}
        #: For the other replaced values, the value that is read instead.
        self._instead: dict[str, str] = {}
        self._nodes = list(target.nodes)
        for old, new in sorted(pairs, key=lambda pair: pair[0] not in graph.returned):
            self._replace(str(old), new)
        self.gone = self._dead(match)
        self.made = self._changed() + [self._renamed(node) for node in self._nodes if self._is_read(node)]

    def _replace(self, old: str, new: str) -> None:
        graph, target = self._graph, self._target
        if old == new or target.type(new) != graph.types[old]:
            raise NotMadeError(f"{old} is {graph.types[old]}, what replaces it {target.type(new)}")
        is_made = new in target.types and new not in target.constants
        may_take = new in graph.producer and new not in graph.returned and new not in self._replaced
        if new not in self._takes and (is_made or (old in graph.returned and may_take)):
            self._takes[new] = old
        elif old in graph.returned:
            self._nodes.append(Node(target.new_name(graph.producer[old].name), Identity(), (new,), (old,)))
        else:
            self._instead[old] = new

    def _read(self, value: str) -> str:
        """Replacement of ``value`` among a node's inputs."""
        seen = {value}
        while value in self._instead:
            value = self._instead[value]
            if value in seen:
                raise NotMadeError(f"{value} is replaced by itself")
            seen.add(value)
        return self._takes.get(value, value)

    def _renamed(self, node: Node) -> Node:
        inputs = tuple(map(self._read, node.inputs))
        return replace(node, inputs=inputs, outputs=tuple(self._takes.get(value, value) for value in node.outputs))

    def _is_read(self, node: Node) -> bool:
        """True if an output of a new node is read or returned."""
        values = set(node.outputs)
        if not values.isdisjoint(self._takes) or not values.isdisjoint(self._graph.returned):
            return True
        return any(not values.isdisjoint(other.inputs) and self._is_read(other) for other in self._nodes)

    def _dead(self, match: Match) -> frozenset[str]:
        """Matched nodes that are no longer read, and nodes that were computed for them alone."""
        graph = self._graph
        read = {value for node in self._nodes for value in node.inputs} | self._takes.keys()
        replaced_by: dict[str, list[str]] = {}
        for old, new in self._instead.items():
            replaced_by.setdefault(new, []).append(old)
        dead: set[str] = set()

        def is_needed(value: str) -> bool:
            if value in self._replaced:
                return False  # its name stands for something else
            readers = [value, *replaced_by.get(value, [])]
            return (
                value in read
                or value in graph.returned
                or any(node.name not in dead for each in readers for node in graph.consumers[each])
            )

        pending = list(match.nodes)
        while pending:
            name = pending.pop()
            node = graph.nodes[graph.position[name]]
            if name not in dead and not any(map(is_needed, node.outputs)):
                dead.add(name)
                pending += [graph.producer[value].name for value in node.inputs if value in graph.producer]
        return frozenset(dead)

    def _changed(self) -> list[Node]:
        """Remaining nodes that read or make values under other names, in order."""
        graph = self._graph
        names = {node.name for value in (*self._instead, *self._takes) for node in graph.consumers.get(value, ())}
        names |= {graph.producer[value].name for value in self._takes if value in graph.producer}
        names |= {graph.producer[value].name for value in self._replaced}
        found = []
        for name in sorted(names - self.gone, key=graph.position.__getitem__):
            node = self._renamed(graph.nodes[graph.position[name]])
            # A replaced value gives up its name even if its node stays for another output.
            outputs = tuple(
                self._target.new_name(name) if old in self._replaced and new == old else new
                for old, new in zip(graph.nodes[graph.position[name]].outputs, node.outputs, strict=True)
            )
            found.append(replace(node, outputs=outputs))
        return found


class ReplayError(IossimError):
    """Steps that cannot be taken from this graph."""


@dataclass(frozen=True)
class Step:
    """A rule applied at a place, by the nodes of its source ops and the values of its inputs: enough to repeat it."""

    rule: str
    rule_hash: str
    nodes: tuple[str, ...]
    inputs: tuple[Value, ...]

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Step:
        """Inverse of :meth:`to_json`; raises ReplayError for anything else."""
        try:
            inputs = tuple(tuple(value) if isinstance(value, list) else value for value in data["inputs"])
            return Step(str(data["rule"]), str(data["rule_hash"]), tuple(data["nodes"]), inputs)
        except (KeyError, TypeError) as error:
            raise ReplayError(f"{data!r} is not a step of rewriting: {error!r}; write one with Step.to_json") from None


@dataclass(frozen=True)
class Application:
    """A graph after a step, the nodes ``made``, which are new or have other inputs, and the removed ones (``gone``)."""

    graph: Graph
    step: Step
    made: frozenset[str]
    gone: frozenset[str]


def apply(graph: Graph, match: Match) -> Application | None:
    """The graph with a match replaced; None where that makes a cycle or another type, or a condition fails."""
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
    """The graph after steps that were taken from it, in order; raises ReplayError for one that cannot be taken."""
    for applied in applications(graph, steps, rules):
        graph = applied.graph
    return graph


def applications(graph: Graph, steps: Sequence[Step], rules: Mapping[str, Rule]) -> Iterator[Application]:
    """Graph after each step, each applied to the result of the one before; raises ReplayError."""
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
                f"{where}: the rule does not apply at {', '.join(step.nodes)}; take the steps from the graph "
                "that they were found in"
            )
        yield applied
        graph = applied.graph


def match_of(graph: Graph, step: Step, rule: Rule) -> Match | None:
    """The match that a step took, None where the graph has none."""
    if any(name not in graph.position for name in step.nodes):
        return None
    near = (match for match in find_matches(graph, rule, frozenset(step.nodes[:1])) if match.nodes == step.nodes)
    return next((each for each in near if tuple(each.tensors[name] for name in rule.inputs) == step.inputs), None)
