"""This machine's CPU as a device: facts that hold together, kept where the user's data is, and errors of one line."""

import os
from pathlib import Path

import pytest
import yaml
from command_line import printed_json
from cpus import FACTS, cpu

from iossim.base.errors import DeviceError, say_once
from iossim.cli.main import main
from iossim.hardware import host_measuring
from iossim.hardware.host_measuring import HOST_PROVENANCE, PRODUCT_PART, measure_host_cpu
from iossim.hardware.load import device
from iossim.hardware.names import device_names, host_cpu_path, load_host_cpu, shipped_names
from iossim.hardware.override import derive
from iossim.hardware.plausibility import impossible
from iossim.hardware.profile import DeviceProfile, parse
from iossim.hardware.write import profile_yaml, save_host_cpu


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has data of its own."""
    monkeypatch.setenv("IOSSIM_DATA_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def measured() -> DeviceProfile:
    return measure_host_cpu()


def test_facts_of_this_machine(measured: DeviceProfile) -> None:
    sheet = measured.datasheet
    assert (measured.name, measured.kind, measured.architecture) == ("cpu", "cpu", "cpu")
    assert 1 <= measured.sm_count <= len(os.sched_getaffinity(0))
    assert measured.fp32_tflops == pytest.approx(sheet.fp32_tflops.value, rel=1e-3)
    assert 1 <= sheet.fp32_tflops.value * 1e3 / measured.sm_count <= 2000
    assert sheet.core_cache_bytes is not None
    assert 1 << 15 <= sheet.core_cache_bytes.value <= sheet.l2_bytes.value
    assert sheet.dram_bytes.value > 1 << 28
    assert 0.5 < measured.dram_bandwidth_gbps < 5000
    assert measured.board_power_w == float("inf")
    for source in (sheet.dram_bandwidth_gbps.source, sheet.boost_clock_ghz.source):
        assert "measured on 20" in measured.sources[source]
    assert measured.parameters == measured.device_kind.parameters["cpu"]
    assert measured.engine == measured.device_kind.engines["cpu"].values
    assert measured.provenance.kind == "hand-set"
    assert parse(profile_yaml(measured), "measured") == measured


def test_the_clock_is_one_that_reaches_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nominal clock below it is raised; one above it stays."""
    monkeypatch.setattr(host_measuring, "_copy_gbps", lambda *arguments: (10.0, 1 << 20))
    monkeypatch.setattr(host_measuring, "cpu_facts", lambda: {"flags": "fpu avx2 fma", "cpu MHz": "2000.0"})
    monkeypatch.setattr(host_measuring, "SYSTEM", Path("/nowhere"))
    for gflops, expected_ghz in ((96.0, 96.0 / (2 * 16 * PRODUCT_PART)), (30.0, 2.0)):
        monkeypatch.setattr(host_measuring, "_product_gflops", lambda gflops=gflops: gflops)
        found = measure_host_cpu()
        assert found.boost_clock_ghz == pytest.approx(expected_ghz, abs=1e-3)
        assert found.datasheet.fp32_lanes_per_sm.value == 16
        assert "assumed" in found.sources[found.datasheet.l2_bytes.source]


def test_lanes() -> None:
    for says, lanes in (
        ({"flags": "sse2 avx avx2 avx512f"}, 32), ({"flags": "sse2 avx"}, 8), ({"Features": "fp asimd"}, 8), ({}, 8)
    ):  # fmt: skip
        found, source = host_measuring._lanes(says)
        assert found == lanes
        assert ("assumed" in source) == (not says)


def test_caches_as_linux_tells_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest that a core shares with nobody but its own second thread, and the largest of all."""
    core = tmp_path / f"cpu{min(os.sched_getaffinity(0))}"
    caches = ["48K Data 0,4", "32K Instruction 0,4", "2M Unified 0,4", "64M Unified 0-7"]
    told = {f"cache/index{index}": dict(zip(("size", "type", "shared_cpu_list"), each.split(), strict=True))
            for index, each in enumerate(caches)} | {"topology": {"thread_siblings_list": "0,4"}}  # fmt: skip
    for folder, files in told.items():
        (core / folder).mkdir(parents=True)
        for name, text in files.items():
            (core / folder / name).write_text(f"{text}\n")
    monkeypatch.setattr(host_measuring, "SYSTEM", tmp_path)
    assert host_measuring._caches()[:2] == (64 << 20, 2 << 20)


def test_it_is_kept_and_found_by_name(folder: Path) -> None:
    with pytest.raises(DeviceError, match="iossim profile MODEL --backend onnxruntime_cpu"):
        device("cpu")
    assert device_names() == shipped_names()
    assert save_host_cpu(cpu()) == host_cpu_path() == folder / "devices" / "cpu.yaml"
    assert device("cpu") == load_host_cpu() == cpu()
    assert device_names() == [*shipped_names(), "cpu"]


def test_a_command_describes_the_cpu_once_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    described = []

    def measure() -> DeviceProfile:
        described.append(1)
        return cpu().model_copy(update={"provenance": HOST_PROVENANCE})

    monkeypatch.setattr(host_measuring, "measure_host_cpu", measure)
    first, second = (printed_json("compare squeezenet --device cpu --json") for _ in range(2))
    assert described == [1]
    assert [one["latency_us"] for one in first["schedules"]] == [one["latency_us"] for one in second["schedules"]]
    say_once.cache_clear()
    assert main(["predict", "squeezenet", "--device", "cpu"]) == 0
    assert "what kernels reach of them is taken from another CPU" in caplog.text
    assert described == [1]


def test_a_folder_that_cannot_be_made_and_a_spoiled_profile_are_told_by_name(folder: Path) -> None:
    (folder / "devices").write_text("a file")
    with pytest.raises(DeviceError, match="IOSSIM_DATA_DIR"):
        save_host_cpu(cpu())
    (folder / "devices").unlink()
    save_host_cpu(cpu()).write_text("name: [")
    with pytest.raises(DeviceError, match=r"devices.cpu\.yaml"):
        device("cpu")


@pytest.mark.parametrize(
    ("capability", "facts", "words"),
    [
        (None, {"kind": "cpu", "core_cache_bytes": None}, "core_cache_bytes"),
        ("7.5", {}, "board_power_w"),
        ("7.5", {"board_power_w": 70.0}, "core_cache_bytes"),
        ("z80", {}, "unknown compute capability 'z80'"),
    ],
)
def test_facts_of_the_wrong_kind_of_device(capability: str | None, facts: dict[str, object], words: str) -> None:
    kind = {"kind": facts.pop("kind")} if "kind" in facts else {}
    own = {"compute_capability": capability} | facts
    sheet = {name: {"value": value, "source": "x"} for name, value in (FACTS | own).items() if value is not None}
    text = yaml.safe_dump({"name": "cpu", "title": "t", "sources": {"x": "x"}, "datasheet": sheet} | kind)
    with pytest.raises(DeviceError, match=words):
        parse(text, "mine.yaml")


def test_what_cannot_be_of_a_cpu_is_told_as_one() -> None:
    with pytest.raises(DeviceError, match="is a CPU; give a GPU with `like`"):
        derive("half", cpu(), {"sm_count": 1})
    assert impossible(cpu(sm_count=10**6)) == ["sm_count is 1e+06 SMs, CPUs have 1 to 256"]
