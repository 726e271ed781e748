#!/usr/bin/env python3
"""Measure this machine's GPU in one command of at most ten minutes, and leave files that ``iossim validate`` reads.

    python3 benchmarks/gpu_report.py --out OUT --wheels DIR        # on a GPU machine; offline; from a checkout
    python3 benchmarks/gpu_report.py --out OUT --dry-run           # the whole path without a GPU, in a minute

DIR holds wheels that the machine lacks, each in one version: of iossim's own dependencies (pydantic with pydantic-core,
annotated-types and typing-inspection, simpy, ...), of the extra ``gpu`` (nvidia-cudnn-frontend above all), and pytest
for the tests (hypothesis is not needed). Missing or outdated requirements of iossim are reported at once, with the
command that fetches them. PyTorch is for baselines alone; without it they are skipped.

Sections, each in its own process, so that a crash loses nothing of the others, in order of value: first (one
convolution in every way and precision, facts, what is missing), costs (launches, graphs, events, placement, bandwidth,
peak), graph/NAME and graph/NAME@DTYPE (sequential and greedy schedules of two networks on the graph engine, in bf16,
fp32, fp16 and TF32), profile (units, pairs and sampled stages of the networks, warm and cold), baselines (PyTorch eager
and as a CUDA graph), tests (the backends' ``pytest -m gpu``), warm-up (compiling iossim's search), networks/NAME
(sequential, greedy and IOS schedules on both engines), company/NAME (stages with the kernels that the simulator likes
best beside each other, and with the fastest: predicted and measured), compile/NAME (torch.compile), modules (torchvision's and timm's,
by iossim.torch.compile and torch.compile), autotune/NAME (its max-autotune, ended after four minutes), prediction (the
simulator against all of that). Tables at the end compare the best of iossim and of PyTorch. A section that ends early leaves its time to the later ones. It is ``done`` if all of it is;
``partial`` if items failed, or were omitted for lack of time, as it reports. The same command again does the rest,
including tests that have not passed; ``--again`` repeats the chosen sections.

OUT holds ``report.jsonl`` (facts, costs, each test, sections, errors, counts), ``networks.jsonl`` (runs, with their
schedules), ``operators-graph.jsonl``, ``operators-paper.jsonl`` and ``operators-graph-bf16.jsonl`` (measurement sets;
``-cold``: with a flushed cache), ``measurements.sqlite`` (every sample), ``references`` (expected outputs of networks),
``caches`` (of compilers) and ``log.txt``. The repository keeps the first two and the sets in
``hw_profiles/measurements/DEVICE/``. After each section all but the caches is archived in one file, OUT/results.tar.gz
or ``--archive FILE``, which is replaced atomically. If few files can be copied from the machine, that one suffices; a
folder without results continues from it.

This file needs the standard library only. The sections' work begins in ``gpu_report_sections.py``, which it imports in
the process of a section; no file imports this one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from gpu_report_archive import ARCHIVE, restore, save
from gpu_report_package import gpu_lacks, prepare
from gpu_report_plan import DTYPES, MODELS, PLAIN_DTYPE, SHARES, chosen_sections, time_for
from gpu_report_process import Outcome, run_section
from gpu_report_records import REPORT, TESTS_ANEW, append, sections_done
from gpu_report_summary import summary

#: Time beyond its limit in which a section may end by itself.
GRACE_S = 15.0
#: With less time left no section is started.
LEAST_S = 5.0
#: Time that a section which does not end leaves to later ones.
LATER_S = 15.0


def report(args: argparse.Namespace) -> int:
    """Run the chosen unfinished sections; returns 0 if all of them are finished afterwards."""
    out: Path = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    archive: Path = (args.archive or out / ARCHIVE).resolve()
    if restore(out, archive):
        print(f"begins where {archive} ended", flush=True)
    names = chosen_sections(args.sections, args.models, args.dtypes)
    done = set() if args.again else sections_done(out)
    if set(names) - done:
        done.discard("prediction")  # it covers the new measurements, too
    todo = [name for name in names if name not in done]
    end_s = time.monotonic() + args.budget
    outcomes: list[Outcome] = []
    if args.again and "tests" in todo:
        append(out / REPORT, {"record": TESTS_ANEW})
    with tempfile.TemporaryDirectory(prefix="gpu_report") as folder:
        environment = prepare(out, Path(folder), args.wheels)
        if not args.dry_run and (absent := gpu_lacks(environment)):
            print(f"note: backend cupy_cudnn lacks {', '.join(map(str, absent))}; carry wheels of it", flush=True)
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
            append(out / REPORT, outcome.record())
            outcomes.append(outcome)
            print(f"{section:<24} {outcome.outcome:<8} {outcome.seconds:6.1f} s  {outcome.error}", flush=True)
            _save(out, archive)
    for name in sorted(done & set(names)):
        print(f"{name:<24} was done before")
    for line in summary(out):
        print(line)
    if archive.is_file():
        print(f"all results: {archive}, {archive.stat().st_size / 2**20:.1f} MiB")
    return 0 if all(outcome.outcome == "done" for outcome in outcomes) else 1


def _save(out: Path, archive: Path) -> None:
    """Archive all results; on failure the sections continue all the same."""
    try:
        save(out, archive)
    except (OSError, RuntimeError) as error:
        print(f"note: {archive} is as it was before this section: {error}", flush=True)


def _child_arguments(args: argparse.Namespace, out: Path, section: str, seconds: float) -> list[str]:
    given = ["--section", section, "--seconds", f"{seconds:.1f}", "--out", str(out), "--models", ",".join(args.models)]
    given += ["--dtypes", ",".join(args.dtypes)]
    given += ["--backend", args.backend] if args.backend else []
    given += ["--device", args.device] if args.device else []
    return [*given, *(["--dry-run"] if args.dry_run else [])]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the results; one that has some goes on")
    parser.add_argument("--wheels", type=Path, help="folder of wheels that this machine lacks")
    parser.add_argument(
        "--archive", type=Path, help=f"one file of all results, replaced after each section (default: OUT/{ARCHIVE})"
    )
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
        "--dtypes", type=lambda text: tuple(text.split(",")), help=f"precisions (default: {','.join(DTYPES)})"
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
    args.dtypes = args.dtypes or ((PLAIN_DTYPE,) if args.dry_run else DTYPES)
    try:
        chosen_sections(args.sections, args.models, args.dtypes)
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
