"""Studies small enough for tests, and what of their files must be equal whatever made them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from iossim.study.axes import Device, Model
from iossim.study.run_directory import RESULTS, SCHEDULES, TABLE
from iossim.study.scenario import Scenario


def small_study(models: Iterable[str | Model] = ("ios_sample",), **fields: Any) -> Scenario:
    """Two devices and two batch sizes of a network, all schedulers."""
    given: dict[str, Any] = {
        "name": "small",
        "models": [Model(model=each) if isinstance(each, str) else each for each in models],
        "devices": [Device(device="v100-sxm2"), Device(device="t4")],
        "batch_sizes": [1, 8],
        "questions": [{"smallest": "device", "having": {"latency_ms": {"at_most": 5}}}],
        "constraints": [{"metric": "latency_ms", "at_most": 1}],
    }
    return Scenario(**{**given, **fields})


def files_of(folder: Path) -> dict[str, bytes]:
    """By name the files that equal studies have in common."""
    names = [RESULTS, TABLE, *sorted(f"{SCHEDULES}/{path.name}" for path in (folder / SCHEDULES).iterdir())]
    return {name: (folder / name).read_bytes() for name in names}
