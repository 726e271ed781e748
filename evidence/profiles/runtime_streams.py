"""Costs of a session of ONNX Runtime on a CPU beside its kernels, from synthetic models on two cores.

``python -m evidence.profiles.runtime_streams [FILE]`` prints the costs from the rows of a file. By default those are
the stored ones, from which the defaults of ``hardware/kinds/cpu.yaml`` are rounded; so all of them are in-sample.
Networks took no part (``docs/results/deploy.md`` has them). ``benchmarks/onnxruntime_streams.py`` measures such rows.

- *node*: the slope of chains of the smallest products, which includes such a product.
- *notification*: the time of each further crossing where one worker runs both streams: the least of all runs, the
  median of the slopes of chains of 4 x 16 to 64 x 160, between 1 and 16 crossings.
- *starved*: the same with more threads than cores: the excess of streams over one thread, divided by the crossings of
  modules, the median of all rows. Rows differ by a factor of ten, since the system's scheduler assigns slices of 4 ms:
  a run of many short modules may see one slice, one of few long ones a slice at each crossing.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

ROWS = Path(__file__).parents[2] / "hw_profiles" / "measurements" / "epyc-2-cores" / "onnxruntime_streams.csv"
_SHAPE, _NODE = "shape", "node"
#: With chains of the largest products, noise exceeds the cost of a crossing.
_SHORT = ("tiny", "s", "m")


@dataclass(frozen=True, slots=True)
class SessionCosts:
    """Costs in microseconds; ``starved_quartiles_us`` contain half of the rows."""

    node_us: float
    notification_us: float
    starved_us: float
    starved_quartiles_us: tuple[float, float]


def session_costs(path: Path = ROWS) -> SessionCosts:
    """Costs from the rows of a file."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    chains = [row for row in rows if row[_SHAPE] == "chain"]
    short, long = (row for row in chains if row["crossings"] == "0")
    node_us = _slope(short, long, "nodes", "one_thread_least_us")
    notifications = []
    for node in _SHORT:
        own = [row for row in chains if row[_NODE] == node and row["crossings"] != "0"]
        notifications.append(_slope(own[0], own[-1], "crossings", "one_worker_least_us"))
    starved = [
        (float(row["streams_median_us"]) - float(row["one_thread_median_us"])) / int(row["crossings"])
        for row in rows
        if row[_SHAPE] == "fork-join"
    ]
    low, _, high = quantiles(starved, n=4)
    return SessionCosts(node_us, median(notifications), median(starved), (low, high))


def _slope(first: dict[str, str], last: dict[str, str], over: str, of: str) -> float:
    return (float(last[of]) - float(first[of])) / (int(last[over]) - int(first[over]))


if __name__ == "__main__":
    print(session_costs(*map(Path, sys.argv[1:])))
