"""Kernels in micro-batches under limits on workspace: each under its own (WR), or all under one (WD).

Workspace reuse (WR): a configuration's time is the sum over its micro-batches, its workspace the most that one of
them needs. So under a limit only the rows within it count, and of each size only the fastest (u-cuDNN, section 3.2):

    T[b] = min over s of  fastest[s] + T[b - s],    T[0] = 0

The undominated configurations are those of all limits, and the fastest under a limit is so under every lower one down
to the workspace that it needs: so the next limit is a byte less than that.

Workspace division (WD): one configuration for each kernel, all their workspaces together under one limit.
A multiple-choice knapsack problem (Kellerer, Pferschy and Pisinger, *Knapsack Problems*, 2004, chapter 11): of each
kernel's front exactly one configuration, the least sum of times, the sum of workspaces within the limit. HiGHS solves
it as an integer program. Kernels of equal fronts are interchangeable: the program says how many of them have each
configuration.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Annotated, ClassVar, Generic, TypeVar

import numpy as np
from pydantic import ConfigDict, Field

from iossim.base.compiled import Floats, Integers, jit
from iossim.base.errors import OptionError, did_you_mean
from iossim.base.solvers import solve_integer_program
from iossim.base.values import TimeUs


@dataclass(frozen=True)
class BenchmarkRow:
    """One algorithm at one batch size."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    batch: Annotated[int, Field(ge=1)]
    algorithm: Annotated[str, Field(min_length=1)]
    time_us: Annotated[TimeUs, Field(gt=0)]
    workspace_bytes: Annotated[int, Field(ge=0)]


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
    micro-batches are counted, not listed; the largest come first.
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
    """The sizes that micro-batches of a batch may have, least first; raises OptionError for an unknown policy."""
    if policy not in POLICIES:
        raise OptionError(f"`policy` {policy!r} is not known; {did_you_mean(policy, POLICIES)}")
    if policy == "all":
        return list(range(1, batch + 1))
    powers = {1 << power for power in range(batch.bit_length())} if policy == "power-of-two" else set()
    return sorted({*powers, batch})


def front(rows: Iterable[BenchmarkRow], batch: int, policy: str = "all") -> tuple[Configuration, ...]:
    """The configurations of a batch that no other beats in both time and workspace, the fastest first; none if no
    rows add up. Of equals the one of the fewest micro-batches counts.
    """
    sizes = set(micro_batch_sizes(policy, batch))
    useful = _undominated(row for row in rows if row.batch in sizes)
    found: list[Configuration] = []
    limit = max((row.workspace_bytes for row in useful), default=0)
    while (one := _fastest_within(useful, batch, limit)) is not None:
        found.append(one)
        limit = one.workspace_bytes - 1
    return undominated(found)


def undominated(configurations: Iterable[Configuration]) -> tuple[Configuration, ...]:
    """Those that no other beats in both time and workspace, the fastest first."""
    best: list[Configuration] = []
    for one in sorted(configurations, key=lambda one: (one.time_us, one.workspace_bytes, one.micro_batches, str(one))):
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
    raise OptionError(f"`workspace` {limit_bytes}B: {kernel} needs at least {least} bytes; give {least}B or more")


def _undominated(rows: Iterable[BenchmarkRow]) -> list[BenchmarkRow]:
    """Pareto-optimal rows of each batch size in time and workspace, the fastest first."""
    kept: list[BenchmarkRow] = []
    for row in sorted(rows, key=lambda row: (row.batch, row.time_us, row.workspace_bytes, row.algorithm)):
        if not kept or kept[-1].batch != row.batch or row.workspace_bytes < kept[-1].workspace_bytes:
            kept.append(row)
    return kept


def _fastest_within(rows: Sequence[BenchmarkRow], batch: int, limit_bytes: int) -> Configuration | None:
    """The fastest configuration within a limit, None where there is none; rows as :func:`_undominated` orders them."""
    fastest: dict[int, BenchmarkRow] = {}
    for row in rows:
        if row.workspace_bytes <= limit_bytes:
            fastest.setdefault(row.batch, row)
    sizes = np.array(list(fastest), dtype=np.int64)
    times_us = np.array([row.time_us for row in fastest.values()])
    total_us = np.array([0.0, *[np.inf] * batch])
    parts, first = np.zeros(batch + 1, dtype=np.int64), np.zeros(batch + 1, dtype=np.int64)
    _divide(sizes, times_us, total_us, parts, first)
    if not np.isfinite(total_us[batch]):
        return None
    taken: list[BenchmarkRow] = []
    left = batch
    while left:
        taken.append(fastest[int(first[left])])
        left -= taken[-1].batch
    return Configuration.of(taken)


@jit
def _divide(sizes: Integers, times_us: Floats, total_us: Floats, parts: Integers, first: Integers) -> None:
    """Fill in ``T``, and how many micro-batches reach it, the first of them: of equals the fewest, then the largest."""
    for images in range(1, len(total_us)):
        for place in range(len(sizes)):
            rest = images - sizes[place]
            if rest < 0:
                break
            taken_us = times_us[place] + total_us[rest]
            if taken_us < total_us[images] or (taken_us == total_us[images] and parts[rest] < parts[images]):
                total_us[images] = taken_us
                parts[images] = parts[rest] + 1
                first[images] = sizes[place]


