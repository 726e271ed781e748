"""Matches of a rule: occurrences of its source in a graph.

A match gives each op of the source a node of its own, each tensor a value and each attribute variable a value, so
that all agree and the conditions on them hold. Values inside a match may be read outside it too: applying the rule
then leaves them there.

The search goes from one op of the source to the next along tensors that are bound already, so that there is mostly
one node to try; the first op tries the nodes of its kind. With ``touched``, each op in turn is the first, on the
touched nodes alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, islice, pairwise, permutations, product

from iossim.ir.graph import Graph, Node
from iossim.transforms.rewriting.expression import (
    Binding,
    Expression,
    ExpressionError,
    Literal,
    Sequence,
    Variable,
    evaluate,
    tensors_of,
)
from iossim.transforms.rewriting.instance import Value, holds, left_out_shape
from iossim.transforms.rewriting.rule import PatternOp, Rule, is_optional, is_rest, tensor_of

#: Kinds whose operands may come in any order.
COMMUTATIVE = frozenset({"add", "mul"})


@dataclass(frozen=True)
class Match:
    """A place where a rule applies: ``nodes`` names the node of each source op, in order; ``tensors`` and
    ``attributes`` say what the inputs and tensors of the source and its attribute variables stand for there.
    """

    rule: Rule
    nodes: tuple[str, ...]
    tensors: Mapping[str, Value]
    attributes: Mapping[str, object]


def find_matches(graph: Graph, rule: Rule, touched: frozenset[str] | None = None) -> tuple[Match, ...]:
    """All places where the source of a rule is found and its conditions on it hold, in the order of the nodes.

    With ``touched``, only those that contain one of these nodes. Of places with the same nodes and the same result
    one is listed. A condition on a tensor of the target is left for the application.
    """
    plan = _plan(rule)
    position = graph.position
    if not plan.kinds <= graph.of_kind.keys():
        return ()
    found: dict[tuple[object, ...], _Partial] = {}
    if touched is None:
        starts = [(plan.orders[0], node) for node in graph.of_kind[rule.source[0].kind]]
    else:
        nodes = [graph.nodes[position[name]] for name in touched if name in position]
        starts = [
            (order, node) for order in plan.orders for node in nodes if node.op.kind == rule.source[order[0]].kind
        ]
    for order, node in starts:
        for partial in _extended(graph, plan, _Partial({}, {}, {}), order, node):
            found.setdefault(partial.key(rule), partial)
    matches = []
    for partial in found.values():
        match = Match(rule, tuple(node.name for node in partial.ordered()), partial.tensors, partial.attributes)
        if _holds(graph, plan, match, partial.ordered()):
            matches.append(match)
    matches.sort(
        key=lambda match: ([position[name] for name in match.nodes], [str(match.tensors[name]) for name in rule.inputs])
    )
    return _each_once(graph, matches)


@dataclass(frozen=True, slots=True)
class _PlannedOp:
    """A source op, read once: attributes that are numbers, that bind variables, and that must have a value."""

    pattern: PatternOp
    fixed: tuple[tuple[str, object], ...]
    bound: tuple[tuple[str, str], ...]
    computed: tuple[tuple[str, Expression], ...]
    operands: tuple[str, ...]
    maker: tuple[int, ...]  # for each operand the source op that makes it, or -1


@dataclass(frozen=True)
class _Plan:
    ops: tuple[_PlannedOp, ...]
    #: For each op an order of all that begins with it, each along tensors of those before where that is possible.
    orders: tuple[tuple[int, ...], ...]
    conditions: tuple[Expression, ...]
    kinds: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Partial:
    """Bindings so far. Dictionaries are never changed."""

    nodes: dict[int, Node]
    tensors: dict[str, Value]
    attributes: dict[str, object]

    def ordered(self) -> list[Node]:
        return [self.nodes[index] for index in range(len(self.nodes))]

    def key(self, rule: Rule) -> tuple[object, ...]:
        return (*(node.name for node in self.ordered()), *(self.tensors[name] for name in rule.inputs))


@lru_cache(maxsize=4096)
def _plan(rule: Rule) -> _Plan:
    made_by = {output: index for index, op in enumerate(rule.source) for output in op.outputs}
    ops = tuple(_planned(op, made_by) for op in rule.source)
    known = {*rule.inputs, *rule.made_by_source}
    conditions = tuple(each for each in rule.conditions if tensors_of(each) <= known)
    orders = tuple(_order(rule, first) for first in range(len(ops)))
    return _Plan(ops, orders, conditions, frozenset(op.kind for op in rule.source))


def _planned(op: PatternOp, made_by: Mapping[str, int]) -> _PlannedOp:
    fixed, bound, computed = [], [], []
    for name, value in op.all_attributes.items():
        match value:
            case Variable(variable):
                bound.append((name, variable))
            case Literal() | Sequence() if all(isinstance(each, Literal) for each in value.children()):
                fixed.append((name, evaluate(value, Binding({}, {}))))
            case _:
                computed.append((name, value))
    operands = tuple(tensor_of(each) for each in op.inputs)
    return _PlannedOp(
        op, tuple(fixed), tuple(bound), tuple(computed), operands, tuple(made_by.get(name, -1) for name in operands)
    )


def _order(rule: Rule, first: int) -> tuple[int, ...]:
    """All source ops from ``first`` on: next is always the earliest that makes or reads a bound tensor."""
    tensors = [{*op.outputs, *map(tensor_of, op.inputs)} for op in rule.source]
    order, known = [first], set(tensors[first])
    while len(order) < len(tensors):
        rest = [index for index in range(len(tensors)) if index not in order]
        following = next((index for index in rest if not known.isdisjoint(tensors[index])), rest[0])
        order.append(following)
        known |= tensors[following]
    return tuple(order)


def _extended(graph: Graph, plan: _Plan, partial: _Partial, order: tuple[int, ...], node: Node) -> Iterator[_Partial]:
    """All ways to go on from ``partial`` with ``node`` for the first op of ``order``."""
    index = order[0]
    for bound in _bound(graph, plan, partial, index, node):
        if len(order) == 1:
            yield bound
            continue
        for following in _candidates(graph, plan, bound, order[1]):
            yield from _extended(graph, plan, bound, order[1:], following)


def _candidates(graph: Graph, plan: _Plan, partial: _Partial, index: int) -> tuple[Node, ...]:
    """Nodes that an op may match, judging by the bound tensors; each once, in order."""
    op = plan.ops[index]
    for output in op.pattern.outputs:
        value = partial.tensors.get(output)
        if isinstance(value, str):
            return graph.makers(value)
    read = (partial.tensors.get(name) for name in op.operands)
    values = [each for value in read for each in ((value,) if isinstance(value, str) else value or ())]
    everywhere = graph.of_kind.get(op.pattern.kind, ())
    return min((graph.consumers[each] for each in values), key=len, default=everywhere)


def _bound(graph: Graph, plan: _Plan, partial: _Partial, index: int, node: Node) -> Iterator[_Partial]:
    """``partial`` with one more op, in each way that its operands may be assigned."""
    op = plan.ops[index]
    if node.op.kind != op.pattern.kind or len(node.outputs) != len(op.pattern.outputs):
        return
    if any(node is other for other in partial.nodes.values()):
        return
    if any(getattr(node.op, name) != value for name, value in op.fixed):
        return
    attributes = dict(partial.attributes)
    if any(
        attributes.setdefault(variable, getattr(node.op, name)) != getattr(node.op, name) for name, variable in op.bound
    ):
        return
    outputs: dict[str, Value] = dict(zip(op.pattern.outputs, node.outputs, strict=True))
    if any(partial.tensors.get(name, value) != value for name, value in outputs.items()):
        return
    for operands in _assignments(op.pattern, node.inputs):
        tensors = {**partial.tensors, **outputs}
        if all(
            tensors.setdefault(name, value) == value and (maker < 0 or _may_make(graph, plan, maker, name, value))
            for name, value, maker in zip(op.operands, operands, op.maker, strict=True)
        ):
            yield _Partial({**partial.nodes, index: node}, tensors, attributes)


def _may_make(graph: Graph, plan: _Plan, maker: int, name: str, value: Value) -> bool:
    """True if a value is the right output of a node of the right kind for a tensor that the source makes."""
    pattern = plan.ops[maker].pattern
    place = pattern.outputs.index(name)
    return isinstance(value, str) and any(
        node.op.kind == pattern.kind and place < len(node.outputs) and node.outputs[place] == value
        for node in graph.makers(value)
    )


def _assignments(pattern: PatternOp, values: tuple[str, ...]) -> Iterator[tuple[Value, ...]]:
    """All assignments of a node's inputs to the operands of a pattern."""
    operands, commutes = pattern.inputs, pattern.kind in COMMUTATIVE
    rests = sum(map(is_rest, operands))
    orders = [values]
    if commutes:
        # Inputs that go to a rest keep their order.
        chosen = permutations(range(len(values)), min(len(operands) - rests, len(values)))
        places = [(*some, *(place for place in range(len(values)) if place not in some)) for some in chosen]
        orders = list(dict.fromkeys(tuple(values[place] for place in each) for each in places))
    if rests:
        every = range(len(operands))
        rests_last = sorted(every, key=lambda place: is_rest(operands[place])) if commutes else every
        for order, lengths in product(orders, _lengths(len(values) - len(operands) + rests, rests)):
            left, counts = iter(order), iter(lengths)
            found: dict[int, Value] = {
                place: tuple(islice(left, next(counts))) if is_rest(operands[place]) else next(left)
                for place in rests_last
            }
            yield tuple(found[place] for place in every)
        return
    lacking = len(operands) - len(values)
    if lacking == 0 or (lacking > 0 and all(map(is_optional, operands[len(values) :]))):
        for order in orders:
            yield (*order, *[None] * lacking)


