"""The scheduling problem of one block: a directed acyclic graph of units, sets of units as bitmasks.

Unit ``i`` of a problem is bit ``1 << i``; units are in topological order, so a unit's predecessors have lower bits.
Compiled code takes masks of 64 bits. A *wide* problem has more units: its masks are Python integers, and it has to be
restricted to some of its units before it is priced or solved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from iossim.base.errors import GraphError
from iossim.ir.merging import merge_keys
from iossim.ir.network import Block, Network

#: Maximum number of units of a problem for compiled code.
MAX_UNITS = 64
Masks = NDArray[np.uint64]


def masks_of(values: Sequence[int], units: int) -> Masks:
    """Masks over this number of units: of 64 bits each if that suffices, else of dtype object."""
    return np.array(values, dtype=np.uint64 if units <= MAX_UNITS else object)


@dataclass(frozen=True, eq=False)
class ScheduleProblem:
    """A block to be scheduled.

    ``predecessors[i]`` (uint64, for a wide problem object; shape ``[n]``) is the mask of the units whose outputs unit
    ``i`` reads.
    ``merge_class[i]`` (int32, shape ``[n]``) is equal for units that may merge into one convolution, -1 for those
    that merge with nothing. ``signatures[i]`` identifies unit ``i``'s work: equal signatures have equal prices.
    ``units[i]`` is the unit's index in ``network.units``; a problem made for a test has no network.
    """

    name: str
    unit_names: tuple[str, ...]
    predecessors: Masks
    merge_class: NDArray[np.int32]
    signatures: tuple[str, ...]
    network: Network | None = None
    units: tuple[int, ...] = ()
    #: ``not_before[i]`` (shape and dtype as above) is the mask of interchangeable units that start no later than unit
    #: ``i`` in some best schedule (:attr:`~iossim.ir.network.Network.interchangeable`): they may share a stage.
    not_before: Masks | None = None

    def __post_init__(self) -> None:
        if not self.unit_names:
            raise GraphError(f"block {self.name!r} has no units; a problem holds 1 or more")
        for index, mask in enumerate(self.predecessors.tolist()):
            if mask >> index:
                raise GraphError(f"block {self.name!r}: unit {self.unit_names[index]!r} precedes what it reads")

    @staticmethod
    def of_block(network: Network, block: Block) -> ScheduleProblem:
        """The problem of one block of a network; edges from other blocks are satisfied when it starts."""
        position = {unit: index for index, unit in enumerate(block.units)}
        predecessors = [sum(1 << position[p] for p in network.predecessors[unit] if p in position) for unit in position]
        keys = merge_keys(network, block.units)
        classes: dict[str, int] = {}
        merge_class = np.full(len(block.units), -1, dtype=np.int32)
        for index, key in enumerate(keys):
            if key is not None and keys.count(key) > 1:
                merge_class[index] = classes.setdefault(key, len(classes))
        return ScheduleProblem(
            block.name,
            tuple(network.units[unit].name for unit in block.units),
            masks_of(predecessors, len(position)),
            merge_class,
            tuple(network.signatures[unit] for unit in block.units),
            network,
            block.units,
            _not_before(network, position),
        )

    @staticmethod
    def of_edges(
        count: int, edges: Sequence[tuple[int, int]], merge_class: Sequence[int] | None = None, name: str = "problem"
    ) -> ScheduleProblem:
        """A problem without a network, for tests and tables; an edge ``(u, v)`` says that ``v`` reads ``u``."""
        predecessors = [0] * count
        for before, after in edges:
            predecessors[after] |= 1 << before
        names = tuple(str(index) for index in range(count))
        classes = np.array(merge_class if merge_class is not None else [-1] * count, dtype=np.int32)
        return ScheduleProblem(name, names, masks_of(predecessors, count), classes, names)

    @property
    def is_wide(self) -> bool:
        """True if it has more units than compiled code supports."""
        return len(self) > MAX_UNITS

    def __len__(self) -> int:
        return len(self.unit_names)

    @property
    def full(self) -> int:
        """The mask of all units."""
        return (1 << len(self)) - 1

    def restrict(self, units: Sequence[int]) -> ScheduleProblem:
        """The problem of some of the units, in ascending order; their inputs from other units are already available.

        ``not_before`` is left out: without it a search only looks at more stages.
        """
        position, inside = {unit: index for index, unit in enumerate(units)}, sum(1 << unit for unit in units)
        own = (bits(int(self.predecessors[unit]) & inside) for unit in units)
        predecessors = [sum(1 << position[before] for before in befores) for befores in own]
        return ScheduleProblem(
            f"{self.name}[{units[0]}:{units[-1] + 1}]",
            tuple(self.unit_names[unit] for unit in units),
            masks_of(predecessors, len(units)),
            self.merge_class[list(units)],
            tuple(self.signatures[unit] for unit in units),
            self.network,
            tuple(self.units[unit] for unit in units) if self.units else (),
        )

    @cached_property
    def order(self) -> Masks:
        """Mask per unit of those that are in every state that contains it: predecessors, and ``not_before``."""
        return self.predecessors if self.not_before is None else self.predecessors | self.not_before

    @cached_property
    def successors(self) -> Masks:
        """``successors[i]``: mask of the units that read unit ``i``'s outputs."""
        result = [0] * len(self)
        for index, mask in enumerate(self.predecessors.tolist()):
            for before in bits(mask):
                result[before] |= 1 << index
        return masks_of(result, len(self))

    @cached_property
    def ancestors(self) -> Masks:
        """``ancestors[i]``: mask of all units that must finish before unit ``i`` starts."""
        return _closure(self.predecessors, range(len(self)))

    @cached_property
    def descendants(self) -> Masks:
        """``descendants[i]``: mask of all units that must start after unit ``i``."""
        return _closure(self.successors, reversed(range(len(self))))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Number of units on the longest path to each unit, itself not counted."""
        depths: list[int] = []
        for mask in self.predecessors.tolist():
            depths.append(max((depths[before] + 1 for before in bits(mask)), default=0))
        return tuple(depths)

    @cached_property
    def one_sink(self) -> bool:
        """True if all units lead to the last one: then the last stage has one group."""
        return int(self.ancestors[-1]) | 1 << (len(self) - 1) == self.full

    @cached_property
    def key(self) -> str:
        """A text equal for blocks with the same units in the same positions, hence the same schedules and prices."""
        order = [] if self.not_before is None else [_text(self.not_before)]
        arrays = [_text(self.predecessors), self.merge_class.tobytes().hex()]
        text = "\n".join([*arrays, *order, *self.signatures])
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    @property
    def works(self) -> tuple[str, ...]:
        """The work of each unit, equal for equal work; ``signatures`` may distinguish more (:meth:`priced_by`)."""
        return self.signatures if self.network is None else tuple(self.network.signatures[unit] for unit in self.units)

    def priced_by(self, keys: Sequence[str]) -> ScheduleProblem:
        """The problem in which exactly the units of equal ``keys`` have equal prices and are interchangeable."""
        if tuple(keys) == self.signatures:
            return self
        tells_equal_work_apart = len(set(zip(self.signatures, keys, strict=True))) > len(set(self.signatures))
        return replace(self, signatures=tuple(keys), not_before=None if tells_equal_work_apart else self.not_before)

    def in_order(self) -> ScheduleProblem:
        """The problem where equal neighbours start in the order of their numbers: units of one work that read the same
        and are read by the same. Renumbering them changes no stage, since nothing is issued between them, so that of
        ``n`` there are ``n + 1`` states and not ``2^n``.
        """
        if self.not_before is not None:
            return self
        arrays = self.predecessors.tolist(), self.successors.tolist(), self.merge_class.tolist()
        alike = list(zip(self.signatures, *arrays, strict=True))
        before = [1 << (unit - 1) if unit and alike[unit] == alike[unit - 1] else 0 for unit in range(len(self))]
        return replace(self, not_before=masks_of(before, len(self))) if any(before) else self

    def ready(self, done: int) -> int:
        """The mask of the units that can run after those of the mask ``done``."""
        predecessors = self.predecessors.tolist()
        return sum(1 << unit for unit in range(len(self)) if not done >> unit & 1 and not predecessors[unit] & ~done)

    def groups(self, mask: int) -> list[int]:
        """The groups of a stage: connected components of the units in ``mask``, lowest unit first."""
        predecessors = self.predecessors.tolist()
        found: list[int] = []
        for unit in bits(mask):
            joined = 1 << unit
            apart: list[int] = []
            for group in found:
                if predecessors[unit] & group:
                    joined |= group
                else:
                    apart.append(group)
            found = [*apart, joined]
        return sorted(found, key=lambda group: group & -group)


def _closure(masks: Masks, order: Iterable[int]) -> Masks:
    """Transitive closure of masks; in ``order`` a unit comes after those that it reaches."""
    result: list[int] = masks.tolist()
    for unit in order:
        for other in bits(result[unit]):
            result[unit] |= result[other]
    return masks_of(result, len(result))


def _text(masks: Masks) -> str:
    """Masks as text, the same in every process."""
    return " ".join(map(str, masks.tolist())) if masks.dtype == object else masks.tobytes().hex()


def _not_before(network: Network, position: dict[int, int]) -> Masks | None:
    masks = [0] * len(position)
    for names in network.interchangeable:
        places = [position[unit] for name in names if (unit := network.unit_index[name]) in position]
        for before, after in pairwise(sorted(places)):
            masks[after] |= 1 << before
    return masks_of(masks, len(position)) if any(masks) else None


def bits(mask: int) -> list[int]:
    """The units of a mask, lowest first."""
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return found
