"""Random blocks to schedule, drawn by hypothesis or from a generator; and every schedule of a small one, by definition: the
oracle of the search.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np
from hypothesis import strategies as st

from iossim.cost.model import CostModelIdentity, Prices, WrappedCostModel
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.problem import ScheduleProblem
from iossim.search.options import StageSpace


def connected_components(units: Iterable[int], edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Components of the graph that the edges induce on the units, each sorted, by lowest unit."""
    members = sorted(units)
    links = [set(edge) for edge in edges if set(edge) <= set(members)]
    found: list[list[int]] = []
    rest = set(members)
    while rest:
        component = {min(rest)}
        while grown := {unit for link in links if link & component for unit in link} - component:
            component |= grown
        found.append(sorted(component))
        rest -= component
    return found


class Unbounded(WrappedCostModel):
    """Prices without bounds: a search prices every stage."""

    def bounds(self, problem: ScheduleProblem) -> None:
        return None


@dataclass(frozen=True)
class ScrambledTable:
    """A table with an independent random price for every stage: no structure, no bounds."""

    seed: int
    boundaries_us: tuple[float, float, float, float] = (0.0, 6.0, 6.0, 6.0)

    @property
    def identity(self) -> CostModelIdentity:
        return CostModelIdentity("scrambled", version=str(self.seed))

    def price_stages(self, batch: StageBatch) -> Prices:
        return np.array([self.price(batch.problem, mask, strategy) for mask, strategy in batch.stages()])

    def price(self, problem: ScheduleProblem, mask: int, strategy: Strategy) -> float:
        digest = hashlib.sha256(f"{self.seed} {problem.predecessors.tolist()} {mask} {strategy.code}".encode()).digest()
        # Larger stages cost more, or one stage of everything would always win.
        return int.from_bytes(digest[:6], "little") / 2**48 * 30 * mask.bit_count() ** 0.7

    def price_boundary(self, left_concurrent: bool, right_concurrent: bool) -> float:
        return self.boundaries_us[2 * left_concurrent + right_concurrent]

    def bounds(self, problem: ScheduleProblem) -> None:
        return None


def stages_of(
    todo: frozenset[int],
    edges: set[tuple[int, int]],
    merge_class: list[int],
    space: StageSpace,
    concurrent: bool,
    merge: bool,
) -> Iterator[tuple[frozenset[int], Strategy, bool]]:
    """All endings of ``todo`` that may be its last stage, with their strategy and whether they run several groups."""
    most_groups = space.max_groups or len(todo)
    for size in range(1, len(todo) + 1):
        for chosen in combinations(sorted(todo), size):
            ending = frozenset(chosen)
            if any(u in ending and v in todo - ending for u, v in edges):
                continue
            groups = connected_components(ending, edges)
            roots = [[v for v in group if not any((u, v) in edges for u in group)] for group in groups]
            allowed = (
                len(groups) <= most_groups
                and all(len(group) <= (space.max_group_size or len(todo)) for group in groups)
                and (not space.single_root or all(len(root) == 1 for root in roots))
            )
            if allowed and (concurrent or size == 1):
                yield ending, Strategy.CONCURRENT, len(groups) > 1
            classes = {merge_class[unit] for unit in ending}
            if merge and 2 <= size <= most_groups and len(classes) == 1 and classes != {-1}:
                yield ending, Strategy.MERGE, False


def cheapest(
    problem: ScheduleProblem, cost_model: ScrambledTable, space: StageSpace, concurrent: bool, merge: bool
) -> float:
    """The least cost over all schedules, each enumerated stage by stage from the last one backwards."""
    edges = {(u, v) for v in range(len(problem)) for u in range(v) if int(problem.predecessors[v]) >> u & 1}
    merge_class = problem.merge_class.tolist()

    @cache
    def stages(todo: frozenset[int]) -> list[tuple[frozenset[int], bool, float]]:
        """What may be the last stage, whether it runs several groups, and its price: all that is kept between schedules."""
        found = []
        for ending, strategy, several in stages_of(todo, edges, merge_class, space, concurrent, merge):
            mask = np.array([sum(1 << unit for unit in ending)], dtype=np.uint64)
            batch = StageBatch(problem, mask, np.array([strategy.code], dtype=np.uint8))
            found.append((ending, several, float(cost_model.price_stages(batch)[0])))
        return found

    def schedules(todo: frozenset[int], behind: bool | None) -> float:
        if not todo:
            return 0.0
        best = float("inf")
        for ending, several, price in stages(todo):
            after = 0.0 if behind is None else cost_model.price_boundary(several, behind)
            best = min(best, schedules(todo - ending, several) + price + after)
        return best

    return schedules(frozenset(range(len(problem))), None)


@st.composite
def problems(draw: st.DrawFn, most: int = 8) -> ScheduleProblem:
    """A random block; units of one merge class read exactly the same units."""
    count = draw(st.integers(1, most))
    reads = [draw(st.sets(st.integers(0, unit - 1), max_size=3)) if unit else set() for unit in range(count)]
    classes: dict[tuple[int, ...], int] = {}
    merge_class = [classes.setdefault(tuple(sorted(own)), len(classes)) if draw(st.booleans()) else -1 for own in reads]
    edges = [(before, unit) for unit in range(count) for before in sorted(reads[unit])]
    return ScheduleProblem.of_edges(count, edges, merge_class, name=str(draw(st.integers(0, 999))))


spaces = st.builds(
    StageSpace,
    st.sampled_from(["general", "paper"]),
    st.sampled_from([None, 1, 2, 3]),
    st.sampled_from([None, 1, 2, 3, 8]),
)
boundaries = st.tuples(*(st.sampled_from([0.0, 3.0, 11.0]) for _ in range(4)))


def layered(generator: np.random.Generator, layers: int, width: int) -> ScheduleProblem:
    """A block of layers, each unit reading one or two of the layer before, with an exit that reads the last layer."""
    edges = []
    for layer in range(1, layers):
        for unit in range(width):
            for before in generator.choice(width, size=generator.integers(1, 3), replace=False):
                edges.append(((layer - 1) * width + int(before), layer * width + unit))
    last = layers * width
    edges += [(last - 1 - unit, last) for unit in range(width)]
    merge_class = [0 if unit < width - 1 else -1 for unit in range(last + 1)]
    return ScheduleProblem.of_edges(last + 1, edges, merge_class, name=f"layered {generator.integers(1 << 30)}")
