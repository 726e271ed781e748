"""Band of a prediction: the range of measured over predicted times of operators of its kind.

A kind that was never measured takes the band of the nearest kind with similar kernels, or else one of ``bands.yaml``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from iossim.base.shipped_yaml import shipped
from iossim.hardware.provenance import Band, Provenance
from iossim.ir.op import Op
from iossim.ir.ops.conv import Conv
from iossim.ir.types import Precision

#: Kind of depthwise and grouped convolutions, whose kernels differ from those of others.
DEPTHWISE = "depthwise"


def key_of(kind: str, precision: Precision) -> str:
    """Key of the bands of a kind of operators: with the precision unless it is fp32."""
    return kind if precision is Precision.FP32 else f"{kind} {precision}"


def kind_of(op: Op, kind: str = "") -> str:
    """Kind that an op counts as: ``kind`` where a table names it, the name of an element-wise function, a separate one
    for depthwise convolutions, and NHWC as NCHW.
    """
    op = op.channels_first
    if isinstance(op, Conv) and op.groups > 1:
        return DEPTHWISE
    return kind or op.operation


def measured_over_predicted(kind: str, precision: Precision, predicted_us: float, provenance: Provenance) -> Band:
    """Band of a kind of operators at a predicted time."""
    family, alike = _families().get(kind, (kind, ()))
    for near in (kind, *alike):
        bands = provenance.bands.get(key_of(near, precision))
        if bands:
            return next(band for band in bands if band.up_to_us is None or predicted_us <= band.up_to_us)
    priors = _unmeasured()["priors"]["hand-set" if provenance.kind == "hand-set" else "fitted"]
    table = priors if precision is Precision.FP32 else _unmeasured()["tensor_cores"]
    low, high = table.get(family, priors["others"])
    return Band(rows=0, low=low, high=high)


@cache
def _unmeasured() -> dict[str, Any]:
    found: dict[str, Any] = shipped("iossim.prediction", "bands.yaml")
    return found


@cache
def _families() -> dict[str, tuple[str, list[str]]]:
    """The family of each kind, and the kinds of that family, nearest first."""
    listed = {name: kinds.split() for name, kinds in _unmeasured()["alike"].items()}
    return {kind: (name, kinds) for name, kinds in listed.items() for kind in kinds}
