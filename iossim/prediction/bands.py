"""Band of a prediction: the range of measured over predicted times of operators of its kind.

A kind that was never measured takes the band of the nearest kind with similar kernels, or else one of ``bands.yaml``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from iossim.base.shipped_yaml import shipped
from iossim.hardware.profile import DeviceProfile
from iossim.hardware.provenance import Band
from iossim.ir.op import Op
from iossim.ir.ops.conv import Conv
from iossim.ir.types import Precision

#: Precisions whose kernels are the same.
_SAME_KERNELS = {Precision.FP16: (Precision.BF16,), Precision.BF16: (Precision.FP16,)}
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


def band_at(bands: Sequence[Band], predicted_us: float) -> Band:
    """The one of a kind's bands, by ascending predicted time, that a time is in."""
    return next(band for band in bands if band.up_to_us is None or predicted_us <= band.up_to_us)


def measured_over_predicted(kind: str, precision: Precision, predicted_us: float, profile: DeviceProfile) -> Band:
    """Band of a kind of operators at a predicted time; its ``rows`` are 0 if none of that precision were measured.

    FP16 and BF16 run by the same kernels. What runs on FP32 lanes only moves fewer bytes in a reduced precision.
    """
    provenance, known = profile.provenance, unmeasured()
    family, alike = families().get(kind, (kind, ()))
    factors: dict[Precision, float] = dict.fromkeys((precision, *_SAME_KERNELS.get(precision, ())), 1.0)
    if family not in known["tensor_cores"]:
        factors.setdefault(Precision.FP32, known["stored_otherwise"])
    for stored, factor in factors.items():
        for near in (kind, *alike):
            if bands := provenance.bands.get(key_of(near, stored)):
                wider = factor * (known["new_chip"] if provenance.kind == "transferred" else 1.0)
                band = band_at(bands, predicted_us)
                return band if wider == 1.0 else Band(rows=0, low=band.low / wider, high=band.high * wider)
    priors = known["priors"]["hand-set" if provenance.kind == "hand-set" else "fitted"]
    if precision is not Precision.FP32:
        is_old = profile.architecture in known["generations"].split() and precision in known["precisions"].split()
        priors = {"others": priors["others"]} | known["tensor_cores" if is_old else "new_tensor_cores"]
    low, high = priors.get(family, priors["others"])
    return Band(rows=0, low=low, high=high)


@cache
def unmeasured() -> dict[str, Any]:
    """Contents of ``bands.yaml``: priors and factors for operators without any measurement."""
    found: dict[str, Any] = shipped("iossim.prediction", "bands.yaml")
    return found


@cache
def families() -> dict[str, tuple[str, list[str]]]:
    """The family of each kind, and the kinds of that family, nearest first."""
    listed = {name: kinds.split() for name, kinds in unmeasured()["alike"].items()}
    return {kind: (name, kinds) for name, kinds in listed.items() for kind in kinds}
