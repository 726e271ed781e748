"""Bands of measured over predicted times of operators, taken from residuals, and the band of a prediction.

A kind that was never measured takes the band of the nearest kind with similar kernels, or else one of
:data:`PRIOR_BANDS`. Those are estimates: for a calibrated profile, of the error on unlike kernels; for another, of the
error of the defaults on four GPUs (5th to 95th percentile of measured over predicted). Products and convolutions of
reduced precision have :data:`TENSOR_BANDS`, which were measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from iossim.hardware.parameters import Floats
from iossim.hardware.profile import DeviceProfile
from iossim.hardware.provenance import Band, Provenance
from iossim.ir.op import Op
from iossim.ir.ops.channels_last import ChannelsLast
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.nary import FUNCTIONS as NARY
from iossim.ir.ops.nary import Nary
from iossim.ir.ops.unary import FUNCTIONS as UNARY
from iossim.ir.ops.unary import Unary
from iossim.ir.types import Precision

if TYPE_CHECKING:
    from iossim.measurements.measurement import Operator

#: Ends of the buckets of predicted time, microseconds: small kernels are predicted less well.
BUCKET_ENDS_US = (50.0, 200.0, 1000.0)
#: Fewer residuals determine no 5th and 95th percentile: with 19, these are the least and the largest.
FEWEST_RESIDUALS = 19
#: Fraction of measurements below a band, and above it.
TAIL = 0.05
#: Kind of depthwise and grouped convolutions, whose kernels differ from those of others.
DEPTHWISE = "depthwise"
#: A band contains the prediction itself, with this margin: the same experiment, repeated, differs by 2 to 4%, and by
#: another tool on another board of the kind by 4 to 8% (copies and additions on a V100, PyTorch and Nsight Compute).
_LEAST_ROOM = 0.08


def band_key(operator: Operator) -> str:
    """Key of an operator's bands: its kind (depthwise and grouped convolutions have their own), with the precision
    unless it is fp32.
    """
    return key_of(kind_of(operator.op, operator.kind), operator.precision)


def key_of(kind: str, precision: Precision) -> str:
    """See :func:`band_key`."""
    return kind if precision is Precision.FP32 else f"{kind} {precision}"


def kind_of(op: Op, kind: str = "") -> str:
    """Kind that an op counts as: ``kind`` where a table names it, the name of an element-wise function, a separate one
    for depthwise convolutions, and NHWC as NCHW.
    """
    op = op.channels_first if isinstance(op, ChannelsLast) else op
    if isinstance(op, Conv) and op.groups > 1:
        return DEPTHWISE
    return kind or (op.function if isinstance(op, Unary | Nary) else op.kind)


def residual_bands(predicted_us: Floats, measured_us: Floats) -> list[Band]:
    """Bands from predictions and measurements, both ``[rows]``; none if there are too few.

    Buckets with too few rows join the next one, the last ones the one before. Quantiles are valid for the next
    measurement (rank ``p (n + 1)``, as in conformal prediction), a little wider than those of the sample.
    """
    if len(predicted_us) < FEWEST_RESIDUALS:
        return []
    bucket = np.searchsorted(BUCKET_ENDS_US, predicted_us, side="left")
    ratio = measured_us / predicted_us
    pending: list[Floats] = []
    bands: list[tuple[float | None, Floats]] = []
    for index, end_us in enumerate((*BUCKET_ENDS_US, None)):
        pending.append(ratio[bucket == index])
        if sum(map(len, pending)) >= FEWEST_RESIDUALS:
            bands.append((end_us, np.concatenate(pending)))
            pending = []
    rest = np.concatenate(pending) if pending else np.zeros(0)
    _, last = bands.pop()
    bands.append((None, np.concatenate([last, rest])))
    return [_band(end_us, ratios) for end_us, ratios in bands]


def _band(end_us: float | None, ratios: Floats) -> Band:
    low, high = np.quantile(ratios, [TAIL, 1 - TAIL], method="weibull").tolist()
    return Band(
        up_to_us=end_us,
        rows=len(ratios),
        low=round(max(min(low, 1 - _LEAST_ROOM), 0.01), 3),
        high=round(max(high, 1 + _LEAST_ROOM), 3),
    )


def band_of(bands: Sequence[Band], predicted_us: float) -> Band:
    """Band of a prediction, among those of its kind."""
    return next(band for band in bands if band.up_to_us is None or predicted_us <= band.up_to_us)


_PRODUCTS = ("gemm", "linear", "bmm", "matmul")
_ELEMENTWISE = ("add", "relu", "concat", "mul", "clip", "sigmoid", "identity", "gelu", "tanh", *UNARY, *NARY)
_NORMALISATIONS = ("layer_norm", "rms_norm")
_SOFTMAX = ("softmax", "log_softmax")
_POOLS = ("max_pool", "average_pool")
#: Kinds with similar kernels, nearest first.
ALIKE = (_PRODUCTS, _ELEMENTWISE, _POOLS, _NORMALISATIONS, _SOFTMAX)

_WIDE = Band(rows=0, low=0.4, high=2.5)
#: Bands without any measurement, by whether the profile is fitted to (or taken over from) other measurements. The last
#: of each is for all other kinds: depthwise convolutions, pooling, reduced precision.
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
#: Bands of tensor cores, a little wider than the 5th to 95th percentile of measured over predicted over eight boards'
#: products (0.83 to 1.27) and six boards' convolutions (0.78 to 1.46), each board counting alike.
TENSOR_BANDS: Mapping[str, Band] = {
    "conv": Band(rows=0, low=0.74, high=1.55),
    **dict.fromkeys(_PRODUCTS, Band(rows=0, low=0.8, high=1.35)),
}


def interval(operator: Operator, gpu_time_us: float, profile: DeviceProfile) -> tuple[float, float]:
    """Interval of nine in ten measurements of an operator, for a predicted time in microseconds."""
    kind = kind_of(operator.op, operator.kind)
    band = measured_over_predicted(kind, operator.precision, gpu_time_us, profile.provenance)
    return gpu_time_us * band.low, gpu_time_us * band.high


def measured_over_predicted(kind: str, precision: Precision, predicted_us: float, provenance: Provenance) -> Band:
    """Band of a kind of operators at a predicted time."""
    alike = next((kinds for kinds in ALIKE if kind in kinds), ())
    for near in (kind, *alike):
        bands = provenance.bands.get(key_of(near, precision))
        if bands:
            return band_of(bands, predicted_us)
    priors = PRIOR_BANDS[provenance.kind != "hand-set"]
    return (priors if precision is Precision.FP32 else TENSOR_BANDS).get(kind, priors[""])
