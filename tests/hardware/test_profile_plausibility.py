"""What cannot be a device is said in words; what ships, and what is derived from it, can be."""

from __future__ import annotations

from typing import Any

import pytest

from iossim.hardware.derive import derive
from iossim.hardware.load import device, shipped_names
from iossim.hardware.plausibility import TO_FILL_IN, implausible
from iossim.hardware.profile import DeviceProfile


@pytest.mark.parametrize("name", shipped_names())
def test_what_ships_is_plausible(name: str) -> None:
    assert implausible(device(name)) == []


@pytest.mark.parametrize("name", ["rtx-3090", "rtx-4090", "l4", "l40s", "jetson-orin"])
def test_each_fact_has_its_document(name: str) -> None:
    profile = device(name)
    assert all(text.startswith(("NVIDIA, ", "The datasheet", "Of the tensor")) for text in profile.sources.values())
    if profile.datasheet.dram_bus_bits is not None:
        assert profile.datasheet.dram_pin_gbps is not None


def changed(name: str, **facts: Any) -> DeviceProfile:
    """A shipped device with other facts; None takes one out."""
    data = device(name).model_dump()
    for fact, value in facts.items():
        source = next(iter(data["sources"]))
        data["datasheet"][fact] = None if value is None else {"value": value, "source": source}
    return DeviceProfile.model_validate(data)


@pytest.mark.parametrize(
    ("name", "facts", "words"),
    [
        ("t4", {"fp32_tflops": 16.28}, "counts it a multiply-add twice?"),
        ("t4", {"fp32_tflops": 4.07}, "count a multiply-add once?"),
        ("t4", {"fp32_tflops": 8141.0}, "is it in GFLOP/s?"),
        ("t4", {"fp32_tflops": 9.5}, "40 SMs x 64 lanes x 1.59 GHz x 2 make 8.141: check SMs, lanes and clock"),
        ("p4", {"fp32_lanes_per_sm": 64, "sm_count": 40}, "an SM of compute capability 6.1 has 128"),
        ("k80", {"sm_count": 130, "fp32_tflops": 43.7}, "sm_count is 130 SMs, Kepler boards have 1 to 15"),
        ("t4", {"l2_bytes": 4096}, "was it given in KiB?"),
        ("t4", {"l2_bytes": 64 << 20}, "l2_bytes is 64 MiB, Turing boards have 0.5 to 6"),
        ("t4", {"dram_bytes": 16}, "was it given in GiB?"),
        ("t4", {"dram_bandwidth_gbps": 2560.0}, "was it given in Gbit/s?"),
        ("h100-sxm", {"dram_bandwidth_gbps": 3.35}, "was it given in TB/s?"),
        ("t4", {"board_power_w": 0.07}, "was it given in kW?"),
        (
            "a100-sxm-40gb",
            {"reduced_precision_tflops": {"fp16": 624.0}},
            "is it the rate with sparsity? then give half",
        ),
        ("a100-sxm-40gb", {"reduced_precision_tflops": {"fp16": 3120.0}}, "at most 311.9 dense"),
        ("a100-sxm-40gb", {"reduced_precision_tflops": {"fp16": 3.0}}, "less than the fp32 peak"),
        ("t4", {"reduced_precision_tflops": {"bf16": 65.0}}, "compute capability 7.5 has no unit for it"),
        ("rtx-3090", {"dram_bandwidth_gbps": 468.0, "dram_pin_gbps": 9.75}, ""),
        ("rtx-3090", {"dram_pin_gbps": 9.75}, "leave out the double data rate?"),
        ("rtx-3090", {"dram_bus_bits": 320}, "320 bits x 19.5 Gbit/s / 8 make 780: check the three"),
        ("rtx-3090", {"dram_bus_bits": None}, "dram_pin_gbps says nothing without the other"),
    ],
)
def test_what_is_off_is_named_alone(name: str, facts: dict[str, Any], words: str) -> None:
    problems = implausible(changed(name, **facts))
    if not words:
        assert problems == []
    else:
        (problem,) = problems
        assert words in problem


def test_a_clock_in_mhz_is_off_in_two_ways() -> None:
    peak, clock = implausible(changed("k80", boost_clock_ghz=875.0))
    assert "is the clock in MHz?" in peak
    assert "was it given in MHz?" in clock


def test_what_is_left_of_a_template_is_named() -> None:
    profile = device("t4")
    unfilled = profile.model_copy(update={"title": TO_FILL_IN, "sources": {**profile.sources, "web": TO_FILL_IN}})
    assert [problem.partition(" is ")[0] for problem in implausible(unfilled)] == ["title", "sources.web"]


def test_a_derived_device_agrees_with_itself() -> None:
    half = derive("half", device("t4"), {"sm_count": 20, "dram_bandwidth_gbps": 160.0})
    assert implausible(half) == []


def test_bus_facts_change_no_price() -> None:
    """Prices are kept under the fingerprint: what only checks other facts must not make them another device's."""
    profile = device("rtx-3090")
    assert changed("rtx-3090", dram_bus_bits=None, dram_pin_gbps=None).fingerprint == profile.fingerprint
    assert changed("rtx-3090", dram_bandwidth_gbps=900.0).fingerprint != profile.fingerprint
