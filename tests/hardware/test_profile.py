"""Device profiles: the shipped ones are right, a bad one is one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from iossim.base.errors import DeviceError
from iossim.hardware.compute_capability import Architecture
from iossim.hardware.kind import device_kind
from iossim.hardware.load import device

FACTS = """
name: mine
title: A device of mine
sources: {web: somewhere}
datasheet:
  compute_capability: {value: "7.5", source: web}
  sm_count: {value: 30, source: web}
  fp32_lanes_per_sm: {value: 64, source: web}
  boost_clock_ghz: {value: 1.5, source: web}
  dram_bandwidth_gbps: {value: 300, source: web}
  dram_bytes: {value: 6442450944, source: web}
  l2_bytes: {value: 3145728, source: web}
  board_power_w: {value: 160, source: web}
  fp32_tflops: {value: 5.8, source: web}
"""


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return str(path)


def test_datasheet_facts_alone_are_a_device(tmp_path: Path) -> None:
    profile, turing = device(write(tmp_path, FACTS)), device_kind("gpu").parameters[Architecture.TURING]
    assert profile.architecture is Architecture.TURING
    assert profile.provenance.kind == "transferred"
    assert profile.provenance.bands
    # What no kernel can tell is as the one device has it whose schedules were measured, or as the architecture has it.
    assert profile.parameters.interference == device("v100-sxm2").parameters.interference
    assert profile.parameters.depthwise_efficiency == turing.depthwise_efficiency
    # A file that says where its parameters come from gets no others.
    by_hand = device(write(tmp_path, FACTS + "provenance: {kind: hand-set, note: mine}\n"))
    assert by_hand.parameters == turing


def test_a_parameter_of_its_own_leaves_the_other_defaults(tmp_path: Path) -> None:
    profile = device(write(tmp_path, FACTS + "parameters: {interference: 0.5}\nengine: {fork_us: 9}\n"))
    assert (profile.parameters.interference, profile.engine.fork_us) == (0.5, 9.0)
    default = device(write(tmp_path, FACTS)).parameters
    assert profile.parameters == default.model_copy(update={"interference": 0.5})


def fitted(field: str, value: object) -> dict[str, object]:
    """Where parameters come from, with one field of its own."""
    return {"provenance": {"kind": "fitted", "note": "", field: value}}


def band(low: float, high: float = 1.3, **up_to_us: float) -> dict[str, object]:
    return {"rows": 3, "low": low, "high": high, **up_to_us}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"datasheet": {"sm_count": None}}, "datasheet.sm_count"),
        ({"datasheet": {"sm_count": {"value": "many", "source": "web"}}}, "datasheet.sm_count.value"),
        ({"datasheet": {"sm_count": {"value": -3, "source": "web"}}}, "datasheet.sm_count"),
        ({"datasheet": {"sm_count": {"value": 10**400, "source": "web"}}}, "datasheet.sm_count"),
        ({"datasheet": {"dram_bandwidth_gbps": {"value": 1e-300, "source": "web"}}}, "datasheet.dram_bandwidth_gbps"),
        ({"datasheet": {"sm_count": {"value": 30}}}, "datasheet.sm_count.source"),
        ({"parameters": {"kernel_gap_us": 1e308}}, "parameters.kernel_gap_us"),
        ({"datasheet": {"sm_count": {"value": 30, "source": "nowhere"}}}, "sm_count: source 'nowhere'"),
        ({"datasheet": {"boost_clock_ghz": {"value": float("nan"), "source": "web"}}}, "datasheet.boost_clock_ghz"),
        ({"datasheet": {"compute_capability": {"value": "1.3", "source": "web"}}}, "unknown compute capability '1.3'"),
        ({"datasheet": {"compute_capability": 7.5}}, "datasheet.compute_capability"),
        ({"datasheet": {"cores": {"value": 1, "source": "web"}}}, "datasheet.cores"),
        ({"datasheet": 7}, "datasheet"),
        ({"parameters": {"gemm_efficiency": 1.2}}, "parameters.gemm_efficiency"),
        ({"parameters": {"speed": 1}}, "parameters.speed"),
        ({"parameters": [1]}, "parameters"),
        ({"engine": {"fork_us": "slow"}}, "engine.fork_us"),
        ({"colour": "green"}, "colour"),
        (fitted("kind", "guessed"), "provenance.kind"),
        (fitted("date", "yesterday"), "provenance.date"),
        (fitted("bands", {"conv": []}), "'conv' must end"),
        (fitted("bands", {"conv": [band(0.9, up_to_us=5)]}), "'conv' must end"),
        (fitted("bands", {"conv": [band(0.9, up_to_us=50), band(0.9, up_to_us=5), band(0.9)]}), "'conv' must ascend"),
        (fitted("bands", {"conv": [band(1.2)]}), "low <= 1 <= high"),
        (fitted("bands", {"conv": [band(0.0)]}), "bands.conv.0.low"),
        (fitted("resamples", {"a": [1.0], "b": [1.0, 2.0]}), "as many values"),
        (fitted("spread", {"a": float("nan")}), "provenance.spread.a"),
        (fitted("held_out_fraction", 1.0), "held_out_fraction"),
        (fitted("data_set", "old name"), "provenance.data_set"),
    ],
)
def test_a_bad_field_is_named_in_one_line(tmp_path: Path, change: dict[str, object], field: str) -> None:
    data = yaml.safe_load(FACTS)
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(data.get(key), dict):
            data[key].update(value)
            data[key] = {name: inner for name, inner in data[key].items() if inner is not None}
        else:
            data[key] = value
    path = write(tmp_path, yaml.safe_dump(data))
    with pytest.raises(DeviceError) as caught:
        device(path)
    message = str(caught.value)
    assert path in message
    assert field in message


def test_a_file_says_its_kind_or_is_of_a_gpu(tmp_path: Path) -> None:
    told = device(write(tmp_path, "kind: gpu\n" + FACTS))
    assert told == device(write(tmp_path, FACTS))
    assert "kind" not in told.model_dump()  # so that what is keyed by a profile is as it was before kinds were told
    with pytest.raises(DeviceError, match="unknown kind 'abacus'; known: cpu, gpu"):
        device(write(tmp_path, "kind: abacus\n" + FACTS))
    with pytest.raises(DeviceError, match=r"unknown compute capability '7\.5' of a CPU"):
        device(write(tmp_path, "kind: cpu\n" + FACTS))
