"""Inputs that are given, reference outputs that are kept, and what outputs may differ by."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from precisions import stored_in
from quantised_networks import QUANTISED
from random_networks import random_inputs, random_network, random_schedule
from small_networks import of_op

from benchmarks.gpu_report_references import kept_outputs
from iossim.backends.numpy_reference.execute import numpy_outputs
from iossim.base.errors import GraphError
from iossim.execution.backends import create_backend
from iossim.execution.made_inputs import check_inputs
from iossim.execution.measured_run import output_difference
from iossim.execution.tolerance import LEAST, Difference, largest_difference, tolerance
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.ops.matmul import MatMul
from iossim.ir.types import DType, Precision, TensorType


class Counted:
    """NumPy's outputs, and for how many networks they were asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, network: Network, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        self.asked += 1
        return numpy_outputs(network, inputs)


def test_equal_work_is_computed_once_for_all_processes(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "references"
    first, second = Counted(), Counted()
    found = kept_outputs(first, folder)(random_network(3), random_inputs(random_network(3)))
    again = kept_outputs(second, folder)(random_network(3), random_inputs(random_network(3)))
    assert (first.asked, second.asked) == (1, 0)
    assert found.keys() == again.keys() != set()
    for name, array in found.items():
        np.testing.assert_array_equal(again[name], array)


def test_other_inputs_networks_and_weights_are_other_work(tmp_path: Path) -> None:
    def named(name: str) -> Network:
        builder = GraphBuilder("one")
        x = builder.input("x", (1, 3, 8, 8))
        return builder.network([builder.conv(x, 4, kernel=3, padding=1, name=name)])

    counted = Counted()
    outputs = kept_outputs(counted, tmp_path)
    for network, seed in ((named("a"), 0), (named("a"), 1), (named("b"), 0), (random_network(3), 0)):
        outputs(network, random_inputs(network, seed))
    outputs(named("b"), random_inputs(named("b"), 0))
    assert counted.asked == 4


def test_what_cannot_be_read_is_computed_anew(tmp_path: Path) -> None:
    counted = Counted()
    network = random_network(3)
    outputs = kept_outputs(counted, tmp_path)
    found = outputs(network, random_inputs(network))
    (path,) = tmp_path.iterdir()
    for broken in (b"", b"no archive", path.read_bytes()[:100]):
        path.write_bytes(broken)
        again = outputs(network, random_inputs(network))
        np.testing.assert_array_equal(again[network.graph.outputs[0]], found[network.graph.outputs[0]])
    assert counted.asked == 4


def test_schedules_are_held_to_the_reference_that_is_given(tmp_path: Path) -> None:
    network = random_network(5)
    backend = create_backend("numpy_reference")
    counted = Counted()
    reference = kept_outputs(counted, tmp_path)
    made = [output_difference(network, random_schedule(network, seed), backend, reference) for seed in range(3)]
    assert max(each.relative for each in made) < 1e-5
    assert counted.asked == 1

    def off(network: Network, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return {name: array * 1.5 for name, array in reference(network, inputs).items()}

    found = output_difference(network, random_schedule(network, 0), backend, off)
    assert found.relative == pytest.approx(1 / 3, rel=1e-3)


TYPES = {"x": TensorType((1, 3, 4), DType.FLOAT32), "n": TensorType((2,), DType.INT64)}
N = np.zeros(2, np.int64)


def test_what_fits_passes_and_what_is_more_is_nobodys_business() -> None:
    check_inputs({"x": np.zeros((1, 3, 4), np.float32), "n": N, "other": N}, TYPES)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"n": N}, "no array for input 'x'"),
        ({"n": N, "x": np.zeros((1, 3, 5), np.float32)}, r"input 'x' is float32\[1x3x5\]; give an array of "),
        ({"n": N, "x": np.zeros((1, 3, 4), np.float64)}, r"input 'x' is float64\[1x3x4\]; give an array of "),
    ],
)
def test_what_does_not_fit_is_named(inputs: dict[str, Array], said: str) -> None:
    with pytest.raises(GraphError, match=said):
        check_inputs(inputs, TYPES)


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
