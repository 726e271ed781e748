"""Large graphs are cut where few substitutions span, recursively, so that their parts can be searched one by one.

MetaFlow cuts operators whose capacity is the number of substitutions that span them. Here a place where a rule matches is a hyperedge of
capacity 1 over all that it holds, so that the minimum cut is the least number of places that are lost, exactly (E. Ihler, D. Wagner,
F. Wagner, Modeling hypergraphs by graphs with the same mincut properties, Inf. Process. Lett. 45, 1993).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from iossim.ir.network import Network

#: Parts are cut until they have so many ops at most (MetaFlow's threshold), if they can be.
MOST_OPS = 30
#: Before any value that crosses a cut counts the places that are lost.
_PLACE = 1000


def split(
    network: Network,
    together: Sequence[Sequence[int]],
    places: Iterable[Iterable[str]],
    most_ops: int = MOST_OPS,
) -> tuple[tuple[int, ...], ...]:
    """The network's units in parts of up to ``most_ops`` ops, in topological order.

    ``together`` are units that stay in one part, in topological order: each alone, or the blocks of the network. A part may have more
    ops than the limit if they stay together. ``places`` are the nodes, by name, of each place where a rule matches.
    """
    group_of_unit = {unit: group for group, units in enumerate(together) for unit in units}
    group_of_node = {
        network.graph.nodes[node].name: group_of_unit[index]
        for index, unit in enumerate(network.units)
        for node in unit.nodes
    }
    spanned = [frozenset(group_of_node[node] for node in place if node in group_of_node) for place in places]
    edges = {
        (group_of_unit[before], group_of_unit[unit])
        for unit, reads in enumerate(network.predecessors)
        for before in reads
        if group_of_unit[before] != group_of_unit[unit]
    }
    ops = [sum(len(network.units[unit].nodes) for unit in units) for units in together]
    waiting = [list(range(len(together)))]
    parts: list[tuple[int, ...]] = []
    while waiting:
        groups = waiting.pop()
        if len(groups) == 1 or sum(ops[group] for group in groups) <= most_ops:
            parts.append(tuple(sorted(unit for group in groups for unit in together[group])))
            continue
        before = minimum_cut(groups, ops, sorted(edges), spanned)
        waiting += [[group for group in groups if group not in before], sorted(before)]
    return tuple(parts)


def minimum_cut(
    groups: Sequence[int],
    weights: Sequence[int],
    edges: Sequence[tuple[int, int]],
    spanned: Sequence[frozenset[int]],
) -> frozenset[int]:
    """The groups before the cut that breaks the fewest hyperedges ``spanned``, then the fewest ``edges``.

    ``groups`` are at least two, in topological order. About the first third by weight stand before the cut and the last third behind it; no
    edge leads back over it.
    """
    position = {group: index for index, group in enumerate(groups)}
    inside = [(position[a], position[b]) for a, b in edges if a in position and b in position]
    broken = [[position[group] for group in hyperedge if group in position] for hyperedge in spanned]
    broken = [sorted(members) for members in broken if len(members) > 1]
    first, last = len(groups), len(groups) + 1
    never = _PLACE * len(broken) + len(inside) + 1
    flows: dict[tuple[int, int], int] = {}
    for a, b in inside:
        flows[a, b] = flows.get((a, b), 0) + 1
        flows[b, a] = never
    for index, members in enumerate(broken):
        enter, leave = last + 1 + 2 * index, last + 2 + 2 * index
        flows[enter, leave] = _PLACE
        for member in members:
            flows[member, enter] = flows[leave, member] = never
    for index in _ends(groups, weights):
        flows[first, index] = never
    for index in _ends(groups[::-1], weights):
        flows[len(groups) - 1 - index, last] = never
    size = last + 1 + 2 * len(broken)
    rows, columns = np.array(list(flows), dtype=np.int32).T
    capacity = csr_array((np.array(list(flows.values()), dtype=np.int32), (rows, columns)), shape=(size, size))
    left = capacity - maximum_flow(capacity, first, last).flow
    left.data = np.maximum(left.data, 0)
    left.eliminate_zeros()
    reached = breadth_first_order(left, first, return_predecessors=False)
    return frozenset(groups[index] for index in reached.tolist() if index < len(groups))


def _ends(groups: Sequence[int], weights: Sequence[int]) -> list[int]:
    """The first places that have up to a third of the weight; at least one."""
    third = sum(weights[group] for group in groups) / 3
    found, sum_of = [0], weights[groups[0]]
    for index, group in enumerate(groups[1:-1], 1):
        sum_of += weights[group]
        if sum_of > third:
            break
        found.append(index)
    return found
