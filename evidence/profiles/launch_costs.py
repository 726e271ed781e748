"""Costs of launches, graphs and synchronisations by generation, from tables of single measured figures.

``python -m evidence.profiles.launch_costs`` prints the estimates, from which the engine costs of
``hardware/kinds/gpu.yaml`` are rounded. The figures are few, from other machines than the simulated ones, and some from
discussions, so that each estimate has a corresponding standard deviation:

- *gap*: between kernels that wait in one stream. The mean of an RTX 5090, since gaps add up; a GeForce 3080's is about
  twice as long, and half of the difference is the deviation.
- *call*: of the published engine: the first decile of its smallest operators (element-wise and pooling) on two devices.
  These include a short kernel, and a launch alone is queued in 2 to 3 us: the deviation is half of the difference.
- *synchronise*: time beyond the launches when one synchronisation follows them, by the line through chains of 8 to 117
  empty kernels.
- *node*: of a graph. On a Volta the gap of a stream, less what 20,000 dependent kernels gained as a graph; on an RTX
  5070 Ti the slope of the same chains replayed; on an RTX A5000 between the time per node of two concurrent graphs
  (which share only the front end there) and the lightest node alone, its kernel included.
- *edge*: between two streams, the cost of an event that one records and another waits for. A fork and a join are half
  each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from pathlib import Path
from statistics import fmean, quantiles

import numpy as np

from evidence.concurrency.tables import read_rows, read_table
from evidence.data.data_sets import shared_data
from iossim.hardware.compute_capability import Architecture
from iossim.measurements.measurement import MeasurementError
from iossim.measurements.text_files import NumberedRow, RowError

TABLE = Path("concurrency") / "launch_and_sync_costs.csv"
PAIRS = Path("concurrency") / "a5000_operator_pairs.csv"
ENGINE_OPERATORS = Path("operators") / "ios_engine_ops.csv"

_UNITS = {"us": 1.0, "ms": 1e3}
#: Launches of the chain on the GV100: 20 times 1,000.
_CHAIN_LAUNCHES = 20_000
#: Operators that run a single small kernel, which determine an engine's call.
_SMALL = ("elementwise", "pool")
#: Standard deviation of a uniform distribution over a range known by two figures, relative to the range.
_UNIFORM = 1 / sqrt(12)


@dataclass(frozen=True, slots=True)
class LaunchCost:
    """A row of the table: ``value_us`` is nan unless it is a time."""

    device: str
    what: str
    value_us: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A cost in us (for ``graph_gap_factor`` a ratio), its standard deviation, and the devices that determine it."""

    value: float
    spread: float
    devices: str


def read_launch_costs(path: Path) -> list[LaunchCost]:
    """Rows of a table with columns device, what, value, unit. Raises MeasurementError, with the line, for an invalid
    one.
    """

    def cost(row: NumberedRow) -> LaunchCost:
        unit, value = (str(row.cells[name]) for name in ("unit", "value"))
        try:
            value_us = _UNITS[unit.split()[0]] * float(value)
        except (KeyError, ValueError, IndexError):
            raise RowError(f"a launch cost needs a number, and a unit of {' or '.join(_UNITS)}") from None
        return LaunchCost(str(row.cells["device"]), str(row.cells["what"]), value_us)

    return read_rows(path, cost)


def engine_calls_us(path: Path) -> dict[str, float]:
    """First decile of the smallest operators of the published engine by device, us."""
    table = read_table(path, numbers=["latency_ms"], among=lambda cells: cells["op"] in _SMALL)
    return {name: quantiles(own["latency_us"], n=10)[0] for name, own in table.groupby("device", sort=False)}


def lightest_nodes_us(path: Path) -> tuple[float, float]:
    """Time per node while two graphs replay concurrently, and that of the lightest alone, us, from pairs of
    operators.
    """
    table = read_table(path, numbers=["alone_a_ms", "alone_b_ms", "makespan_ms_from_dilation"])
    alone = table[["alone_a_us", "alone_b_us"]]
    # Both have as many nodes: the front end alternates between them.
    lightest = alone.max(axis=1).idxmin()
    return 1e3 * table["makespan_ms_from_dilation"][lightest] / 2, alone.min(axis=None)


