"""Profiles from datasheet facts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iossim.base.errors import DeviceError
from iossim.cli.options import with_flags
from iossim.hardware.derive import derive
from iossim.hardware.load import device
from iossim.hardware.profile import parse
from iossim.hardware.write import profile_yaml

T4 = device("t4")


def test_facts_given_and_the_rest_as_the_other_device() -> None:
    profile = derive("small", T4, {"sm_count": 20, "boost_clock_ghz": 1.2, "dram_gib": 8.0, "l2_mib": 2, "lanes": None})
    sheet = profile.datasheet
    assert (profile.sm_count, profile.boost_clock_ghz) == (20, 1.2)
    assert (sheet.dram_bytes.value, sheet.l2_bytes.value) == (8 << 30, 2 << 20)
    assert sheet.board_power_w.value == T4.datasheet.board_power_w.value
    assert profile.sources[sheet.sm_count.source] == "given on the command line"
    assert profile.sources[sheet.board_power_w.source] == "as t4"
    assert sheet.fp32_tflops.value == pytest.approx(profile.fp32_tflops, abs=0.01)
    assert profile.provenance.kind == "transferred"
    ratio = 20 * 1.2 / (40 * 1.59)
    assert sheet.reduced_precision_tflops is not None
    assert sheet.reduced_precision_tflops.value["fp16"] == pytest.approx(65 * ratio, abs=0.1)


def test_faster_units_are_not_guessed_for_other_multiprocessors() -> None:
    profile = derive("other", T4, {"compute_capability": "6.1"})
    assert profile.datasheet.reduced_precision_tflops is None
    assert profile.architecture == "pascal"


@settings(max_examples=20)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "sm_count": st.integers(20, 128),
            "boost_clock_ghz": st.floats(0.8, 2.2),
            "dram_bandwidth_gbps": st.floats(100, 4000),
            "l2_mib": st.floats(0.5, 100),
            "board_power_w": st.floats(50, 300),
            "dram_gib": st.floats(4, 192),
            "compute_capability": st.sampled_from(["6.1", "7.0", "8.0", "8.6", "9.0"]),
        },
    )
)
def test_what_is_written_is_what_was_derived(facts: dict[str, float | int | str | None]) -> None:
    profile = derive("mine", T4, facts)
    assert parse(profile_yaml(profile), "mine.yaml") == profile


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"sm_count": 0}, ["--sm 0", "1 to 1024"]),
        ({"sm_count": -3}, ["--sm -3"]),
        ({"boost_clock_ghz": 1590.0}, ["--clock-ghz 1590", "MHz?", "--clock-ghz 1.59"]),
        ({"boost_clock_ghz": float("nan")}, ["--clock-ghz nan"]),
        ({"boost_clock_ghz": float("inf")}, ["--clock-ghz inf"]),
        ({"dram_bandwidth_gbps": 0.9}, ["--dram-gbps 0.9", "TB/s?", "--dram-gbps 900"]),
        ({"l2_mib": 4194304.0}, ["--l2-mib", "bytes?", "--l2-mib 4"]),
        ({"l2_mib": 4096.0}, ["--l2-mib 4096", "KiB?", "--l2-mib 4"]),
        ({"dram_gib": 16384.0}, ["--dram-gib", "MiB?", "--dram-gib 16"]),
        ({"board_power_w": 0.0}, ["--power-w 0"]),
        ({"board_power_w": 0.3}, ["kW?", "--power-w 300"]),
        ({"fp32_lanes_per_sm": 100}, ["--lanes 100", "multiple of 8"]),
        ({"compute_capability": "7.6"}, ["--compute-capability 7.6", "known: "]),
        ({"sm_count": 1000}, ["--power-w", "TFLOP/s"]),
    ],
)
def test_facts_that_cannot_be(facts: dict[str, float | int | str | None], words: list[str]) -> None:
    with pytest.raises(DeviceError) as caught:
        derive("mine", T4, facts)
    message = with_flags(str(caught.value))
    assert all(word in message for word in words), message
    assert "\n" not in message


@pytest.mark.parametrize(("name", "words"), [("t4", "ships"), ("a/b", "letters"), ("", "letters"), ("-x", "letters")])
def test_names_that_cannot_be(name: str, words: str) -> None:
    with pytest.raises(DeviceError, match=words):
        derive(name, T4, {})
