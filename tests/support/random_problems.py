"""Random scheduling problems, spaces of stages and boundaries, to be drawn by hypothesis or from a generator."""

import numpy as np
from hypothesis import strategies as st

from iossim.schedule.problem import ScheduleProblem
from iossim.search.options import StageSpace


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
