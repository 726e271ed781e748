"""A family's name takes its most common board and says which; facts that no device has are refused wherever they come from."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import printed, printed_json, refused

from iossim.cli.main import main
from iossim.devices.load import aliases, device, device_names, shipped_names
from iossim.devices.plausibility import impossible
from iossim.devices.write import profile_yaml
from iossim.errors import DeviceError
from iossim.ir.types import Precision
from iossim.notices import note_once


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
    note_once.cache_clear()
    assert device(family).name == board
    (record,) = caplog.records
    name = family.partition("+")[0]
    assert record.getMessage().startswith(f"note: {name!r} is taken as {board.partition('+')[0]}; ")


def test_no_family_is_two_boards_nor_a_board() -> None:
    names = [alias for each in aliases().values() for alias in each]
    assert len(names) == len(set(names)) > 8
    assert all(name == name.lower() for name in names)
    assert not set(names) & set(device_names())


def test_the_list_and_results_say_which(capsys: pytest.CaptureFixture[str]) -> None:
    listed = {row["name"]: row["also"] for row in printed_json(capsys, "devices list --json")}
    assert listed["v100-sxm2"] == ["v100"]
    assert listed.items() >= aliases().items()
    (line,) = [line for line in printed(capsys, "devices list").splitlines() if line.startswith("rtx-4090")]
    assert line.split()[1] == "4090"
    assert printed_json(capsys, "compare ios_sample -d v100 --json")["device"] == "v100-sxm2"


def test_what_is_written_is_read_back() -> None:
    assert "aliases: [v100]" in profile_yaml(device("v100-sxm2"))
    assert "aliases" not in profile_yaml(device("t4"))


@pytest.mark.parametrize("name", shipped_names())
def test_what_ships_can_be_and_so_can_ten_times_as_much(name: str) -> None:
    assert impossible(device(name)) == []
    assert impossible(device(f"{name}+sms={10 * device(name).sm_count},dram_gbps=20000")) == []


SLIPS = [
    ("boost_clock_ghz: {value: 1.59,", "boost_clock_ghz: {value: 1590.0,", "boost_clock_ghz is 1590 GHz", "MHz?"),
    ("dram_bytes: {value: 17179869184,", "dram_bytes: {value: 16,", "dram_bytes is", "GiB?"),
    ("l2_bytes: {value: 4194304,", "l2_bytes: {value: 4,", "l2_bytes is", "MiB?"),
    ("dram_bandwidth_gbps: {value: 320.0,", "dram_bandwidth_gbps: {value: 0.32,", "dram_bandwidth_gbps", "TB/s?"),
]


@pytest.mark.parametrize(("right", "wrong", "fact", "unit"), SLIPS, ids=[slip[2] for slip in SLIPS])
@pytest.mark.parametrize(
    "command", ["compare ios_sample -d {file}", "devices show {file}", "predict ops.csv -d {file}"]
)
def test_a_slip_of_unit_is_refused_by_every_command(
    command: str, right: str, wrong: str, fact: str, unit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = profile_yaml(device("t4"))
    assert right in text
    file = tmp_path / "mine.yaml"
    file.write_text(text.replace(right, wrong))
    line = refused(capsys, command.format(file=file))
    assert line.startswith(f"error: device profile {file}: {fact}")
    assert unit in line


def test_validate_still_says_all_that_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(profile_yaml(device("t4")).replace("{value: 1.59,", "{value: 1590.0,"))
    with pytest.raises(DeviceError):
        device(str(file))
    assert main(["devices", "validate", str(file)]) == 2
    told = capsys.readouterr().out
    assert "is the clock in MHz?" in told
    assert "boost_clock_ghz is 1590 GHz" in told


@pytest.mark.parametrize("name", shipped_names())
def test_bf16_came_with_ampere(name: str) -> None:
    profile = device(name)
    for precision in Precision:
        if precision is Precision.BF16 and float(profile.datasheet.compute_capability.value) < 8.0:
            with pytest.raises(DeviceError, match="has no bf16; it has fp32, fp16, int8"):
                profile.require(precision)
        else:
            profile.require(precision)


def test_predict_refuses_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ops.csv").write_text("op,rows,cols\nadd,64,64\n", encoding="utf-8")
    assert "has no bf16" in refused(capsys, f"predict {tmp_path / 'ops.csv'} -d t4 --dtype bf16")
