"""Devices with facts, costs and parameters replaced, and parameters of a device without measurements."""

from pathlib import Path

import pytest
from case_files import cases
from hypothesis import given
from hypothesis import strategies as st

import iossim
from iossim.base.errors import DeviceError
from iossim.hardware.compute_capability import LIMITS
from iossim.hardware.load import device
from iossim.hardware.override import overridable_names, overridden
from iossim.hardware.parameters import EngineOverheads, ModelParameters
from iossim.hardware.plausibility import implausible
from iossim.hardware.profile import parse
from iossim.hardware.transfer import (
    ARITHMETIC,
    CAPS,
    MEMORY,
    BoardFacts,
    SourceDevice,
    clock_onset,
    sustained_clock,
    transfer_table,
    transferred_provenance,
    transferred_values,
)
from iossim.hardware.write import profile_yaml
from iossim.ir.types import Precision
from iossim.study.axes import Device
from iossim.study.points import device_of

CASES = cases(__file__, "mistakes.yaml")

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


def test_the_peak_that_accumulates_in_fp16_follows_that_of_fp16_if_it_is_known() -> None:
    board = device("rtx-3090")
    silent = board.datasheet.model_copy(update={"reduced_precision_tflops": None})
    for profile in (board, board.model_copy(update={"datasheet": silent})):
        found = overridden(profile, {"sms": 41}).datasheet.fp16_accumulation_tflops
        assert found is not None
        assert found.value == pytest.approx(142 / 2)
    found = overridden(board, {"fp16_tflops": 142}).datasheet.fp16_accumulation_tflops
    assert found is not None
    assert found.value == pytest.approx(142 * 2)


def test_another_bandwidth_leaves_out_the_bus_of_the_first() -> None:
    bus, l4 = ("dram_bus_bits", "dram_pin_gbps"), device("l4")
    assert all(getattr(overridden(l4, {"sms": 1}).datasheet, name) for name in bus)
    assert not any(getattr(overridden(l4, {"dram_gbps": 100}).datasheet, name) for name in bus)


def test_overheads_and_parameters_are_replaced_and_no_longer_fitted() -> None:
    fitted = next(name for name in V100.provenance.spread if name in ModelParameters.model_fields)
    value = getattr(V100.parameters, fitted) * 0.9
    changed = overridden(V100, {fitted: value, "library_call_us": 0, "synchronise_us": 1.5})
    assert getattr(changed.parameters, fitted) == value
    assert (changed.engine.library_call_us, changed.engine.synchronise_us) == (0, 1.5)
    assert changed.engine.event_us == V100.engine.event_us
    assert changed.provenance.spread.keys() == V100.provenance.spread.keys() - {
        fitted,
        "library_call_us",
        "synchronise_us",
    }
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


@pytest.mark.parametrize(("name", "error"), CASES["override"])
def test_what_cannot_be(name: str, error: str) -> None:
    with pytest.raises(DeviceError) as caught:
        device(name)
    assert error in str(caught.value)


VALUES = dict.fromkeys((*ARITHMETIC, *MEMORY), 0.8) | {"latency_hiding_warps": 5.0, "translation_penalty": 0.0}


def source_device(capability: str, peak_gflops_per_watt: float, **changed: float) -> SourceDevice:
    return SourceDevice(
        boards=[f"{capability}-{peak_gflops_per_watt:g}"],
        compute_capability=capability,
        peak_gflops_per_watt=peak_gflops_per_watt,
        values=VALUES | changed,
    )


sources = st.lists(
    st.builds(
        source_device,
        st.sampled_from(sorted(LIMITS)),
        st.floats(10, 200),
        gemm_efficiency=st.floats(0.3, 1.0),
        stream_efficiency=st.floats(0.3, 1.0),
        latency_hiding_warps=st.floats(1, 15),
    ),
    min_size=1,
    max_size=4,
)


@given(sources, st.sampled_from(sorted(LIMITS)), st.floats(5, 500))
def test_values_are_plausible_whatever_the_device(several: list[SourceDevice], capability: str, ratio: float) -> None:
    values = transferred_values(BoardFacts(capability, ratio), several)
    assert all(0 < values[name] <= 1 for name in (*ARITHMETIC, *MEMORY))
    assert all(values[name] > 0 for name in CAPS)
    warps = [one.values["latency_hiding_warps"] for one in several]
    assert min(warps) * 0.999 <= values["latency_hiding_warps"] <= max(warps) * 1.001
    assert values == transferred_values(BoardFacts(capability, ratio), several)


