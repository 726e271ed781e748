"""A pytest plugin for ``gpu_report.py``: each test's result as a line of JSON as it ends, and large networks last.

A time-out, or a crash of the process, loses only the running test's result. The next run over the same file leaves out
passed tests, and begins with those not run yet: a test that failed or never ended comes last. ``pytest -p
gpu_report_pytest --report-file FILE``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_report_plan import MODELS
from gpu_report_records import BEGUN, append, newest_tests, read_records

#: Error of tests after which no later one can pass.
LOST = "DeviceLostError"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--report-file", type=Path, required=True, help="JSON lines, a test each")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Results(config.getoption("--report-file")), "gpu_report_results")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put tests that have not run yet first, by the largest network that a test names, then in their order."""
    before = newest_tests(read_records(config.getoption("--report-file")))
    passed = [item for item in items if before.get(item.nodeid, {}).get("outcome") == "passed"]
    items[:] = [item for item in items if item not in passed]
    items.sort(key=lambda item: (item.nodeid in before, _size(item)))
    if passed:
        config.hook.pytest_deselected(items=passed)


def _size(item: pytest.Item) -> int:
    return max((1 + MODELS.index(model) for model in MODELS if model in item.name), default=0)


class Results:
    """Writes the outcome of each test at its teardown, and collection errors."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._session: pytest.Session | None = None
        self._outcome, self._said, self._seconds = "passed", "", 0.0

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._outcome, self._said, self._seconds = "passed", "", 0.0
        self._write(nodeid, BEGUN, "", 0.0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds += report.duration
        if report.outcome != "passed" and self._outcome == "passed":
            failed = "failed" if report.when == "call" else "error"
            self._outcome = "skipped" if report.outcome == "skipped" else failed
            self._said = _said(report)
        if report.when == "teardown":
            self._write(report.nodeid, self._outcome, self._said, self._seconds)
            if LOST in self._said and self._session is not None:
                self._session.shouldstop = "the device is lost to this process"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            outcome = "skipped" if report.outcome == "skipped" else "error"
            self._write(report.nodeid, outcome, _said(report), 0.0)

    def _write(self, test: str, outcome: str, said: str, seconds: float) -> None:
        about = {"said": said} if said else {}
        append(self._path, {"record": "test", "test": test, "outcome": outcome, "s": round(seconds, 3), **about})


def _said(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Reason why a test did not pass, in one line: the message of a skip, or of an exception."""
    found = report.longrepr
    if isinstance(found, tuple):
        return str(found[2])[:300]
    crash = getattr(found, "reprcrash", None)
    lines = [line for line in str(found if crash is None else crash.message).splitlines() if line.strip()]
    return (lines[0 if crash is not None else -1] if lines else "")[:300]
