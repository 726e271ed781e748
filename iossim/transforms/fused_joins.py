"""Joins of branches fused into products or apart, chosen with the schedule: whichever makes it faster, block by block.

A residual sum that a convolution computes as it writes its result costs next to nothing, but the convolution waits for
the other branch, which might run beside it. What the model says, or fuses by itself, is the one or the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from iossim.cost.model import CostModel
from iossim.ir.network import Network
from iossim.models.passes.joins import Joins, joins_of
from iossim.schedule.schedule import Schedule
from iossim.search.memo import SearchMemo
from iossim.search.options import SearchLimits, SearchOptions
from iossim.search.scheduler import StartProgress

#: Relative difference of latencies below which two are said to be equal.
_LEAST_GAIN = 1e-9
#: Blocks with more states or transitions are improved in windows, here: a choice is no reason to search for minutes.
_LIMITS = SearchLimits(max_states=20_000, max_transitions=2_000_000)


@dataclass(frozen=True, eq=False)
class JoinsChosen:
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

    def to_json(self) -> dict[str, Any]:
        return {
            "joins": len(self.joins),
            "fused": self.fused_count,
            "latency_us": dict(self.latency_us),
            "sentence": self.sentence(),
        }

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
        faster = any(self.latency_us[way] > chosen_us * (1 + _LEAST_GAIN) for way in others)
        all_of = "all " if len(others) > 1 else ""
        listed = " and ".join(f"{self.latency_us[way] / 1e3:.3f} ms {all_of}{way}" for way in others)
        than = "faster" if faster else "no slower"
        return f"{said}: {than} here ({chosen_us / 1e3:.3f} ms against {listed}); {remedy}"

    def remarked(self, found: Schedule) -> Schedule:
        """The schedule of the network, with the sentence as a remark."""
        sentence = self.sentence()
        return found.model_copy(update={"remarks": [*found.remarks, sentence]}) if sentence else found


@dataclass(frozen=True)
class ChooseJoins:
    """Each join of branches fused or apart, whichever makes the schedule faster; never slower than as given.

    All joins fused, all apart, and those of each block as that block is faster are scheduled, and the fastest is
    taken. Blocks that are too wide to be solved at once are searched in windows.
    """

    def check(self, prices: CostModel, scheduler: str) -> None:
        """It goes with all of them."""

    def apply(
        self,
        network: Network,
        prices: CostModel,
        scheduler: str,
        options: SearchOptions,
        progress: StartProgress,
        memo: SearchMemo | None = None,
    ) -> JoinsChosen:
        joins = joins_of(network)
        if not joins:
            return JoinsChosen(network, joins)
        # Loaded by who has joins.
        from iossim.transforms.choices import BySchedule
        from iossim.transforms.join_choices import JoinChoices, with_chosen_joins

        bar = progress("joins (ways)")
        quick = replace(options, limits=options.limits.least(_LIMITS))
        cost = BySchedule(prices, scheduler, quick, memo or SearchMemo(prices))
        choices = JoinChoices(cost, cost, lambda seen: bar(seen, seen))
        try:
            chosen_us = choices.search(network)
        except KeyboardInterrupt:
            return JoinsChosen(network, joins, interrupted=True)
        latency_us = {name: choices.way_us(network, way) for name, way in choices.ways(network).items()}
        fused, apart = (tuple(sorted(names)) for names in choices.best(network))
        chosen = with_chosen_joins(choices.network(network), fused, apart)
        return JoinsChosen(chosen, joins, fused, apart, latency_us | {"chosen": chosen_us})