def launch_costs(
    costs: Sequence[LaunchCost], calls_us: dict[str, float], nodes_us: tuple[float, float]
) -> dict[str, dict[str, Estimate]]:
    """Parameters by name for the first architecture of each generation (Volta, Turing, Ada: earlier ones are as Volta).

    ``calls_us`` is from :func:`engine_calls_us`, ``nodes_us`` from :func:`lightest_nodes_us`. Raises MeasurementError
    for a table that lacks one of the figures.
    """
    gap_us = _figure(costs, "RTX 5090", "mean of the same")
    longer_us = _figure(costs, "GeForce 3080", "enqueued beforehand")
    gap = Estimate(gap_us, abs(longer_us - gap_us) / 2, "RTX 5090, GeForce 3080")
    call_us = fmean(calls_us.values())
    queued_us = fmean(row.value_us for row in costs if "async enqueue per launch" in row.what)
    call = Estimate(call_us, (call_us - queued_us) / 2, ", ".join(calls_us))
    chains, graphs = (_chains(costs, f"no-op kernels: {kind} + sync") for kind in ("launches", "one graph"))
    (_, waiting_us), (_, of_waiting_us) = _line(chains)
    (node_us, _), (of_node_us, _) = _line(graphs)
    edge = _figure(costs, "GeForce 3080", "two streams on the device")
    host = {
        "kernel_gap_us": gap,
        "bare_launch_us": call,
        "synchronise_us": Estimate(waiting_us, of_waiting_us, "RTX 5070 Ti"),
        "fork_us": Estimate(edge / 2, edge / 4, "GeForce 3080"),
        "join_us": Estimate(edge / 2, edge / 4, "GeForce 3080"),
    }
    plain_us, graph_us = (_figure(costs, "GV100", text) / _CHAIN_LAUNCHES for text in ("plain launches", "CUDA graph"))
    least_us, most_us = nodes_us
    nodes = {
        Architecture.VOLTA: (gap_us - (plain_us - graph_us), 0.0, "GV100"),
        Architecture.TURING: ((least_us + most_us) / 2, (most_us - least_us) * _UNIFORM, "RTX A5000"),
        Architecture.ADA: (node_us, of_node_us, "RTX 5070 Ti"),
    }
    found: dict[str, dict[str, Estimate]] = {}
    for generation, (own_us, spread_us, devices) in nodes.items():
        # The node was measured, and the whole is known from elsewhere. On the Volta the difference was measured.
        moved = (gap_us - own_us if generation == Architecture.VOLTA else own_us) * gap.spread / gap_us**2
        factor = Estimate(own_us / gap_us, hypot(spread_us / gap_us, moved), devices)
        found[generation] = {**host, "graph_gap_factor": factor}
    return found


def _line(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], tuple[float, float]]:
    x, y = np.array(points).T
    found, covariance = np.polyfit(x, y, 1, cov=True)
    (slope, intercept), (of_slope, of_intercept) = found.tolist(), np.sqrt(np.diag(covariance)).tolist()
    return (slope, intercept), (of_slope, of_intercept)


def _chains(costs: Sequence[LaunchCost], what: str) -> list[tuple[float, float]]:
    """Time of a chain by its number of kernels, us; the number precedes ``what``."""
    found = [(float(row.what.split()[0]), row.value_us) for row in costs if row.what.endswith(what)]
    if len(found) < 3:
        raise MeasurementError(f"launch costs: fewer than three chains of {what!r}; give the whole table")
    return sorted(found)


def _figure(costs: Sequence[LaunchCost], device: str, what: str) -> float:
    found = [row.value_us for row in costs if row.device == device and what in row.what]
    if len(found) != 1:
        raise MeasurementError(
            f"launch costs: {len(found)} rows of {device} with {what!r}; give the whole table, with one"
        )
    return found[0]


def main() -> None:
    places = [shared_data() / name for name in (TABLE, ENGINE_OPERATORS, PAIRS)]
    costs = read_launch_costs(places[0])
    for generation, found in launch_costs(costs, engine_calls_us(places[1]), lightest_nodes_us(places[2])).items():
        print(f"since {generation}")
        for name, one in found.items():
            print(f"  {name:17} {one.value:6.3f} +- {one.spread:.3f}  {one.devices}")


if __name__ == "__main__":
    main()
