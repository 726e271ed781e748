"""Device profiles: the shipped ones are right, a bad one is one clear line; a family's name takes its most common board
and says which; facts that no device has are refused wherever they come from.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml
from case_files import cases
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

CASES = cases(__file__, "mistakes.yaml")

FACTS = Path(__file__).with_name("mine.yaml").read_text(encoding="utf-8")


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


@pytest.mark.parametrize(("change", "field"), CASES["field"])
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


@pytest.mark.parametrize(("family", "board"), CASES["family"])
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


@pytest.mark.parametrize(("name", "facts", "words"), CASES["fact"])
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
