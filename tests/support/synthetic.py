"""Measurements made by the model itself: parameters that are known, and noise."""

import random
from dataclasses import replace

import numpy as np
from operators import parse_description

from iossim.hardware.load import device
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.measurements.measurement import Header, Measurement, MeasurementSet, Operator
from iossim.prediction.predict import predict

#: Parameters that operators of all kinds and sizes tell, away from their defaults.
TRUTH = {"gemm_efficiency": 0.7, "implicit_gemm_efficiency": 0.6, "stream_efficiency": 0.75}


def true_profile(name: str = "v100-sxm2", **given: float) -> DeviceProfile:
    """A device that ships, with other parameters."""
    return with_values(device(name), {**TRUTH, **given})


def shapes(count: int, seed: int = 0) -> list[Operator]:
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
    operators = shapes(count, seed)
    rows = tuple(
        Measurement(operator, overhead_us + prediction.gpu_time_us * float(np.exp(noise * generator.normal())), row)
        for row, (operator, prediction) in enumerate(zip(operators, predict(operators, truth), strict=True))
    )
    header = Header(device=truth.name, data_set=name, includes_host_overhead=overhead_us > 0)
    return MeasurementSet(header, rows)


def scaled(several: MeasurementSet, factor: float) -> MeasurementSet:
    """All times multiplied."""
    rows = (replace(row, latency_us=row.latency_us * factor) for row in several.measurements)
    return replace(several, measurements=tuple(rows))
