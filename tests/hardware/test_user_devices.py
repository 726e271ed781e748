"""Profiles of the user's folder, edge devices' profiles, and GPUs as nvidia-smi prints them."""

import sys
from pathlib import Path

import pytest
from case_files import cases
from command_line import printed, printed_json, refused

from iossim.base.errors import DeviceError, say_once
from iossim.base.shipped_yaml import shipped_files
from iossim.cli.main import main
from iossim.hardware.edge import edge_device
from iossim.hardware.load import device
from iossim.hardware.names import (
    device_names,
    edge_names,
    origin,
    own_names,
    shipped_edge_names,
    shipped_names,
    user_folder,
)
from iossim.hardware.nvidia_smi import Gpu, gpus, parse
from iossim.hardware.write import profile_yaml, write_template
from iossim.ir.types import Precision

CASES = cases(__file__, "mistakes.yaml")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of devices."""
    monkeypatch.setenv("IOSSIM_DATA_DIR", str(tmp_path / "data"))
    say_once.cache_clear()
    (tmp_path / "data" / "devices").mkdir(parents=True)
    return tmp_path / "data" / "devices"


def save(folder: Path, name: str, called: str | None = None) -> Path:
    text = profile_yaml(device("t4").model_copy(update={"name": called or name}))
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


def test_profiles_in_the_folder_are_found_by_name_unless_one_ships(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "t4.yaml").write_text("nonsense")
    assert device_names() == shipped_names()
    assert device("t4").name == "t4"
    (record,) = caplog.records
    assert "t4.yaml is not used: 't4' is a device that ships" in record.message
    path = save(folder, "my-t4")
    assert user_folder() == folder
    assert device_names() == [*shipped_names(), "my-t4"]
    assert device("my-t4").sm_count == device("t4").sm_count
    assert (origin("my-t4"), origin("t4")) == (str(path), "shipped")
    with pytest.raises(DeviceError, match="did you mean 'my-t4'"):
        device("my-t5")
    # The list leaves out what is broken.
    (folder / "broken.yaml").write_text("name: [")
    rows = {row["name"]: row["from"] for row in printed_json("devices list --json")}
    assert (rows["my-t4"], rows["t4"]) == (str(path), "shipped")
    assert "broken" not in rows
    assert "my-t4: " in printed("devices show my-t4")
    assert "broken.yaml, line 1: is not YAML" in refused("devices show broken")


def test_a_template_is_a_profile_once_it_is_filled_in(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "wrote mine.yaml" in printed("devices new mine")
    # By the name that was given, too: the file that is here is checked, and what is to be filled in told.
    assert main(["devices", "validate", "mine"]) == 2
    assert "mine.yaml:\n  device profile mine.yaml is not valid" in capsys.readouterr().out
    assert "for the file that is here give mine.yaml" in refused("compare ios_sample -d mine")
    text = Path("mine.yaml").read_text()
    assert "FILL_IN" in text
    assert "mine.yaml is there already" in refused("devices new mine")
    assert Path("mine.yaml").read_text() == text
    unfilled = main_fails(capsys, "devices validate mine.yaml")
    assert "sm_count.value': Input should be a valid integer, not 'FILL_IN' (other mistakes: " in unfilled
    for name, fact in device("t4").model_dump()["datasheet"].items():
        if fact is not None:
            text = text.replace(f"  {name}: {{value: FILL_IN,", f"  {name}: {{value: {fact['value']},")
    text = text.replace('"FILL_IN"', '"7.5"')
    Path("mine.yaml").write_text(text)
    output = main_fails(capsys, "devices validate mine.yaml")
    assert "title is still 'FILL_IN'" in output
    Path("mine.yaml").write_text(
        text.replace("title: FILL_IN", "title: T").replace("datasheet: FILL_IN", "datasheet: D")
    )
    assert printed("devices validate mine.yaml t4") == "mine.yaml: plausible\nt4: plausible\n"
    assert device("mine.yaml").fp32_tflops == device("t4").fp32_tflops


def main_fails(capsys: pytest.CaptureFixture[str], line: str) -> str:
    """What a check that finds something wrong prints; the summary is the one line on standard error."""
    capsys.readouterr()
    assert main(line.split()) == 2
    output = capsys.readouterr()
    assert output.err.startswith("error: 1 of 1 profiles failed validation")
    assert output.err.count("\n") == 1
    return output.out


def test_validate_says_each_problem(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every problem is reported, even of a profile that no other command accepts."""
    path = tmp_path / "slow.yaml"
    path.write_text(profile_yaml(device("t4")).replace("{value: 1.59,", "{value: 1590.0,"))
    with pytest.raises(DeviceError):
        device(str(path))
    told = main_fails(capsys, f"devices validate {path}")
    assert "GHz x 2 make 8141: is the clock in MHz?" in told
    assert "boost_clock_ghz is 1590 GHz, Turing boards have " in told
    assert "was it given in MHz?" in told
    assert printed_json("devices validate --json t4 l4") == [{"profile": name, "problems": []} for name in ("t4", "l4")]


@pytest.mark.parametrize(("name", "file", "words"), CASES["template"])
def test_a_template_that_cannot_be_is_one_line(folder: Path, tmp_path: Path, name: str, file: str, words: str) -> None:
    with pytest.raises(DeviceError, match=words):
        write_template(name, tmp_path / file, folder)
    assert not (tmp_path / file).exists()
    assert "cpu" in own_names()


