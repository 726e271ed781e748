"""Verification of a rule: it is tried on random tensors, restricted by the conditions that it lacks, and proved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import combinations
from multiprocessing import get_context
from operator import and_

from iossim.base.errors import OptionError
from iossim.ir.op import Role, op_class
from iossim.proving.refute import Trial, trials
from iossim.proving.verdict_checker import remember
from iossim.transforms.rewriting.expression import Expression, Variable, parse_expression
from iossim.transforms.rewriting.instance import holds
from iossim.transforms.rewriting.rule import Rule, tensor_of
from iossim.transforms.rewriting.verdict import OUT_OF_TIME, Counterexample, Verdict, Verification, recall

#: No more conditions against one kind of failure: what takes more is hardly a rule that lacks a condition.
_MOST = 3
#: Number of words that exclude different failures and are combined.
_WIDEST = 40
#: Places that have to be left.
_FEWEST_KEPT = 3


#: For each condition, as text, whether it holds at each place, in the order in which they were tried.
Memory = dict[str, list[bool]]


def missing_conditions(rule: Rule, tried: Sequence[Trial], memory: Memory) -> tuple[Expression, ...] | None:
    """Conditions that exclude all failures of ``tried``; None where the vocabulary has none that leave enough.

    Wrong values are excluded first, then shapes that the target does not take. If no conditions exclude the latter,
    they are tolerated: a rule is not applied where its target does not fit. ``memory`` is of the call before, with
    fewer places.
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
    left = misfits & _together(chosen)
    more = _weakest(words, left, held & _together(chosen), 0) if left else None
    chosen += more or ()
    needed = _without_needless(chosen, wrong | misfits & ~_together(chosen))
    return tuple(word.condition for word in sorted(needed, key=words.index))


def without_broadcasting(
    rule: Rule, conditions: Sequence[Expression], tried: Sequence[Trial]
) -> tuple[Expression, ...]:
    """The conditions, and that no sum or product of the source broadcasts, less those that follow from this at all
    places of ``tried``: proofs take less where shapes are equal. As they are where no place is like that.
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


def _together(words: Iterable[_Word]) -> int:
    """The places where all of the words hold."""
    return reduce(and_, (word.holds for word in words), -1)


def _weakest(words: Sequence[_Word], failures: int, held: int, besides: int) -> list[_Word] | None:
    """The conjunction that excludes ``failures`` and keeps most of ``held``; of equal ones that with fewer words,
    then with plainer ones, then that which excludes more ``besides``, then the first.
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
            places = _together(chosen)
            odd = sum(word.oddity for word in chosen)
            rank = ((held & places).bit_count(), -count, -odd, -(besides & places).bit_count())
            if not failures & places and rank[0] >= _FEWEST_KEPT and (best is None or rank > best[0]):
                best = rank, list(chosen)
    return None if best is None else best[1]


def _without_needless(chosen: list[_Word], failures: int) -> list[_Word]:
    """The chosen words without those that the others make superfluous."""
    for word in list(chosen):
        others = [other for other in chosen if other is not word]
        if not failures & _together(others):
            chosen = others
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
    """Two tensors have equal sizes along an axis, or after one; a tensor has a given number of dimensions."""
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
    """Tensors that have one shape: inputs first, the optional ones last among them, then what the source makes."""
    inputs = sorted((name for name in rule.inputs if name not in rule.rests), key=lambda name: name in rule.optional)
    return [*inputs, *(output for op in rule.source for output in op.outputs)]


def _most_dimensions(rule: Rule, tried: Sequence[Trial]) -> int:
    shapes = (trial.placed.binding.shapes.get(name, ()) for trial in tried for name in _tensors(rule))
    return max(map(len, shapes), default=0)


def _plain(variable: str, values: set[str]) -> Iterator[str]:
    """Plain conditions on an attribute of these values, as they are written: one, or zero, everywhere; one of two."""
    if values <= {"True", "False"}:
        yield from (f"{variable} == 1", f"{variable} == 0")
        return
    for number in ("1", "0"):
        yield f"{variable} == {number}"
        lengths = {value.count(",") + (not value.endswith(",)")) for value in values if value.startswith("(")}
        for length in sorted(lengths):
            yield f"{variable} == ({', '.join([number] * length)}{',' * (length == 1)})"
    yield from (f"{variable} == {value}" for value in sorted(values) if len(values) < 5)


#: Places where a rule is tried, and again under the conditions that were found.
CASES = 60
#: CPU seconds that the proof of one rule may take.
PROOF_SECONDS = 20.0
#: How often conditions are sought and tried, each time with the failures before, and how often they must be right.
_ROUNDS, _CONFIRMED = 8, 2


