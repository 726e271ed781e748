"""Is a rule right? It is tried on random tensors, gets the conditions that it lacks, and is proved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context

from iossim.transforms.rewriting.expression import Expression
from iossim.transforms.rewriting.missing_conditions import Memory, missing_conditions, without_broadcasting
from iossim.transforms.rewriting.prover import OUT_OF_TIME, prove
from iossim.transforms.rewriting.refute import Counterexample, Trial, trials
from iossim.transforms.rewriting.rule import Rule
from iossim.transforms.rewriting.verdict import Verdict, Verification, recall, remember

#: Places where a rule is tried, and again under the conditions that were found.
CASES = 60
#: Of CPU that the proof of one rule may take.
PROOF_SECONDS = 20.0
#: Times that conditions are sought, each time with the failures of those before, and tried; and how often they must be right.
_ROUNDS, _CONFIRMED = 8, 2


def verify(rule: Rule, seconds: float = PROOF_SECONDS, cases: int = CASES) -> Verification:
    """The verdict on a rule, found anew; a proof takes at most ``seconds`` of CPU.

    *Proved*: its sides compute the same wherever both take their inputs and the conditions hold: its own and those that were
    found. *Refuted*: there is a counterexample, and no proof under the conditions that exclude it, if there are any.
    *Unknown*: neither, or it was never seen at work.
    """
    start = time.perf_counter()
    return replace(_verified(rule, seconds, cases), seconds=time.perf_counter() - start)


def verify_all(
    rules: Sequence[Rule],
    seconds: float = PROOF_SECONDS,
    workers: int = 1,
    anew: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Verification]:
    """The verdicts on rules in order: those that were kept where they can be trusted, unless ``anew``, others found and kept.

    ``workers`` processes find them, the same ones for any number of workers.
    """
    kept = [None if anew else recall(rule) for rule in rules]
    open_rules = [rule for rule, known in zip(rules, kept, strict=True) if known is None]
    found = _verify_each(open_rules, seconds, workers)
    for done, (rule, trusted) in enumerate(zip(rules, kept, strict=True)):
        progress(done, len(rules))
        verification = trusted or next(found)
        if (
            trusted is None and OUT_OF_TIME not in verification.reason
        ):  # that says more of the machine than of the rule
            remember(rule, verification)
        yield verification
    progress(len(rules), len(rules))


def proved(rules: Sequence[Rule], seconds: float = PROOF_SECONDS, workers: int = 1) -> tuple[Rule, ...]:
    """Those of the rules that are proved, each under all its conditions: what may be applied."""
    verdicts = zip(rules, verify_all(rules, seconds, workers), strict=True)
    return tuple(found.restricted(rule) for rule, found in verdicts if found.verdict is Verdict.PROVED)


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


def _verified(rule: Rule, seconds: float, cases: int) -> Verification:
    tried = list(trials(rule, cases))
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
    conditions = _conditions_that_hold(rule, tried, cases)
    if conditions is None:
        return Verification(Verdict.REFUTED, f"{first.reason}; nothing was found that excludes this", (), first)
    found = _proof(rule, conditions, tried, first, seconds)
    if found.verdict is Verdict.PROVED or first.element is None:
        return found
    return replace(
        found, verdict=Verdict.REFUTED, reason=f"as it stands, {first.reason}; {found.reason}", conditions=()
    )


def _proof(
    rule: Rule,
    conditions: tuple[Expression, ...],
    tried: Sequence[Trial],
    first: Counterexample | None,
    seconds: float,
) -> Verification:
    """Proved under the conditions, or at least where no sum or product broadcasts besides, else unknown."""
    reason = ""
    for under in dict.fromkeys((conditions, without_broadcasting(rule, conditions, tried))):
        proof = prove(_under(rule, under), seconds)
        if proof.proved:
            return Verification(Verdict.PROVED, proof.reason, tuple(map(str, under)), first, proof.axioms)
        reason = reason or proof.reason
    texts = tuple(map(str, conditions))
    where = f" where {' and '.join(texts)}" if texts else ""
    return Verification(Verdict.UNKNOWN, f"never seen to fail{where}, but there is no proof: {reason}", texts, first)


def _under(rule: Rule, conditions: Iterable[Expression]) -> Rule:
    return replace(rule, conditions=tuple(dict.fromkeys((*rule.conditions, *conditions))))


def _conditions_that_hold(rule: Rule, tried: Sequence[Trial], cases: int) -> tuple[Expression, ...] | None:
    """Conditions under which the rule did not fail at places that were not looked at to find them; None where none were found.

    Under them it may happen that the target does not take its inputs; a rule is not applied there.
    """
    known = list(tried)
    before: tuple[Expression, ...] | None = None
    confirmed, memory = 0, Memory()
    for turn in range(_ROUNDS):
        conditions = missing_conditions(rule, known, memory)
        if conditions is None:
            return None
        again = list(trials(_under(rule, conditions), cases, seed=turn + 1))
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
