"""All terms of a vocabulary up to a number of ops, each once: terms are integers, and arrays hold their parts.

A *node* is a template applied to tensors, a *tensor* an input or an output of a node. Both are numbered level by level,
and within a level in an order that depends on the vocabulary alone. A node and all its predecessors are its *closure*:
a set of nodes. Its size is the node's level, so an op that two operands share counts once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from evidence.rule_generation.fingerprints import Fingerprints, evaluate_stacked, fingerprints
from evidence.rule_generation.vocabulary import Shape, Template, Type, Vocabulary
from iossim.base.errors import OptionError, Progress, ignore
from iossim.ir.op import Array, Op
from iossim.proving.refute import random_elements

Indices = NDArray[np.int32]
#: Numbers in the largest array of a batch.
_BATCH = 1 << 20
_NOTHING = -1
#: Number of graphs that fit in two gigabytes, with their values.
_MOST_GRAPHS = 8_000_000


@dataclass
class Terms:
    """Arrays of terms. Tensor ``i`` is output ``output[i]`` of node ``node[i]``, or input ``i`` where that is -1."""

    vocabulary: Vocabulary
    size: int
    types: list[Type] = field(default_factory=list)
    # The following arrays have one entry per node.
    template: NDArray[np.int16] = field(default_factory=lambda: np.empty(0, np.int16))
    operands: Indices = field(default_factory=lambda: np.empty((0, 2), np.int32))
    closure: Indices = field(default_factory=lambda: np.empty((0, 0), np.int32))  # ascending, with -1 in front
    # The following arrays have one entry per tensor.
    node: Indices = field(default_factory=lambda: np.empty(0, np.int32))
    output: NDArray[np.int8] = field(default_factory=lambda: np.empty(0, np.int8))
    type: Indices = field(default_factory=lambda: np.empty(0, np.int32))
    fingerprint: Fingerprints = field(default_factory=lambda: np.empty(0, np.uint64))
    #: Ranges of the levels; the inputs are level 0 of the tensors.
    node_levels: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    tensor_levels: list[tuple[int, int]] = field(default_factory=list)

    @property
    def first_tensor(self) -> Indices:
        """The first output of each node."""
        return np.flatnonzero((self.node != _NOTHING) & (self.output == 0)).astype(np.int32)

    def level_of_nodes(self) -> NDArray[np.int8]:
        """The level of each node."""
        return np.repeat(
            np.arange(len(self.node_levels), dtype=np.int8), [end - start for start, end in self.node_levels]
        )


def enumerate_terms(vocabulary: Vocabulary, size: int, seed: int = 0, progress: Progress = ignore) -> Terms:
    """All terms of up to ``size`` ops, with the fingerprint of each for inputs that ``seed`` draws.

    Raises OptionError if there are more than fit in memory.
    """
    return _Enumeration(vocabulary, size, seed).run(progress)


@dataclass
class _Batch:
    """Nodes of one template on operands of one type each."""

    template: int
    op: Op
    outputs: tuple[int, ...]
    operands: Indices


class _Enumeration:
    def __init__(self, vocabulary: Vocabulary, size: int, seed: int) -> None:
        self.terms = Terms(vocabulary, size)
        self.terms.closure = np.empty((0, size), np.int32)
        self._type_ids: dict[Type, int] = {}
        self._shape_ids: dict[Shape, int] = {}
        self._shape_of_type: list[int] = []
        self._values: dict[int, Array] = {}
        random = np.random.default_rng(seed)
        # Each shape has its own array, so that adding an input of another shape leaves these unchanged.
        values = [random_elements(random, shape) for shape in vocabulary.inputs]
        ids = [self._type_id(Type(shape)) for shape in vocabulary.inputs]
        count = len(values)
        terms = self.terms
        terms.node = np.full(count, _NOTHING, np.int32)
        terms.output = np.zeros(count, np.int8)
        terms.type = np.array(ids, np.int32)
        terms.fingerprint = np.concatenate([fingerprints(value[None]) for value in values])
        terms.tensor_levels.append((0, count))
        self._row = np.empty(count, np.int32)
        for kind in dict.fromkeys(ids):
            members = [index for index in range(count) if ids[index] == kind]
            self._values[kind] = np.stack([values[index] for index in members]).astype(np.float32)
            self._row[members] = np.arange(len(members))

    def run(self, progress: Progress) -> Terms:
        for level in range(1, self.terms.size + 1):
            self._add_level(level, progress)
        return self.terms

    def _type_id(self, kind: Type) -> int:
        if kind not in self._type_ids:
            self._type_ids[kind] = len(self._type_ids)
            self.terms.types.append(kind)
            self._shape_of_type.append(self._shape_ids.setdefault(kind.shape, len(self._shape_ids)))
        return self._type_ids[kind]

    def _add_level(self, level: int, progress: Progress) -> None:
        terms = self.terms
        batches = [*self._unary(level), *self._binary(level)]
        batches.sort(key=lambda batch: batch.template)
        total, done = sum(len(batch.operands) for batch in batches), 0
        if total > _MOST_GRAPHS:
            raise OptionError(
                f"there are {total:,} graphs of {level} ops, more than {_MOST_GRAPHS:,}; give a smaller size, or fewer "
                "ops or inputs"
            )
        keep = level < terms.size
        kept: dict[int, list[Array]] = {}
        made_node, made_output, made_type, made_print, made_row = [], [], [], [], []
        rows: dict[int, int] = {kind: len(values) for kind, values in self._values.items()}
        next_node = len(terms.template)
        for batch in batches:
            count, width = len(batch.operands), len(batch.outputs)
            prints = np.empty((count, width), np.uint64)
            values: list[list[Array]] = [[] for _ in batch.outputs]
            for start in range(0, count, step := self._terms_at_once(batch)):
                part = batch.operands[start : start + step]
                for place, value in enumerate(self._evaluate(batch, part)):
                    prints[start : start + step, place] = fingerprints(value)
                    if keep:
                        values[place].append(value.astype(np.float32))
            made_print.append(prints.ravel())
            made_type.append(np.tile(np.array(batch.outputs, np.int32), count))
            made_node.append(np.repeat(np.arange(next_node, next_node + count, dtype=np.int32), width))
            made_output.append(np.tile(np.arange(width, dtype=np.int8), count))
            row = np.zeros((count, width), np.int32)
            if keep:
                for place, kind in enumerate(batch.outputs):
                    kept.setdefault(kind, []).extend(values[place])
                    row[:, place] = rows.get(kind, 0) + np.arange(count)
                    rows[kind] = rows.get(kind, 0) + count
            made_row.append(row.ravel())
            next_node, done = next_node + count, done + count
            progress(done, total)
        operands = np.concatenate([np.empty((0, 2), np.int32), *(batch.operands for batch in batches)])
        template = [np.full(len(batch.operands), batch.template, np.int16) for batch in batches]
        closure = self._closures(operands, len(terms.template))
        terms.template = np.concatenate([terms.template, *template])
        terms.operands = np.concatenate([terms.operands, operands])
        terms.closure = np.concatenate([terms.closure, closure])
        terms.node_levels.append((terms.node_levels[-1][1], next_node))
        first_tensor = len(terms.node)
        terms.node = np.concatenate([terms.node, *made_node])
        terms.tensor_levels.append((first_tensor, len(terms.node)))
        terms.output = np.concatenate([terms.output, *made_output])
        terms.type = np.concatenate([terms.type, *made_type])
        terms.fingerprint = np.concatenate([terms.fingerprint, *made_print])
        self._row = np.concatenate([self._row, *made_row])
        for kind, parts in kept.items():
            before = [self._values[kind]] if kind in self._values else []
            self._values[kind] = np.concatenate([*before, *parts])

    # --- operands --------------------------------------------------------------------------------------------------

    def _unary(self, level: int) -> Iterator[_Batch]:
        start, end = self.terms.tensor_levels[level - 1]
        tensors = np.arange(start, end, dtype=np.int32)
        for kind, members in _grouped(self.terms.type[start:end]):
            operands = np.stack([tensors[members], np.full(len(members), _NOTHING, np.int32)], axis=1)
            yield from self._batches(1, (kind,), operands)

    def _binary(self, level: int) -> Iterator[_Batch]:
        pairs = list(self._pairs(level))
        left = np.concatenate([np.empty(0, np.int32), *(pair[0] for pair in pairs)])
        right = np.concatenate([np.empty(0, np.int32), *(pair[1] for pair in pairs)])
        kinds = len(self.terms.types)
        for code, members in _grouped(self.terms.type[left].astype(np.int64) * kinds + self.terms.type[right]):
            operands = np.stack([left[members], right[members]], axis=1)
            order = np.lexsort((operands[:, 1], operands[:, 0]))
            yield from self._batches(2, divmod(code, kinds), operands[order])

    def _batches(self, count: int, kinds: tuple[int, ...], operands: Indices) -> Iterator[_Batch]:
        types = [self.terms.types[kind] for kind in kinds]
        for index, template in enumerate(self.terms.vocabulary.templates):
            if (
                template.operands != count
                or (applied := template.apply(types)) is None
                or not template.generates(types)
            ):
                continue
            op, made = applied
            chosen = operands[operands[:, 0] <= operands[:, 1]] if template.commutes else operands
            if len(chosen):
                yield _Batch(index, op, tuple(map(self._type_id, made)), chosen)

    def _pairs(self, level: int) -> Iterator[tuple[Indices, Indices]]:
        """Tensors whose closures together are ``level - 1`` nodes, and that a template takes as its two operands."""
        binary = [template for template in self.terms.vocabulary.templates if template.operands == 2]
        shapes = list(self._shape_ids)
        takes = np.array([[any(_fits(template, x, y) for template in binary) for y in shapes] for x in shapes])
        shape = np.array(self._shape_of_type, np.int32)[self.terms.type]
        for first in range(level):
            for second in range(level):
                shared = first + second - (level - 1)
                if max(first, second) > level - 1 or shared < 0:
                    continue
                for left, right in self._sharing(first, second, shared):
                    fits = takes[shape[left], shape[right]]
                    yield left[fits], right[fits]

    def _sharing(self, first: int, second: int, shared: int) -> Iterator[tuple[Indices, Indices]]:
        """Pairs of tensors of two levels whose closures have ``shared`` nodes in common."""
        (start, end), (other, last) = self.terms.tensor_levels[first], self.terms.tensor_levels[second]
        if min(first, second) == 0:
            if shared == 0:
                left, right = np.meshgrid(np.arange(start, end), np.arange(other, last), indexing="ij")
                yield left.ravel().astype(np.int32), right.ravel().astype(np.int32)
            return
        members, others = self._incidence(first), self._incidence(second).T.tocsr()
        step = max(1, _BATCH * 4 // max(1, last - other))
        for row in range(0, end - start, step):
            common = members[row : row + step] @ others
            if shared:
                entries = common.tocoo()
                rows, columns = (places[entries.data == shared] for places in (entries.row, entries.col))
            else:
                rows, columns = np.nonzero(common.toarray() == 0)
            yield (rows + start + row).astype(np.int32), (columns + other).astype(np.int32)

    def _incidence(self, level: int) -> csr_array:
        """Tensors of a level by the nodes of their closures."""
        start, end = self.terms.tensor_levels[level]
        closure = self.terms.closure[self.terms.node[start:end]][:, self.terms.size - level :]
        rows = np.arange(0, closure.size + 1, level)
        ones = np.ones(closure.size, np.int8)
        return csr_array((ones, closure.ravel(), rows), shape=(end - start, len(self.terms.template)))

    # --- what they are ---------------------------------------------------------------------------------------------

    def _terms_at_once(self, batch: _Batch) -> int:
        types = self.terms.types
        of = [types[self.terms.type[tensor]].shape for tensor in batch.operands[0] if tensor != _NOTHING]
        largest = max(int(np.prod(shape)) for shape in (*of, *(types[made].shape for made in batch.outputs)))
        if batch.op.kind == "conv":  # its windows
            largest = int(np.prod(of[0])) * int(np.prod(of[1][2:]))
        return max(1, _BATCH // largest)

    def _evaluate(self, batch: _Batch, operands: Indices) -> tuple[Array, ...]:
        stacks = []
        for column in operands.T:
            if column[0] != _NOTHING:
                stacks.append(self._values[int(self.terms.type[column[0]])][self._row[column]].astype(np.float64))
        return evaluate_stacked(batch.op, stacks)

    def _closures(self, operands: Indices, first: int) -> Indices:
        """Union of the operands' closures and the node itself, ascending, with -1 in front."""
        size = self.terms.size
        padded = np.concatenate(
            [self.terms.closure, np.full((1, size), _NOTHING, np.int32)]
        )  # the last is that of an input
        of_tensor = np.append(self.terms.node, _NOTHING)
        both = np.concatenate([padded[of_tensor[operands[:, 0]]], padded[of_tensor[operands[:, 1]]]], axis=1)
        both.sort(axis=1)
        both[:, 1:][both[:, 1:] == both[:, :-1]] = _NOTHING
        both.sort(axis=1)
        itself = np.arange(first, first + len(operands), dtype=np.int32)[:, None]
        return np.concatenate([both[:, both.shape[1] - (size - 1) :], itself], axis=1)


def _fits(template: Template, x: Shape, y: Shape) -> bool:
    types = (Type(x), Type(y))
    return template.apply(types) is not None and template.generates(types)


def _grouped(codes: NDArray[np.int64] | Indices) -> Iterator[tuple[int, NDArray[np.int64]]]:
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.empty(0, np.int64)
    for start, end in zip(starts, [*starts[1:], len(ordered)], strict=True):
        yield int(ordered[start]), order[start:end]
