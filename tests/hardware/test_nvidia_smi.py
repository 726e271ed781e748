"""GPUs as nvidia-smi prints them, with a program of that name on the PATH in its place."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from iossim.hardware.nvidia_smi import gpus, parse

LINE = "NVIDIA H100 80GB HBM3, 580.159.04, 9.0, 81559, 345, 1980, 2619, 69.61, 700.00, 31"


def fake_program(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!{sys.executable}\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_lines_become_gpus() -> None:
    first, second = parse(f"{LINE}\nTesla K80, 470.1, 3.7, 11441, 562, 875, [N/A], [Not Supported], 149.00, 40\n\n")
    assert (first.name, first.driver_version, first.compute_capability) == (
        "NVIDIA H100 80GB HBM3",
        "580.159.04",
        "9.0",
    )
    assert (first.memory_mib, first.sm_clock_mhz, first.max_sm_clock_mhz) == (81559, 345, 1980)
    assert (first.memory_clock_mhz, first.power_w, first.power_limit_w, first.temperature_c) == (2619, 69.61, 700, 31)
    assert (second.memory_clock_mhz, second.power_w, second.power_limit_w) == (None, None, 149)


def test_the_program_is_asked_for_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"import sys\nassert sys.argv[1].count(',') == {LINE.count(',')}\nprint({LINE!r})"
    fake_program(tmp_path, monkeypatch, script)
    (found,) = gpus()
    assert found.name == "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize("script", ["raise SystemExit(9)", "print('No devices were found')"])
def test_without_gpus_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    fake_program(tmp_path, monkeypatch, script)
    assert gpus() == ()


def test_without_the_program_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus() == ()
