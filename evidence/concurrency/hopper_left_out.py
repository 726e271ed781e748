"""How Hopper's rules do on networks that they did not see: each is chosen anew by the other recorded networks.

A rule is a grid of ways to set its numbers, and has an error for each recording by each of them. The way with the least
mean error on all other networks is judged on the network that is left out. The first way is the one that ships: it was
chosen by all networks, so that its error is in-sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from evidence.concurrency.hopper_operators import (
    DEVICE,
    Recorded,
    convolutions,
    family_of,
    model_of,
    of_all_families,
    outside,
    recorded,
)
from evidence.concurrency.hopper_sets import SideBySide, prices, sets_and_units, side_by_side
from iossim.backends.simulator.kernel_model import KernelModel, KernelPrice
from iossim.backends.simulator.kernel_rows import TILE_NUMBER
from iossim.base.compiled import Floats
from iossim.hardware.lowering.gpu.tensor_core_convolution import MOST_FILTERS, OFFERED, PASSED_OVER_US
from iossim.hardware.lowering.gpu.tensor_core_families import MMA_SM80, NVJET, XMMA_SM90, Family
from iossim.hardware.lowering.kernel import Kernel
from iossim.prediction.candidate_table import CandidateTable

#: Latencies, rates and prologues that a family may have.
_RATES = (
    (MMA_SM80, (1.6, 1.9, 2.2, 2.5), (0.3, 0.4, 0.5), (0.0, 0.1, 0.2, 0.3)),
    (XMMA_SM90, (0.8, 0.9, 1.0, 1.15), (0.7, 1.0), (0.4, 0.6, 0.86, 1.1)),
)
#: Filters that count at most in the rule for ``nvjet``, and the parts of its time that a block may keep its SM busy.
_MOST, _BUSY = (64, 128, 256, 512, 4096), (0.5, 0.7, 0.85, 1.0)


def judged() -> dict[str, Any]:
    """The tables that documents quote, by row."""
    return convolutions() | sets_and_units() | {"left_out": left_out()}


def left_out() -> dict[str, dict[str, float]]:
    """Mean errors by rule in %: as it ships, in-sample, and with each network left out of its choice."""
    rows = [one for one in recorded() if one.is_convolution and one.shape.groups == 1 and one.shape.channels >= 8]
    pointwise = [one for one in rows if math.prod(one.shape.kernel) == 1 and one.shape.is_dense_unit_stride]
    found = {"1x1 convolutions, `nvjet` or not": chosen_without(_of_offers(pointwise), pointwise)}
    for family, *values in _RATES:
        own = _Offers([one for one in rows if one.family == family.name])
        ways = [(family.latency, family.rate, family.prologue), *product(*values)]
        errors = [outside(own.least_us(family, *way), own.rows) for way in ways]
        found[f"convolutions that ran as `{family.name}`"] = chosen_without(errors, own.rows)
    sets = [side_by_side(prices()), *map(_with_busy, _BUSY)]
    errors = [np.array([one.error for one in each]) for each in sets]
    return found | {"speed-up of sets": chosen_without(errors, sets[0])}


def chosen_without(errors: Sequence[Floats], rows: Sequence[Recorded | SideBySide]) -> dict[str, float]:
    """In %, from the errors of rows by each way; the first ships."""
    table, names = np.array(errors), np.array([one.network for one in rows])
    unseen = np.empty(len(names))
    for name in np.unique(names):
        best = int(table[:, names != name].mean(axis=1).argmin())
        unseen[names == name] = table[best, names == name]
    return {"rows": len(names), "in_sample": 100 * float(table[0].mean()), "left_out": 100 * float(unseen.mean())}


@dataclass(frozen=True)
class _Offers:
    """Kernels of all families for some convolutions, priced with other numbers of a family."""

    rows: Sequence[Recorded]

    @cached_property
    def _table(self) -> tuple[CandidateTable, NDArray[np.str_], Floats]:
        """Kernels of all families, the family of each, and the lead that it needs."""
        model = model_of(DEVICE)
        known = [of_all_families(one, model.profile) for one in self.rows]
        families = np.array([family_of(one.algorithm) for each in known for one in each])
        leads_us = np.array([one.passed_over_us for each in known for one in each])
        return CandidateTable.of(model.profile, known, model.libraries), families, leads_us

    def least_us(self, family: Family, latency: float, rate: float, prologue: float) -> Floats:
        """Time of the family's chosen kernel for each convolution, shape ``[rows]``; inf where it has none."""
        table, families, leads_us = self._table
        rates, kernels, is_own = model_of(DEVICE).rates, table.kernels.copy(), families == family.name
        kernels["slowdown"][is_own] *= latency / family.latency
        tiles = np.array([family_of(name) == family.name for name in TILE_NUMBER])
        faster = latency / family.latency * rate / family.rate
        factor = rates.tile_factor * np.where(tiles, faster, 1.0)[:, None]
        begun = rates.tile_prologue + tiles * (prologue - family.prologue)
        us = replace(table, kernels=kernels).candidate_us(rates._replace(tile_factor=factor, tile_prologue=begun))
        ranked_us, begin = np.where(is_own, us + leads_us, np.inf), table.operator_begin
        least = np.repeat(np.minimum.reduceat(ranked_us, begin[:-1]), np.diff(begin))
        chosen: Floats = np.minimum.reduceat(np.where((ranked_us == least) & is_own, us, np.inf), begin[:-1])
        return chosen


def _of_offers(rows: Sequence[Recorded]) -> list[Floats]:
    """Errors of 1x1 convolutions by each rule of sizes that offers ``nvjet``."""
    offers = _Offers(rows)
    mma_us, xmma_us = (offers.least_us(one, one.latency, one.rate, one.prologue) for one in (MMA_SM80, XMMA_SM90))
    others_us = np.where(xmma_us + PASSED_OVER_US < mma_us, xmma_us, mma_us)
    nvjet_us = np.minimum(others_us, offers.least_us(NVJET, NVJET.latency, NVJET.rate, NVJET.prologue))
    sizes = np.array([(one.shape.pixels, one.shape.channels, one.shape.filters) for one in rows], dtype=float).T

    def work(most: float) -> Floats:
        found: Floats = sizes[0] * (sizes[1] * np.minimum(sizes[2], most)) ** 2
        return found

    ways = [(MOST_FILTERS, OFFERED), *((most, above) for most in _MOST for above in np.unique(work(most)))]
    return [outside(np.where(work(most) > above, nvjet_us, others_us), rows) for most, above in ways]


def _with_busy(part: float) -> list[SideBySide]:
    """Sets of convolutions if a block keeps its SM busy for that part of its time."""
    whole = KernelModel.prices

    def changed(model: KernelModel, kernels: Iterable[Kernel]) -> list[KernelPrice]:
        return whole(model, [replace(one, contention=part if one.contention else 0.0) for one in kernels])

    with patch.object(KernelModel, "prices", changed):
        return side_by_side(prices())
