"""Given inputs are held to their types, in one line that names the input."""

from __future__ import annotations

import numpy as np
import pytest

from iossim.base.errors import GraphError
from iossim.execution.made_inputs import check_inputs
from iossim.ir.op import Array
from iossim.ir.types import DType, TensorType

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
