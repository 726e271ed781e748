"""Ops on NHWC compute what those on NCHW do, for ONNX Runtime too."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_of_op import onnx_of_op, run_onnxruntime

from iossim.base.errors import GraphError
from iossim.ir.op import Array
from iossim.ir.ops.channels_last import (
    TO_FIRST,
    TO_LAST,
    AveragePoolNhwc,
    ChannelsLast,
    ConvNhwc,
    GlobalAveragePoolNhwc,
    GlobalMaxPoolNhwc,
    MaxPoolNhwc,
)
from iossim.ir.types import TensorType

CASES = [
    (ConvNhwc((2, 1), (1, 0, 2, 1), (1, 2), 2), [(6, 2, 3, 2), (6,)]),
    (ConvNhwc(), [(3, 4, 1, 1)]),
    (MaxPoolNhwc((3, 2), (2, 1), (1, 0, 1, 1), (1, 2), True), []),
    (AveragePoolNhwc((3, 3), (2, 2), (1, 1, 0, 1), True, True), []),
    (GlobalAveragePoolNhwc(), []),
    (GlobalMaxPoolNhwc(), []),
]


@pytest.mark.parametrize(("op", "weights"), CASES, ids=lambda value: getattr(value, "kind", ""))
def test_what_they_compute(op: ChannelsLast, weights: list[tuple[int, ...]]) -> None:
    random = np.random.default_rng(0)
    inputs: list[Array] = [random.standard_normal(shape, np.float32) for shape in ((2, 9, 8, 4), *weights)]
    types = [TensorType(array.shape) for array in inputs]
    first = op.channels_first
    assert op.attributes() == first.attributes()
    (y,), (made,) = op.evaluate(inputs), op.infer(types)
    (expected,) = first.evaluate([inputs[0].transpose(TO_FIRST), *inputs[1:]])
    np.testing.assert_array_equal(y, expected.transpose(TO_LAST))
    assert made == TensorType(y.shape)
    by_first = [TensorType(inputs[0].transpose(TO_FIRST).shape), *types[1:]]
    assert op.work(types, [made]) == first.work(by_first, first.infer(by_first))
    constants = range(1, len(inputs))
    (ran,) = run_onnxruntime(onnx_of_op(op, inputs, 21, constants), {"x0": inputs[0]})
    np.testing.assert_allclose(ran, y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5, 6)])
def test_images_have_two_dimensions(shape: tuple[int, ...]) -> None:
    with pytest.raises(GraphError, match="is no images of two dimensions"):
        GlobalMaxPoolNhwc().infer([TensorType(shape)])
