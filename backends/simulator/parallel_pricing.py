"""Many stages priced on all cores: a stage's price depends on no other's, and the compiled code holds no interpreter lock."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from iossim.backends.simulator.stage_model import MAX_GROUPS, Floats, StageKernels, price_masks
from iossim.base.cores import usable_cores
from iossim.schedule.problem import Masks

#: Fewer stages than this are priced by the thread that asks: some milliseconds, against the cost of handing them over.
FEWEST_IN_PARALLEL = 2_000
_limit: int | None = None


def price_concurrent(
    masks: Masks, predecessors: Masks, kernels: StageKernels, interference: float, max_kernels: int = MAX_GROUPS
) -> Floats:
    """The price of each mask as a concurrent stage, microseconds, shape ``[len(masks)]``; the same on any number of cores."""
    prices = np.empty(len(masks), dtype=np.float64)
    parts = (_limit or len(usable_cores())) if len(masks) >= FEWEST_IN_PARALLEL else 1
    if parts == 1:
        price_masks(masks, predecessors, *kernels, interference, prices, max_kernels)
        return prices
    bounds = np.linspace(0, len(masks), parts + 1).astype(np.int64).tolist()

    def price(part: int) -> None:
        own = slice(bounds[part], bounds[part + 1])
        price_masks(masks[own], predecessors, *kernels, interference, prices[own], max_kernels)

    list(_threads().map(price, range(parts)))
    return prices


def set_pricing_threads(count: int | None) -> None:
    """How many threads of this process price at a time: fewer where others have the other cores; None for all cores."""
    global _limit  # noqa: PLW0603
    _limit = count


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(len(usable_cores()), thread_name_prefix="iossim-pricing")


if hasattr(os, "register_at_fork"):
    # A forked process has none of its parent's threads: it starts its own.
    os.register_at_fork(after_in_child=_threads.cache_clear)
