"""Proofs: what follows is proved with the axioms it takes, wrong rules never are; and each axiom holds where it is tried."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from case_files import cases
from place_rules import rule

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import GraphError
from iossim.ir.op import Op
from iossim.ir.types import DType, TensorType
from iossim.proving.axioms import axioms, equations
from iossim.proving.congruence import Congruence, Symbol, Term
from iossim.proving.prover import Proof, prove
from iossim.proving.refute import compare
from iossim.proving.sampling import samples
from iossim.proving.symbolic import Arithmetic, Claim, Tuple, integer, same
from iossim.proving.symbolic_types import typed
from iossim.transforms.rewriting.instance import ConditionFailsError, NotMadeError, Placed, place
from iossim.transforms.rewriting.rule import Rule
from iossim.transforms.rewriting.rule_sets import rule_set

CASES = cases(__file__, "rules.yaml")
PROVED = {name: (rule(*parts), set(axioms)) for name, (axioms, *parts) in CASES["proved"].items()}
WRONG = {name: rule(*parts) for name, parts in CASES["unproved"].items()}


@pytest.mark.parametrize("name", PROVED)
def test_what_follows_is_proved(name: str) -> None:
    tried, axioms = PROVED[name]
    found = prove(tried)
    assert found.proved, found.reason
    assert set(found.axioms) == axioms


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_not_proved(name: str) -> None:
    found = prove(WRONG[name])
    assert not found.proved
    assert found.reason


def test_unknown_says_why() -> None:
    strange = prove(rule("z = softmax(x, axis=0)", "u = softmax(x, axis=0); z = softmax(u, axis=0)", "z: z"))
    assert strange == Proof(False, "no derivation: axioms say nothing more of its terms; no axioms of softmax")
    nowhere = prove(rule("z = relu(x)", "z = relu(x)", "z: z", "len(x.shape) == 2", "x.shape == (1, 2, 3)"))
    assert nowhere == Proof(False, "its conditions and ops allow no shapes at all")
    truth = prove(rule("z = reduce(x, function='sum', axes=(0,), keepdims=len(x.shape) == 2)", "z = relu(x)", "z: z"))
    assert truth == Proof(False, "len(x.shape) == 2 has no value for symbolic arithmetic")
    assert "out of time" in prove(PROVED["columns of one matrix"][0], seconds=0.0).reason
    assert "relu of *r" in prove(rule("a = concat(*r, axis=0); z = relu(a)", "z = relu(*r)", "z: z")).reason


def test_rests_and_what_is_left_out_are_tried_each_way() -> None:
    assert prove(rule("z = conv(x, w, b?)", "z = conv(x, w)", "z: z")).reason.startswith("no derivation")
    assert prove(rule("z = add(x, *r)", "z = add(*r, x)", "z: z")) == Proof(True, "", ("add-commutes",))
    assert prove(rule("z = conv(x, w, b?)", "z = conv(x, w, b)", "z: z")).proved, "a bias that is left out is zeros"


def test_rules_that_ship_are_proved() -> None:
    some = {"enlarge-3x3-to-5x5", "identity-beside-sum", "fold-shift", "merge-products", "flatten-of-flatten"}
    some.add("split-of-concat-of-3")
    rules = [each for name in ("metaflow", "simplify") for each in rule_set(name) if each.name in some]
    assert {each.name for each in rules if prove(each).proved} == some


@pytest.mark.slow
def test_all_of_metaflow_is_proved() -> None:
    assert [each.name for each in rule_set("metaflow") if not prove(each, 120.0).proved] == []


def test_equal_arguments_make_equal_terms() -> None:
    congruence = Congruence()
    a, b, c = (congruence.add(Term(Symbol(name), ())) for name in "abc")
    fa, fb = (congruence.add(Term(Symbol("f"), (each,))) for each in (a, b))
    gfa, gfb = (congruence.add(Term(Symbol("g"), (each, c))) for each in (fa, fb))
    assert congruence.find(gfa) != congruence.find(gfb)
    assert congruence.merge(a, b)
    assert congruence.find(gfa) == congruence.find(gfb)
    assert not congruence.merge(fa, fb)
    assert congruence.merge(fa, a), "a term may be equal to its own argument"
    assert congruence.get(Term(Symbol("f"), (fb,))) == congruence.find(a)
    assert congruence.get(Term(Symbol("g"), (c, c))) is None


def test_arithmetic_of_unknowns() -> None:
    arithmetic = Arithmetic()
    x, w = Tuple.unknown("x", 2), Tuple.unknown("w", 2)
    g, h = (Tuple.unknown(name, 1).at(0) for name in "gh")
    channels = arithmetic.times(w.at(1), g)
    arithmetic.assume(Claim(x.at(1) == channels), Claim(w.at(1) >= 1), Claim(x.at(1) == arithmetic.times(h, w.at(1))))
    assert arithmetic.knows(g == h)
    assert arithmetic.knows(arithmetic.quotient(x.at(1), w.at(1)) == g)
    assert not arithmetic.knows(g >= 1)
    assert arithmetic.value_of(arithmetic.times(integer(3), integer(4))) == 12


def test_tuples_of_unknown_length() -> None:
    arithmetic = Arithmetic()
    a, b, c = (Tuple.unknown(name) for name in "abc")
    arithmetic.assume(same(a, b), same(b, c))
    assert arithmetic.knows(same(a, c))
    d = Tuple.unknown("d")
    assert not arithmetic.knows(same(a, d))
    arithmetic.assume(Claim(d.length == a.length), Claim(d.at(0) == a.at(0)), Claim(d.at(1) == a.at(1)))
    assert not arithmetic.knows(same(a, d)), "some places are not all"


#: Ops that ONNX has for floating-point numbers only, or that scale by one.
REAL = {"average_pool", "global_average_pool", "batch_norm", "gemm", "sigmoid", "unary"}
WHOLE = (DType.INT8, DType.UINT8, DType.INT32, DType.INT64)
AXIOMS = [pytest.param(axiom, id=axiom.name) for axiom in axioms()]


def places(axiom: Rule, count: int, seed: int = 0, dtype: DType = DType.FLOAT64) -> Iterator[Placed]:
    """Places of an axiom; a single number, which the sampler does not think of, takes the place of another tensor."""
    scalars = [str(each.left.of.tensor) for each in axiom.conditions if str(each).endswith(".shape) == 0")]  # type: ignore[attr-defined]
    wider = replace(axiom, conditions=tuple(each for each in axiom.conditions if not str(each).endswith("== 0")))
    if not scalars:
        yield from samples(axiom, count, seed, dtype)
        return
    for placed in samples(wider, count, seed, dtype):
        try:
            yield place(axiom, placed.attributes, {**placed.shapes, **dict.fromkeys(scalars, ())}, dtype)
        except NotMadeError:
            continue


def tried(axiom: Rule, count: int, seed: int = 0) -> int:
    """Places where both sides took their inputs; they agreed."""
    found = 0
    for number, placed in enumerate(places(axiom, count, seed)):
        try:
            difference = compare(placed, seed * count + number)
        except ConditionFailsError:
            continue
        if difference is None:
            found += 1
        else:
            # What does not fit on one side is not claimed: proofs show of each op that it takes its inputs.
            assert difference.element is None, f"{axiom}\n{difference}"
    return found


@pytest.mark.parametrize("axiom", AXIOMS)
def test_an_axiom_holds(axiom: Rule) -> None:
    assert tried(axiom, 4)


@pytest.mark.slow
@pytest.mark.parametrize("axiom", AXIOMS)
def test_an_axiom_holds_wherever_it_is_tried(axiom: Rule) -> None:
    found = tried(axiom, 100, 1)
    # Where few places fit an axiom, a hundred more are drawn.
    assert found >= 5 or found + tried(axiom, 100, 2) >= 5


def typed_axioms() -> Iterator[Any]:
    """Each axiom with the element types that its ops take."""
    for axiom in axioms():
        real = any(op.kind in REAL for op in (*axiom.source, *axiom.target))
        for dtype in (DType.FLOAT32, DType.FLOAT16, *(() if real else WHOLE)):
            yield pytest.param(axiom, dtype, id=f"{axiom.name}-{dtype}")


@pytest.mark.slow
@pytest.mark.parametrize(("axiom", "dtype"), list(typed_axioms()))
def test_an_axiom_holds_for_other_element_types(axiom: Rule, dtype: DType) -> None:
    found = 0
    for number, placed in enumerate(places(axiom, 25, 3, dtype)):
        try:
            target = placed.target()
        except NotMadeError:
            continue
        random = np.random.default_rng(number)
        values = {
            name: random.integers(1, 4, placed.source.types[name].shape).astype(dtype.numpy)
            for name in placed.source.inputs
        }
        with np.errstate(all="ignore"):
            made, by = (evaluate_graph(graph, values) for graph in (placed.source, target))
        for one, other in zip(placed.source.outputs, target.outputs, strict=True):
            assert made[one].dtype == by[other].dtype
            if dtype.is_floating:
                largest = float(np.abs(made[one].astype(np.float64)).max())
                error = {DType.FLOAT32: 1e-5, DType.FLOAT16: 1e-2}[dtype] * largest
                np.testing.assert_allclose(made[one].astype(np.float64), by[other].astype(np.float64), 0, error)
            else:
                np.testing.assert_array_equal(made[one], by[other])
        found += 1
    assert found


def test_every_axiom_can_be_read_in_a_direction() -> None:
    assert {equation.axiom for equation in equations()} == {axiom.name for axiom in axioms()}


def shapes_of(op: Op, inputs: list[tuple[int, ...]]) -> list[tuple[int, ...]] | None:
    """Output shapes that proofs know of an op at known shapes; None where they do not know that it takes its inputs."""
    arithmetic = Arithmetic()

    def known(sizes: tuple[int, ...]) -> Tuple:
        return Tuple.of([integer(size) for size in sizes])

    attributes = {
        name: known(each) if isinstance(each, tuple) and op.kind != "unary" else each
        for name, each in op.attributes().items()
    }
    if "axis" in attributes:
        attributes["axis"] %= len(inputs[0])
    found = typed(op.kind, attributes, [known(shape) for shape in inputs], arithmetic)
    if found is None or not all(arithmetic.knows(claim) for claim in found.needs):
        return None
    return [tuple(arithmetic.value_of(size) for size in shape.items or ()) for shape in found.outputs]  # type: ignore[misc]


def inferred(op: Op, inputs: list[tuple[int, ...]]) -> list[tuple[int, ...]] | None:
    try:
        made = [value.shape for value in op.infer([TensorType(shape) for shape in inputs])]
    except GraphError:
        return None
    return made if all(min(shape, default=1) >= 1 for shape in made) else None


def test_filters_that_groups_do_not_divide_are_refused() -> None:
    grouped = Op.from_attributes("conv", {"groups": 2})
    assert shapes_of(grouped, [(1, 4, 5, 5), (6, 2, 3, 3)]) == [(1, 6, 3, 3)]
    assert shapes_of(grouped, [(1, 4, 5, 5), (3, 2, 3, 3)]) is None


def with_another_size(shapes: list[tuple[int, ...]], random: Random) -> list[tuple[int, ...]]:
    other = [list(shape) for shape in shapes]
    changed = random.choice(other)
    if changed:
        changed[random.randrange(len(changed))] = random.randint(1, 4)
    else:
        changed.append(2)
    return [tuple(shape) for shape in other]


@pytest.mark.parametrize(("cases", "seed", "most"), [(2, 0, 4), pytest.param(25, 1, 200, marks=pytest.mark.slow)])
def test_proofs_know_shapes_as_ops_infer_them(cases: int, seed: int, most: int) -> None:
    """For each kind of op up to ``most`` uses, and as many with one size changed."""
    random = Random(seed)
    kinds = Counter[str]()
    for axiom in axioms():
        for placed in places(axiom, cases, seed) if any(kinds[op.kind] < most for op in axiom.source) else ():
            for node in placed.source.nodes:
                inputs = [placed.source.types[name].shape for name in node.inputs]
                tried = [inputs, with_another_size(inputs, random)][: 1 if node.op.kind == "slice" else 2]
                for shapes in tried if kinds[node.op.kind] < most else ():
                    if (known := shapes_of(node.op, shapes)) is not None:
                        kinds[node.op.kind] += shapes is inputs
                        assert known == inferred(node.op, shapes), (node.op, shapes)
    wanted = {"add", "concat", "matmul", "conv", "transpose", "pad", "split", "gemm", "reshape", "batch_norm"}
    assert wanted <= kinds.keys()
