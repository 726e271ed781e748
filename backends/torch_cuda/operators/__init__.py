"""Every op kind in torch: one small function per kind, in a file for each family.

Features of ONNX that torch's own function lacks (asymmetric or wide padding, dilated averages, backward slices) are
built from padding and flips.
"""

# Importing a family registers its functions.
from iossim.backends.torch_cuda.operators import arithmetic, movement, products, windows  # noqa: F401
from iossim.backends.torch_cuda.operators.registry import OnHost, Operand, apply, covers

__all__ = ["OnHost", "Operand", "apply", "covers"]
