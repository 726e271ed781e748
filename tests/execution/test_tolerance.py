"""What outputs may differ by, and where they differ most."""

from __future__ import annotations

import numpy as np
import pytest
from precisions import stored_in
from quantised_networks import QUANTISED
from small_networks import of_op

from iossim.execution.tolerance import LEAST, Difference, largest_difference, tolerance
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.matmul import MatMul
from iossim.ir.types import Precision


def chain(length: int, depth: int) -> Network:
    b = GraphBuilder("chain")
    value = b.input("x", (2, depth))
    for index in range(length):
        value = b.add(MatMul(), value, b.constant(f"w{index}", (depth, depth)))
    return b.network([value])


def test_tolerance_grows_with_rounding_and_depth() -> None:
    product = of_op(MatMul(), (2, 64), weights=((64, 8),))
    assert tolerance(product) == LEAST
    half, brain = (tolerance(stored_in(product, each)) for each in (Precision.FP16, Precision.BF16))
    assert half == pytest.approx(4 * (2**-11 + 8 * 2**-24))
    assert brain == pytest.approx(4 * (2**-8 + 8 * 2**-24))
    assert tolerance(product, Precision.TF32) == half
    short = tolerance(stored_in(product, Precision.FP16), sums=Precision.FP16)
    assert short == pytest.approx(4 * (2**-11 + 8 * 2**-11))
    assert tolerance(stored_in(chain(9, 64), Precision.BF16)) == pytest.approx(3 * brain)


def test_whole_numbers_are_rounded_as_8_bits_are() -> None:
    assert tolerance(QUANTISED["convolution"]()) == pytest.approx(4 * 3**0.5 * (2**-8 + 54**0.5 * 2**-24))


def test_the_largest_difference_says_where_and_how_much() -> None:
    wanted = {"a": np.array([[1.0, -4.0]], np.float32), "b": np.array([0.5, 1.0], np.float16)}
    got = {"a": np.array([[1.5, -4.0]], np.float32), "b": np.array([0.25, 1.0], np.float16)}
    found = largest_difference(got, wanted)
    assert found == Difference("b", (0,), 0.25, 0.5, 0.25)
    assert str(found) == "b[0] is 0.25 instead of 0.5, off by 0.25 of the largest value"
    assert str(largest_difference(wanted, wanted)) == "equal"


def test_what_is_not_finite_differs_most() -> None:
    wanted = {"a": np.array([1.0, 2.0, np.inf], np.float32)}
    got = {"a": np.array([9.0, np.nan, np.inf], np.float32)}
    found = largest_difference(got, wanted)
    assert (found.index, found.relative) == ((1,), float("inf"))
    assert str(found) == "a[1] is nan instead of 2"
    both = {"a": np.array([1.0, 2.0, np.inf], np.float32)}
    assert largest_difference(both, wanted).relative == 0
