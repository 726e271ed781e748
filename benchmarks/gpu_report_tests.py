"""The section of ``gpu_report.py`` that runs the GPU tests of the checkout.

Tests passed in an earlier command are not repeated: a section whose time was over continues.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_report_job import Job
from gpu_report_package import ROOT, TESTS_NEED, missing_distributions
from gpu_report_records import BEGUN, REPORT, newest_tests, read_records

#: Folders of GPU tests. Each has its own process: PyTorch brings a cuDNN that may differ from the other's.
GPU_TESTS = ("tests/backends/cupy_cudnn", "tests/backends/torch_cuda")
#: pytest's exit codes if tests ran, if it stopped before the last, and if none was chosen.
PYTEST_RAN, PYTEST_STOPPED, PYTEST_NONE = (0, 1), 2, 5


def section_tests(job: Job) -> None:
    """Run the GPU tests of the backends, one record each; a dry run only collects them."""
    if absent := missing_distributions(TESTS_NEED, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        raise RuntimeError(f"GPU tests need {', '.join(map(str, absent))}, not installed here; carry them in --wheels")
    collected = 0
    report, fresh = job.out / REPORT, set[str]()
    for number, tests in enumerate(GPU_TESTS):
        if job.left_s <= 0:
            job.leave(tests)
            continue
        begin = len(read_records(report))
        code, said = _pytest(job, tests, job.left_s / (len(GPU_TESTS) - number))
        results = newest_tests(read_records(report)[begin:])
        fresh |= set(results)
        # A dry run only records tests skipped during collection.
        counted = re.search(r"(\d+)(?:/\d+)? tests? collected", said) if job.dry else None
        found = int(counted.group(1)) if counted else 0
        collected += found
        unended = [test for test, row in results.items() if row["outcome"] == BEGUN]
        if code in (None, PYTEST_STOPPED):
            job.leave(f"some of {tests}{f', first {unended[0]}' if unended else ''}")
        elif code not in PYTEST_RAN and code != PYTEST_NONE:
            during = f" during {unended[0]}" if unended else ""
            job.fail(tests, f"pytest ended with exit code {code}{during}: {' '.join(said.split())[-200:]}")
        elif not found and {row["outcome"] for row in results.values()} == {"skipped"}:
            job.skip(tests, next(iter(results.values())).get("said", ""))
    # A file with collection errors has no test: an earlier command's record of it is not a result of this one.
    known = {test: row for test, row in newest_tests(read_records(report)).items() if "::" in test or test in fresh}
    job.failures += [
        f"{test}: {row.get('said', '')}" for test, row in known.items() if row["outcome"] in ("failed", "error")
    ]
    counts = Counter(str(row["outcome"]) for row in known.values())
    job.record("tests", **({"collected": collected} if job.dry else {}), **counts)
    if not job.remark and not (collected if job.dry else counts.total() - counts["skipped"]):
        job.fail("GPU tests", "none ran")


def _pytest(job: Job, tests: str, seconds: float) -> tuple[int | None, str]:
    """Run the GPU tests of a folder; returns its exit code, None if its time was over, and its output."""
    command = [sys.executable, "-m", "pytest", str(ROOT / tests), "-m", "gpu", "-q", "-p", "no:cacheprovider"]
    # The checkout itself is left out: its folder iossim would hide the whole package.
    command += ["-o", "pythonpath=tests/support"]
    command += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "--continue-on-collection-errors"]
    command += ["-p", "gpu_report_pytest", "--report-file", str(job.out / REPORT)]
    if job.dry:
        command += ["--collect-only"]
    with tempfile.TemporaryDirectory() as folder:
        # The command does not run in the checkout: its own folder iossim would hide the whole package.
        return run_for(command, seconds, Path(folder), _with_plugin(os.environ))


def run_for(
    command: Sequence[str], seconds: float, folder: Path, environment: Mapping[str, str]
) -> tuple[int | None, str]:
    """Run a command in a folder; returns its exit code, None if its time was over, and its output (printed too)."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        said = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
        print(said[-8000:])
        return None, said
    print(done.stdout[-8000:])
    return done.returncode, done.stdout


def _with_plugin(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment in which pytest finds the plugin beside this file."""
    places = [environment.get("PYTHONPATH", ""), str(Path(__file__).resolve().parent)]
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, places))}
