"""Measurement sets whose errors are known: made from predictions, by parameters that are known, and noise."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from operators import parse_description

from iossim.hardware.load import device
from iossim.hardware.profile import DeviceProfile, with_values
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


#: Parameters that operators of all kinds and sizes tell, away from their defaults.
TRUTH = {"gemm_efficiency": 0.7, "implicit_gemm_efficiency": 0.6, "stream_efficiency": 0.75}


def true_profile(name: str = "v100-sxm2", **given: float) -> DeviceProfile:
    """A device that ships, with other parameters."""
    return with_values(device(name), {**TRUTH, **given})


def _operators(count: int, seed: int = 0) -> list[Operator]:
    """Operators of several kinds and of all sizes, the same for equal seeds."""
    random_source = random.Random(seed)
    several: list[str] = []
    for index in range(count):
        if index % 4 == 0:
            sizes = [random_source.randint(2, 32) * 128 for _ in range(3)]
            several.append("gemm m={} n={} k={} trans_a=N trans_b=T".format(*sizes))
        elif index % 4 == 1:
            several.append(f"relu rows={random_source.randint(100, 9000)} cols={random_source.randint(100, 4000)}")
        else:
            channels = [random_source.randint(1, 12) * 32 for _ in range(2)]
            kernel = random_source.choice([1, 3, 5])
            several.append(
                f"conv batch={random_source.randint(1, 8)} in_channels={channels[0]} out_channels={channels[1]} "
                f"kernel={kernel} in_size={random_source.randint(7, 56)} stride=1 padding={kernel // 2}"
            )
    return [parse_description(text) for text in several]


def measured(
    truth: DeviceProfile,
    count: int = 160,
    noise: float = 0.02,
    overhead_us: float = 0.0,
    seed: int = 0,
    name: str = "made",
) -> MeasurementSet:
    """``count`` operators on the device ``truth``, each off by ``noise`` (a standard deviation, relative)."""
    generator = np.random.default_rng(seed)
    operators = _operators(count, seed)
    rows = tuple(
        Measurement(operator, overhead_us + prediction.gpu_time_us * float(np.exp(noise * generator.normal())), row)
        for row, (operator, prediction) in enumerate(zip(operators, predict(operators, truth), strict=True))
    )
    header = Header(device=truth.name, data_set=name, includes_host_overhead=overhead_us > 0)
    return MeasurementSet(header, rows)
