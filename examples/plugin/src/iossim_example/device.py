"""A device."""

PROFILE = """
name: example-gpu
title: A board of an example
sources: {example: made up for an example}
datasheet:
  compute_capability: {value: "7.5", source: example}
  sm_count: {value: 20, source: example}
  fp32_lanes_per_sm: {value: 64, source: example}
  boost_clock_ghz: {value: 1.5, source: example}
  dram_bandwidth_gbps: {value: 200.0, source: example}
  dram_bytes: {value: 8589934592, source: example}
  l2_bytes: {value: 2097152, source: example}
  board_power_w: {value: 60.0, source: example}
  fp32_tflops: {value: 3.84, source: example}
"""


def profile() -> str:
    return PROFILE
