"""Edge devices: what their profiles say, and that what needs a GPU refuses them in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import printed, printed_json, refused

from iossim.base.errors import DeviceError
from iossim.base.shipped_yaml import shipped_files
from iossim.hardware.edge import edge_device
from iossim.hardware.load import device
from iossim.hardware.names import device_names, edge_names, shipped_edge_names
from iossim.ir.types import Precision


@pytest.mark.parametrize("name", shipped_edge_names())
def test_every_fact_has_a_source_that_is_used(name: str) -> None:
    profile = edge_device(name)
    assert profile.name == name
    assert {fact.source for fact in profile.facts().values()} <= set(profile.sources)


def test_their_peaks_are_those_of_the_datasheets() -> None:
    assert edge_device("c6678").gflops(Precision.FP32) == pytest.approx(160)
    assert edge_device("zcu102").gflops(Precision.INT8) == pytest.approx(3450, rel=0.01)
    with pytest.raises(DeviceError, match="'c6678' does not compute in bf16; it has fp32, int8"):
        edge_device("c6678").gflops(Precision.BF16)


def test_no_name_is_of_two_kinds() -> None:
    assert set(device_names()).isdisjoint(edge_names())
    assert set(shipped_files("iossim.hw_profiles")) == {*shipped_edge_names(), *device_names()} - {"cpu"}


def test_what_needs_another_kind_refuses() -> None:
    with pytest.raises(DeviceError, match="'c6678' is an edge device, which this cannot take"):
        device("c6678")
    assert "is an edge device" in refused("optimize ios_sample -d zcu102")
    with pytest.raises(DeviceError, match="'t4' is no edge device; those that are: c6678, zcu102"):
        edge_device("t4")
    with pytest.raises(DeviceError, match="unknown edge device 'c6679'; did you mean 'c6678'"):
        edge_device("c6679")


def test_they_are_listed_shown_and_validated() -> None:
    (row,) = [row for row in printed_json("devices list --json") if row["name"] == "c6678"]
    assert (row["architecture"], row["SMs"], row["from"]) == ("edge", 8, "shipped")
    assert "private_bytes" in printed("devices show c6678")
    assert printed_json("devices show zcu102 --json")["units"]["value"] == 504
    assert printed("devices validate c6678") == "c6678: plausible\n"


def test_a_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOSSIM_DATA_DIR", str(tmp_path))
    (tmp_path / "devices").mkdir()
    text = Path(__file__).parents[2].joinpath("hw_profiles/c6678.yaml").read_text()
    own = tmp_path / "devices" / "mine.yaml"
    own.write_text(text.replace("name: c6678", "name: mine"))
    assert edge_names()[-1] == "mine"
    assert "mine" not in device_names()
    assert edge_device("mine").units == edge_device(str(own)).units
    own.write_text(text.replace("units: {value: 8", "units: {value: -8"))
    with pytest.raises(DeviceError, match="units: a fact must be a positive number"):
        edge_device(str(own))
    own.write_text(text.replace("source: msmc", "source: hearsay"))
    with pytest.raises(DeviceError, match="source 'hearsay' is not among the profile's sources"):
        edge_device(str(own))


def test_a_fact_replaced_in_the_name() -> None:
    changed = edge_device("c6678+links.srio.latency_us=3,shared.bytes=8388608,multiply_adds_per_cycle.fp32=4")
    assert changed.links["srio"].latency_us.value == 3
    assert (changed.shared.bytes.value, changed.gflops(Precision.FP32)) == (8388608, pytest.approx(80))
    assert changed.shared.bandwidth_gbps == edge_device("c6678").shared.bandwidth_gbps
    assert edge_device(changed.name) == changed
    assert edge_device("zcu102").changed(edge_device("zcu102").numbers()).numbers() == edge_device("zcu102").numbers()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("bytes=1", "'bytes' is no number of device c6678; "),
        ("units=2.5", "units=2.5 cannot be: field 'units.value'"),
        ("units=0", "a fact must be a positive number"),
        ("units=9,units", "'units' is not NAME=NUMBER"),
    ],
)
def test_what_cannot_be_replaced(change: str, says: str) -> None:
    with pytest.raises(DeviceError, match=says):
        edge_device(f"c6678+{change}")