def _lengths(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write ``total`` as a sum of ``parts`` numbers in order, none negative."""
    for bars in combinations(range(total + parts - 1), parts - 1) if total >= 0 else ():
        ends = (-1, *bars, total + parts - 1)
        yield tuple(after - before - 1 for before, after in pairwise(ends))


def binding_of(graph: Graph, match: Match) -> Binding:
    """Meaning of names in expressions of the rule at a place, as far as its source goes."""
    shapes = {name: graph.types[value].shape for name, value in match.tensors.items() if isinstance(value, str)}
    constants = set()
    for name, value in match.tensors.items():
        if value is None:
            constants.add(name)
            shapes[name] = left_out_shape(match.rule, name, shapes)
        elif all(each in graph.constants for each in ((value,) if isinstance(value, str) else value)):
            constants.add(name)
    return Binding(match.attributes, shapes, frozenset(constants))


def _holds(graph: Graph, plan: _Plan, match: Match, nodes: list[Node]) -> bool:
    """True if computed attributes have the nodes' values, and the conditions on the source hold."""
    if not plan.conditions and not any(op.computed for op in plan.ops):
        return True
    binding = binding_of(graph, match)
    try:
        for op, node in zip(plan.ops, nodes, strict=True):
            if any(getattr(node.op, name) != evaluate(value, binding) for name, value in op.computed):
                return False
    except ExpressionError:
        return False
    return holds(plan.conditions, binding)


def _each_once(graph: Graph, matches: list[Match]) -> tuple[Match, ...]:
    """The first of the matches with the same nodes whose results are the same."""
    alike = Counter(frozenset(match.nodes) for match in matches)
    distinct: dict[object, Match] = {}
    for match in matches:
        nodes = frozenset(match.nodes)
        distinct.setdefault((nodes, _result(graph, match) if alike[nodes] > 1 else None), match)
    return tuple(distinct.values())


def _result(graph: Graph, match: Match) -> object:
    """Replacement of each value by a match, as nested tuples: equal ones are the same computation."""
    rule = match.rule
    binding = binding_of(graph, match)
    made: dict[str, object] = {name: value for name, value in match.tensors.items() if name in rule.inputs}
    made |= {
        name: ("filled", str(filled.identity), filled.value, _value(filled.shape, binding, match))
        for name, filled in rule.filled
    }
    for op in rule.target:
        read = [made[name] for name in map(tensor_of, op.inputs)]
        if op.kind in COMMUTATIVE:
            read.sort(key=str)
        attributes = tuple((name, _value(value, binding, match)) for name, value in op.attributes)
        whole = (op.kind, attributes, *read)
        made |= {name: (place, whole) for place, name in enumerate(op.outputs)}
    return tuple(sorted(((match.tensors[source], made[target]) for source, target in rule.outputs), key=str))


def _value(expression: Expression, binding: Binding, match: Match) -> object:
    """The value of an expression; for one that reads a tensor of the target, a value that no other match has."""
    try:
        return evaluate(expression, binding)
    except ExpressionError:
        return (str(expression), match.nodes, tuple(map(str, match.tensors.values())))
