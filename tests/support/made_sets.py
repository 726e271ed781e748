"""Measurement sets whose errors are known, because they are made from predictions."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from operators import parse_description

from iossim.hardware.load import device
from iossim.measurements.measurement import Header, Measurement, MeasurementSet, Operator
from iossim.prediction.predict import predict

DEVICE = "v100-sxm2"

_SHAPES = (
    *(f"conv batch={n} in_channels=64 out_channels=128 kernel=3 in_size=28 stride=1 padding=1" for n in range(1, 41)),
    *(f"gemm m={96 * n} n=512 k=1024 trans_a=N trans_b=T" for n in range(1, 41)),
    *(f"relu rows={97 * n * n} cols=4096" for n in range(1, 41)),
)


@cache
def shapes() -> tuple[Operator, ...]:
    """Convolutions, dense products and activations, small and large."""
    return tuple(parse_description(text) for text in _SHAPES)


@cache
def predicted_us() -> tuple[float, ...]:
    """What the device's profile says of each shape."""
    return tuple(each.gpu_time_us for each in predict(shapes(), device(DEVICE)))


def made_set(
    error: Callable[[Operator], float] = lambda operator: 1.0, offset_us: float = 0.0, **header: Any
) -> MeasurementSet:
    """Every shape measured as ``error`` times its prediction, and ``offset_us`` more."""
    rows = (
        Measurement(operator, us * error(operator) + offset_us, row)
        for row, (operator, us) in enumerate(zip(shapes(), predicted_us(), strict=True))
    )
    return MeasurementSet(Header(device=DEVICE, data_set="made", **header), tuple(rows))


def with_latencies(measured: MeasurementSet, factor: Callable[[Measurement], float]) -> MeasurementSet:
    """The same set with each latency multiplied."""
    rows = (replace(row, latency_us=row.latency_us * factor(row)) for row in measured.measurements)
    return replace(measured, measurements=tuple(rows))


def noise(seed: int, size: float) -> Callable[[Operator], float]:
    """Factors around 1 that depend on the shape alone."""
    generator = np.random.default_rng(seed)
    factors = dict(
        zip((each.key for each in shapes()), np.exp(size * generator.standard_normal(len(shapes()))), strict=True)
    )
    return lambda operator: float(factors[operator.key])
