"""Every op kind in torch: one small function a kind, in a file for each family.

What ONNX has and torch's own function does not (padding that differs before and behind, wide padding, dilated
averages, slices backwards) is spelled out with padding and flips.
"""

from iossim.backends.torch_cuda.operators import (  # noqa: F401  (importing a family registers its functions)
    elementwise,
    movement,
    normalization,
    ordering,
    products,
    quantized,
    windows,
)
from iossim.backends.torch_cuda.operators.registry import Operand, apply, covers

__all__ = ["Operand", "apply", "covers"]
