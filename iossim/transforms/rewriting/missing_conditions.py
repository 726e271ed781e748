"""Conditions that a rule lacks: the weakest that exclude every place where it was seen to fail.

The vocabulary is what rules say of attributes and shapes: an attribute is plain (one group, a stride of one, no padding), two
attributes or sizes are equal, a tensor has so many dimensions. A conjunction of a few is sought which excludes all failures and keeps as
many as possible of the places where the rule held. It is a guess from samples, and the caller tries it on others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from iossim.ir.op import Role, op_class
from iossim.transforms.rewriting.expression import Expression, Variable, parse_expression
from iossim.transforms.rewriting.make import holds
from iossim.transforms.rewriting.refute import Trial
from iossim.transforms.rewriting.rule import Rule, tensor_of

#: No more conditions against one kind of failure: what takes more is hardly a rule that lacks a condition.
_MOST = 3
#: Of those that exclude different failures, how many are combined.
_WIDEST = 40
#: Places that have to be left.
_FEWEST_KEPT = 3


#: Where each condition was found to hold, of the places in the order in which they were tried.
Memory = dict[str, list[bool]]


def missing_conditions(rule: Rule, tried: Sequence[Trial], memory: Memory) -> tuple[Expression, ...] | None:
    """Conditions that exclude all failures of ``tried``; None where the vocabulary has none that leave enough.

    Wrong values are excluded first, then shapes that the target does not take. Where no conditions exclude the latter they
    are let be: a rule is not applied where its target does not fit. ``memory`` is of the call before, with fewer places.
    """
    wrong = misfits = held = 0
    for place, trial in enumerate(tried):
        if trial.counterexample is None:
            held |= 1 << place
        elif trial.counterexample.element is None:
            misfits |= 1 << place
        else:
            wrong |= 1 << place
    words = list(_words(rule, tried, memory))
    chosen = _weakest(words, wrong, held, misfits) if wrong else []
    if chosen is None:
        return None
    left = misfits
    for word in chosen:
        left &= word.holds
        held &= word.holds
    more = _weakest(words, left, held, 0) if left else None
    for word in more or ():
        chosen.append(word)
        left &= word.holds
    needed = _without_needless(chosen, wrong | misfits & ~left)
    return tuple(word.condition for word in sorted(needed, key=words.index))


def without_broadcasting(
    rule: Rule, conditions: Sequence[Expression], tried: Sequence[Trial]
) -> tuple[Expression, ...]:
    """The conditions, and that no sum or product of the source broadcasts, less those that follow from this at all places of
    ``tried``: proofs take less where shapes are equal. As they are where no place is like that.
    """
    pairs = [
        tuple(map(tensor_of, op.inputs))
        for op in rule.source
        if op_class(op.kind).role is Role.ELEMENTWISE and len(op.inputs) == 2
    ]
    equal = [parse_expression(f"{one}.shape == {other}.shape") for one, other in pairs if one != other]
    there = [trial.placed.binding for trial in tried if holds(equal, trial.placed.binding)]
    if not there:
        return tuple(conditions)
    kept = [each for each in conditions if not all(holds([each], binding) for binding in there)]
    return tuple(dict.fromkeys((*kept, *equal)))


@dataclass(frozen=True)
class _Word:
    """A condition, the places where it holds as a set of bits, and how odd it is: attributes are plainer than sizes."""

    condition: Expression
    holds: int
    oddity: int


def _weakest(words: Sequence[_Word], failures: int, held: int, besides: int) -> list[_Word] | None:
    """The conjunction that excludes ``failures`` and keeps most of ``held``; of equal ones that with fewer words, then with plainer
    ones, then that which excludes more ``besides``, then the first.
    """
    useful: list[_Word] = []
    for word in words:
        excluded, kept = failures & ~word.holds, held & word.holds
        if not excluded or kept.bit_count() < _FEWEST_KEPT:
            continue
        beaten = (
            (excluded | failures & ~other.holds) == failures & ~other.holds
            and (kept | held & other.holds) == held & other.holds
            and other.oddity <= word.oddity
            and (besides & ~word.holds | besides & ~other.holds) == besides & ~other.holds
            for other in useful
        )
        if not any(beaten):
            useful.append(word)
    useful.sort(key=lambda word: -(held & word.holds).bit_count())
    del useful[_WIDEST:]
    best: tuple[tuple[int, ...], list[_Word]] | None = None
    for count in range(1, _MOST + 1):
        for chosen in combinations(useful, count):
            left, kept, beside = failures, held, besides
            for word in chosen:
                left &= word.holds
                kept &= word.holds
                beside &= word.holds
            odd = sum(word.oddity for word in chosen)
            rank = (kept.bit_count(), -count, -odd, -beside.bit_count())
            if not left and rank[0] >= _FEWEST_KEPT and (best is None or rank > best[0]):
                best = rank, list(chosen)
    return None if best is None else best[1]


def _without_needless(chosen: list[_Word], failures: int) -> list[_Word]:
    """Without those that the others make needless."""
    for word in list(chosen):
        left = failures
        for other in chosen:
            left &= other.holds if other is not word else -1
        if not left:
            chosen = [other for other in chosen if other is not word]
    return chosen


def _words(rule: Rule, tried: Sequence[Trial], memory: Memory) -> Iterator[_Word]:
    """The vocabulary for a rule, one word of those that hold in the same places: the first, which is the plainest."""
    seen: set[int] = set()
    for oddity, texts in enumerate((_of_attributes, _of_shapes, _of_sizes, _of_other_sizes)):
        for text in dict.fromkeys(texts(rule, tried)):
            condition = parse_expression(text)
            known = memory.setdefault(text, [])
            known += [holds([condition], trial.placed.binding) for trial in tried[len(known) :]]
            places = sum(1 << place for place, is_true in enumerate(known) if is_true)
            if places not in seen:
                seen.add(places)
                yield _Word(condition, places, oddity)


def _of_attributes(rule: Rule, tried: Sequence[Trial]) -> Iterator[str]:
    """An attribute is plain, or two of one meaning are equal."""
    variables: dict[str, str] = {}
    for op in rule.source:
        for name, value in op.attributes:
            if isinstance(value, Variable):
                variables.setdefault(value.name, name)
    for variable in variables:
        yield from _plain(variable, {str(trial.placed.attributes[variable]) for trial in tried})
    for one, other in combinations(variables, 2):
        if variables[one] == variables[other]:
            yield f"{one} == {other}"


def _of_shapes(rule: Rule, tried: Sequence[Trial]) -> Iterator[str]:
    """Two tensors have equal shapes, or as many dimensions."""
    for one, other in combinations(_tensors(rule), 2):
        yield f"{one}.shape == {other}.shape"
        yield f"len({one}.shape) == len({other}.shape)"


def _of_sizes(rule: Rule, tried: Sequence[Trial]) -> Iterator[str]:
    """Two tensors are of one size along an axis, or behind one; a tensor has so many dimensions."""
    most = _most_dimensions(rule, tried)
    for one, other in combinations(_tensors(rule), 2):
        yield from (f"{one}.shape[{axis}] == {other}.shape[{axis}]" for axis in range(most))
        yield from (f"{one}.shape[{start}:] == {other}.shape[{start}:]" for start in range(1, most - 1))
    for one in _tensors(rule):
        yield from (f"len({one}.shape) == {rank}" for rank in range(1, most + 1))


def _of_other_sizes(rule: Rule, tried: Sequence[Trial]) -> Iterator[str]:
    """Sizes along different axes are equal, a size is one or odd."""
    axes = range(_most_dimensions(rule, tried))
    for one in _tensors(rule):
        yield from (f"{one}.shape[{axis}] == {one}.shape[{axis + 1}]" for axis in axes[:-1])
        yield from (f"{one}.shape[{axis}] == 1" for axis in axes)
        yield from (f"{one}.shape[{axis}] % 2 == 1" for axis in axes)
    for one, other in combinations(_tensors(rule), 2):
        yield from (f"{one}.shape[{axis}] == {other}.shape[{1 - axis}]" for axis in (0, 1))


def _tensors(rule: Rule) -> list[str]:
    """Those of one shape: inputs first, those that may be left out last of these, then what the source makes."""
    inputs = sorted((name for name in rule.inputs if name not in rule.rests), key=lambda name: name in rule.optional)
    return [*inputs, *(output for op in rule.source for output in op.outputs)]


def _most_dimensions(rule: Rule, tried: Sequence[Trial]) -> int:
    shapes = (trial.placed.binding.shapes.get(name, ()) for trial in tried for name in _tensors(rule))
    return max(map(len, shapes), default=0)


def _plain(variable: str, values: set[str]) -> Iterator[str]:
    """What is plain for an attribute of these values, as they are written: one, or zero, everywhere; one of two."""
    if values <= {"True", "False"}:
        yield from (f"{variable} == 1", f"{variable} == 0")
        return
    for number in ("1", "0"):
        yield f"{variable} == {number}"
        lengths = {value.count(",") + (not value.endswith(",)")) for value in values if value.startswith("(")}
        for length in sorted(lengths):
            yield f"{variable} == ({', '.join([number] * length)}{',' * (length == 1)})"
    yield from (f"{variable} == {value}" for value in sorted(values) if len(values) < 5)
