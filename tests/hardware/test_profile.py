"""Device profiles: the shipped ones are right, a bad one is one clear line; a family's name takes its most common board
and says which; facts that no device has are refused wherever they come from.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import printed, printed_json, refused

from iossim import api
from iossim.base.errors import DeviceError, say_once
from iossim.hardware.compute_capability import Architecture
from iossim.hardware.kind import device_kind
from iossim.hardware.load import device
from iossim.hardware.names import aliases, device_names, shipped_names
from iossim.hardware.plausibility import TO_FILL_IN, implausible, impossible
from iossim.hardware.profile import DeviceProfile, Fact
from iossim.hardware.write import profile_yaml
from iossim.ir.types import Precision
from iossim.models.load import load

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


def test_resamples_of_older_profiles_are_ignored(tmp_path: Path) -> None:
    files = [
        yaml.safe_dump(yaml.safe_load(FACTS) | fitted("resamples", each)) for each in ({"gemm_efficiency": [0.5]}, {})
    ]
    assert device(write(tmp_path, files[0])) == device(write(tmp_path, files[1]))


def test_a_file_says_its_kind_or_is_of_a_gpu(tmp_path: Path) -> None:
    told = device(write(tmp_path, "kind: gpu\n" + FACTS))
    assert told == device(write(tmp_path, FACTS))
    assert "kind" not in told.model_dump()  # so that what is keyed by a profile is as it was before kinds were told
    with pytest.raises(DeviceError, match="unknown kind 'abacus'; known: cpu, gpu"):
        device(write(tmp_path, "kind: abacus\n" + FACTS))
    with pytest.raises(DeviceError, match=r"unknown compute capability '7\.5' of a CPU"):
        device(write(tmp_path, "kind: cpu\n" + FACTS))


@pytest.mark.parametrize(
    ("family", "board"),
    [
        ("v100", "v100-sxm2"),
        ("V100", "v100-sxm2"),
        ("a100", "a100-sxm-40gb"),
        ("h100", "h100-sxm"),
        ("3090", "rtx-3090"),
        ("orin", "jetson-orin"),
        ("p100+sms=50", "p100-pcie-16gb+sm_count=50"),
    ],
)
def test_a_family_is_its_most_common_board(family: str, board: str, caplog: pytest.LogCaptureFixture) -> None:
    say_once.cache_clear()
    assert device(family).name == board
    (record,) = caplog.records
    name = family.partition("+")[0]
    assert record.getMessage().startswith(f"note: {name!r} is taken as {board.partition('+')[0]}; ")


def test_no_family_is_two_boards_nor_a_board() -> None:
    names = [alias for each in aliases().values() for alias in each]
    assert len(names) == len(set(names)) > 8
    assert all(name == name.lower() for name in names)
    assert not set(names) & set(device_names())


def test_the_list_and_results_say_which() -> None:
    listed = {row["name"]: row["also"] for row in printed_json("devices list --json")}
    assert listed["v100-sxm2"] == ["v100"]
    assert listed.items() >= aliases().items()
    (line,) = [line for line in printed("devices list").splitlines() if line.startswith("rtx-4090")]
    assert line.split()[1] == "4090"
    assert printed_json("compare ios_sample -d v100 --json")["device"] == "v100-sxm2"


@pytest.mark.parametrize("name", shipped_names())
def test_what_ships_can_be_and_so_can_ten_times_as_much(name: str) -> None:
    assert impossible(device(name)) == []
    assert impossible(device(f"{name}+sms={10 * device(name).sm_count},dram_gbps=20000")) == []
    assert device(name).spread.items() >= device(name).provenance.spread.items()


SLIPS = [
    ("boost_clock_ghz: {value: 1.59,", "boost_clock_ghz: {value: 1590.0,", "boost_clock_ghz is 1590 GHz", "MHz?"),
    ("dram_bytes: {value: 17179869184,", "dram_bytes: {value: 16,", "dram_bytes is", "GiB?"),
    ("l2_bytes: {value: 4194304,", "l2_bytes: {value: 4,", "l2_bytes is", "MiB?"),
    ("dram_bandwidth_gbps: {value: 320.0,", "dram_bandwidth_gbps: {value: 0.32,", "dram_bandwidth_gbps", "TB/s?"),
]


@pytest.mark.parametrize(("right", "wrong", "fact", "unit"), SLIPS, ids=[slip[2] for slip in SLIPS])
def test_a_slip_of_unit_is_refused_by_every_command(
    right: str, wrong: str, fact: str, unit: str, tmp_path: Path
) -> None:
    text = profile_yaml(device("t4"))
    assert right in text
    file = tmp_path / "mine.yaml"
    file.write_text(text.replace(right, wrong))
    for command in (f"compare ios_sample -d {file}", f"devices show {file}", f"predict ops.csv -d {file}"):
        line = refused(command)
        assert line.startswith(f"error: device profile {file}: {fact}")
        assert unit in line


@pytest.mark.parametrize("name", shipped_names())
def test_a_device_refuses_the_precisions_that_it_lacks_and_lists_those_that_it_takes(name: str) -> None:
    profile = device(name)
    capability = float(profile.datasheet.compute_capability.value)
    lacks = {Precision.BF16, Precision.TF32} if capability < 8.0 else set()
    lacks |= {Precision.INT8} if capability < 6.1 else set()
    lacks |= {Precision.FP8} if capability < 8.9 else set()
    has = ", ".join(precision for precision in Precision if precision not in lacks)
    for precision in Precision:
        if precision in lacks:
            with pytest.raises(DeviceError, match=f"has no {precision}; it has {has}$"):
                profile.require(precision)
        else:
            profile.require(precision)


def test_fp16_that_is_computed_in_fp32_is_told(caplog: pytest.LogCaptureFixture) -> None:
    network = load("ios_sample", dtype="fp16")
    for name, told in (("p4", True), ("k80", True), ("p100-sxm2", False), ("v100-sxm2", False)):
        say_once.cache_clear()
        assert api.optimize(network, name).latency_us > 0
        assert ("keep tensors in fp16 and compute in fp32" in caplog.text) is told
        caplog.clear()


def test_products_without_the_rate_of_tensor_cores_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """A profile that was filled in without its optional field is priced at the rate of fp32."""
    told = device("rtx-4090")
    bare = told.model_copy(
        update={"datasheet": told.datasheet.model_copy(update={"reduced_precision_tflops": None}), "name": "bare"}
    )
    for profile, precision, is_said in ((bare, "fp16", True), (bare, "fp32", False), (told, "fp16", False)):
        say_once.cache_clear()
        profile.require(Precision(precision))
        assert (f"bare names no rate of {precision}" in caplog.text) is is_said
        caplog.clear()


def test_fp8_has_twice_the_rate_of_fp16_where_there_is_fp8_told_or_not() -> None:
    for name in shipped_names():
        profile = device(name)
        told = profile.datasheet.reduced_precision_tflops
        rate = profile.reduced_precision_tflops(Precision.FP8)
        assert (rate is None) is (float(profile.compute_capability) < 8.9)
        if rate is not None and told is not None:
            untold = {name: value for name, value in told.value.items() if name != "fp8"}
            sheet = profile.datasheet.model_copy(update={"reduced_precision_tflops": Fact(value=untold, source="x")})
            assert rate == pytest.approx(2 * untold["fp16"], rel=0.02)
            assert profile.model_copy(update={"datasheet": sheet}).reduced_precision_tflops(Precision.FP8) == (
                2 * untold["fp16"]
            )


def test_products_of_8_bit_integers_run_four_at_a_time_without_tensor_cores() -> None:
    """On a V100: by ``__dp4a``; they are faster than those of fp32 then."""
    assert device("v100-sxm2").reduced_precision_tflops(Precision.INT8) == pytest.approx(62.7, rel=0.01)
    found = {dtype: api.optimize(load("squeezenet", dtype=dtype), "v100-sxm2").latency_us for dtype in ("fp32", "int8")}
    assert found["int8"] < 0.8 * found["fp32"]


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
        ("a100-sxm-40gb", {"reduced_precision_tflops": {"fp16": 624.0}}, "the rate with sparsity? then give half)"),
        ("a100-sxm-40gb", {"reduced_precision_tflops": {"fp16": 3120.0}}, "at most 311.9 dense"),
        ("a100-sxm-40gb", {"reduced_precision_tflops": {"fp16": 3.0}}, "leave it out where it is computed as fp32"),
        ("t4", {"reduced_precision_tflops": {"bf16": 65.0}}, "compute capability 7.5 has no unit for it: leave it out"),
        ("rtx-3090", {"dram_bandwidth_gbps": 468.0, "dram_pin_gbps": 9.75}, ""),
        ("rtx-3090", {"dram_pin_gbps": 9.75}, "leave out the double data rate?"),
        ("rtx-3090", {"dram_bus_bits": 320}, "320 bits x 19.5 Gbit/s / 8 make 780: check the three"),
        ("rtx-3090", {"dram_bus_bits": None}, "dram_bus_bits and dram_pin_gbps: give both, or none"),
    ],
)
def test_what_is_off_is_named_alone(name: str, facts: dict[str, Any], words: str) -> None:
    problems = implausible(changed(name, **facts))
    assert len(problems) == bool(words)
    assert "".join(problems).endswith(words)


def test_what_is_left_of_a_template_is_named() -> None:
    profile = device("t4")
    unfilled = profile.model_copy(update={"title": TO_FILL_IN, "sources": {**profile.sources, "web": TO_FILL_IN}})
    assert [problem.partition(" is ")[0] for problem in implausible(unfilled)] == ["title", "sources.web"]


def test_bus_facts_change_no_price() -> None:
    """Prices are kept under the fingerprint: what only checks other facts must not make them another device's."""
    profile = device("rtx-3090")
    assert changed("rtx-3090", dram_bus_bits=None, dram_pin_gbps=None).fingerprint == profile.fingerprint
    assert changed("rtx-3090", dram_bandwidth_gbps=900.0).fingerprint != profile.fingerprint
