"""Every op kind in torch: one small function a kind, in a file for each family.

What ONNX has and torch's own function does not (padding that differs before and behind, wide padding, dilated
averages, slices backwards) is spelled out with padding and flips.
"""

# Importing a family registers its functions.
from iossim.backends.torch_cuda.operators import axes, elementwise, movement, products, windows  # noqa: F401
from iossim.backends.torch_cuda.operators.registry import Operand, apply, covers

__all__ = ["Operand", "apply", "covers"]
