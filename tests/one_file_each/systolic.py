"""A kind of device, systolic arrays, and a device of that kind."""

from dataclasses import replace

from iossim.hardware.compute_capability import MultiprocessorLimits
from iossim.hardware.kind import EngineCosts, Ranges, device_kind
from iossim.hardware.lowering import cpu
from iossim.hardware.lowering.kernel import Candidate
from iossim.hardware.lowering.step import Step
from iossim.hardware.lowering.target import Target

_CPU = device_kind("cpu")
_RANGES = Ranges((1, 64), (0.5, 2.0), (1, 64), (50, 2000), (1, 128), (1, 500))

KIND = replace(
    _CPU,
    noun="systolic array",
    multiprocessors="arrays",
    limits={"": MultiprocessorLimits("systolic", 32, 1, 1, 0, 0, 0, 1)},
    parameters={"systolic": _CPU.parameters["cpu"]},
    engines={"systolic": EngineCosts(_CPU.engines["cpu"].values)},
    ranges={"systolic": _RANGES},
)


def product(step: Step) -> list[Candidate]:
    """The one way of the kind: operands stream through the array, which gathers no columns."""
    (one,) = cpu.product(step)
    return [Candidate("array", tuple(replace(k, name=f"array_{step.op.kind}") for k in one.kernels))]


FAMILIES = dict(cpu.FAMILIES) | dict.fromkeys(("conv", "gemm", "matmul"), product)
TARGET = Target(FAMILIES, cpu.TARGET.copy, runs_one_kernel_per_sm=True, records_graphs=False, has_warps=False)


def profile() -> str:
    return """
name: array-8
kind: systolic
title: Eight systolic arrays
sources: {made: made up for a test}
datasheet:
  sm_count: {value: 8, source: made}
  fp32_lanes_per_sm: {value: 256, source: made}
  boost_clock_ghz: {value: 1.0, source: made}
  dram_bandwidth_gbps: {value: 200.0, source: made}
  dram_bytes: {value: 8589934592, source: made}
  l2_bytes: {value: 8388608, source: made}
  core_cache_bytes: {value: 1048576, source: made}
  fp32_tflops: {value: 4.096, source: made}
"""
