"""How far measured times lie from predictions: bands taken from residuals, and which band a prediction falls into."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from iossim.hardware.provenance import Band
from iossim.ir.op import Op
from iossim.ir.ops.channels_last import ChannelsLast
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.nary import Nary
from iossim.ir.ops.unary import Unary
from iossim.ir.types import Precision
from iossim.measurements.operator import Operator

Floats = NDArray[np.float64]

#: Where the buckets of predicted time end, microseconds: small kernels are predicted less well.
BUCKET_ENDS_US = (50.0, 200.0, 1000.0)
#: Residuals below this number tell no 5th and 95th percentile: with 19, these are the least and the largest.
FEWEST_RESIDUALS = 19
#: The part of measurements below a band, and above it.
TAIL = 0.05
#: The kind of depthwise and grouped convolutions: other kernels than those of the others.
DEPTHWISE = "depthwise"
#: A band holds the prediction itself, with this room: the same experiment, repeated, differs by 2 to 4%.
_LEAST_ROOM = 0.03


def band_key(operator: Operator) -> str:
    """What the bands of an operator are kept under: its kind (depthwise and grouped convolutions have their own), with
    the precision where that is not fp32."""
    return key_of(kind_of(operator.op, operator.kind), operator.precision)


def key_of(kind: str, precision: Precision) -> str:
    """See :func:`band_key`."""
    return kind if precision is Precision.FP32 else f"{kind} {precision}"


def kind_of(op: Op, kind: str = "") -> str:
    """The kind that an op counts as: ``kind`` where a table names it, the name of an element-wise function, depthwise
    convolutions for themselves, and NHWC as NCHW."""
    op = op.channels_first if isinstance(op, ChannelsLast) else op
    if isinstance(op, Conv) and op.groups > 1:
        return DEPTHWISE
    return kind or (op.function if isinstance(op, Unary | Nary) else op.kind)


def residual_bands(predicted_us: Floats, measured_us: Floats) -> list[Band]:
    """Bands from predictions and measurements, both ``[rows]``; none where there are too few.

    Buckets with too few rows join the next one, the last ones the one before. Quantiles are those that hold for the
    next measurement (rank ``p (n + 1)``, as in conformal prediction), a little wider than those of the sample.
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
    """The band of a prediction, among those of its kind."""
    return next(band for band in bands if band.up_to_us is None or predicted_us <= band.up_to_us)
