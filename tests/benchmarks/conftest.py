"""The scripts of ``benchmarks`` are modules, which each test imports anew."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for path in FOLDER.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture
def new_job(tmp_path: Path) -> Callable[..., Any]:
    """Makes a job of a section of ``gpu_report``, whose results are in the folder of the test."""

    def made(section: str, seconds: float = 100.0, models: tuple[str, ...] = (), dry: bool = True, **more: Any) -> Any:
        job = import_module("gpu_report_job").Job
        return job(section, tmp_path, time.monotonic() + seconds, models, "", "", dry, **more)

    return made


@pytest.fixture
def records(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """Reads what sections recorded in the folder of the test."""
    return lambda: [json.loads(line) for line in (tmp_path / "report.jsonl").read_text().splitlines()]
