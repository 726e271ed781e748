#!/usr/bin/env python3
"""Print what searches and commands cost beside the last kept ones: speed is a budget.

    python .ci/speed.py [--write]

Each figure is CPU time, the least of two runs, over that of a reference in the same run: Algorithm 1 as the paper prints it,
in plain Python, on the blocks of Inception V3 and NasNet-A. Ratios compare between machines, seconds do not. ``--write`` keeps
the ratios of now in ``.ci/speed.json``; a change that moves one says why in its message.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / ".ci" / "speed.json"
sys.path.insert(0, str(ROOT / "benchmarks"))

import iossim  # noqa: E402
from iossim.schedule.problem import ScheduleProblem  # noqa: E402

SEARCHED = ("squeezenet", "inception_v3", "nasnet_a", "randwire")
COMMANDS = {
    "iossim --help": ["--help"],
    "a mistyped device": ["compare", "squeezenet", "-d", "t44"],
    "compare squeezenet": ["compare", "squeezenet", "-d", "t4"],
    "compare inception_v3": ["compare", "inception_v3", "-d", "v100-sxm2"],
}


def cpu_s(work: Callable[[], object], runs: int = 2) -> float:
    """CPU seconds of this process and of those that it started, the least of several runs after one that warms up."""
    work()
    found = []
    for _ in range(runs):
        begun = sum(os.times()[:4])
        work()
        found.append(sum(os.times()[:4]) - begun)
    return min(found)


def reference() -> None:
    from test_search import transcription

    for name in ("inception_v3", "nasnet_a"):
        network = iossim.load(name)
        for block in network.blocks:
            transcription(ScheduleProblem.of_block(network, block))


def search(name: str) -> None:
    iossim.optimize(iossim.load(name), "v100-sxm2")


def command(arguments: list[str]) -> None:
    subprocess.run([sys.executable, "-m", "iossim", *arguments], capture_output=True, check=False)


def main(arguments: list[str]) -> int:
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    unit_s = cpu_s(reference)
    print(f"reference: {unit_s:.2f} s of CPU time")
    works: dict[str, Callable[[], None]] = {f"search of {name}": lambda name=name: search(name) for name in SEARCHED}
    works |= {title: lambda given=given: command(given) for title, given in COMMANDS.items()}
    ratios = {}
    for title, work in works.items():
        own_s = cpu_s(work)
        ratios[title] = round(own_s / unit_s, 3)
        last = f"{ratios[title] / kept[title] - 1:+6.0%} on the last" if title in kept else ""
        print(f"{title:24} {own_s:6.2f} s  {ratios[title]:6.3f} of the reference  {last}", flush=True)
    if "--write" in arguments:
        KEPT.write_text(json.dumps(ratios, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
