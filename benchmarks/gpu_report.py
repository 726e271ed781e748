#!/usr/bin/env python3
"""Measure this machine's GPU in one command of at most ten minutes, and leave what ``iossim validate`` reads.

    python3 benchmarks/gpu_report.py --out OUT --wheels DIR        # on a GPU machine; offline; from a checkout
    python3 benchmarks/gpu_report.py --out OUT --dry-run           # the whole path without a GPU, in under a minute

DIR holds wheels of what that machine lacks, each in one version: of iossim's own dependencies (pydantic with pydantic-core,
annotated-types and typing-inspection, simpy, ...), of the extra ``gpu`` (nvidia-cudnn-frontend above all), and pytest for
the tests (hypothesis is not needed). What iossim lacks is told at once, with the command that fetches it.
PyTorch is for baselines alone; without it they are skipped.

Sections, each in a process of its own, so that a crash loses nothing of the others: device (facts, what is missing), tests
(the backends' ``pytest -m gpu``), baselines (PyTorch eager and as a CUDA graph), profile (units, pairs and sampled stages of
the networks, warm and cold), networks/NAME (sequential, greedy and IOS schedules on both engines), compile/NAME
(torch.compile), prediction (the simulator against all of that). A section that ends early leaves its time to the later ones.
It is ``done`` where all of it is; ``partial`` where items failed, or were left for want of time, as it says. The same command
again does what is not done; ``--again`` does the chosen sections once more.

OUT holds ``report.jsonl`` (facts, each test, sections, errors, counts), ``networks.jsonl`` (runs, with their schedules),
``operators-graph.jsonl`` and ``operators-paper.jsonl`` (a measurement set of each engine; ``-cold``: with a flushed cache),
``measurements.sqlite`` (every sample), ``references`` (what networks' outputs should be) and ``log.txt``. The first two and
the sets are what the repository keeps in ``hw_profiles/measurements/DEVICE/``.

This file needs the standard library only. What the sections do begins in ``gpu_report_sections.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_report_package import gpu_lacks, prepare

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("squeezenet", "inception_v3", "randwire", "nasnet_a")
#: Each kind of section with its share of the time; those with models are one section a model.
SHARES = {
    "device": 60,
    "tests": 80,
    "baselines": 40,
    "profile": 130,
    "networks": 55,
    "compile": 25,
    "prediction": 10,
}
OF_MODELS = ("networks", "compile")
#: How much longer than its time a section may take to come to an end by itself.
GRACE_S = 15.0
#: With less than this left no section is started.
LEAST_S = 5.0
#: What a section that does not end leaves to those after it.
LATER_S = 15.0
#: Exit codes of a section besides 0: it died; items of it failed or are left.
FAILED, PARTIAL = 1, 3


@dataclass(frozen=True)
class Outcome:
    """How a section ended: ``done``, ``partial`` (items failed or are left), ``failed``, ``killed`` or ``skipped``."""

    section: str
    outcome: str
    seconds: float
    error: str = ""

    def record(self) -> dict[str, Any]:
        seconds = round(self.seconds, 2)
        found: dict[str, Any] = {"record": "section", "section": self.section, "outcome": self.outcome, "s": seconds}
        return {**found, "error": self.error} if self.error else found


def section_names(models: Sequence[str]) -> list[str]:
    """All sections in order."""
    names: list[str] = []
    for kind in SHARES:
        names += [f"{kind}/{model}" for model in models] if kind in OF_MODELS else [kind]
    return names


def chosen_sections(text: str, models: Sequence[str]) -> list[str]:
    """The sections that ``--sections`` names: a kind stands for all of its models. Raises ValueError for an unknown one."""
    known = section_names(models)
    wanted = [name for name in text.split(",") if name]
    for name in wanted:
        if name not in known and name not in SHARES:
            raise ValueError(f"--sections {name!r} is not known; known: {', '.join([*SHARES, *known])}")
    return [name for name in known if not wanted or name in wanted or name.partition("/")[0] in wanted]


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add a record to JSON lines, whole and on disk before this returns."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of JSON lines; a last one that was cut short is left out."""
    if not path.is_file():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def sections_done(out: Path) -> set[str]:
    """The sections that came to their end in an earlier run."""
    last = {
        row["section"]: row["outcome"] for row in read_records(out / "report.jsonl") if row["record"] == "section"
    }
    return {section for section, outcome in last.items() if outcome == "done"}


def time_for(section: str, later: Sequence[str], left_s: float) -> float:
    """The share of a section in the time that is left, with those after it."""
    share = SHARES[section.partition("/")[0]]
    return left_s * share / (share + sum(SHARES[name.partition("/")[0]] for name in later))