def transferred(name: str, *several: SourceDevice, facts: BoardFacts) -> float:
    return transferred_values(facts, [*several])[name]


def test_sources_count_as_what_they_reach() -> None:
    """One gives its own parameters to its like, by a cap as well; other memory than a device's counts little."""
    only = source_device("7.0", 40.0, gemm_efficiency=0.7)
    assert {name: transferred(name, only, facts=only.facts) for name in VALUES} == only.values
    with pytest.raises(ValueError, match="no source"):
        transferred_values(BoardFacts("7.0", 50.0), [])
    capped = source_device("7.0", 100.0, sustained_gflops_per_watt=40.0)
    plain = source_device("7.0", 100.0, **{name: 0.4 for name in ARITHMETIC if name != "gemm_efficiency"})
    one, other = (transferred("implicit_gemm_efficiency", each, facts=plain.facts) for each in (capped, plain))
    assert one == other
    several = [source_device("7.0", 50.0, stream_efficiency=0.95), source_device("6.1", 50.0, stream_efficiency=0.6)]
    assert transferred("stream_efficiency", *several, facts=BoardFacts("8.0", 50.0)) > 0.9
    assert transferred("stream_efficiency", *several, facts=BoardFacts("8.6", 50.0)) < 0.65
    # Schedulers that cannot feed all lanes cost arithmetic.
    fed, starved = (
        transferred("gemm_efficiency", source_device("6.0", 40.0), facts=BoardFacts("3.7", 10.0, lanes))
        for lanes in (128, 192)
    )
    assert starved == pytest.approx(fed * 128 / 192, rel=1e-3)


@given(st.floats(5, 400), st.floats(5, 400))
def test_more_peak_for_a_watt_never_raises_the_clock(one: float, other: float) -> None:
    low, high = sorted((one, other))
    slow, fast = sustained_clock(BoardFacts("7.5", high), 55.0), sustained_clock(BoardFacts("7.5", low), 55.0)
    assert slow <= fast <= 1.0


def test_the_onset_is_found_from_how_far_low_power_boards_fall_behind() -> None:
    onset = 60.0
    boards = [("7.0", 50.0), ("6.0", 35.0), ("7.5", 160.0), ("6.1", 110.0)]
    several = []
    for capability, ratio in boards:
        part = sustained_clock(BoardFacts(capability, ratio), onset)
        several.append(source_device(capability, ratio, **dict.fromkeys(ARITHMETIC, 0.8 * part)))
    assert clock_onset(several) == pytest.approx(onset, rel=0.1)
    # So a board of little power is predicted with what is left of its clock.
    unseen = transferred_values(BoardFacts("7.5", 140.0), several)
    assert unseen["implicit_gemm_efficiency"] == pytest.approx(0.8 * (onset / 140) ** 0.5, rel=0.06)


@pytest.mark.parametrize(
    ("near", "far", "facts", "least"),
    [("6.0", "8.0", BoardFacts("5.2", 15.0), 6.0), ("8.0", "6.0", BoardFacts("9.0", 90.0), 6.0), ("3.7", "3.5", BoardFacts("3.7", 15.0), 8.0)],
)  # fmt: skip
def test_near_generations_count_more_and_the_same_chip_most(
    near: str, far: str, facts: BoardFacts, least: float
) -> None:
    several = [source_device(name, 40.0, latency_hiding_warps=warps) for name, warps in ((near, 9.0), (far, 4.0))]
    assert least < transferred("latency_hiding_warps", *several, facts=facts) < 9.0


def test_the_shipped_table_is_whole() -> None:
    table = transfer_table()
    known = {*ModelParameters.model_fields, *EngineOverheads.model_fields}
    assert len(table.sources) >= 5
    assert all(set(one.values) <= known for one in table.sources)
    assert {"conv", "linear", "add", "relu"} <= set(table.bands)
    assert {"conv", "linear", "bmm", "softmax", "layer_norm"} <= {error.kind for error in table.refined}
    assert all(table.covers(board) for one in table.sources for board in one.boards)


def test_provenance_says_from_where_and_how_wrong() -> None:
    table = transfer_table()
    provenance = transferred_provenance(table)
    assert provenance.kind == "transferred"
    assert all(one.boards[0] in provenance.note for one in table.sources)
    assert "%" in provenance.note
    assert provenance.bands == table.bands
    refined = transferred_provenance(table, 20, {"conv"})
    assert "20 measurements" in refined.note
    assert refined.bands["conv"] == table.refined_bands["conv"]
    # What the samples did not show is no better known than before.
    assert refined.bands["linear"] == table.bands["linear"]
