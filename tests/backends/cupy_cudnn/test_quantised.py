"""Whole numbers with scales on the host's device: sums are exact, and what is rounded is NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from host_device import HostDriver
from host_library import HostLibrary
from hypothesis import given, settings
from hypothesis import strategies as st
from quantised_networks import QUANTISED, convolution, scales, whole
from random_networks import random_inputs, sequential_schedule

from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend
from iossim.backends.cupy_cudnn.options import CudnnOptions
from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.base.errors import say_once
from iossim.execution.backend import BackendError
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule
from iossim.execution.tolerance import largest_difference, tolerance
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.quantize import Quantize, QuantizedConv, QuantizedMatMul
from iossim.ir.types import DType, Precision


def agree(network: Network, *, has_plans: bool = True) -> HostLibrary:
    """Outputs are NumPy's, but for a step where scales multiply in fp32; the library, with all that it was asked for."""
    driver = HostDriver()
    library = HostLibrary(driver) if has_plans else HostLibrary(driver, lambda _: {})
    backend = CupyCudnnBackend(Precision.FP32, Engine.GRAPH, CudnnOptions(), driver, library)
    inputs = random_inputs(network)
    plan = lower_schedule(sequential_schedule(network), network, Engine.GRAPH, choices=backend.choices(network))
    outputs = backend.execute(network, plan, inputs)
    for name, array in evaluate_graph(network.graph, inputs).items():
        found = outputs[name]
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        if array.dtype.kind == "f":
            off = np.abs(found - array) > 1e-5 * np.abs(array).max()
        else:
            off = found != array
            np.testing.assert_allclose(found, array, rtol=0, atol=1, err_msg=name)
            assert array.size == 1 or len(np.unique(array)) > 2, "so that something is compared"
        assert off.mean() <= 0.01, name
    found_most = largest_difference(outputs, evaluate_graph(network.graph, inputs))
    assert found_most.relative <= tolerance(network), found_most
    return library


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("has_plans", [True, False])
def test_every_form_of_whole_numbers(name: str, has_plans: bool) -> None:
    library = agree(QUANTISED[name](), has_plans=has_plans)
    assert {asked.dtype for asked in library.asked} <= {DType.INT8}
    assert all(asked.last for asked in library.asked)


@settings(max_examples=30)
@given(data=st.data(), has_plans=st.booleans())
def test_convolutions_of_any_parameters(data: st.DataObject, has_plans: bool) -> None:
    numbers = st.integers(1, 3)
    size, strides, dilations = (tuple(data.draw(st.tuples(numbers, numbers))) for _ in range(3))
    pads, groups = tuple(data.draw(st.integers(0, 2)) for _ in range(4)), data.draw(st.sampled_from([1, 2, 4]))
    x_type = data.draw(
        st.sampled_from([(np.uint8, 0), (np.uint8, 128), (np.uint8, 255), (np.int8, -128), (np.int8, 0)])
    )
    y_type = data.draw(st.sampled_from([(np.uint8, 100), (np.int8, 5)]))
    op = QuantizedConv(strides, pads, dilations, groups)
    network = convolution(
        op, (2, 4, 8, 9), (8, 4 // groups, *size), x_type, (np.int8, 0), y_type, bias=data.draw(st.booleans())
    )
    agree(network, has_plans=has_plans)


def test_the_library_is_asked_for_what_it_can_pad() -> None:
    """Images around the middle of uint8 are padded by the library, others lie padded."""
    for name, padded in (("convolution around the middle", True), ("convolution", False)):
        asked = agree(QUANTISED[name]()).asked
        assert {any(each.pad_before) for each in asked} == {padded}


def _computed_filters() -> Network:
    b = GraphBuilder("computed")
    own = scales(b, "own", 0.1, 0, np.int8)
    x, w = (b.add(Quantize(), b.input(name, (2, 2, 1, 1)), *own) for name in ("x", "w"))
    return b.network([b.add(QuantizedConv(), x, *own, w, *own, *own, name="op")])


def _far_zero() -> Network:
    b = GraphBuilder("far")
    own, far = scales(b, "own", 0.1, 0, np.uint8), scales(b, "far", 0.1, 3, np.uint8)
    x = b.add(Quantize(), b.input("x", (2, 3)), *own)
    return b.network([b.add(QuantizedMatMul(), x, *own, b.numbers("w", whole(0, (3, 9), np.uint8)), *far, *own)])


def test_filters_that_are_computed_run_on_the_host(caplog: pytest.LogCaptureFixture) -> None:
    say_once.cache_clear()
    agree(_computed_filters())
    assert "(op 'op') runs on the host, by NumPy, and the GPU waits: 'quantize_1' is computed" in caplog.text


def test_what_cannot_be_computed_is_named() -> None:
    says = r"'w' less its zero point is -\d to 2\d\d, which int8 does not hold; quantise it symmetrically, or"
    with pytest.raises(BackendError, match=says) as error:
        agree(_far_zero())
    assert "\n" not in str(error.value)
