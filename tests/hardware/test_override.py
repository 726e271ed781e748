"""Devices with facts, costs and parameters replaced: what follows, what stays, and that nobody takes them for the original."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import iossim
from iossim.base.errors import DeviceError
from iossim.hardware.load import device
from iossim.hardware.override import overridable_names, overridden
from iossim.hardware.plausibility import implausible
from iossim.hardware.profile import parse
from iossim.hardware.write import profile_yaml
from iossim.ir.types import Precision
from iossim.study.axes import Device
from iossim.study.points import device_of

V100 = device("v100-sxm2")


def test_short_names_are_those_of_facts_in_other_units() -> None:
    changed = overridden(
        V100,
        {"sms": 160, "clock_ghz": 1.0, "dram_gbps": 450, "l2_mib": 12, "dram_gib": 8, "power_w": 600, "lanes": 128},
    )
    assert (changed.sm_count, changed.boost_clock_ghz, changed.dram_bandwidth_gbps) == (160, 1.0, 450)
    assert changed.datasheet.l2_bytes.value == 12 << 20
    assert changed.datasheet.dram_bytes.value == 8 << 30
    assert (changed.board_power_w, changed.datasheet.fp32_lanes_per_sm.value) == (600, 128)
    full = {"sm_count": 160, "boost_clock_ghz": 1.0, "dram_bandwidth_gbps": 450, "l2_bytes": 12 << 20,
            "dram_bytes": 8 << 30, "board_power_w": 600, "fp32_lanes_per_sm": 128}  # fmt: skip
    assert overridden(V100, full) == changed


def test_peaks_follow_sms_lanes_and_clock() -> None:
    changed = overridden(V100, {"sms": 160})
    assert changed.fp32_tflops == pytest.approx(2 * V100.fp32_tflops)
    assert changed.datasheet.fp32_tflops.value == pytest.approx(2 * V100.datasheet.fp32_tflops.value)
    half = Precision.FP16
    before, after = V100.reduced_precision_tflops(half), changed.reduced_precision_tflops(half)
    assert before is not None
    assert after == pytest.approx(2 * before)
    assert overridden(V100, {"sms": 160, "fp16_tflops": 100}).reduced_precision_tflops(half) == 100
    assert (
        overridden(V100, {"dram_gbps": 450}).datasheet.reduced_precision_tflops
        == V100.datasheet.reduced_precision_tflops
    )
    assert implausible(overridden(V100, {"clock_ghz": 1.2, "dram_gbps": 450})) == []


@pytest.mark.parametrize("name", ["v100-sxm2", "t4", "l4"])
def test_bandwidth_is_bus_width_times_pin_rate(name: str) -> None:
    original = device(name)

    def facts(**changes: float) -> tuple[float, float, float]:
        sheet = overridden(original, changes).datasheet
        assert sheet.dram_bus_bits is not None
        assert sheet.dram_pin_gbps is not None
        return sheet.dram_bandwidth_gbps.value, sheet.dram_bus_bits.value, sheet.dram_pin_gbps.value

    if original.datasheet.dram_bus_bits is None:
        with pytest.raises(DeviceError, match="'dram_bus_bits' is no fact of"):
            overridden(original, {"dram_bus_bits": 128})
        return
    bandwidth, bits, pin = facts(sms=1)
    assert facts(dram_gbps=100) == (100, bits, pytest.approx(800 / bits))
    assert facts(dram_bus_bits=2 * bits) == (pytest.approx(2 * bandwidth), 2 * bits, pin)
    assert facts(dram_pin_gbps=pin / 2) == (pytest.approx(bandwidth / 2), bits, pin / 2)
    assert facts(dram_gbps=100, dram_pin_gbps=8) == (100, 100, 8)
    with pytest.raises(DeviceError, match="makes 128 GB/s, not 100; leave one of the three out"):
        facts(dram_gbps=100, dram_bus_bits=128, dram_pin_gbps=8)


def test_overheads_and_parameters_are_replaced_and_no_longer_fitted() -> None:
    fitted = next(iter(V100.provenance.resamples))
    value = getattr(V100.parameters, fitted) * 0.9
    changed = overridden(V100, {fitted: value, "library_call_us": 0, "synchronise_us": 1.5})
    assert getattr(changed.parameters, fitted) == value
    assert (changed.engine.library_call_us, changed.engine.synchronise_us) == (0, 1.5)
    assert changed.engine.event_us == V100.engine.event_us
    assert fitted not in changed.provenance.resamples
    assert fitted not in changed.provenance.spread
    assert set(changed.provenance.resamples) == set(V100.provenance.resamples) - {fitted, "synchronise_us"}
    assert changed.provenance.bands == V100.provenance.bands


def test_an_overridden_device_is_not_taken_for_the_original() -> None:
    assert overridden(V100, {}) is V100
    changed = device_of(Device(device="v100-sxm2", set={"dram_gbps": 450}))
    assert changed.name == "v100-sxm2+dram_bandwidth_gbps=450"
    assert changed.fingerprint != V100.fingerprint
    near = overridden(V100, {"dram_gbps": 450.0000001})
    assert near.name != changed.name
    found = iossim.compare("inception_v3", changed, schedulers=["sequential"])
    assert found.published_us("sequential") is None
    assert iossim.compare("inception_v3", V100, schedulers=["sequential"]).published_us("sequential") is not None
    assert parse(profile_yaml(changed), "again") == changed


def test_twice_the_bandwidth_or_free_launches_take_no_longer() -> None:
    def latency_us(**changes: float) -> float:
        return iossim.optimize("squeezenet", overridden(V100, changes), scheduler="sequential").latency_us

    assert latency_us(dram_gbps=1800) < latency_us() < latency_us(dram_gbps=450)
    assert latency_us(library_call_us=0, library_kernel_us=0, bare_launch_us=0, dispatch_us=0) < latency_us()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dram_gpbs": 1}, "'dram_gpbs' is nothing that a device has; did you mean 'dram_gbps'?"),
        ({"sms": 1.5}, "'sms' is 1.5; give a whole number"),
        ({"sms": 0}, "'sms' is 0; give more than 0"),
        ({"sms": 4, "sm_count": 4}, "'sms' and 'sm_count' are the same; give one of them"),
        ({"fp32_tflops": 10}, "fp32_tflops follows from other facts; set sm_count"),
        ({"core_cache_bytes": 10}, "'core_cache_bytes' is no fact of v100-sxm2; leave it out"),
        ({"dispatch_us": -1}, "with dispatch_us=-1 cannot be"),
        ({"compute_capability": 8.0}, "'compute_capability' is nothing that a device has"),
    ],
)
def test_what_cannot_be(changes: dict[str, float], words: str) -> None:
    with pytest.raises(DeviceError) as caught:
        overridden(V100, changes)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_name_that_is_offered_can_be_overridden() -> None:
    sheet = V100.datasheet.model_dump()
    values = {**V100.parameters.model_dump(), **V100.engine.model_dump()}
    for name in overridable_names():
        if name in sheet and sheet[name] is None:
            continue
        overridden(V100, {name: values.get(name, 64)})


@pytest.mark.parametrize(
    "changes", [{"sms": 160}, {"clock_ghz": 1.1, "dram_gib": 0.3}, {"kernel_gap_us": 0.125, "l2_mib": 7}]
)
def test_a_name_tells_enough_to_make_the_device_again(changes: dict[str, float]) -> None:
    made = overridden(V100, changes)
    assert device(made.name) == made


def test_changes_are_given_behind_a_name_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(profile_yaml(V100.model_copy(update={"name": "mine"})))
    assert device(f"{tmp_path}/mine.yaml+sms=40,dram_gbps=450").name == "mine+sm_count=40,dram_bandwidth_gbps=450"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("v100-sxm2+sms=many", "'sms=many' is not NAME=NUMBER; give changes as in v100-sxm2+sms=160"),
        ("v100-sxm2+sms=4,", "'' is not NAME=NUMBER"),
        ("v100-sxm2+sms=1e999", "1e999 is no value"),
        ("v100-sxm2+sm_coun=3", "'sm_coun' is nothing that a device has; did you mean 'sm_count'"),
        ("v101+sms=3", "unknown device 'v101'"),
    ],
)
def test_changes_that_cannot_be_read(name: str, error: str) -> None:
    with pytest.raises(DeviceError, match=re.escape(error)):
        device(name)


def test_a_schedule_for_an_overridden_device_is_priced_again(tmp_path: Path) -> None:
    made = iossim.optimize("squeezenet", "v100-sxm2+sms=160")
    made.save(tmp_path / "schedule.json")
    assert iossim.simulate(tmp_path / "schedule.json").latency_us == made.latency_us
