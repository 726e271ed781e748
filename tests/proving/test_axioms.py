"""Axioms are true: each is tried at random shapes and attributes, over a prime field, real numbers and other element types.

What an op says of shapes to proofs is what it says in ``infer``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from iossim.base.errors import GraphError
from iossim.ir.graph import Graph
from iossim.ir.op import Op
from iossim.ir.types import DType, TensorType
from iossim.proving.axioms import axioms, equations
from iossim.proving.refute import compare
from iossim.proving.sampling import samples
from iossim.proving.symbolic import Arithmetic, Tuple, integer
from iossim.proving.symbolic_types import typed
from iossim.transforms.rewriting.instance import ConditionFailsError, NotMadeError, Placed, place
from iossim.transforms.rewriting.rule import Rule

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
        shapes: dict[str, Any] = {name: value and value.shape for name, value in placed.types.items()}  # type: ignore[union-attr]
        try:
            yield place(axiom, placed.attributes, shapes | dict.fromkeys(scalars, ()), dtype)
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
        made, by = run(placed.source, values), run(target, values)
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


def run(graph: Graph, inputs: dict[str, Any]) -> dict[str, Any]:
    values = {**inputs, **{name: constant.load() for name, constant in graph.constants.items()}}
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            values.update(zip(node.outputs, node.op.evaluate([values[name] for name in node.inputs]), strict=True))
    return values


def test_every_axiom_can_be_read_in_a_direction() -> None:
    assert {equation.axiom for equation in equations()} == {axiom.name for axiom in axioms()}


def shapes_of(op: Op, inputs: list[tuple[int, ...]]) -> list[tuple[int, ...]] | None:
    """What proofs know of an op at known shapes; None where they do not know that it takes its inputs."""
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


def check_shapes(cases: int, seed: int, most: int) -> None:
    """Of each kind of op up to ``most`` uses, and as many where one size is another."""
    random = Random(seed)
    kinds = Counter[str]()
    for axiom in axioms():
        if all(kinds[op.kind] >= most for op in axiom.source):
            continue
        for placed in places(axiom, cases, seed):
            for node in placed.source.nodes:
                inputs = [placed.source.types[name].shape for name in node.inputs]
                if kinds[node.op.kind] >= most:
                    continue
                known = shapes_of(node.op, inputs)
                if known is not None:
                    kinds[node.op.kind] += 1
                    assert known == inferred(node.op, inputs), (node.op, inputs)
                other = [list(shape) for shape in inputs]
                changed = random.choice(other)
                if changed:
                    changed[random.randrange(len(changed))] = random.randint(1, 4)
                else:
                    changed.append(2)
                shapes = [tuple(shape) for shape in other]
                if node.op.kind != "slice" and (known := shapes_of(node.op, shapes)) is not None:
                    assert known == inferred(node.op, shapes), (node.op, shapes)
    assert {"add", "concat", "matmul", "conv", "transpose", "pad", "split", "gemm", "reshape", "batch_norm"} <= set(
        kinds
    )


def test_proofs_know_shapes_as_ops_infer_them() -> None:
    check_shapes(2, 0, 4)


@pytest.mark.slow
def test_proofs_know_shapes_as_ops_infer_them_at_many() -> None:
    check_shapes(25, 1, 200)
