"""Sections of ``gpu_report.py`` that tell of the machine: its facts and what it lacks, and the GPU tests of the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_report import ROOT, read_records
from gpu_report_job import ENGINES, FALLBACK_DEVICE, Job, estimate_device, load_network
from gpu_report_package import TESTS_NEED, missing_distributions

#: Where GPU tests are. Each folder is run by a process of its own: PyTorch brings a cuDNN that need not be the other's.
GPU_TESTS = ("tests/backends/cupy_cudnn", "tests/backends/torch_cuda")
#: pytest's exit codes where tests ran, where it stopped before the last, and where none was chosen.
PYTEST_RAN, PYTEST_STOPPED, PYTEST_NONE = (0, 1), 2, 5


def section_device(job: Job) -> None:
    """Facts of the machine and its GPU, and what is missing; then compiling, so that no later section need."""
    from iossim.cli import doctor

    libraries = doctor.libraries()
    backends = doctor.backends()
    job.record(
        "device",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=doctor.machine(),
        gpus=doctor.gpus(),
        backends=backends,
        libraries=libraries,
        missing=[name for name, version in libraries.items() if version is None],
        commit=_commit(),
    )
    for backend in backends:
        print(f"{backend['name']}: {backend['missing'] or 'usable'}")
    try:
        import torch
    except ImportError as error:
        job.skip("facts of PyTorch", str(error))
    else:
        with job.told("torch"):
            job.record("torch", **_torch_facts(torch))
    with job.told("warm-up"):
        begin_s = time.perf_counter()
        _compile(job)
        job.record("warm-up", s=round(time.perf_counter() - begin_s, 2))


def _torch_facts(torch: Any) -> dict[str, Any]:
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
    return facts


def _compile(job: Job) -> None:
    """Compile what iossim compiles, once for all sections: bounds, pricing, a search at prices measured in name only."""
    from iossim.api import cost_model, optimize, search_options
    from iossim.cost.perturbed import PerturbedCostModel
    from iossim.tasks.measured_schedules import plain_schedule

    network = load_network(job, "squeezenet")
    plain_schedule(network, "sequential")
    device = estimate_device(job, FALLBACK_DEVICE)
    for engine in ENGINES:
        truth = PerturbedCostModel(cost_model("simulator:in-place", device, network.precision, engine), 0.1)
        options = search_options("general", 3, 8)
        optimize(network, device, engine=engine, cost_model=truth, options=options, budget="60")


def section_tests(job: Job) -> None:
    """The GPU tests of the backends, a record each; a dry run only collects them."""
    if absent := missing_distributions(TESTS_NEED, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        raise RuntimeError(f"GPU tests need {', '.join(absent)}, not installed here; carry them in --wheels")
    collected, counts = 0, Counter[str]()
    for number, tests in enumerate(GPU_TESTS):
        if job.left_s <= 0:
            job.leave(tests)
            continue
        begin = len(read_records(job.out / "report.jsonl"))
        code, said = _pytest(job, tests, job.left_s / (len(GPU_TESTS) - number))
        results = [row for row in read_records(job.out / "report.jsonl")[begin:] if row["record"] == "test"]
        # A dry run records what skips while it is collected, and no more.
        counted = re.search(r"(\d+)(?:/\d+)? tests? collected", said) if job.dry else None
        found = int(counted.group(1)) if counted else 0
        collected += found
        if code in (None, PYTEST_STOPPED):
            job.leave(f"some of {tests}")
        elif code not in PYTEST_RAN and code != PYTEST_NONE:
            job.fail(tests, f"pytest ended with exit code {code}: {' '.join(said.split())[-200:]}")
        elif not found and {row["outcome"] for row in results} == {"skipped"}:
            job.skip(tests, results[0].get("said", ""))
        job.failures += [
            f"{row['test']}: {row.get('said', '')}" for row in results if row["outcome"] in ("failed", "error")
        ]
        counts.update(row["outcome"] for row in results)
    job.record("tests", **({"collected": collected} if job.dry else {}), **counts)
    if not job.remark and not (collected if job.dry else counts.total() - counts["skipped"]):
        job.fail("GPU tests", "none ran")


def _pytest(job: Job, tests: str, seconds: float) -> tuple[int | None, str]:
    """Run the GPU tests of a folder; its exit code, None where its time was over, and what it printed."""
    command = [sys.executable, "-m", "pytest", str(ROOT / tests), "-m", "gpu", "-q", "-p", "no:cacheprovider"]
    command += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "--continue-on-collection-errors"]
    command += ["-p", "gpu_report_pytest", "--report-file", str(job.out / "report.jsonl")]
    if job.dry:
        command += ["--collect-only"]
    with tempfile.TemporaryDirectory() as folder:
        # Not in the checkout: its own folder iossim would hide the whole package.
        return run_for(command, seconds, Path(folder), _with_plugin(os.environ))


def run_for(
    command: Sequence[str], seconds: float, folder: Path, environment: Mapping[str, str]
) -> tuple[int | None, str]:
    """Run a command in a folder; its exit code, None where its time was over, and what it printed, which is printed again."""
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
    """The environment in which pytest finds the plugin beside this file."""
    places = [environment.get("PYTHONPATH", ""), str(Path(__file__).resolve().parent)]
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, places))}


def _commit() -> str:
    """The checkout's commit, where git tells it."""
    try:
        command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