def test_the_folder_is_made_for_its_first_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOSSIM_DATA_DIR", str(tmp_path / "data"))
    path = tmp_path / "data" / "devices" / "mine.yaml"
    assert not path.parent.exists()
    assert f"wrote {path}" in printed(["devices", "new", "mine", "--out", str(path)])
    assert "'datasheet." in refused("devices show mine")
    assert "no such folder" in refused(["devices", "new", "mine", "--out", str(tmp_path / "other" / "m.yaml")])
    (tmp_path / "file").touch()
    with pytest.raises(DeviceError, match="cannot make the folder"):
        write_template("mine", tmp_path / "file" / "devices" / "m.yaml", tmp_path / "file" / "devices")


def test_a_profile_that_contradicts_itself_or_its_name_is_refused(folder: Path) -> None:
    path = save(folder, "mine")
    path.write_text(path.read_text().replace("source: datasheet}", "source: brochure}", 1))
    with pytest.raises(DeviceError, match=r"mine.yaml is not valid: datasheet\.\w+: source 'brochure' is not among"):
        device("mine")
    save(folder, "mine", called="yours")
    with pytest.raises(DeviceError, match=r"mine.yaml is found as 'mine' and has the name 'yours'"):
        device("mine")


def test_their_peaks_are_those_of_the_datasheets() -> None:
    assert edge_device("c6678").gflops(Precision.FP32) == pytest.approx(160)
    assert edge_device("zcu102").gflops(Precision.INT8) == pytest.approx(3450, rel=0.01)
    with pytest.raises(DeviceError, match="'c6678' does not compute in bf16; it has fp32, int8"):
        edge_device("c6678").gflops(Precision.BF16)


def test_no_name_is_of_two_kinds_and_what_needs_another_kind_refuses() -> None:
    assert set(device_names()).isdisjoint(edge_names())
    assert set(shipped_files("iossim.hw_profiles")) == {*shipped_edge_names(), *device_names()} - {"cpu"}
    assert "is an edge device" in refused("optimize ios_sample -d zcu102")
    for find, name, words in (
        (device, "c6678", "'c6678' is an edge device, which this cannot take"),
        (edge_device, "t4", "'t4' is no edge device; those that are: c6678, zcu102"),
        (edge_device, "c6679", "unknown edge device 'c6679'; did you mean 'c6678'"),
        (edge_device, "c6678+bytes=1", "'bytes' is no number of device c6678; "),
        (edge_device, "c6678+units=2.5", "units=2.5 cannot be: field 'units.value'"),
        (edge_device, "c6678+units=0", "a fact must be a positive number"),
        (edge_device, "c6678+units=9,units", "'units' is not NAME=NUMBER"),
    ):
        with pytest.raises(DeviceError, match=words):
            find(name)


def test_they_are_listed_shown_and_validated() -> None:
    (row,) = [row for row in printed_json("devices list --json") if row["name"] == "c6678"]
    assert (row["architecture"], row["SMs"], row["from"]) == ("edge", 8, "shipped")
    assert "private_bytes" in printed("devices show c6678")
    assert printed_json("devices show zcu102 --json")["units"]["value"] == 504
    assert printed("devices validate c6678") == "c6678: plausible\n"


def test_a_users_own(folder: Path) -> None:
    text = Path(__file__).parents[2].joinpath("hw_profiles/c6678.yaml").read_text()
    own = folder / "mine.yaml"
    own.write_text(text.replace("name: c6678", "name: mine"))
    assert edge_names()[-1] == "mine"
    assert "mine" not in device_names()
    assert edge_device("mine").units == edge_device(str(own)).units
    for old, new, words in (
        ("units: {value: 8", "units: {value: -8", "units: a fact must be a positive number"),
        ("source: msmc", "source: hearsay", "source 'hearsay' is not among the profile's sources"),
    ):
        own.write_text(text.replace(old, new))
        with pytest.raises(DeviceError, match=words):
            edge_device(str(own))


def test_a_fact_replaced_in_the_name() -> None:
    changed = edge_device("c6678+links.srio.latency_us=3,shared.bytes=8388608,multiply_adds_per_cycle.fp32=4")
    assert changed.links["srio"].latency_us.value == 3
    assert (changed.shared.bytes.value, changed.gflops(Precision.FP32)) == (8388608, pytest.approx(80))
    assert changed.shared.bandwidth_gbps == edge_device("c6678").shared.bandwidth_gbps
    assert edge_device(changed.name) == changed
    assert edge_device("zcu102").changed(edge_device("zcu102").numbers()).numbers() == edge_device("zcu102").numbers()


LINE = "NVIDIA H100 80GB HBM3, 580.159.04, 9.0, 81559, 345, 1980, 2619, 69.61, 700.00, 31"


def fake_program(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!{sys.executable}\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_lines_become_gpus_and_the_program_is_asked_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = parse(f"{LINE}\nTesla K80, 470.1, 3.7, 11441, 562, 875, [N/A], [Not Supported], 149.00, 40\n\n")
    assert first == Gpu("NVIDIA H100 80GB HBM3", "580.159.04", "9.0", 81559, 345, 1980, 2619, 69.61, 700, 31)
    assert second == Gpu("Tesla K80", "470.1", "3.7", 11441, 562, 875, None, None, 149, 40)
    script = f"import sys\nassert sys.argv[1].count(',') == {LINE.count(',')}\nprint({LINE!r})"
    fake_program(tmp_path, monkeypatch, script)
    assert gpus() == (first,)


@pytest.mark.parametrize("script", ["", "raise SystemExit(9)", "print('No devices were found')"])
def test_without_gpus_or_the_program_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if script:
        fake_program(tmp_path, monkeypatch, script)
    assert gpus() == ()
