"""What is written is what was meant, and reads like what people write."""

from pathlib import Path

import pytest
import yaml
from case_files import cases
from hypothesis import given
from hypothesis import strategies as st

from iossim.base.errors import DeviceError
from iossim.cli.options import with_flags
from iossim.hardware.load import device
from iossim.hardware.names import shipped_names
from iossim.hardware.override import derive
from iossim.hardware.parameters import EngineOverheads, ModelParameters
from iossim.hardware.profile import parse
from iossim.hardware.provenance import Band, DataSet, KindError, Provenance
from iossim.hardware.write import profile_yaml, write_profile

CASES = cases(__file__, "mistakes.yaml")

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
)


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_profiles_round_trip(name: str) -> None:
    assert parse(profile_yaml(device(name)), name) == device(name)


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


@pytest.mark.parametrize(("facts", "words"), CASES["written"])
def test_facts_that_cannot_be(facts: dict[str, float | int | str | None], words: list[str]) -> None:
    with pytest.raises(DeviceError) as caught:
        derive("mine", T4, facts)
    message = with_flags(str(caught.value))
    assert all(word in message for word in words), message


@pytest.mark.parametrize(("name", "words"), [("t4", "ships"), ("a/b", "letters"), ("", "letters"), ("-x", "letters")])
def test_names_that_cannot_be(name: str, words: str) -> None:
    with pytest.raises(DeviceError, match=words):
        derive(name, T4, {})
