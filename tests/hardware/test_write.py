"""What is written is what was meant, and reads like what people write."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from iossim.base.errors import DeviceError
from iossim.hardware.load import device, shipped_names
from iossim.hardware.parameters import EngineOverheads, ModelParameters
from iossim.hardware.profile import parse
from iossim.hardware.provenance import Band, DataSet, KindError, Provenance
from iossim.hardware.write import check_writable, profile_yaml, write_profile

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=120)
names = st.sampled_from(["conv", "gemm fp16", "a: b #c", "no", "1"])
numbers = st.floats(1e-9, 1e12)
counts = st.integers(0, 10**6)


@st.composite
def bands(draw: st.DrawFn) -> list[Band]:
    ends = sorted(draw(st.sets(st.floats(1, 1e4), max_size=3)))
    return [
        Band(up_to_us=end, rows=draw(counts), low=draw(st.floats(0.01, 1)), high=draw(st.floats(1, 100)))
        for end in (*ends, None)
    ]


errors = st.builds(
    KindError,
    data_set=texts,
    kind=names,
    rows=st.integers(1, 10**6),
    mape_percent=st.floats(0, 1e6),
    median_error_percent=st.floats(0, 100),
    kendall_tau=st.none() | st.floats(-1, 1),
)
provenances = st.builds(
    Provenance,
    kind=st.sampled_from(["hand-set", "fitted", "transferred"]),
    note=texts,
    date=st.none() | st.just("2026-11-21"),
    data_sets=st.lists(
        st.builds(DataSet, name=texts, device=names, rows=counts, libraries=st.dictionaries(names, texts, max_size=2)),
        max_size=2,
    ),
    held_out_fraction=st.none() | st.floats(0, 0.9),
    held_out=st.lists(errors, max_size=2),
    cross_validated=st.lists(errors, max_size=2),
    bands=st.dictionaries(names, bands(), max_size=2),
    spread=st.dictionaries(st.sampled_from(["gemm_efficiency", "kernel_gap_us", "dispatch_us"]), numbers, max_size=2),
    unidentified=st.lists(names, max_size=3),
    at_bounds=st.lists(names, max_size=3),
    resamples=st.integers(0, 4).flatmap(
        lambda count: st.dictionaries(names, st.lists(numbers, min_size=count, max_size=count), max_size=2)
    ),
)


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_profiles_round_trip(name: str) -> None:
    assert parse(profile_yaml(device(name)), name) == device(name)


@settings(max_examples=30, deadline=None)
@given(provenances, st.floats(0.01, 1), st.floats(0, 10), st.sampled_from(["t4", "k80"]))
def test_round_trip(provenance: Provenance, efficiency: float, dispatch_us: float, name: str) -> None:
    profile = device(name)
    changed = profile.model_copy(
        update={
            "provenance": provenance,
            "parameters": profile.parameters.model_copy(update={"gemm_efficiency": efficiency}),
            "engine": profile.engine.model_copy(update={"dispatch_us": dispatch_us}),
        }
    )
    text = profile_yaml(changed)
    assert parse(text, "profile") == changed
    assert profile_yaml(parse(text, "profile")) == text


def test_only_what_was_fitted_or_differs_is_written() -> None:
    profile = device("k80")
    changed = profile.model_copy(
        update={
            "parameters": profile.device_kind.parameters[profile.architecture].model_copy(update={"interference": 0.5}),
            "engine": EngineOverheads(),
            "provenance": Provenance(kind="fitted", note="", spread={"kernel_gap_us": 0.1, "dispatch_us": 0.2}),
        }
    )
    data = yaml.safe_load(profile_yaml(changed))
    assert set(data["parameters"]) == {"interference", "kernel_gap_us"}
    assert set(data["engine"]) == {"dispatch_us"}
    assert data["datasheet"] == yaml.safe_load(profile_yaml(profile))["datasheet"]
    assert not set(data["parameters"]) - set(ModelParameters.model_fields)
    assert not set(data["engine"]) - set(EngineOverheads.model_fields)


def test_lines_are_short_and_facts_on_one_each() -> None:
    text = profile_yaml(device("v100-sxm2"))
    assert max(map(len, text.splitlines())) <= 160
    assert "  sm_count: {value: 80, source: whitepaper}\n" in text


def test_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("old")

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.replace", fail)
        with pytest.raises(DeviceError, match="No space left"):
            write_profile(device("t4"), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    write_profile(device("t4"), path)
    assert device(str(path)) == device("t4")


@pytest.mark.parametrize(("name", "reason"), [("mine.json", ".yaml"), ("nowhere/mine.yaml", "no such folder")])
def test_where_nothing_can_be_written(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(DeviceError, match=reason):
        check_writable(tmp_path / name)
