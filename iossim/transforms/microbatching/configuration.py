"""How a kernel's batch is divided: what is known of it at each batch size, and the configurations that are made of that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import fsum

from iossim.base.errors import OptionError, did_you_mean


@dataclass(frozen=True)
class BenchmarkRow:
    """One algorithm at one batch size."""

    batch: int
    algorithm: str
    time_us: float
    workspace_bytes: int


@dataclass(frozen=True, order=True)
class Part:
    """``count`` micro-batches of as many images each, all by the same algorithm."""

    micro_batch: int
    count: int
    algorithm: str

    def __str__(self) -> str:
        return f"{self.count}x{self.micro_batch} {self.algorithm}"


@dataclass(frozen=True)
class Configuration:
    """A batch in micro-batches that run one after another: the times add up, and one workspace serves all.

    Equal micro-batches are counted, not listed; the largest come first.
    """

    parts: tuple[Part, ...]
    time_us: float
    workspace_bytes: int

    @staticmethod
    def of(rows: Iterable[BenchmarkRow]) -> Configuration:
        """Micro-batches in any order, each as its row says."""
        counted = Counter(rows)
        ordered = sorted(counted, key=lambda row: (-row.batch, row.algorithm))
        return Configuration(
            tuple(Part(row.batch, counted[row], row.algorithm) for row in ordered),
            fsum(row.time_us * counted[row] for row in ordered),
            max((row.workspace_bytes for row in ordered), default=0),
        )

    @property
    def micro_batches(self) -> int:
        return sum(part.count for part in self.parts)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The images of each micro-batch, in the order in which they run."""
        return tuple(part.micro_batch for part in self.parts for _ in range(part.count))

    def __str__(self) -> str:
        """``6x32 fft_tiling + 1x64 winograd``."""
        return " + ".join(map(str, self.parts))


#: The sizes of micro-batches that u-cuDNN tries: all, powers of two and the batch itself, the batch itself alone.
POLICIES = ("all", "power-of-two", "undivided")


def micro_batch_sizes(policy: str, batch: int) -> list[int]:
    """The sizes that micro-batches of a batch may have, least first; raises OptionError for a policy that there is not."""
    if policy not in POLICIES:
        raise OptionError(f"`policy` {policy!r} is not known; {did_you_mean(policy, POLICIES)}")
    if policy == "all":
        return list(range(1, batch + 1))
    powers = {1 << power for power in range(batch.bit_length())} if policy == "power-of-two" else set()
    return sorted({*powers, batch})
