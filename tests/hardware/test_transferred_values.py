"""Parameters of a device without measurements, from those of others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iossim.hardware.compute_capability import LIMITS
from iossim.hardware.parameters import EngineOverheads, ModelParameters
from iossim.hardware.transfer import (
    ARITHMETIC,
    CAPS,
    MEMORY,
    BoardFacts,
    SourceDevice,
    TransferTable,
    clock_onset,
    sustained_clock,
    transfer_table,
    transferred_provenance,
    transferred_values,
)

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


def test_one_source_gives_its_own_parameters_to_its_like() -> None:
    only = source_device("7.0", 40.0, gemm_efficiency=0.7)
    values = transferred_values(only.facts, [only])
    assert {name: values[name] for name in only.values} == only.values


def test_no_source_is_an_error() -> None:
    with pytest.raises(ValueError, match="no source"):
        transferred_values(BoardFacts("7.0", 50.0), [])


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


def test_a_cap_of_a_source_counts_as_what_it_reaches() -> None:
    capped = source_device("7.0", 100.0, sustained_gflops_per_watt=40.0)
    plain = source_device("7.0", 100.0, **{name: 0.4 for name in ARITHMETIC if name != "gemm_efficiency"})
    facts = BoardFacts("7.0", 100.0)
    name = "implicit_gemm_efficiency"
    assert transferred_values(facts, [capped])[name] == transferred_values(facts, [plain])[name]


def test_memory_is_as_in_devices_with_the_same_kind() -> None:
    several = [source_device("7.0", 50.0, stream_efficiency=0.95), source_device("6.1", 50.0, stream_efficiency=0.6)]
    stacked = transferred_values(BoardFacts("8.0", 50.0), several)["stream_efficiency"]
    other = transferred_values(BoardFacts("8.6", 50.0), several)["stream_efficiency"]
    assert other < 0.65
    assert stacked > 0.9


def test_near_generations_count_more() -> None:
    several = [
        source_device("6.0", 40.0, latency_hiding_warps=4.0),
        source_device("8.0", 40.0, latency_hiding_warps=9.0),
    ]
    near_pascal = transferred_values(BoardFacts("5.2", 15.0), several)["latency_hiding_warps"]
    near_ampere = transferred_values(BoardFacts("9.0", 90.0), several)["latency_hiding_warps"]
    assert near_pascal < near_ampere


def test_schedulers_that_cannot_feed_all_lanes_cost_arithmetic() -> None:
    several = [source_device("6.0", 40.0)]
    fed = transferred_values(BoardFacts("3.7", 10.0, 128), several)["gemm_efficiency"]
    starved = transferred_values(BoardFacts("3.7", 10.0, 192), several)["gemm_efficiency"]
    assert starved == pytest.approx(fed * 128 / 192, rel=1e-3)


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


def test_an_empty_table_transfers_nothing() -> None:
    assert not TransferTable().covers("t4")
    assert transferred_provenance(TransferTable()).bands == {}