def verify(rule: Rule, seconds: float = PROOF_SECONDS) -> Verification:
    """The verdict on a rule, found anew; a proof takes at most ``seconds`` of CPU.

    *Proved*: its sides compute the same wherever both take their inputs and the conditions hold: its own and those
    that were found. *Refuted*: there is a counterexample, and no proof under the conditions that exclude it, if there
    are any.
    *Unknown*: neither, or it was never seen at work.
    """
    start = time.perf_counter()
    return replace(_verified(rule, seconds), seconds=time.perf_counter() - start)


def verify_all(
    rules: Sequence[Rule],
    seconds: float = PROOF_SECONDS,
    workers: int = 1,
    anew: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Verification]:
    """The verdicts on rules in order: those that were kept where they can be trusted, unless ``anew``, others found
    and kept. ``workers`` processes find them, the same ones for any number of workers.
    """
    kept = [None if anew else recall(rule) for rule in rules]
    open_rules = [rule for rule, known in zip(rules, kept, strict=True) if known is None]
    found = _verify_each(open_rules, seconds, workers)
    for done, (rule, trusted) in enumerate(zip(rules, kept, strict=True)):
        progress(done, len(rules))
        verification = trusted or next(found)
        if trusted is None and OUT_OF_TIME not in verification.reason:  # that says more of the machine than of the rule
            remember(rule, verification)
        yield verification
    progress(len(rules), len(rules))


def _verify_each(rules: Sequence[Rule], seconds: float, workers: int) -> Iterator[Verification]:
    if workers < 2 or len(rules) < 2:
        yield from (verify(rule, seconds) for rule in rules)
        return
    # Not forked: threads of NumPy's libraries do not survive that.
    with ProcessPoolExecutor(min(workers, len(rules)), get_context("spawn")) as pool:
        try:
            yield from pool.map(partial(verify, seconds=seconds), rules)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _verified(rule: Rule, seconds: float) -> Verification:
    tried = list(trials(rule, CASES))
    failures = [trial.counterexample for trial in tried if trial.counterexample is not None]
    if not tried:
        return Verification(Verdict.UNKNOWN, "no shapes were found that its source takes and its conditions allow")
    if not failures:
        return _proof(rule, (), tried, None, seconds)
    # A wrong value says more than shapes that do not fit.
    first = next((each for each in failures if each.element is not None), failures[0])
    if len(failures) == len(tried):
        shapes = "its sides have other shapes" if all(each.element is None for each in failures) else "it is wrong"
        return Verification(Verdict.REFUTED, f"{shapes} wherever it was tried: {first.reason}", (), first)
    conditions = _conditions_that_hold(rule, tried)
    if conditions is None:
        return Verification(Verdict.REFUTED, f"{first.reason}; nothing was found that excludes this", (), first)
    found = _proof(rule, conditions, tried, first, seconds)
    if found.verdict is Verdict.PROVED or first.element is None:
        return found
    return replace(
        found, verdict=Verdict.REFUTED, reason=f"as it stands, {first.reason}; {found.reason}", conditions=()
    )


def _proof(
    rule: Rule, conditions: tuple[Expression, ...], tried: Sequence[Trial], first: Counterexample | None, seconds: float
) -> Verification:
    """Proved under the conditions, or at least where no sum or product broadcasts besides, else unknown.

    Raises OptionError where z3 is not installed.
    """
    try:
        from iossim.proving.prover import prove
    except ModuleNotFoundError as error:
        if error.name != "z3":
            raise
        raise OptionError("proving a rule needs z3, which is not installed; pip install 'iossim[rules]'") from None
    reason = ""
    for under in dict.fromkeys((conditions, without_broadcasting(rule, conditions, tried))):
        proof = prove(rule.under(under), seconds)
        if proof.proved:
            return Verification(Verdict.PROVED, proof.reason, tuple(map(str, under)), first, proof.axioms)
        reason = reason or proof.reason
    texts = tuple(map(str, conditions))
    where = f" where {' and '.join(texts)}" if texts else ""
    return Verification(Verdict.UNKNOWN, f"never seen to fail{where}, but there is no proof: {reason}", texts, first)


def _conditions_that_hold(rule: Rule, tried: Sequence[Trial]) -> tuple[Expression, ...] | None:
    """Conditions under which the rule did not fail at places other than those used to find them; None if none were
    found. Under them the target may still not take its inputs; a rule is not applied there.
    """
    known = list(tried)
    before: tuple[Expression, ...] | None = None
    confirmed, memory = 0, Memory()
    for turn in range(_ROUNDS):
        conditions = missing_conditions(rule, known, memory)
        if conditions is None:
            return None
        again = list(trials(rule.under(conditions), CASES, seed=turn + 1))
        failures = [trial.counterexample for trial in again if trial.counterexample is not None]
        if len(failures) == len(again):
            return None
        only_shapes = all(each.element is None for each in failures)
        is_right = not failures or (only_shapes and conditions == before)
        confirmed = (confirmed if conditions == before else 0) + is_right
        if confirmed == _CONFIRMED:
            return conditions
        before, known = conditions, [*known, *again]
    return None
