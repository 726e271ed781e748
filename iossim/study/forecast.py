"""Forecast of a study before it is run: its numbers of points, schedules and prices, and approximate time."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from iossim.base.errors import OptionError
from iossim.base.threads import usable_cores
from iossim.ir.network import Network
from iossim.schedule.problem import ScheduleProblem
from iossim.search.counting import count_search_space
from iossim.search.ios import STRATEGIES
from iossim.study.axes import Search
from iossim.study.points import families, load_model, points_of
from iossim.study.scenario import Scenario

#: Counting a wider block would take longer than it is worth.
_MAX_STATES, _MAX_TRANSITIONS = 200_000, 30_000_000
#: Seconds per point, and per distinct stage in it for each scheduler that searches: measured on one core of a server,
#: over five networks of the zoo, the latter between 2 and 7 us.
_POINT_S, _STAGE_S = 0.1, 3e-6


@dataclass(frozen=True)
class Searched:
    """Search size of a model: of all blocks together, at batch 1."""

    model: str
    search: str
    units: int
    largest_block: int
    #: Distinct stages that may be priced; None if a block is too wide to count them.
    stages: int | None


@dataclass(frozen=True)
class Forecast:
    """Work of a study; ``seconds`` is a rough estimate for all cores of this machine, None if unknown."""

    points: int
    schedules: int
    cross_prices: int
    event_simulations: int
    searches: tuple[Searched, ...]
    cores: int
    seconds: float | None


def forecast(scenario: Scenario) -> Forecast:
    """Count the work of a study; loads each model once, at batch 1. Raises the errors of loading."""
    points = points_of(scenario)
    schedules, cores = len(points) * len(scenario.schedulers), len(usable_cores())
    if scenario.kind is not None:
        return Forecast(len(points), schedules, 0, 0, (), cores, scenario.kind.point_s * len(points) / cores)
    networks: dict[str, Network] = {}
    counted: dict[tuple[str, str], Searched] = {}
    for point in points:
        if point.model.label not in networks:
            networks[point.model.label] = load_model(point.model, scenario.seed)
        key = (point.model.label, point.search.label)
        if key not in counted:
            counted[key] = _searched(*key, networks[point.model.label], point.search)
    searching = sum(name in STRATEGIES for name in scenario.schedulers)
    seconds: float | None = 0.0
    for point in points:
        stages = counted[point.model.label, point.search.label].stages
        if searching and (stages is None or not point.cost_model.startswith(("simulator", "random", "table"))):
            seconds = None
        if seconds is not None:
            seconds += _POINT_S + _STAGE_S * searching * (stages or 0)
    # These are ordered pairs of points that differ in one axis alone.
    sizes = [len(family) for axis in scenario.cross_evaluate for family in families(points, axis)]
    return Forecast(
        len(points),
        schedules,
        sum(size * (size - 1) for size in sizes) * len(scenario.schedulers),
        schedules if "active_warps" in scenario.measures else 0,
        tuple(counted.values()),
        cores,
        None if seconds is None else seconds / cores,
    )


def _searched(model: str, name: str, network: Network, search: Search) -> Searched:
    problems = [ScheduleProblem.of_block(network, block) for block in network.blocks]
    distinct = {tuple(problem.predecessors.tolist()): problem for problem in problems}
    stages: int | None = None
    with suppress(OptionError):  # a block is too wide to count its stages
        counted = {
            edges: count_search_space(problem, search.space, _MAX_STATES, _MAX_TRANSITIONS).distinct_stages
            for edges, problem in distinct.items()
        }
        stages = sum(counted[tuple(problem.predecessors.tolist())] for problem in problems)
    largest = max(len(block.units) for block in network.blocks)
    return Searched(model, name, len(network.units), largest, stages)
