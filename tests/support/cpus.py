"""A made-up CPU, whatever machine tests run on."""

from typing import Any

from iossim.hardware.profile import DeviceProfile

FACTS: dict[str, Any] = {
    "sm_count": 2,
    "fp32_lanes_per_sm": 16,
    "boost_clock_ghz": 3.0,
    "dram_bandwidth_gbps": 40.0,
    "dram_bytes": 16 << 30,
    "l2_bytes": 32 << 20,
    "core_cache_bytes": 1 << 20,
    "fp32_tflops": 0.192,
}


def cpu(**facts: Any) -> DeviceProfile:
    """Two cores of 96 GFLOP/s each, or what ``facts`` say."""
    sheet = {name: {"value": value, "source": "made"} for name, value in (FACTS | facts).items() if value is not None}
    return DeviceProfile.model_validate(
        {"name": "cpu", "kind": "cpu", "title": "made up", "sources": {"made": "made up"}, "datasheet": sheet}
    )
