"""A cost model that counts what is measured, for tests of the measured search."""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from iossim.cost.capabilities import MeasuredBy
from iossim.cost.model import Prices, WrappedCostModel
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.problem import ScheduleProblem, bits

Signature = tuple[Strategy, tuple[tuple[str, ...], ...]]


def stage_signature(problem: ScheduleProblem, mask: int, strategy: Strategy) -> Signature:
    """The strategy and, of each group, the sequence of its units' signatures; groups are a multiset."""
    groups = problem.groups(mask) if strategy is Strategy.CONCURRENT else [mask]
    sequences = [tuple(problem.signatures[unit] for unit in bits(group)) for group in groups]
    return strategy, tuple(sorted(sequences))


Sign = Callable[[ScheduleProblem, int, Strategy], Hashable]


def by_place(problem: ScheduleProblem, mask: int, strategy: Strategy) -> Hashable:
    """Each stage of each problem is work of its own."""
    return problem.key, mask, strategy


@dataclass
class Measuring(WrappedCostModel):
    """``inner``, asked stage by stage: ``asked`` counts signatures. KeyboardInterrupt at the batches in ``interrupt_at``."""

    sign: Sign = stage_signature
    interrupt_at: frozenset[int] = frozenset()
    batches: int = 0
    asked: Counter[Hashable] = field(default_factory=Counter)
    #: How many signatures were asked for when a batch came.
    sizes: list[int] = field(default_factory=list)

    @property
    def measured_by(self) -> MeasuredBy:
        return MeasuredBy.STAND_IN

    def signatures(self, batch: StageBatch) -> list[Hashable]:
        return [self.sign(batch.problem, mask, strategy) for mask, strategy in batch.stages()]

    def price_stages(self, batch: StageBatch) -> Prices:
        self.batches += 1
        if self.batches in self.interrupt_at:
            raise KeyboardInterrupt
        self.asked.update(self.signatures(batch))
        self.sizes.append(len(batch))
        return self.inner.price_stages(batch)

    def bounds(self, problem: ScheduleProblem) -> None:
        return None
