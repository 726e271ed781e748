"""A backend whose times are made up: a seeded function of what a plan launches, the same in every process.

Queues run side by side between synchronises; a launch, a copy and a synchronise have each a time of their own.
"""

import hashlib
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from iossim.execution.backend import Choice, Choices, Context, Samples, Timing
from iossim.execution.plan import Copy, Launch, Plan, Queue, Synchronize
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.schedule.batch import Strategy

SYNCHRONISE_US = 7.0
COPY_US = 2.0


class FakeBackend:
    """``noise`` is the standard deviation of a sample over its time. ``calls`` holds the plans of each measurement."""

    def __init__(
        self, seed: int = 0, engine: str = "paper", noise: float = 0.0, algorithm: str = "", **context: object
    ) -> None:
        self.seed, self.noise, self.algorithm = seed, noise, algorithm
        self.context = Context("fake", "fake-device", "fp32", engine, libraries=(("fake", "1"),), **context)  # type: ignore[arg-type]
        self.calls: list[tuple[Plan, ...]] = []
        self.interrupt_after: int | None = None

    def choices(self, network: Network) -> Choices:
        return lambda units, strategy, variant: Choice(self.algorithm)

    def execute(self, network: Network, plan: Plan, inputs: Mapping[str, Array]) -> dict[str, Array]:
        raise NotImplementedError

    def measure(
        self,
        network: Network,
        plans: Sequence[Plan],
        timing: Timing,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[Samples]:
        if self.interrupt_after is not None and len(self.calls) >= self.interrupt_after:
            raise KeyboardInterrupt
        self.calls.append(tuple(plans))
        generator = random.Random(f"{self.seed} {len(self.calls)}")
        found = []
        for plan in plans:
            exact_us = self.plan_us(network, plan)
            times = (exact_us * (1 + generator.gauss(0, self.noise)) for _ in range(timing.rounds))
            found.append(Samples(tuple(times), 1, {"load": 0.25}))
        return found

    def plan_us(self, network: Network, plan: Plan) -> float:
        """What a plan takes, microseconds."""
        total_us = 0.0
        busy_us: dict[Queue, float] = defaultdict(float)
        for command in plan.commands:
            match command:
                case Launch():
                    busy_us[command.queue] += self.launch_us(network, command.units, command.strategy)
                case Copy():
                    busy_us[command.queue] += COPY_US
                case Synchronize():
                    total_us += max(busy_us.values(), default=0.0) + SYNCHRONISE_US
                    busy_us.clear()
        return total_us

    def launch_us(self, network: Network, units: Sequence[str], strategy: Strategy) -> float:
        """10 to 110 us, by the signatures of the units; merged, 0.7 of their sum."""
        singles = [self._unit_us(network.signatures[network.unit_index[unit]]) for unit in units]
        return sum(singles) * (0.7 if strategy is Strategy.MERGE else 1.0)

    def _unit_us(self, signature: str) -> float:
        digest = hashlib.sha256(f"{self.seed} {signature}".encode()).digest()
        return 10.0 + 100.0 * int.from_bytes(digest[:4], "little") / 2**32

    @property
    def plans(self) -> int:
        """How many plans were measured."""
        return sum(map(len, self.calls))
