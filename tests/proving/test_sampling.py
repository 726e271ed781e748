"""Shapes and attributes are drawn as a rule takes them, and as differently as it does."""

from __future__ import annotations

import subprocess
import sys

import pytest
from some_rules import ASSOCIATIVE, MERGED, rule

from iossim.proving.sampling import samples
from iossim.transforms.rewriting.instance import holds

CONV = rule("y = conv(x, w, b?, strides=s, pads=p, dilations=d, groups=g)", "", "y: x")


def test_a_convolution_is_tried_with_all_that_it_has() -> None:
    drawn = list(samples(CONV, 80))
    assert len(drawn) == 80
    assert len({str((each.attributes, each.types)) for each in drawn}) == 80
    attributes = [each.attributes for each in drawn]
    assert {each["g"] for each in attributes} >= {1, 2}
    assert any(each["s"][0] != each["s"][1] for each in attributes)
    assert any(max(each["d"]) > 1 for each in attributes)
    assert any(each["p"][:2] != each["p"][2:] for each in attributes)
    kernels = {each.types["w"].shape[2:] for each in drawn}  # type: ignore[union-attr]
    assert {(3, 3), (1, 1)} < kernels
    assert any(size % 2 == 0 for kernel in kernels for size in kernel)
    assert {each.types["b"] is None for each in drawn} == {True, False}
    depthwise = [each for each in drawn if 1 < each.attributes["g"] == each.types["x"].shape[1]]  # type: ignore[union-attr]
    assert depthwise


def test_conditions_hold() -> None:
    for each in samples(MERGED, 30):
        assert holds(MERGED.conditions, each.binding)
    shapes = [each.binding.shapes for each in samples(ASSOCIATIVE, 30)]
    assert len({shape["a"] for shape in shapes}) > 5
    assert all(shape["a"][1] == shape["b"][0] for shape in shapes)


def test_sums_are_tried_with_broadcasting() -> None:
    drawn = list(samples(rule("y = add(a, b)", "y1 = add(b, a)", "y: y1"), 40))
    shapes = [(each.binding.shapes["a"], each.binding.shapes["b"]) for each in drawn]
    assert any(a == b for a, b in shapes)
    assert any(len(a) != len(b) for a, b in shapes)
    assert any(len(a) == len(b) and a != b for a, b in shapes)


@pytest.mark.parametrize(
    "source",
    [
        "y = concat(a, *rest, axis=n)",
        "y, z = split(a, axis=n, sizes=s)",
        "t = transpose(a, permutation=p); y = transpose(t, permutation=q)",
        "y = reshape(a, shape=s)",
        "y = gemm(a, b, c?, alpha=k, beta=l, trans_a=m, trans_b=n)",
        "y = batch_norm(a, b, c, d, e, epsilon=f)",
        "t = max_pool(a, kernel=k, strides=s, pads=p, dilations=d, ceil_mode=c); y = relu(t)",
        "y = average_pool(a, kernel=k, strides=s, pads=p, count_include_pad=c)",
        "y = pad(a, pads=p, mode=m, value=v)",
        "y = slice(a, starts=s, ends=e, axes=x, steps=t)",
        "y = layer_norm(a, b, c?, axis=n)",
        "y = conv_transpose(a, b, c?, strides=s, pads=p, groups=g)",
        "y = reduce(a, function=f, axes=x, keepdims=k)",
        "y = softmax(a, axis=n)",
        "t = conv(a, b, groups=a.shape[1]); y = conv(t, c, groups=1)",
        "y = nary(a, b, function=f)",
    ],
)
def test_ops_of_many_kinds_are_placed(source: str) -> None:
    assert len(list(samples(rule(source, "", "y: a"), 20))) >= 10


def test_where_nothing_fits_nothing_is_drawn() -> None:
    impossible = rule("y = matmul(a, b)", "", "y: a", "a.shape[1] == 2", "b.shape[0] == 3", "len(b.shape) == 2")
    assert not list(samples(impossible, 20))


def test_a_seed_draws_the_same_everywhere() -> None:
    program = (
        "from iossim.transforms.rewriting.rule_sets import rule_set; from iossim.proving.sampling import samples; "
        "print([(s.attributes, s.binding.shapes) for r in rule_set('metaflow')[:3] for s in samples(r, 6, seed=5)])"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1
