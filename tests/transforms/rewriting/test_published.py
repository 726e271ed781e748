"""TASO's protobuf file: each operator as ours, and one clear error for whatever is none."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from iossim.transforms.rewriting.rule import RuleError
from iossim.transforms.rewriting.rule_file import read_rules, write_rules
from iossim.transforms.rewriting.rule_sets import messages, read_published

CONV, RELU, CONCAT, SPLIT, EWADD, MATMUL = 3, 8, 12, 13, 16, 18
#: Parameters of a 3x3 convolution with padding that keeps the size: without an activation, and with a relu.
PLAIN = {4: 3, 5: 3, 6: 1, 7: 1, 8: 0, 9: 0}
WITH_RELU = {**PLAIN, 9: 2}
Operator = tuple[int, Sequence[tuple[int, int]], dict[int, int]]


TASO = SimpleNamespace(**messages())


def operator(kind: int, inputs: Sequence[tuple[int, int]], parameters: dict[int, int]) -> Any:
    return TASO.Operator(
        type=kind,
        input=[TASO.Tensor(opId=made, tsId=output) for made, output in inputs],
        para=[TASO.Parameter(key=key, value=value) for key, value in parameters.items()],
    )


def encoded(source: list[Operator], target: list[Operator], *mapped: tuple[int, int, int, int]) -> bytes:
    names = ("srcOpId", "dstOpId", "srcTsId", "dstTsId")
    rule = TASO.Rule(
        srcOp=[operator(*each) for each in source],
        dstOp=[operator(*each) for each in target],
        mappedOutput=[TASO.MapOutput(**dict(zip(names, each, strict=True))) for each in mapped],
    )
    return rules_of(rule)


def rules_of(rule: Any) -> bytes:
    return bytes(TASO.RuleCollection(rule=[rule]).SerializePartialToString())


def concat(*inputs: tuple[int, int], axis: int, rank: int = 4) -> Operator:
    return CONCAT, inputs, {1: len(inputs), 11: axis, 10: rank}


MERGE = encoded(
    [(CONV, [(-7, 0), (-10, 0)], PLAIN), (RELU, [(0, 0)], {}), (CONV, [(-7, 0), (-11, 0)], WITH_RELU)],
    [concat((-10, 0), (-11, 0), axis=0), (CONV, [(-7, 0), (0, 0)], WITH_RELU), (SPLIT, [(1, 0)], {2: 2, 11: 1})],
    (1, 2, 0, 0),
    (2, 2, 0, 1),
)
PRODUCTS = encoded(
    [(MATMUL, [(-1, 0), (-4, 0)], {9: 0}), (MATMUL, [(-2, 0), (-4, 0)], {9: 0})],
    [concat((-1, 0), (-2, 0), axis=0, rank=2), (MATMUL, [(0, 0), (-4, 0)], {9: 0}), (SPLIT, [(1, 0)], {2: 2, 11: 0})],
    (0, 2, 0, 0),
    (1, 2, 0, 1),
)


def test_a_merge_of_convolutions() -> None:
    (rule,) = read_published(MERGE, "mine.pb")
    assert str(rule).splitlines() == [
        "taso-000:",
        "  s0 = conv(x7, w10, strides=(1, 1), pads=(1, 1, 1, 1), groups=g0)",
        "  s1 = relu(s0)",
        "  s2_linear = conv(x7, w11, strides=(1, 1), pads=(1, 1, 1, 1), groups=g1)",
        "  s2 = relu(s2_linear)",
        "=>",
        "  t0 = concat(w10, w11, axis=0)",
        "  t1_linear = conv(x7, t0, strides=(1, 1), pads=(1, 1, 1, 1), groups=x7.shape[1] // t0.shape[1])",
        "  t1 = relu(t1_linear)",
        "  t2_0, t2_1 = split(t1, axis=1, sizes=(w10.shape[0], w11.shape[0]))",
        "  s1 -> t2_0",
        "  s2 -> t2_1",
        "  if w10.shape[2:] == (3, 3)",
        "  if w11.shape[2:] == (3, 3)",
    ]
    assert rule.origin == "TASO's published rules, number 0 from 0"


def test_products_are_of_matrices() -> None:
    _, rule = read_published(MERGE + PRODUCTS, "mine.pb")
    assert rule.name == "taso-001"
    assert str(rule.target[-1]) == "t2_0, t2_1 = split(t1, axis=0, sizes=(x1.shape[0], x2.shape[0]))"
    assert [str(each) for each in rule.conditions] == [f"len({name}.shape) == 2" for name in ("x1", "x4", "x2")]


def test_a_split_of_a_source_binds_its_sizes() -> None:
    source: list[Operator] = [(SPLIT, [(-7, 0)], {2: 2, 11: 1}), concat((0, 0), (0, 1), axis=1)]
    (rule,) = read_published(encoded(source, [], (1, -7, 0, 0)), "mine.pb")
    assert str(rule.source[0]) == "s0_0, s0_1 = split(x7, axis=1, sizes=sizes)"
    assert rule.outputs == (("s1", "x7"),)


RELU_OF_RELU: list[Operator] = [(RELU, [(-1, 0)], {}), (RELU, [(0, 0)], {})]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "rules mine.pb: holds no rule; give a rule set of TASO's (.pb), or a .yaml file"),
        (MERGE[:-1], "not a rule set of TASO's, or damaged"),
        (MERGE + b"\x80", "not a rule set of TASO's, or damaged"),
        (b"\xff" * 11, "not a rule set of TASO's, or damaged"),
        (b"\x0b", "not a rule set of TASO's, or damaged"),
        (b"\x08\x01", "holds no rule"),
        (b"rule: mine\nsource:\n", "not a rule set of TASO's, or damaged"),
        (encoded([(7, [(-1, 0)], {})], RELU_OF_RELU, (0, 0, 0, 0)), "operator s0 is of type 7, which no published rule has"),
        (encoded([(RELU, [(1, 0)], {})], RELU_OF_RELU, (0, 0, 0, 0)), "output 0 of operator 1 is read, which nothing before"),
        (encoded(RELU_OF_RELU, RELU_OF_RELU, (0, 0, 0, 1)), "output 1 of operator 0 is read"),
        (encoded(RELU_OF_RELU, RELU_OF_RELU), "rule 'taso-000': maps no outputs"),
        (encoded([(RELU, [(-1, 0)], {9: 1})], [], (0, -1, 0, 0)), "operator s0 has the activation 1"),
        (encoded([concat((-1, 0), axis=0)], [], (0, -1, 0, 0)), "operator s0 has 1 inputs and 1 outputs"),
        (encoded([(SPLIT, [(-1, 0)], {2: 1 << 40, 11: 0})], [], (0, -1, 0, 0)), "has 1 inputs and 1099511627776 outputs"),
        (encoded([(CONCAT, [(-1, 0), (-2, 0)], {10: 4})], [], (0, -1, 0, 0)), "an operator of type 12 lacks its parameter 11"),
        (encoded([(CONV, [(-1, 0), (-2, 0)], {**PLAIN, 6: 2})], [], (0, -1, 0, 0)), "has kernel (3, 3), strides (2, 1) and"),
        (encoded(RELU_OF_RELU, [(SPLIT, [(-1, 0)], {2: 2, 11: 0})], (0, 0, 0, 0)), "a split of x1 along axis 0 undoes no"),
        (rules_of(TASO.Rule(srcOp=[TASO.Operator()])), "it lacks rule[0].srcOp[0].type;"),
        (rules_of(TASO.Rule(srcOp=[TASO.Operator(type=8, input=[TASO.Tensor(opId=1)])])), "it lacks rule[0].srcOp[0].input[0].tsId"),
    ],
)  # fmt: skip
def test_what_is_no_rule_set_is_one_line(data: bytes, words: str) -> None:
    with pytest.raises(RuleError) as caught:
        read_published(data, "mine.pb")
    said = str(caught.value)
    assert said.startswith("rules mine.pb: ")
    assert words in said


def test_damage_is_always_an_error_of_the_file_or_another_rule() -> None:
    draw = random.Random(5)
    said: list[str] = []
    for _ in range(400):
        data = bytearray(MERGE + PRODUCTS)
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        try:
            rules = read_published(bytes(data[: draw.randrange(len(data) + 1)]), "mine.pb")
        except RuleError as error:
            said.append(str(error))
        else:
            assert read_rules(write_rules(rules), "mine") == rules
    assert len(said) > 300
    assert all(each.startswith("rules mine.pb: ") for each in said)


def test_every_rule_of_the_published_set(shared: Path) -> None:
    data = (shared / "data" / "substitutions" / "taso_graph_subst.pb").read_bytes()
    rules = read_published(data, "taso")
    assert len(rules) == len({rule.hash for rule in rules}) == 133
    kinds = Counter(kind for rule in rules for kind in {op.kind for op in rule.source + rule.target})
    assert kinds.keys() == {"add", "concat", "conv", "matmul", "mul", "relu", "split"}
    assert kinds["conv"] == 40
    assert all(len(rule.outputs) in (1, 2) and rule.target for rule in rules)
    assert read_rules(write_rules(rules), "taso") == rules
