"""Sections of ``gpu_report.py`` that tell of the machine: its facts and what it lacks, and the GPU tests of the checkout."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gpu_report import FAILED, PARTIAL, ROOT
from gpu_report_job import ENGINES, FALLBACK_DEVICE, Job, estimate_device, load_network


def section_device(job: Job) -> int:
    """Facts of the machine and its GPU, and what is missing; then compiling, so that no later section need."""
    from iossim.cli import doctor

    versions: dict[str, str | None] = {}
    for name in _required():
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    job.record(
        "device",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=doctor.machine(),
        gpus=doctor.gpus(),
        backends=doctor.backends(),
        libraries=versions,
        missing=[name for name, version in versions.items() if version is None],
        commit=_commit(),
    )
    with job.told("torch"):
        import torch

        cuda = bool(torch.cuda.is_available())
        facts: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "usable": cuda}
        if cuda:
            seen = torch.cuda.get_device_properties(0)
            facts |= {
                "cudnn": torch.backends.cudnn.version(),
                "name": seen.name,
                "multiprocessors": seen.multi_processor_count,
                "memory_bytes": seen.total_memory,
                "l2_bytes": getattr(seen, "L2_cache_size", None),
            }
        job.record("torch", **facts)
    with job.told("warm-up"):
        begin_s = time.perf_counter()
        _compile(job)
        job.record("warm-up", s=round(time.perf_counter() - begin_s, 2))
    return 0


def _compile(job: Job) -> None:
    """Compile what iossim compiles, once for all sections: bounds, pricing, a search at prices measured in name only."""
    from iossim.api import cost_model, search_options
    from iossim.cost.perturbed import PerturbedCostModel
    from iossim.schedule.problem import ScheduleProblem
    from iossim.scheduling.measured.budget import Budget
    from iossim.scheduling.measured.search import measured_search
    from iossim.study.measured import plain_schedule

    network = load_network(job, "squeezenet")
    plain_schedule(network, "sequential")
    problems = [ScheduleProblem.of_block(network, block) for block in network.blocks]
    for engine in ENGINES:
        estimate = cost_model("simulator", estimate_device(job, FALLBACK_DEVICE), network.precision, engine)
        truth = PerturbedCostModel(estimate, 0.1)
        options = search_options("general", 3, 8)
        measured_search(problems, estimate, truth, options, Budget(measurements=60), concurrent=True, merge=True)


def section_tests(job: Job) -> int:
    """The GPU tests of the checkout; a dry run only collects those of backends."""
    try:
        import pytest  # noqa: F401
    except ImportError:
        job.record("tests", skipped="pytest is not installed")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        tests = ROOT / "tests" / "backends" if job.dry else ROOT / "tests"
        command = [sys.executable, "-m", "pytest", str(tests), "-m", "gpu", "-q", "-p", "no:cacheprovider"]
        command += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "--junitxml", str(results)]
        if job.dry:
            command += ["--collect-only"]
        # Not in the checkout: its own folder iossim would hide the whole package.
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=job.left_s, check=False
            )
        except subprocess.TimeoutExpired as late:
            said = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
            print(said)
            job.record("tests", error="out of time", last=" ".join(said.split())[-300:])
            return PARTIAL
        print(done.stdout[-8000:], done.stderr[-2000:], sep="\n")
        if job.dry:
            counted = re.search(r"(\d+)(?:/\d+)? tests? collected", done.stdout)
            job.record("tests", collected=int(counted.group(1)) if counted else 0, returncode=done.returncode)
            return 0 if done.returncode in (0, 5) else FAILED
        job.record("tests", returncode=done.returncode, **results_of_tests(results))
    return 0


def results_of_tests(path: Path) -> dict[str, Any]:
    """Counts, and the failures with the first line of each, of a JUnit file."""
    if not path.is_file():
        return {"error": "pytest wrote no results"}
    (suite,) = ElementTree.parse(path).getroot().iter("testsuite")
    failures = []
    for case in suite.iter("testcase"):
        for problem in (*case.findall("failure"), *case.findall("error")):
            said = (problem.get("message") or "").splitlines()
            failures.append({"test": f"{case.get('classname')}.{case.get('name')}", "said": (said or [""])[0][:300]})
    counts = {name: int(suite.get(name) or 0) for name in ("tests", "failures", "errors", "skipped")}
    return {**counts, "s": float(suite.get("time") or 0.0), "failures_named": failures}


def _required() -> list[str]:
    """What iossim requires by its pyproject.toml, and what the GPU sections do."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*listed["dependencies"], *listed["optional-dependencies"].get("gpu", [])]
    names = [re.match(r"[A-Za-z0-9._-]+", line) for line in lines]
    return [found.group() for found in names if found]


def _commit() -> str:
    """The checkout's commit, where git tells it."""
    try:
        command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
