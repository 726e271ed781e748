"""Families of operators with similar kernels: those left out of a fit together, and those with published errors."""

from __future__ import annotations

from collections.abc import Mapping

#: Kinds (keys of bands) by the family that a fit leaves out.
KERNEL_FAMILIES: Mapping[str, frozenset[str]] = {
    "convolutions": frozenset({"conv", "depthwise", "conv_transpose"}),
    "products": frozenset({"linear", "gemm", "bmm"}),
    "element-wise": frozenset({"add", "mul", "relu", "gelu", "tanh"}),
    "normalisations": frozenset({"softmax", "layer_norm"}),
}
#: Kinds by the family with published errors.
PUBLISHED_FAMILIES: Mapping[str, frozenset[str]] = {
    "bmm": frozenset({"bmm"}),
    "linear": frozenset({"linear"}),
    "elementwise": KERNEL_FAMILIES["element-wise"],
    "softmax": frozenset({"softmax"}),
    "layer_norm": frozenset({"layer_norm"}),
}
