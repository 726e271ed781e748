"""Verdicts: proved, with the conditions that lack where some do, refuted, unknown; kept while they can be trusted."""

import ast
import json
import os
from collections import Counter
from dataclasses import fields, replace
from importlib import resources
from math import ceil
from pathlib import Path
from random import Random

import pytest
from place_rules import ASSOCIATIVE, MERGED, rule

from iossim.base.errors import IossimError
from iossim.ir.op import op_class
from iossim.proving import verdict_checker as verdicts
from iossim.proving import verify as verifying
from iossim.proving.refute import replay, trials
from iossim.proving.verdict_checker import CHECKER, remember, written
from iossim.proving.verify import missing_conditions, verify, verify_all
from iossim.transforms.rewriting.expression import (
    Arithmetic,
    Expression,
    Literal,
    Sequence,
    Shape,
    Variable,
    parse_expression,
)
from iossim.transforms.rewriting.instance import holds
from iossim.transforms.rewriting.rule import PatternOp, Rule, tensor_of
from iossim.transforms.rewriting.rule_sets import rule_set
from iossim.transforms.rewriting.verdict import OUT_OF_TIME, Verdict, Verification, recall

#: Kinds that take the same inputs.
_ALIKE = [{"add", "mul", "matmul", "concat"}, {"relu", "sigmoid", "identity", "softmax"}, {"max_pool", "average_pool"}]


def mutated(rule: Rule, random: Random) -> Rule | None:
    """The rule with one thing changed; None where the change makes no rule, or none that is another."""
    side = random.choice(("source", "target"))
    ops: tuple[PatternOp, ...] = getattr(rule, side)
    if not ops:
        return None
    place = random.randrange(len(ops))
    change = random.choice((_other_attribute, _other_input, _other_kind, _other_output))
    try:
        if change is _other_output:
            changed = _other_output(rule, random)
        else:
            tensors = [*rule.inputs, *(name for op in ops[:place] for name in op.outputs)]
            changed = replace(rule, **{side: (*ops[:place], change(ops[place], tensors, random), *ops[place + 1 :])})
    except (IossimError, IndexError):
        return None
    return None if changed.hash == rule.hash else changed


def _other_attribute(op: PatternOp, tensors: list[str], random: Random) -> PatternOp:
    given = dict(op.attributes)
    name = random.choice([each.name for each in fields(op_class(op.kind))])
    default = next(each.default for each in fields(op_class(op.kind)) if each.name == name)
    before = given.get(name, Sequence(tuple(map(Literal, default))) if isinstance(default, tuple) else Literal(default))
    given[name] = _other_value(before, random)
    return replace(op, attributes=tuple(given.items()))


def _other_value(value: Expression, random: Random) -> Expression:
    match value:
        case Literal(bool() as truth):
            return Literal(not truth)
        case Literal(int() as number):
            return Literal(number + random.choice((-1, 1)))
        case Literal(float() as number):
            return Literal(number * 2 + 1)
        case Sequence(items):
            place = random.randrange(len(items))
            return Sequence((*items[:place], _other_value(items[place], random), *items[place + 1 :]))
        case Variable():
            return Literal(1)
        case Shape():
            return Literal(2)
    return Arithmetic(random.choice("+-"), value, Literal(1))


def _other_input(op: PatternOp, tensors: list[str], random: Random) -> PatternOp:
    inputs = list(op.inputs)
    place = random.randrange(len(inputs))
    if len(inputs) > 1 and random.random() < 0.4:
        other = random.randrange(len(inputs))
        inputs[place], inputs[other] = inputs[other], inputs[place]
    else:
        inputs[place] = random.choice([name for name in tensors if name != tensor_of(inputs[place])])
    return replace(op, inputs=tuple(inputs))


def _other_kind(op: PatternOp, tensors: list[str], random: Random) -> PatternOp:
    kinds = sorted(next(alike for alike in _ALIKE if op.kind in alike) - {op.kind}) if _has_alike(op.kind) else []
    kind = random.choice(kinds)
    known = {each.name for each in fields(op_class(kind))}
    return replace(op, kind=kind, attributes=tuple((name, value) for name, value in op.attributes if name in known))


def _has_alike(kind: str) -> bool:
    return any(kind in alike for alike in _ALIKE)


