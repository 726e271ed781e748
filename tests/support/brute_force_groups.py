"""Connected components by definition."""

from __future__ import annotations

from collections.abc import Iterable


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
