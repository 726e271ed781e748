"""Plausibility of measurements of a device: nothing exceeds its arithmetic peak and its bandwidth by much.

Generous lower bounds of a call's time:

- its arithmetic at the datasheet's peak. Winograd's F(4x4, 3x3) needs a fourth of the multiplications of a direct
  convolution (Lavin and Gray 2016, section 4.3) and transforms around them: the fastest of 17,000 recorded 3x3 kernels
  appears 2.4 times as fast as the peak. FFT and larger tiles need even less, so larger kernels may appear faster;
  everything else may not;
- its bytes beyond L2 at the peak of DRAM, and all bytes at several times that;
- a fraction of a microsecond: no kernel starts and ends in less.

A set in a wrong unit violates these almost everywhere, a faster device's set in its largest rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from iossim.hardware.lowering.convolution_shape import ConvolutionShape
from iossim.hardware.profile import DeviceProfile
from iossim.ir.ops.conv import Conv
from iossim.ir.types import Precision
from iossim.measurements.measurement import Measurement, MeasurementError, MeasurementSet
from iossim.measurements.operator import Operator

#: Ratio by which boards may exceed the datasheet's clock.
CLOCK_MARGIN = 1.25
#: Apparent arithmetic of convolutions by fast algorithms, over the peak: for windows up to that size, and for larger.
SMALL_WINDOW, SMALL_WINDOW_GAIN, LARGE_WINDOW_GAIN = 3, 2.5, 5.0
#: Bandwidth of L2 over that of DRAM.
L2_GAIN = 12.0
SHORTEST_KERNEL_US = 0.5
#: Above this fraction of impossible rows the set is refused; up to it they are dropped.
LARGEST_IMPOSSIBLE_PART = 0.02

#: A call beyond both of these is far slower than with any library.
SLOWEST_RATIO = 300.0
SLOWEST_OVERHEAD_US = 5_000.0


def check_plausible(measured: MeasurementSet, profile: DeviceProfile) -> MeasurementSet:
    """The set without its few impossible rows, which are noted; raises MeasurementError if they are many, or if
    nearly all rows are far slower than the device could be.
    """
    measurements = measured.measurements
    if not measurements:
        return measured
    latency_us = np.array([measurement.latency_us for measurement in measurements])
    fastest_us = np.array([fastest_possible_us(measurement.operator, profile) for measurement in measurements])
    impossible = latency_us < fastest_us
    where = f"measurements {measured.name}"
    if impossible.mean() > LARGEST_IMPOSSIBLE_PART:
        worst = int(np.argmin(latency_us / fastest_us))
        row = measurements[worst]
        precision = possible_precision([row.operator], row.latency_us, profile)
        asked = f"did they run in {precision}? then say so in its precision" if precision else "is this the precision?"
        raise MeasurementError(
            f"{where}: {int(impossible.sum()):,} of {len(measurements):,} rows are faster than {profile.name} can "
            f"be in {row.operator.precision}, as {_described(row, fastest_us[worst])}; is the unit us, is this the "
            f"device, {asked}"
        )
    reference_us = np.array([_roofline_us(measurement.operator, profile) for measurement in measurements])
    slow: NDArray[np.bool_] = latency_us > SLOWEST_OVERHEAD_US + SLOWEST_RATIO * reference_us
    if slow.mean() > 0.5:
        worst = int(np.argmax(latency_us / reference_us))
        raise MeasurementError(
            f"{where}: {int(slow.sum()):,} of {len(measurements):,} rows are hundreds of times slower than "
            f"{profile.name} is, as {_described(measurements[worst], reference_us[worst])}; "
            "is the unit us, is this the device?"
        )
    if not impossible.any():
        return measured
    first = int(np.argmax(impossible))
    note = (
        f"{measured.name}: {int(impossible.sum()):,} of {len(measurements):,} rows dropped: faster than "
        f"{profile.name} can be (first: {_described(measurements[first], fastest_us[first])})"
    )
    kept = tuple(row for row, is_impossible in zip(measurements, impossible, strict=True) if not is_impossible)
    return replace(measured, measurements=kept, notes=(*measured.notes, note))


def fastest_possible_us(operator: Operator, profile: DeviceProfile) -> float:
    """Lower bound of the operator's time with any library on this device."""
    return max(SHORTEST_KERNEL_US, fastest_arithmetic_us(operator, profile), fastest_transfer_us(operator, profile))


def fastest_arithmetic_us(operator: Operator, profile: DeviceProfile, precision: Precision | None = None) -> float:
    """Lower bound of its arithmetic's time in a precision, by default its own."""
    precision = precision or operator.precision
    accumulation = profile.datasheet.fp16_accumulation_tflops if precision is Precision.FP16 else None
    reduced = accumulation.value if accumulation else profile.reduced_precision_tflops(precision)
    peak_tflops = max(profile.fp32_tflops, reduced or 0.0)
    window = max(operator.inputs[1].shape[2:]) if operator.kind == "conv" else 1
    gain = 1.0 if window == 1 else SMALL_WINDOW_GAIN if window <= SMALL_WINDOW else LARGE_WINDOW_GAIN
    return operator.flops / (peak_tflops * 1e6 * CLOCK_MARGIN * gain)


def fastest_transfer_us(operator: Operator, profile: DeviceProfile) -> float:
    """Lower bound of its memory time: bytes beyond L2 from DRAM, all bytes from L2."""
    bandwidth = profile.dram_bandwidth_gbps * 1e3 * CLOCK_MARGIN
    moved = _moved_bytes(operator)
    beyond_l2 = max(0, moved - profile.datasheet.l2_bytes.value)
    return max(beyond_l2 / bandwidth, moved / (bandwidth * L2_GAIN))


def possible_precision(operators: Sequence[Operator], latency_us: float, profile: DeviceProfile) -> Precision | None:
    """The device's first precision in which the arithmetic of operators takes no longer than that."""
    for precision in (Precision.TF32, Precision.FP16, Precision.BF16, Precision.INT8):
        least_us = sum(fastest_arithmetic_us(operator, profile, precision) for operator in operators)
        if profile.reduced_precision_tflops(precision) and least_us <= latency_us:
            return precision
    return None


def _moved_bytes(operator: Operator) -> int:
    """Bytes that must be moved: for a convolution's input, those under its windows."""
    if not isinstance(operator.op, Conv):
        return operator.bytes
    shape = ConvolutionShape.of(operator.step())
    return shape.input_bytes + shape.weight_bytes + shape.output_bytes


def _roofline_us(operator: Operator, profile: DeviceProfile) -> float:
    return max(operator.flops / (profile.fp32_tflops * 1e6), operator.bytes / (profile.dram_bandwidth_gbps * 1e3))


def _described(measurement: Measurement, limit_us: float) -> str:
    row = "" if measurement.row is None else f"row {measurement.row}: "
    return f"{row}{measurement.operator.key} in {measurement.latency_us:g} us, against {limit_us:.3g} us"
