"""Items of a section of ``gpu_report``: what fails is told and the others go on, unless the device is lost."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from iossim.execution.backend import DeviceLostError

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def sections(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))
    import gpu_report_sections

    yield gpu_report_sections
    for name in [name for name in sys.modules if name.startswith("gpu_report")]:
        del sys.modules[name]


def records(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "report.jsonl").read_text().splitlines()]


def arguments(out: Path) -> argparse.Namespace:
    given = {"section": "first", "seconds": 60.0, "out": out, "models": ("m",), "backend": "", "device": ""}
    return argparse.Namespace(**given, dtypes=("fp32",), dry_run=True)


def test_a_failed_item_is_known_to_its_caller_and_ends_nothing(sections: ModuleType, tmp_path: Path) -> None:
    from gpu_report_job import Job

    job = Job("device", tmp_path, time.monotonic() + 60, (), "", "", True)
    with job.told("first") as first:
        raise ValueError("what went\nwrong")
    with job.told("second") as second:
        pass
    assert (first.error, second.error) == ("ValueError: what went wrong", "")
    assert job.remark == "1 failed, the first: first: ValueError: what went wrong"
    job.leave("third")
    assert job.remark.endswith("; 1 left to do, the first: third")
    assert [row["record"] for row in records(tmp_path)] == ["error", "left"]


def test_a_lost_device_ends_the_section(sections: ModuleType, tmp_path: Path) -> None:
    from gpu_report_job import Job

    job = Job("device", tmp_path, time.monotonic() + 60, (), "", "", True)
    asked: list[str] = []

    def probe() -> None:
        asked.append("probe")
        if len(asked) > 1:
            raise OSError("illegal memory access")

    job.probes.append(probe)
    with job.told("one that fails by itself"):
        raise ValueError
    lost = pytest.raises(DeviceLostError, match="lost since inner: OSError: illegal memory access")
    with lost, job.told("outer"), job.told("inner"):
        raise ValueError
    assert [row["item"] for row in records(tmp_path)] == ["one that fails by itself", "inner"]


def test_a_backend_that_says_so_itself_is_believed(sections: ModuleType, tmp_path: Path) -> None:
    from gpu_report_job import Job

    job = Job("device", tmp_path, time.monotonic() + 60, (), "", "", True)
    with pytest.raises(DeviceLostError, match="the GPU failed"), job.told("outer"), job.told("inner"):
        raise DeviceLostError("the GPU failed")
    assert [row["item"] for row in records(tmp_path)] == ["inner"]


@pytest.mark.parametrize(
    ("what", "code", "last"),
    [
        ("nothing", 0, ""),
        ("fails", 3, "1 failed, the first: item: OSError: why"),
        ("left", 3, "1 left to do, the first: item"),
        ("dies", 1, "OSError: why"),
        ("skipped", 0, ""),
    ],
)
def test_the_exit_code_says_whether_all_is_done(
    sections: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    what: str,
    code: int,
    last: str,
) -> None:
    from gpu_report_job import Job

    def section(job: Job) -> None:
        if what == "dies":
            raise OSError("why")
        if what == "left":
            job.leave("item")
        if what == "skipped":
            job.skip("item", "this machine has none")
        with job.told("item"):
            if what == "fails":
                raise OSError("why")

    monkeypatch.setattr(sections, "section_first", section)
    assert sections.run(arguments(tmp_path)) == code
    assert (capsys.readouterr().out.splitlines() or [""])[-1] == last
