"""Directed acyclic graphs for randomly wired networks: drawn by the Watts-Strogatz model, or read from edge lists.

An undirected random graph becomes acyclic by directing each edge from its lower to its higher node
(Xie et al., 2019, arXiv:1904.01569, section 3). Small networks from a seed serve tests of anything that takes one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from iossim.base.errors import ModelError, OptionError
from iossim.base.user_files import read_text
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import ModelSource, Network
from iossim.ir.types import Precision
from iossim.models.layers import conv_relu, join, max_pool


@dataclass(frozen=True)
class RandomGraph:
    """Nodes ``0 .. count - 1`` and edges ``(low, high)``, sorted."""

    count: int
    edges: tuple[tuple[int, int], ...]

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Predecessors of each node, ascending."""
        return tuple(tuple(low for low, high in self.edges if high == node) for node in range(self.count))

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Successors of each node, ascending."""
        return tuple(tuple(high for low, high in self.edges if low == node) for node in range(self.count))

    @property
    def sinks(self) -> tuple[int, ...]:
        return tuple(node for node in range(self.count) if not self.successors[node])

    def depth_first_order(self) -> tuple[int, ...]:
        """The published networks' topological order: reverse finishing order of an ascending depth-first search."""
        finished: list[int] = []
        seen: set[int] = set()
        for source in (node for node in range(self.count) if not self.predecessors[node]):
            seen.add(source)
            path = [(source, iter(self.successors[source]))]
            while path:
                node, rest = path[-1]
                following = next((after for after in rest if after not in seen), None)
                if following is None:
                    finished.append(node)
                    path.pop()
                else:
                    seen.add(following)
                    path.append((following, iter(self.successors[following])))
        return tuple(reversed(finished))


def watts_strogatz(count: int, neighbours: int, probability: float, seed: str) -> RandomGraph:
    """A connected small-world graph WS(count, neighbours, probability) (Watts and Strogatz, 1998).

    It starts as a ring in which each node is joined to its ``neighbours`` nearest (half of them on each side); lap by
    lap, the far end of each edge is rewired with ``probability`` to a uniformly chosen node, neither the near end nor
    joined to it. Redrawn from the same stream until connected; equal seeds give equal graphs everywhere.
    """
    if neighbours % 2 or not 0 < neighbours < count or not 0 <= probability <= 1:
        raise OptionError(
            f"no Watts-Strogatz graph WS({count}, {neighbours}, {probability}): neighbours are even and fewer than "
            "the nodes, the probability is between 0 and 1"
        )
    # Only random() is used: its stream for a given seed is the same in every version of Python.
    stream = random.Random(seed)
    while True:
        joined: list[set[int]] = [set() for _ in range(count)]
        laps = [(node, (node + lap) % count) for lap in range(1, neighbours // 2 + 1) for node in range(count)]
        for near, far in laps:
            joined[near].add(far)
            joined[far].add(near)
        for near, far in laps:
            if stream.random() >= probability:
                continue
            free = [node for node in range(count) if node != near and node not in joined[near]]
            if free:
                new = free[int(stream.random() * len(free))]
                joined[near].remove(far)
                joined[far].remove(near)
                joined[near].add(new)
                joined[new].add(near)
        if _is_connected(joined):
            edges = tuple((low, high) for low in range(count) for high in sorted(joined[low]) if low < high)
            return RandomGraph(count, edges)


def read_edge_list(path: Path) -> RandomGraph:
    """The graph of a text file: numbers of nodes and edges, then one edge (two nodes) per line; raises ModelError."""
    text = read_text(path, "edge list", "give a text file", ModelError)
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if len(lines) < 2:
        raise ModelError(f"edge list {path} has no header: its first two lines are the numbers of nodes and edges")
    ((count,), (edge_count,)) = (_integers(path, number, words, 1) for number, words in lines[:2])
    if count < 1:
        raise ModelError(f"edge list {path}, line {lines[0][0]}: {count} nodes; a graph has at least one")
    edges: set[tuple[int, int]] = set()
    for number, words in lines[2:]:
        first, second = _integers(path, number, words, 2)
        edge = (min(first, second), max(first, second))
        if edge[0] < 0 or edge[1] >= count:
            raise ModelError(f"edge list {path}, line {number}: nodes are numbered 0 to {count - 1}")
        if first == second or edge in edges:
            reason = "joins a node to itself" if first == second else "is there twice"
            raise ModelError(f"edge list {path}, line {number}: edge {first} {second} {reason}; remove it")
        edges.add(edge)
    if len(edges) != edge_count:
        raise ModelError(f"edge list {path}, line {lines[1][0]}: {edge_count} edges are announced, {len(edges)} follow")
    return RandomGraph(count, tuple(sorted(edges)))


def _integers(path: Path, number: int, words: list[str], count: int) -> list[int]:
    try:
        values = [int(word) for word in words]
    except ValueError:
        values = []
    if len(values) != count:
        expected = "a whole number" if count == 1 else f"{count} whole numbers"
        raise ModelError(f"edge list {path}, line {number}: {' '.join(words)!r} is not {expected}")
    return values


def _is_connected(joined: list[set[int]]) -> bool:
    reached, border = {0}, [0]
    while border:
        for node in joined[border.pop()] - reached:
            reached.add(node)
            border.append(node)
    return len(reached) == len(joined)


def seeded_network(
    seed: int, units: int = 8, blocks: int = 2, batch: int = 1, precision: Precision = Precision.FP32
) -> Network:
    """A network of ``blocks`` sequential blocks, each of about ``units`` units between one input and one concat.

    Most convolutions share an input with others, so that there are groups to run concurrently and convolutions to
    merge. Equal arguments give equal networks everywhere. Raises OptionError for sizes below 1 (units: below 3).
    """
    for name, value, least in (("units", units, 3), ("blocks", blocks, 1), ("batch", batch, 1)):
        if value < least:
            raise OptionError(f"{name} {value} of a seeded network: give {least} or more")
    # Only random() is used: its stream for a given seed is the same in every version of Python.
    stream = random.Random(seed)
    b = GraphBuilder(f"seeded{seed}", precision, seed)
    x = b.input("image", (batch, 8, 14, 14))
    for block in range(blocks):
        with b.block(f"block{block}"):
            values, ends = [x], {x}
            for index in range(units - 1):
                name = f"block{block}.unit{index}"
                # Often the first value: branches of one value are the opportunity for scheduling.
                source = values[0] if stream.random() < 0.4 else values[int(stream.random() * len(values))]
                chosen = stream.random()
                if chosen < 0.75:
                    kernel = (1, 3, 3, 5)[int(stream.random() * 4)]
                    channels = (8, 8, 16, 24)[int(stream.random() * 4)]
                    y = conv_relu(b, name, source, channels, kernel, padding=kernel // 2)
                elif chosen < 0.9:
                    y = max_pool(b, name, source, 3, stride=1, padding=1)
                else:
                    same = [value for value in values if b.types[value].shape == b.types[source].shape]
                    other = same[int(stream.random() * len(same))]
                    ends.discard(other)
                    y = join(b, name, [[source, other]])
                ends.discard(source)
                ends.add(y)
                values.append(y)
            x = join(b, f"block{block}.concat", [value for value in values if value in ends])
    return b.network([x], ModelSource(f"seeded:{seed}", batch))
