"""Families of operators whose kernels are alike: what is left out of a fit together, and what others publish errors
of.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Kinds (as bands are kept under) by the family that a fit is made without.
KERNEL_FAMILIES: Mapping[str, frozenset[str]] = {
    "convolutions": frozenset({"conv", "depthwise", "conv_transpose"}),
    "products": frozenset({"linear", "gemm", "bmm"}),
    "element-wise": frozenset({"add", "mul", "relu", "gelu", "tanh"}),
    "normalisations": frozenset({"softmax", "layer_norm"}),
}
#: Kinds by the family that errors are published of.
PUBLISHED_FAMILIES: Mapping[str, frozenset[str]] = {
    "bmm": frozenset({"bmm"}),
    "linear": frozenset({"linear"}),
    "elementwise": KERNEL_FAMILIES["element-wise"],
    "softmax": frozenset({"softmax"}),
    "layer_norm": frozenset({"layer_norm"}),
}
