"""Graphs that compute the same, matched by fingerprint: each pair of them is an equation that may be a rule.

A graph is a node with all that it computes; its outputs are the tensors that nothing in it reads, including those of a
split. Two graphs of one output match if their fingerprints are equal. One of several outputs matches another as a
whole, or the smallest graphs that make its outputs one by one. Disconnected graphs are not enumerated: their equations
follow from those of each part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from evidence.rule_generation.enumeration import Indices, Terms
from evidence.rule_generation.equations import Equation, Term, apply
from evidence.rule_generation.fingerprints import mixed

Pairs = NDArray[np.int64]
_NOTHING = -1


@dataclass(frozen=True)
class Matched:
    """Result of matching. ``pairs`` have one column for each output on either side: ``[pairs, 2, outputs]`` of
    tensors.
    """

    graphs: int  # all that were enumerated
    hits: int  #: pairs with equal fingerprints
    pairs: tuple[Pairs, ...]  # those left after renaming inputs of one shape, by number of outputs

    @property
    def renamed(self) -> int:
        return sum(map(len, self.pairs))

    def all_pairs(self) -> Iterator[Pairs]:
        for group in self.pairs:
            yield from group


def match(terms: Terms) -> Matched:
    """All pairs of graphs that compute the same, except those that differ from another pair only in the names of
    inputs.
    """
    count = len(terms.vocabulary.inputs)
    outputs = _outputs(terms)
    widths = (outputs != _NOTHING).sum(axis=1)
    named = _named_in_order(terms)
    alone = np.concatenate([np.arange(count), outputs[widths == 1, 0]])
    alone.sort()
    hits = 0
    found = []
    pairs = _same(terms.fingerprint[alone])
    hits += len(pairs)
    pairs = alone[pairs]
    # One of both, the larger if they differ, has its inputs named in order; the other's names follow from it.
    # Conversely, of two of one size, which of them comes later may change with the names.
    level = np.append(terms.level_of_nodes(), 0)[terms.node]
    alike = level[pairs[:, 0]] == level[pairs[:, 1]]
    pairs = pairs[named[pairs[:, 0]] | named[pairs[:, 1]] & alike]
    found.append(pairs[:, :, None])
    smallest = _Smallest(terms, alone)
    for width in range(2, outputs.shape[1] + 1):
        graphs = outputs[widths == width, :width]
        if not len(graphs):
            continue
        prints = mixed(terms.fingerprint[graphs]).sum(axis=1, dtype=np.uint64)
        together: Pairs = graphs[_same(prints)].astype(np.int64)
        apart = np.array(list(_apart(terms, graphs, smallest)), np.int64).reshape(-1, 2, width)
        hits += len(together) + len(apart)
        both = np.concatenate([_aligned(terms, together), apart])
        found.append(both[named[both[:, 0, 0]] | named[both[:, 1, 0]]])
    return Matched(len(terms.template), hits, tuple(found))


def equation(terms: Terms, pair: Pairs) -> Equation:
    """A pair as a value; inputs are called ``i0``, ``i1``, ... in the order of the vocabulary."""
    left, right = (tuple(term(terms, int(tensor)) for tensor in side) for side in pair)
    named = Equation(left, right, {f"i{index}": shape for index, shape in enumerate(terms.vocabulary.inputs)})
    return Equation(left, right, {name: named.shapes[name] for name in named.inputs})


def term(terms: Terms, tensor: int) -> Term:
    """A tensor as a term."""
    node = int(terms.node[tensor])
    if node == _NOTHING:
        return f"i{tensor}"
    operands = [term(terms, int(operand)) for operand in terms.operands[node] if operand != _NOTHING]
    return apply(terms.vocabulary.templates[terms.template[node]].name, operands, int(terms.output[tensor]))


def _outputs(terms: Terms) -> Indices:
    """Outputs of each node's graph: tensors that no node of its closure reads; followed by -1."""
    closure, inside = terms.closure, terms.closure != _NOTHING
    nodes = np.where(inside, closure, 0)
    makes_two = np.array([template.outputs == 2 for template in terms.vocabulary.templates])[terms.template]
    first = np.where(inside, terms.first_tensor[nodes], _NOTHING)
    made = np.concatenate([first, np.where(inside & makes_two[nodes], first + 1, _NOTHING)], axis=1)
    read = np.where(inside[:, :, None], terms.operands[nodes], _NOTHING).reshape(len(closure), -1)
    for column in read.T:
        made[made == column[:, None]] = _NOTHING
    made = -np.sort(-made, axis=1)
    width = max(1, int((made != _NOTHING).sum(axis=1).max(initial=0)))
    return made[:, :width][:, ::1]


def _same(prints: NDArray[np.uint64]) -> Pairs:
    """All pairs of indices with equal numbers, the later index first."""
    order = np.argsort(prints, kind="stable")
    ordered = prints[order]
    found = [np.empty((0, 2), np.int64)]
    distance = 1
    while distance < len(ordered) and len(places := np.flatnonzero(ordered[distance:] == ordered[:-distance])):
        found.append(np.stack([order[places + distance], order[places]], axis=1))
        distance += 1
    return np.concatenate(found)


def _aligned(terms: Terms, together: Pairs) -> Pairs:
    """Graphs ``[pairs, 2, outputs]`` in which the outputs of the second follow the order of the first's."""
    order = np.argsort(terms.fingerprint[together], axis=2, kind="stable")
    return np.take_along_axis(together, order, axis=2)


class _Smallest:
    """Smallest graphs of one output for each value."""

    def __init__(self, terms: Terms, alone: NDArray[np.int64]) -> None:
        self._order = alone[np.argsort(terms.fingerprint[alone], kind="stable")]
        self._prints = terms.fingerprint[self._order]
        self._level = np.append(terms.level_of_nodes(), 0)[terms.node]

    def of(self, fingerprint: np.uint64) -> NDArray[np.int64]:
        start, end = np.searchsorted(self._prints, fingerprint), np.searchsorted(self._prints, fingerprint, "right")
        members = self._order[start:end]
        chosen: NDArray[np.int64] = members[self._level[members] == self._level[members].min(initial=127)]
        return chosen


def _apart(terms: Terms, graphs: Indices, smallest: _Smallest) -> Iterator[tuple[NDArray[np.int64], tuple[int, ...]]]:
    """Graphs with those that make their outputs one by one, within the total number of ops of a graph."""
    for graph in graphs:
        for makers in product(*(smallest.of(terms.fingerprint[output]) for output in graph)):
            closures = [
                set(terms.closure[terms.node[tensor]].tolist()) for tensor in makers if terms.node[tensor] != _NOTHING
            ]
            if len(set().union(*closures) - {_NOTHING}) <= terms.size:
                yield graph.astype(np.int64), tuple(map(int, makers))


def _named_in_order(terms: Terms) -> NDArray[np.bool_]:
    """Mask of the tensors whose graph reads the first inputs of their shapes, in order."""
    shapes, ranks = terms.vocabulary.inputs, terms.vocabulary.rank_in_shape
    reads: list[tuple[int, ...]] = [(each,) for each in range(len(shapes))]
    for one, other in terms.operands[terms.node[len(shapes) :]].tolist():
        reads.append(reads[one] if other == _NOTHING else tuple(dict.fromkeys((*reads[one], *reads[other]))))
    in_order = {
        each: all(
            ranks[read] == sum(shapes[earlier] == shapes[read] for earlier in each[:place])
            for place, read in enumerate(each)
        )
        for each in set(reads)
    }
    return np.array([in_order[each] for each in reads], np.bool_)
