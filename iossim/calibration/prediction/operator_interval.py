"""How far the prediction of one operator may be off: the band of its kind in the profile, or an honest prior.

Kinds that were never measured take the band of the nearest kind whose kernels are like theirs; where there is none, one of
:data:`PRIOR_BANDS`. Those are judgements, not measurements: of a profile that is calibrated, they say how well kernels
are foretold that resemble none of those fitted; of one that is not, what the defaults missed by on four GPUs that they
were not fitted to kind by kind (5th to 95th percentile of measured over predicted).
"""

from __future__ import annotations

from collections.abc import Mapping

from iossim.calibration.prediction.bands import band_of, key_of, kind_of
from iossim.hardware.profile import DeviceProfile
from iossim.hardware.provenance import Band, Provenance
from iossim.ir.op import Op
from iossim.ir.ops.nary import FUNCTIONS as NARY
from iossim.ir.ops.unary import FUNCTIONS as UNARY
from iossim.ir.types import Precision
from iossim.measurements.operator import Operator

_PRODUCTS = ("gemm", "linear", "bmm", "matmul")
_ELEMENTWISE = ("add", "relu", "concat", "mul", "clip", "sigmoid", "identity", "gelu", "tanh", *UNARY, *NARY)
_NORMALISATIONS = ("layer_norm", "rms_norm")
_SOFTMAX = ("softmax", "log_softmax")
_POOLS = ("max_pool", "average_pool")
#: Kinds whose kernels are alike, nearest first.
ALIKE = (_PRODUCTS, _ELEMENTWISE, _POOLS, _NORMALISATIONS, _SOFTMAX)

_WIDE = Band(rows=0, low=0.4, high=2.5)
#: Bands without any measurement, by whether the profile is fitted to (or taken over from) other measurements. The last of
#: each is for all other kinds: depthwise convolutions, pooling, reduced precision.
PRIOR_BANDS: Mapping[bool, Mapping[str, Band]] = {
    True: {
        "conv": Band(rows=0, low=0.65, high=1.6),
        **dict.fromkeys((*_PRODUCTS, *_ELEMENTWISE), Band(rows=0, low=0.65, high=1.6)),
        "": Band(rows=0, low=0.5, high=2.0),
    },
    False: {
        "conv": Band(rows=0, low=0.6, high=1.8),
        **dict.fromkeys(_ELEMENTWISE, Band(rows=0, low=0.6, high=1.8)),
        **dict.fromkeys(_PRODUCTS, _WIDE),
        "": _WIDE,
    },
}


def interval(operator: Operator, gpu_time_us: float, profile: DeviceProfile) -> tuple[float, float]:
    """Where nine of ten measurements of an operator are expected, for a predicted time in microseconds."""
    kind = kind_of(operator.op, operator.kind)
    band = measured_over_predicted(kind, operator.precision, gpu_time_us, profile.provenance)
    return gpu_time_us * band.low, gpu_time_us * band.high


def band_of_op(op: Op, precision: Precision, predicted_us: float, provenance: Provenance) -> Band:
    """The band of an op of a network."""
    return measured_over_predicted(kind_of(op), precision, predicted_us, provenance)


def measured_over_predicted(kind: str, precision: Precision, predicted_us: float, provenance: Provenance) -> Band:
    """The band of a kind of operators at a predicted time."""
    alike = next((kinds for kinds in ALIKE if kind in kinds), ())
    for near in (kind, *alike):
        bands = provenance.bands.get(key_of(near, precision))
        if bands:
            return band_of(bands, predicted_us)
    priors = PRIOR_BANDS[provenance.kind != "hand-set"]
    return priors.get(kind, priors[""]) if precision is Precision.FP32 else priors[""]
