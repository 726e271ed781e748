"""Micro-batches of one kernel, and workspace reuse (WR): the fastest configuration of a kernel under a limit of its
own, and all that no other beats.

A configuration's time is the sum over its micro-batches, its workspace the most that one of them needs. So under a
limit only the rows within it count, and of each size only the fastest:

    T[b] = min over s of  fastest[s] + T[b - s],    T[0] = 0

(u-cuDNN, section 3.2). The undominated configurations are those of all limits: between two workspaces that occur
nothing changes, so the recursion runs once, over a vector of limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum

import numpy as np

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
    """A batch in micro-batches that run one after another: the times add up, and one workspace serves all. Equal
    micro-batches are counted, not listed; the largest come first."""

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
    """The sizes that micro-batches of a batch may have, least first; raises OptionError for an unknown policy."""
    if policy not in POLICIES:
        raise OptionError(f"`policy` {policy!r} is not known; {did_you_mean(policy, POLICIES)}")
    if policy == "all":
        return list(range(1, batch + 1))
    powers = {1 << power for power in range(batch.bit_length())} if policy == "power-of-two" else set()
    return sorted({*powers, batch})


#: Limits for which the recursion runs at a time.
_LIMITS_AT_ONCE = 512


def front(rows: Iterable[BenchmarkRow], batch: int, policy: str = "all") -> tuple[Configuration, ...]:
    """The configurations of a batch that no other beats in both time and workspace, the fastest first; none if no
    rows add up. Of equals the one of the fewest micro-batches counts."""
    sizes = set(micro_batch_sizes(policy, batch))
    useful = _undominated(row for row in rows if row.batch in sizes)
    limits = sorted({row.workspace_bytes for row in useful})
    found: list[Configuration] = []
    for first in range(0, len(limits), _LIMITS_AT_ONCE):
        found += _fastest_under(useful, batch, limits[first : first + _LIMITS_AT_ONCE])
    best: list[Configuration] = []
    for one in sorted(found, key=lambda one: (one.time_us, one.workspace_bytes, one.micro_batches, str(one))):
        if not best or one.workspace_bytes < best[-1].workspace_bytes:
            best.append(one)
    return tuple(best)


def within(configurations: Sequence[Configuration], limit_bytes: int, batch: int, kernel: str) -> Configuration:
    """The fastest of a front that fits a limit; OptionError, naming the kernel and what would do, where none does."""
    if not configurations:
        raise OptionError(
            f"{kernel}: no micro-batches with rows add up to a batch of {batch}; add rows, or take another `policy`"
        )
    for one in configurations:
        if one.workspace_bytes <= limit_bytes:
            return one
    least = configurations[-1].workspace_bytes
    raise OptionError(f"`workspace` {limit_bytes}B: {kernel} needs {least} bytes at least; give {least}B or more")


def _undominated(rows: Iterable[BenchmarkRow]) -> list[BenchmarkRow]:
    """Of each batch size the rows that no other beats in both time and workspace, the fastest first."""
    kept: list[BenchmarkRow] = []
    for row in sorted(rows, key=lambda row: (row.batch, row.time_us, row.workspace_bytes, row.algorithm)):
        if not kept or kept[-1].batch != row.batch or row.workspace_bytes < kept[-1].workspace_bytes:
            kept.append(row)
    return kept


def _fastest_under(rows: Sequence[BenchmarkRow], batch: int, limits: Sequence[int]) -> list[Configuration]:
    """The fastest configuration under each limit, each once; rows as :func:`_undominated` orders them."""
    caps = np.array(limits, dtype=np.int64)
    sizes = sorted({row.batch for row in rows})
    row_of = np.full((len(sizes), len(caps)), -1, dtype=np.int64)
    for number, row in reversed(list(enumerate(rows))):  # the fastest last, over the slower ones
        row_of[sizes.index(row.batch), caps >= row.workspace_bytes] = number
    times = np.array([*(row.time_us for row in rows), np.inf])[row_of]  # [sizes, limits]; -1 is the last: inf
    total = np.full((batch + 1, len(caps)), np.inf)
    parts = np.zeros((batch + 1, len(caps)), dtype=np.int64)
    first = np.full((batch + 1, len(caps)), -1, dtype=np.int64)
    total[0] = 0.0
    for images in range(1, batch + 1):
        fitting = [place for place, size in enumerate(sizes) if size <= images]
        before = [images - sizes[place] for place in fitting]
        if not fitting:
            continue
        choices = times[fitting] + total[before]
        counts = parts[before]
        least = choices.min(axis=0)
        fewest = np.where(choices == least, counts, batch + 1)[::-1]
        chosen = len(fewest) - 1 - np.argmin(fewest, axis=0)  # of equals the largest micro-batch
        columns = np.arange(len(caps))
        total[images], parts[images] = least, counts[chosen, columns] + 1
        first[images] = np.where(np.isfinite(least), np.array(fitting)[chosen], -1)
    found: dict[str, Configuration] = {}
    for column in np.flatnonzero(np.isfinite(total[batch])).tolist():
        taken: list[BenchmarkRow] = []
        left = batch
        while left:
            row = rows[row_of[first[left, column], column]]
            taken.append(row)
            left -= row.batch
        one = Configuration.of(taken)
        found.setdefault(f"{one} {one.workspace_bytes}", one)
    return list(found.values())