#: Two times that differ by less, relatively, are the same: sums of floats.
SAME = 1e-9
#: HiGHS keeps rows to a millionth: of coefficients of up to so much, less than a byte.
_LARGEST = 1e6
#: Time limit of HiGHS. Most programs end within a second; some have countless near-optimal divisions.
SECONDS = 60.0

#: A kernel of a network, by whatever names it.
Kernel = TypeVar("Kernel", bound=Hashable)


@dataclass(frozen=True)
class Division(Generic[Kernel]):
    """The configuration of each kernel; where it is ``proved``, this division is the best.

    No division takes less than ``bound_us``; inf where each kernel has its best anyway. ``arena_bytes`` is the arena in
    which activations share the limit, if they do.
    """

    chosen: Mapping[Kernel, Configuration]
    bound_us: float = math.inf
    arena_bytes: int | None = None

    @property
    def lower_bound_us(self) -> float:
        return min(self.bound_us, self.time_us)

    @property
    def time_us(self) -> float:
        return fsum(one.time_us for one in self.chosen.values())

    @property
    def workspace_bytes(self) -> int:
        return sum(one.workspace_bytes for one in self.chosen.values())

    @property
    def gap(self) -> float:
        """Largest fraction of its time that a better division could save."""
        return max(0.0, 1.0 - self.lower_bound_us / self.time_us) if self.chosen else 0.0

    @property
    def proved(self) -> bool:
        return self.gap <= SAME


def divide(fronts: Mapping[Kernel, Sequence[Configuration]], limit_bytes: int) -> Division[Kernel]:
    """The best division, or after :data:`SECONDS` the best found, with the bound that it stopped at.

    ``fronts``: of each kernel the configurations that no other beats, the fastest first. Raises OptionError, with the
    least that would do, where the limit is less.
    """
    least = sum(front[-1].workspace_bytes for front in fronts.values())
    if least > limit_bytes:
        raise OptionError(
            f"`total_workspace` {limit_bytes}B: the {len(fronts)} kernels need at least {least} bytes; "
            f"give {least}B or more"
        )
    alike: dict[tuple[Configuration, ...], list[Kernel]] = {}
    for kernel, front in fronts.items():
        alike.setdefault(tuple(front), []).append(kernel)
    taken, bound_us = _program(list(alike), list(map(len, alike.values())), limit_bytes)
    chosen: dict[Kernel, Configuration] = {}
    for (front, kernels), numbers in zip(alike.items(), taken, strict=True):
        expanded = (one for one, number in zip(front, numbers, strict=True) for _ in range(number))
        chosen |= dict(zip(kernels, expanded, strict=True))
    return Division({kernel: chosen[kernel] for kernel in fronts}, bound_us)


def _program(
    classes: Sequence[Sequence[Configuration]], counts: Sequence[int], limit_bytes: int
) -> tuple[list[list[int]], float]:
    """How many kernels of each class have each configuration, and a lower bound, by HiGHS; of a class's kernels all
    the least workspace where it found nothing in time.
    """
    from scipy.optimize import Bounds, LinearConstraint
    from scipy.sparse import csr_array

    configurations = [one for front in classes for one in front]
    times = np.array([one.time_us for one in configurations])
    workspaces = np.array([one.workspace_bytes for one in configurations], dtype=np.float64)
    rows = np.repeat(np.arange(len(classes)), list(map(len, classes)))
    columns, ones = np.arange(len(rows)), np.ones(len(rows))
    one_each = csr_array((ones, (rows, columns)), shape=(len(classes), len(rows)))
    scale = max(1.0, float(workspaces.max(initial=0.0)) / _LARGEST)
    result = solve_integer_program(
        times,
        integrality=ones,
        bounds=Bounds(0.0, np.array(counts, dtype=np.float64)[rows]),
        constraints=[
            LinearConstraint(one_each, counts, counts),
            LinearConstraint(csr_array(workspaces[None, :] / scale), -np.inf, limit_bytes / scale),
        ],
        options={"mip_rel_gap": 0.0, "time_limit": SECONDS},
    )
    bound_us = -np.inf if result.mip_dual_bound is None else float(result.mip_dual_bound)
    numbers: Integers = np.zeros(len(rows), dtype=np.int64) if result.x is None else np.rint(result.x).astype(np.int64)
    ends = np.cumsum(list(map(len, classes)))
    used = sum(number * one.workspace_bytes for number, one in zip(numbers.tolist(), configurations, strict=True))
    if result.x is None or used > limit_bytes:  # or the solver's tolerance let a byte slip
        numbers[:] = 0
        numbers[ends - 1] = counts
    return [own.tolist() for own in np.split(numbers, ends[:-1])], bound_us
