"""Constants that are computed when they are loaded."""

from __future__ import annotations

import numpy as np
import pytest

from iossim.base.errors import GraphError
from iossim.ir.constants import FilledConstant, IdentityConstant
from iossim.ir.ops.conv import Conv
from iossim.ir.types import DType, TensorType


def test_every_element_of_a_filled_constant_is_its_value() -> None:
    array = FilledConstant(TensorType((2, 3), DType.FLOAT16), 0.5).load()
    assert array.dtype == np.float16
    assert array.tolist() == [[0.5] * 3] * 2


@pytest.mark.parametrize(("groups", "kernel"), [(1, (1, 1)), (1, (3, 5)), (2, (3, 3)), (4, (1, 3))])
def test_a_convolution_with_the_identity_returns_its_input(groups: int, kernel: tuple[int, int]) -> None:
    weight = IdentityConstant(TensorType((4, 4 // groups, *kernel))).load()
    x = np.arange(4 * 5 * 6, dtype=np.float32).reshape(1, 4, 5, 6)
    pads = (kernel[0] // 2, kernel[1] // 2) * 2
    (y,) = Conv((1, 1), pads, (1, 1), groups).evaluate([x, weight])
    assert np.array_equal(y, x)


def test_the_identity_of_a_product_is_the_unit_matrix() -> None:
    assert np.array_equal(IdentityConstant(TensorType((3, 3))).load(), np.eye(3, dtype=np.float32))


@pytest.mark.parametrize("shape", [(3,), (2, 3), (3, 2, 1), (2, 0, 1)])
def test_there_is_no_identity_of_other_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(GraphError, match="no identity of shape"):
        IdentityConstant(TensorType(shape))