def _other_output(rule: Rule, random: Random) -> Rule:
    place = random.randrange(len(rule.outputs))
    made = [name for op in rule.target for name in op.outputs]
    source, target = rule.outputs[place]
    other = random.choice([name for name in (*made, *rule.inputs) if name != target])
    return replace(rule, outputs=(*rule.outputs[:place], (source, other), *rule.outputs[place + 1 :]))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own."""
    monkeypatch.setenv("IOSSIM_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_proved_as_it_is() -> None:
    found = verify(ASSOCIATIVE)
    assert (found.verdict, found.conditions, found.counterexample) == (Verdict.PROVED, (), None)
    assert "matmul-associates" in found.axioms


def test_groups_are_found_to_be_missing() -> None:
    found = verify(MERGED)
    assert found.verdict is Verdict.PROVED
    assert found.conditions == ("g == 1", "h == 1")
    assert found.counterexample is not None
    assert replay(found.counterexample, MERGED) == found.counterexample
    again = verify(found.restricted(MERGED))
    assert (again.verdict, again.conditions) == (Verdict.PROVED, ())


def test_equal_sizes_are_found_to_be_missing() -> None:
    merged = rule(
        "s = mul(a, b); t = mul(c, d); y = concat(s, t, axis=0)",
        "u = concat(a, c, axis=0); v = concat(b, d, axis=0); y1 = mul(u, v)",
        "y: y1",
    )
    found = verify(merged)
    assert found.verdict is Verdict.PROVED
    assert found.conditions == ("a.shape == b.shape", "c.shape == d.shape")
    tried = list(trials(merged, 60))
    missing = missing_conditions(merged, tried, {})
    assert missing is not None
    for trial in tried:
        assert not holds(missing, trial.placed.binding) or trial.counterexample is None


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (
            rule("y = concat(a, b, axis=0)", "y1 = concat(a, a, b, axis=0)", "y: y1"),
            "its sides have other shapes wherever it was tried: y is [",
        ),
        (rule("y = relu(x)", "y1 = sigmoid(x)", "y: y1"), "it is wrong wherever it was tried: y["),
    ],
    ids=["shapes", "values"],
)
def test_wrong_everywhere_is_refuted(wrong: Rule, reason: str) -> None:
    found = verify(wrong)
    assert found.verdict is Verdict.REFUTED
    assert found.reason.startswith(reason)


def test_what_never_fits_is_unknown() -> None:
    found = verify(ASSOCIATIVE.under([parse_expression("a.shape[1] < b.shape[0]")]))
    assert found.verdict is Verdict.UNKNOWN
    assert found.reason.startswith("no shapes were found")


def test_what_no_axiom_says_is_unknown_with_the_reason() -> None:
    found = verify(
        rule("t = unary(x, function='erf'); y = relu(t)", "u = relu(x); y1 = unary(u, function='erf')", "y: y1")
    )
    assert found.verdict is Verdict.UNKNOWN
    assert found.reason.startswith("never seen to fail, but there is no proof: ")


# --- kept -----------------------------------------------------------------------------------------------------------


def test_verdicts_are_kept_and_trusted_while_the_checker_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert recall(MERGED) is None
    (found,) = verify_all([MERGED])
    assert recall(MERGED) == replace(found, seconds=round(found.seconds, 3))
    monkeypatch.setattr(verifying, "verify", None)  # it is not verified again
    assert recall(ASSOCIATIVE) is None
    monkeypatch.setattr(verdicts, "checker_hash", lambda: "another")
    assert recall(MERGED) is None


def test_a_proof_that_ends_for_its_seconds_says_so_and_is_not_kept() -> None:
    (found,) = verify_all([ASSOCIATIVE], seconds=0.0)
    assert (found.verdict, found.reason.endswith(OUT_OF_TIME)) == (Verdict.UNKNOWN, True)
    assert recall(ASSOCIATIVE) is None


@pytest.mark.parametrize("text", ["", "[]", '{"checker": 1}', "{", "null"])
def test_a_damaged_verdict_is_none(cache: Path, text: str) -> None:
    remember(MERGED, Verification(Verdict.PROVED, "", conditions=("g == 1",)))
    (file,) = (cache / "verdicts").iterdir()
    assert recall(MERGED) is not None
    file.parent.chmod(0o777)  # anybody may have called it proved
    assert recall(MERGED) is None
    file.parent.chmod(0o700)
    file.write_text(text or file.read_text().replace("g == 1", "g =="))
    assert recall(MERGED) is None


def test_verdicts_rest_on_all_modules_that_find_them() -> None:
    """The list of what a verdict is trusted with names every module of its packages that verification imports."""
    reached, open_names = set(), ["iossim.proving.verify"]
    while open_names:
        name = open_names.pop()
        if name in reached:
            continue
        reached.add(name)
        package, _, file = name.rpartition(".")
        for node in ast.walk(ast.parse((resources.files(package) / f"{file}.py").read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(tuple(f"{one}." for one in CHECKER)):
                open_names.append(str(node.module))
    keeping = {"iossim.proving.verdict_checker", "iossim.transforms.rewriting.verdict"}
    reached -= {*keeping, "iossim.transforms.rewriting.rule_file"}  # they keep verdicts, and read axioms
    files = {f"{package}.{name}" for package, names in CHECKER.items() for name in names if name.endswith(".py")}
    assert files == {f"{name}.py" for name in reached}


def test_workers_find_the_same() -> None:
    rules = [ASSOCIATIVE, rule("y = relu(x)", "t = relu(x); y1 = relu(t)", "y: y1")]
    alone = [replace(each, seconds=0.0) for each in verify_all(rules, anew=True)]
    together = [replace(each, seconds=0.0) for each in verify_all(rules, workers=2, anew=True)]
    assert alone == together
    assert json.loads(written(zip(rules, alone, strict=True)))["verdicts"].keys() == {each.hash for each in rules}


# --- the published rules ------------------------------------------------------------------------------------------

WRONG = {99, 100, 130, 131}
UNGROUPED = {98, 105, *range(125, 130)}


def published(shared: Path) -> tuple[Rule, ...]:
    return rule_set(str(shared / "data" / "substitutions" / "taso_graph_subst.pb"))


@pytest.mark.parametrize("index", sorted(WRONG | UNGROUPED))
def test_published_rules_that_are_wrong_as_they_are(shared: Path, index: int) -> None:
    wrong = published(shared)[index]
    tried = [trial.counterexample for trial in trials(wrong, 40)]
    counterexample = next(each for each in tried if each is not None and each.element is not None)
    assert replay(counterexample, wrong) == counterexample


@pytest.mark.slow
def test_all_published_rules(shared: Path) -> None:
    rules = published(shared)
    found = list(verify_all(rules, workers=2, anew=True))
    refuted = {index for index, each in enumerate(found) if each.verdict is Verdict.REFUTED}
    assert refuted == WRONG
    for index in WRONG:  # as they stand; the reason names what would have to hold
        assert found[index].reason.startswith("as it stands, s2[")
        assert "never seen to fail where g0 == g1 and w10.shape == w11.shape" in found[index].reason
    assert sum(each.verdict is Verdict.PROVED for each in found) >= 117
    for index in UNGROUPED:
        assert {"g0 == 1", "g1 == 1"} <= set(found[index].conditions)
    for rule_, each in zip(rules, found, strict=True):
        if each.counterexample is not None:
            assert replay(each.counterexample, rule_) == each.counterexample


# --- mutations ----------------------------------------------------------------------------------------------------


def sound_rules(shared: Path) -> list[Rule]:
    taken = [rule_ for index, rule_ in enumerate(published(shared)) if index not in WRONG | UNGROUPED]
    return [*taken, *rule_set("simplify"), *rule_set("metaflow")]


def check_mutations(rules: list[Rule], count: int, seed: int) -> Counter[str]:
    """Verify so many mutations. None that is proved may differ at places which its verification did not see, and what refutes
    does so again. Returns how often each verdict was given.
    """
    random = Random(seed)
    verdicts: Counter[str] = Counter()
    while verdicts.total() < count:
        changed = mutated(random.choice(rules), random)
        if changed is None:
            continue
        found = verify(changed, seconds=20)
        verdicts[found.verdict] += 1
        if found.counterexample is not None:
            assert replay(found.counterexample, changed) == found.counterexample, changed
        if found.verdict is Verdict.PROVED:
            elsewhere = trials(found.restricted(changed), 200, seed=seed + 1_000_000)
            wrong = [
                each for trial in elsewhere if (each := trial.counterexample) is not None and each.element is not None
            ]
            assert not wrong, f"{changed} is proved where {found.conditions}, but {wrong[0].reason}"
    return verdicts


def test_wrong_mutations_are_not_proved(shared: Path) -> None:
    check_mutations(sound_rules(shared), 4, seed=3)


#: How many mutations are tried in the slow tier, in parts; and which part is the first, so that a thousand can be tried in slices.
MUTATIONS = int(os.environ.get("IOSSIM_MUTATIONS", "25"))
FIRST_PART = int(os.environ.get("IOSSIM_FIRST_MUTATIONS", "0"))
PART = 25


@pytest.mark.slow
@pytest.mark.parametrize("part", range(FIRST_PART, FIRST_PART + ceil(MUTATIONS / PART)))
def test_random_mutations(shared: Path, part: int) -> None:
    found = check_mutations(sound_rules(shared), PART, seed=1000 + part)
    print(f"part {part}: {', '.join(f'{count} {verdict}' for verdict, count in sorted(found.items()))}")  # shown by -rP
