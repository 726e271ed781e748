"""Joins of branches as a layer of a search: each way to fuse them or set them apart, priced by what it allows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations

from iossim.base.errors import ScheduleError
from iossim.ir.network import Network
from iossim.models.passes.joins import Joins, joins_of, with_joins
from iossim.schedule.schedule import Schedule
from iossim.transforms.choices import EVERY, BySchedule, Choices, GraphCost

#: The option of a source that names the joins that are otherwise than the model has them.
OPTION = "joins"
#: The joins to fuse, and those to set apart, that are otherwise in the given network.
Way = tuple[frozenset[str], frozenset[str]]
_NONE = frozenset[str]()


class JoinChoices(Choices[Way]):
    """The cost of a network with its joins as they are best: as given, all fused, all apart, those of each block as
    that block is faster in schedules ``by_schedule``, and if it climbs, each by itself.
    """

    climbs = False

    def __init__(self, inner: GraphCost, by_schedule: BySchedule, tell: Callable[[int], None] = lambda seen: None):
        super().__init__(inner, tell)
        self.by_schedule = by_schedule
        self._joins: dict[Network, Joins] = {}

    def joins(self, network: Network) -> Joins:
        if network not in self._joins:
            self._joins[network] = joins_of(network)
        return self._joins[network]

    def given(self, network: Network) -> Way:
        return _NONE, _NONE

    def made(self, network: Network, way: Way) -> Network:
        return with_joins(network, *way)

    def applied(self, network: Network, to: Network) -> tuple[Network, Mapping[str, int]]:
        way = self.best(network)
        return with_chosen_joins(with_joins(to, *way), *(tuple(sorted(names)) for names in way)), {}

    def ways(self, network: Network) -> dict[str, Way]:
        joins = self.joins(network)
        return {
            "given": (_NONE, _NONE),
            "fused": (frozenset(joins.apart), _NONE),
            "apart": (_NONE, frozenset(joins.fused)),
        }

    def starts(self, network: Network) -> Iterator[Way]:
        if joins := self.joins(network):
            ways = self.ways(network)
            yield from ways.values()
            fused, apart = (self.tried(network)[ways[way]][1] for way in ("fused", "apart"))
            yield _by_block(joins, *((each, self.by_schedule.found(each)) for each in (fused, apart)))

    def _names(self, network: Network) -> list[tuple[int, str]]:
        """Each join with its place in a way."""
        joins = self.joins(network)
        return [(0, name) for name in joins.apart] + [(1, name) for name in joins.fused]

    def coordinates(self, network: Network) -> int:
        return len(self._names(network))

    def changes(self, network: Network, way: Way, place: int) -> list[Way]:
        part, name = self._names(network)[place]
        changed = way[part] ^ {name}
        return [(way[0], changed) if part else (changed, way[1])]

    def every(self, network: Network) -> list[Way]:
        names = self._names(network)
        if 2 ** len(names) > EVERY:
            return []
        return [
            (frozenset(name for part, name in own if not part), frozenset(name for part, name in own if part))
            for count in range(len(names) + 1)
            for own in combinations(names, count)
        ]

    def moved(self, way: Way, like: Network, network: Network) -> Way:
        joins = self.joins(network)
        return way[0].intersection(joins.apart), way[1].intersection(joins.fused)

    def touched(self, like: Network, network: Network) -> list[int]:
        known = set(self._names(like))
        return [place for place, each in enumerate(self._names(network)) if each not in known]


def _by_block(
    joins: Joins, fused: tuple[Network, Schedule], apart: tuple[Network, Schedule]
) -> tuple[frozenset[str], frozenset[str]]:
    """The joins to fuse and to set apart where each block of the network with all apart is as it is faster."""
    network, _ = apart
    block_of_node = {
        node: index
        for index, block in enumerate(network.blocks)
        for unit in block.units
        for node in network.units[unit].nodes
    }
    costs_us: list[list[float]] = []
    for changed, found in (fused, apart):
        taken_us = [0.0] * len(network.blocks)
        for block, own in zip(changed.blocks, found.blocks, strict=True):
            last = changed.units[block.units[-1]].nodes[-1]
            taken_us[block_of_node[last]] += sum(stage.boundary_us + stage.latency_us for stage in own.stages)
        costs_us.append(taken_us)
    gains = [apart_us - fused_us for fused_us, apart_us in zip(*costs_us, strict=True)]
    gain_of = {unit.name: gains[block_of_node[unit.nodes[-1]]] for unit in network.units}
    return (
        frozenset(name for name in joins.apart if gain_of[name] > 0),
        frozenset(name for name in joins.fused if gain_of[name] < 0),
    )


def with_chosen_joins(network: Network, fused: tuple[str, ...], apart: tuple[str, ...]) -> Network:
    """The network, whose source says which joins are otherwise than the model has them."""
    if not fused and not apart:
        return network
    option = (OPTION, json.dumps({"fused": fused, "apart": apart}, separators=(",", ":")))
    return replace(network, source=replace(network.source, options=(*network.source.options, option)))


def joined_again(network: Network, text: str) -> Network:
    """The network with the joins that the text of its source names; raises ScheduleError for a text that names none."""
    try:
        saved = json.loads(text)
        fused, apart = (tuple(map(str, saved[way])) for way in ("fused", "apart"))
    except (ValueError, TypeError, KeyError):
        raise ScheduleError(
            f"option {OPTION!r} of the schedule's source names no joins of branches; write it anew"
        ) from None
    return with_chosen_joins(with_joins(network, fused, apart), fused, apart)