def run_section(
    section: str, command: Sequence[str], seconds: float, kill_s: float, out: Path, environment: Mapping[str, str]
) -> Outcome:
    """Run a section's process, its output at the end of ``log.txt``; it is killed ``kill_s`` after its start."""
    log = out / "log.txt"
    begin_s = time.monotonic()
    with log.open("a", encoding="utf-8") as stream:
        stream.write(f"\n== {section}, {seconds:.0f} s\n")
        stream.flush()
        start = stream.tell()
        # A session of its own, so that what it started (compilers, pytest) ends with it.
        process = subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, env=dict(environment), start_new_session=True
        )
        try:
            code = process.wait(kill_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    took_s = time.monotonic() - begin_s
    if code == 0:
        return Outcome(section, "done", took_s)
    if code is None:
        return Outcome(section, "killed", took_s, f"not at its end {kill_s:.0f} s after its start")
    said = [line for line in log.read_bytes()[start:].decode(errors="replace").splitlines() if line.strip()]
    reason = said[-1][:500] if said else "it said nothing"
    if code == PARTIAL:
        return Outcome(section, "partial", took_s, reason)
    return Outcome(section, "failed", took_s, f"exit code {code}: {reason}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a section's own session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def report(args: argparse.Namespace) -> int:
    """Run the chosen sections that are not done; 0 if all of them are done afterwards."""
    out: Path = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    names = chosen_sections(args.sections, args.models)
    done = set() if args.again else sections_done(out)
    if set(names) - done:
        done.discard("prediction")  # of what was measured now, too
    todo = [name for name in names if name not in done]
    end_s = time.monotonic() + args.budget
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="gpu_report") as folder:
        environment = prepare(out, Path(folder), args.wheels)
        if not args.dry_run and (absent := gpu_lacks(environment)):
            print(f"note: backend cupy_cudnn lacks {', '.join(absent)}; carry wheels of it", flush=True)
        for index, section in enumerate(todo):
            left_s = end_s - time.monotonic()
            if left_s < LEAST_S:
                outcome = Outcome(section, "skipped", 0.0, "no time is left; run the same command again")
            else:
                later = todo[index + 1 :]
                seconds = time_for(section, later, left_s - LEAST_S)
                kill_s = min(seconds + GRACE_S, max(seconds, left_s - (LATER_S if later else 0.0)))
                command = [
                    sys.executable,
                    str(Path(__file__).resolve()),
                    *_child_arguments(args, out, section, seconds),
                ]
                outcome = run_section(section, command, seconds, kill_s, out, {**environment, "TMPDIR": folder})
            append(out / "report.jsonl", outcome.record())
            outcomes.append(outcome)
            print(f"{section:<24} {outcome.outcome:<8} {outcome.seconds:6.1f} s  {outcome.error}", flush=True)
    for name in sorted(done & set(names)):
        print(f"{name:<24} was done before")
    for line in summary(out):
        print(line)
    return 0 if all(outcome.outcome == "done" for outcome in outcomes) else 1


def _child_arguments(args: argparse.Namespace, out: Path, section: str, seconds: float) -> list[str]:
    given = [
        "--section",
        section,
        "--seconds",
        f"{seconds:.1f}",
        "--out",
        str(out),
        "--models",
        ",".join(args.models),
    ]
    given += ["--backend", args.backend] if args.backend else []
    given += ["--device", args.device] if args.device else []
    return [*given, *(["--dry-run"] if args.dry_run else [])]


def summary(out: Path) -> list[str]:
    """Every measured run in a line, then tests, profiles, counts and predictions, from what is in the folder."""
    runs: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in read_records(out / "networks.jsonl"):
        if "median_us" in row:  # the newest of equal ones
            runs[row["model"], row["batch"], row["engine"], row["backend"], row["name"]] = row
    lines = (
        [
            f"\n{'network':<14} {'engine':<6} {'backend':<16} {'run':<26} {'ms':>9} {'10-90%':>8} {'warm':>9} {'cold':>9}"
        ]
        if runs
        else []
    )
    for (model, _, engine, backend, name), row in runs.items():
        spread_us = row["p90_us"] - row["p10_us"]
        where = f"{model:<14} {engine or '-':<6} {backend:<16} {name:<26}"
        if not row.get("outputs_right", True):
            lines.append(f"{where} WRONG OUTPUTS")
            continue
        stages = [
            f"{row[key] / 1e3:9.3f}" if row.get(key) else 9 * " " for key in ("stages_warm_us", "stages_cold_us")
        ]
        lines.append(f"{where} {row['median_us'] / 1e3:9.3f} {spread_us / 1e3:8.3f} {' '.join(stages)}".rstrip())
    for row in read_records(out / "report.jsonl"):
        if row["record"] in ("tests", "prediction", "profile", "counts", "skipped"):
            lines.append(json.dumps({key: value for key, value in row.items() if key != "runs"}))
    return lines


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the results; one that has some goes on")
    parser.add_argument("--wheels", type=Path, help="folder of wheels that this machine lacks")
    parser.add_argument(
        "--budget", type=float, help="seconds in all (default 540; 110 with --dry-run, which needs half)"
    )
    parser.add_argument(
        "--sections", default="", help=f"of {', '.join(SHARES)}, or networks/squeezenet ... (default: all)"
    )
    parser.add_argument(
        "--models", type=lambda text: tuple(text.split(",")), help="networks (default: the paper's four)"
    )
    parser.add_argument(
        "--backend", default="", help="what runs plans (default cupy_cudnn, torch_cuda where it cannot)"
    )
    parser.add_argument("--device", default="", help="profile for estimates (default: that of the GPU's name)")
    parser.add_argument("--again", action="store_true", help="do sections again that are done")
    parser.add_argument("--dry-run", action="store_true", help="without a GPU: the CPU in its place, tiny settings")
    parser.add_argument("--section", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=60.0, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    args.budget = args.budget or (110.0 if args.dry_run else 540.0)
    args.models = args.models or (("squeezenet",) if args.dry_run else MODELS)
    try:
        chosen_sections(args.sections, args.models)
    except ValueError as error:
        parser.error(str(error))
    return args


def main() -> int:
    args = parse()
    if args.section is None:
        try:
            return report(args)
        except (RuntimeError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    from gpu_report_sections import run

    return run(args)


if __name__ == "__main__":
    sys.exit(main())
