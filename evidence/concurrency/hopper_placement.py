"""Makespans of concurrent kernels of an H100 from what was recorded of each: grid, resources, and time alone.

``python -m evidence.concurrency.hopper_placement`` prints, by the number of kernels in a set (``h100_bf16``), how far
makespans are off if blocks are placed one by one. It shows what a simulator could reach that knew the kernels that run:

- Branches start as recorded after a fork: of up to four 0.45 us apart in order, of more 0.17 us apart, the last first;
  there, branches other than the first end 0.9 us later.
- Blocks take the SM with the fewest blocks that has room. A kernel that waits for room holds up all after it.
- A block alone on its SM takes the kernel's time over its waves, and keeps the SM busy for a part of it. Blocks whose
  parts exceed the SM slow down alike.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evidence.concurrency.hopper_sets import DEVICE, FOLDER
from evidence.data.data_sets import shared_data
from iossim.hardware.compute_capability import MultiprocessorLimits
from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import resident_blocks

#: Largest set whose branches start in order; distance of starts, and delay of the ends of side branches, in us.
_IN_ORDER, _APART_US, _APART_OF_MANY_US, _SIDE_US = 4, 0.45, 0.17, 0.9
#: Part of its time in which a block keeps its SM busy.
BUSY = 0.7


@dataclass(frozen=True)
class Launched:
    """A recorded kernel: blocks, what a block needs of an SM, and its time alone."""

    blocks: int
    needs: tuple[int, int, int]
    alone_us: float


@dataclass
class _Sm:
    """Resident blocks of an SM by kernel and remaining time at full speed."""

    blocks: list[list[float]] = field(default_factory=list)

    def rate(self, demands: Sequence[float]) -> float:
        return 1.0 / max(1.0, sum(demands[int(kernel)] for kernel, _ in self.blocks))


def makespan_us(kernels: Sequence[Launched], limits: MultiprocessorLimits, sms: int, busy: float = BUSY) -> float:
    """From the first start to the last end, blocks placed one by one."""
    held = [resident_blocks(limits, *kernel.needs) for kernel in kernels]
    waves = [math.ceil(kernel.blocks / (sms * fits)) for kernel, fits in zip(kernels, held, strict=True)]
    block_us = [kernel.alone_us / count for kernel, count in zip(kernels, waves, strict=True)]
    demands = [busy * count / math.ceil(one.blocks / sms) for one, count in zip(kernels, waves, strict=True)]
    many = len(kernels) > _IN_ORDER
    order = sorted(range(len(kernels)), reverse=many)
    starts = [index * (_APART_OF_MANY_US if many else _APART_US) for index in range(len(order))]
    waiting = [kernel.blocks for kernel in kernels]
    machine, now, ends = [_Sm() for _ in range(sms)], 0.0, [0.0] * len(kernels)
    while any(waiting) or any(sm.blocks for sm in machine):
        for kernel, start in zip(order, starts, strict=True):
            if start > now or (waiting[kernel] and not _placed(kernel, waiting, kernels, machine, limits, block_us)):
                break
        begins = [start for kernel, start in zip(order, starts, strict=True) if start > now and waiting[kernel]]
        rates = [sm.rate(demands) for sm in machine]
        lasts = [left / rate for sm, rate in zip(machine, rates, strict=True) for _, left in sm.blocks]
        step = min([*lasts, *(start - now for start in begins)])
        now += step
        for sm, rate in zip(machine, rates, strict=True):
            for block in sm.blocks:
                block[1] -= step * rate
                if block[1] <= 1e-6:
                    ends[int(block[0])] = now
            sm.blocks = [block for block in sm.blocks if block[1] > 1e-6]
    return max(end + (_SIDE_US if many and kernel else 0.0) for kernel, end in enumerate(ends))


def _placed(
    kernel: int,
    waiting: list[int],
    kernels: Sequence[Launched],
    machine: Sequence[_Sm],
    limits: MultiprocessorLimits,
    block_us: Sequence[float],
) -> bool:
    """Place the waiting blocks of a kernel; whether there was room for all."""
    while waiting[kernel]:
        free = [sm for sm in machine if _has_room(sm, kernel, kernels, limits)]
        if not free:
            return False
        min(free, key=lambda sm: len(sm.blocks)).blocks.append([float(kernel), block_us[kernel]])
        waiting[kernel] -= 1
    return True


def _has_room(sm: _Sm, kernel: int, kernels: Sequence[Launched], limits: MultiprocessorLimits) -> bool:
    """True where the SM has room for one more block, each kernel taking its part of what it fills alone."""
    taken = sum(1.0 / resident_blocks(limits, *kernels[int(other)].needs) for other, _ in sm.blocks)
    return taken + 1.0 / resident_blocks(limits, *kernels[kernel].needs) <= 1.0 + 1e-9


def recorded(row: Mapping[str, Any]) -> list[Launched]:
    """The kernels of a recorded set in the order of their branches."""
    return [
        Launched(
            math.prod(kernel["grid"]),
            (math.prod(kernel["block"]), kernel["registers"], kernel["shared_bytes"]),
            alone[1],
        )
        for kernel, alone in zip(row["kernels"], row["warm_serial"], strict=True)
    ]


def judged(busy: float = BUSY) -> dict[int, list[float]]:
    """Predicted over measured makespan of each warm set, by its number of kernels."""
    profile = device(DEVICE)
    found: defaultdict[int, list[float]] = defaultdict(list)
    for line in (shared_data() / FOLDER / "side_by_side.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        kernels = recorded(row)
        predicted_us = makespan_us(kernels, profile.limits, profile.sm_count, busy)
        found[len(kernels)].append(predicted_us / row["warm_side_us"])
    return dict(sorted(found.items()))


def main() -> None:
    """Print the errors."""
    for count, ratios in judged().items():
        errors = np.abs(np.array(ratios) - 1.0)
        print(
            f"{count} kernels: {len(ratios)} sets, median ratio {np.median(ratios):.2f}, mean error "
            f"{100 * errors.mean():.1f}%, worst tenth {100 * np.quantile(errors, 0.9):.0f}%"
        )


if __name__ == "__main__":
    main()
