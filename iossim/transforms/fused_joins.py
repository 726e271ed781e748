"""Joins of branches fused into products or apart, chosen with the schedule: whichever makes it faster, block by block.

A residual sum that a convolution computes as it writes its result costs next to nothing, but the convolution waits for
the other branch, which might run beside it. A model as it is loaded has one or the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import compress

from iossim.base.errors import ignore
from iossim.ir.network import Network
from iossim.models.passes.joins import Joins, joins_of, with_joins
from iossim.schedule.schedule import Schedule
from iossim.search.memo import SearchMemo
from iossim.search.options import SearchLimits
from iossim.transforms.choices import BySchedule, Choices, GraphCost
from iossim.transforms.transform import Outcome, Setting, Transform, with_option

#: Larger blocks are improved in windows here: a choice does not justify minutes of search.
_LIMITS = SearchLimits(max_states=20_000, max_transitions=2_000_000)
#: Option of a source that names the joins that differ from the model's.
OPTION = "joins"
#: For each join, True if it differs from the given network's.
Way = tuple[bool, ...]


class JoinChoices(Choices[bool]):
    """Cost of a network with its best joins. It tries the given ones, all joins fused, all apart, in each block
    whichever of these is faster in schedules ``by_schedule``, and, if it climbs, single joins changed.
    """

    climbs = False

    def __init__(self, inner: GraphCost, by_schedule: BySchedule, tell: Callable[[int], None] = ignore):
        super().__init__(inner, tell)
        self.by_schedule, self.joins = by_schedule, cache(joins_of)

    def keys(self, network: Network) -> list[tuple[str, str]]:
        """The other form of each join, and its name."""
        joins = self.joins(network)
        return [("fused", name) for name in joins.apart] + [("apart", name) for name in joins.fused]

    def options(self, network: Network) -> list[tuple[bool, bool]]:
        return [(False, True)] * len(self.joins(network))

    def every(self, network: Network) -> list[Way]:
        """All ways, those with the fewest changes first."""
        return sorted(super().every(network), key=lambda way: (sum(way), [not other for other in way]))

    def otherwise(self, network: Network, way: Way) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Joins to fuse and joins to set apart, relative to the given network."""
        changed = list(compress(self.keys(network), way))
        fused, apart = (tuple(sorted(name for to, name in changed if to == each)) for each in ("fused", "apart"))
        return fused, apart

    def made(self, network: Network, way: Way) -> Network:
        return with_joins(network, *self.otherwise(network, way))

    def applied(self, network: Network, to: Network) -> tuple[Network, Mapping[str, int]]:
        return with_chosen_joins(to, *self.otherwise(network, self.best(network))), {}

    def ways(self, network: Network) -> dict[str, Way]:
        keys = self.keys(network)
        return {way: tuple(to == way for to, _ in keys) for way in ("given", "fused", "apart")}

    def starts(self, network: Network) -> Iterator[Way]:
        if self.joins(network):
            ways = self.ways(network)
            yield from ways.values()
            fused, apart = (self.tried(network)[ways[way]][1] for way in ("fused", "apart"))
            gain_us = _gains_us(*((each, self.by_schedule.found(each)) for each in (fused, apart)))
            yield tuple(gain_us[name] > 0 if to == "fused" else gain_us[name] < 0 for to, name in self.keys(network))


def _gains_us(fused: tuple[Network, Schedule], apart: tuple[Network, Schedule]) -> dict[str, float]:
    """Excess time of each unit's block with all joins apart over that with all fused, by unit of the former network."""
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
    return {unit.name: gains[block_of_node[unit.nodes[-1]]] for unit in network.units}


@dataclass(frozen=True, eq=False)
class JoinsChosen(Outcome):
    """``network`` has ``fused`` of the ``joins`` fused that the given network has apart, and ``apart`` the reverse.

    ``latency_us`` is by the scheduler that it was chosen for: of the network as ``given``, with all joins ``fused``
    or ``apart``, and as ``chosen``; empty for a network without joins.
    """

    network: Network
    joins: Joins
    fused: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    latency_us: Mapping[str, float] = field(default_factory=dict)
    interrupted: bool = False

    name = "joins"

    @property
    def fused_count(self) -> int:
        """Number of fused joins in the network."""
        return len(self.joins.fused) + len(self.fused) - len(self.apart)

    @property
    def alternatives(self) -> Mapping[str, Network]:
        how = {0: "apart", len(self.joins): "fused"}.get(self.fused_count, "partly fused")
        return {how: self.network} if self.fused or self.apart else {}

    def figures(self) -> dict[str, object]:
        return {"joins": len(self.joins), "fused": self.fused_count, "latency_us": dict(self.latency_us)}

    def sentence(self) -> str:
        """The choice, the cost of the other ways, and the option that asks for them; empty without a choice."""
        if not self.latency_us:
            return ""
        count, into, fused = len(self.joins), self.joins.products, self.fused_count
        are = "is" if count == 1 else "are"
        others: tuple[str, ...] = ("apart",)
        if fused == count:
            said = f"{self.joins.counted(count)} {are} fused into {into}"
            remedy = "`units` apart keeps them apart" if self.joins.fused else "`units` model keeps them apart"
        elif fused == 0:
            said, others = f"{self.joins.counted(count)} {are} apart from {into}", ("fused",)
            remedy = "`units` model fuses them" if self.joins.fused else "`units` fused fuses them"
        else:
            said, others = f"{fused} of {self.joins.counted(count)} are fused into {into}", ("fused", "apart")
            remedy = "`units` model leaves them as the model has them"
        chosen_us = self.latency_us["chosen"]
        faster = any(round(self.latency_us[way]) > round(chosen_us) for way in others)  # as they are written
        all_of = "all " if len(others) > 1 else ""
        listed = " and ".join(f"{self.latency_us[way] / 1e3:.3f} ms {all_of}{way}" for way in others)
        than = "faster" if faster else "no slower"
        return f"{said}: {than} here ({chosen_us / 1e3:.3f} ms against {listed}); {remedy}"


@dataclass(frozen=True)
class ChooseJoins(Transform):
    """Each join of branches fused or apart, whichever makes the schedule faster; never slower than as given.

    All joins fused, all apart, and those of each block as that block is faster are scheduled, and the fastest is
    taken. Blocks that are too wide to be solved at once are searched in windows.
    """

    def apply(self, network: Network, setting: Setting) -> JoinsChosen:
        joins = joins_of(network)
        if not joins:
            return JoinsChosen(network, joins)
        bar = setting.progress("joins (ways)")
        quick = replace(setting.options, limits=setting.options.limits.least(_LIMITS))
        memo = setting.memo or SearchMemo(setting.prices)
        cost = BySchedule(setting.prices, setting.scheduler, quick, memo)
        choices = JoinChoices(cost, cost, lambda seen: bar(seen, seen))
        try:
            chosen_us = choices.search(network)
        except KeyboardInterrupt:
            return JoinsChosen(network, joins, interrupted=True)
        latency_us = {name: choices.way_us(network, way) for name, way in choices.ways(network).items()}
        fused, apart = choices.otherwise(network, choices.best(network))
        chosen = with_chosen_joins(network, fused, apart)
        return JoinsChosen(chosen, joins, fused, apart, latency_us | {"chosen": chosen_us})


def with_chosen_joins(network: Network, fused: tuple[str, ...], apart: tuple[str, ...]) -> Network:
    """The network with joins that differ from its model's, which its source then names."""
    if not fused and not apart:
        return network
    return with_option(with_joins(network, fused, apart), OPTION, {"fused": fused, "apart": apart})
