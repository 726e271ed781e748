"""Speed-up of the search over a transcription of Algorithm 1, on all four networks at r=3, s=8 (minutes).

It uses the paper's definition of stages, prices of zero cost, all blocks, and no bounds: only enumeration and
relaxation are compared.
"""

from __future__ import annotations

from time import perf_counter

from conftest import NETWORKS
from test_search import ours, transcription

import iossim
from iossim.schedule.problem import ScheduleProblem


def main() -> None:
    totals = [0.0, 0.0]
    for name in NETWORKS:
        network = iossim.load(name)
        problems = [ScheduleProblem.of_block(network, block) for block in network.blocks]
        ours(problems[0])
        seconds = []
        for search in (transcription, ours):
            started = perf_counter()
            costs = [search(problem) for problem in problems]
            seconds.append(perf_counter() - started)
            print(f"{name:14} {search.__name__:14} {seconds[-1]:9.3f} s  (cost {sum(costs):.3f})", flush=True)
        totals = [total + one for total, one in zip(totals, seconds, strict=True)]
    print(f"transcription / ours: {totals[0]:.1f} s / {totals[1]:.2f} s = {totals[0] / totals[1]:.0f}x")


if __name__ == "__main__":
    main()
