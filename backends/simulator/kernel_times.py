"""Times of kernels alone on an idle device: the formula, compiled, over tables of kernels.

A kernel is a row of a table, a device a :class:`DeviceRates`. The duration combines three times, and adds the gap:

- *arithmetic*: the busiest SM runs its share of the blocks in waves of as many as it holds (occupancy). A wave of
  ``b`` blocks takes as long as ``max(b, h)``, where ``h`` blocks hide the latency of arithmetic, and fills and drains
  its pipelines. Blocks do not run in lockstep, so that rounding up to whole blocks is seen in part, and a last wave of
  windows that wait for their taps takes its part of a wave. Boards of little power sustain less.
- *L2*: the busiest SM's part of the traffic between SMs and L2.
- *DRAM*: weights, and the activations, unless all that the kernel touches fits into the part of L2 that keeps it.

The duration is their ``p``-norm: the longest for a large ``p``, the sum for ``p = 1``; and at least what the whole L2
takes to move each operand once. Waves, latency hiding and the roofline follow Zhang and Owens (2011) and Williams et
al. (2009). Kernels that stream or transform fill and drain besides. Some have too little in flight to draw what L2 or
DRAM would give (Little's law): they take longer, and ask for what they draw. Those on tensor cores wait for DRAM once,
cuDNN's averages for each tap.

On a CPU an SM is a core, a kernel the one block of an op that one thread runs, and *L2* what the core moves from and
to the caches: more slowly where the operands do not fit into the cache of its own.

A library's dense product of large matrices loads its operands more than once: a wave of blocks loads the panels of
its part of the output again from DRAM where the operand does not stay in L2. The longer the inner dimension, the
further the blocks of a wave drift apart, and the fewer share a load; and operands that are read across their
contiguous dimension are read more slowly beyond the reach of address translation. No formula is published; dense
layers of four GPUs show all three.

Products on tensor cores (``tensor_core_product``) have rates of their own: of arithmetic, nearer to the peak the
larger the tile, since operands come from shared memory; of the latency of a step along the inner dimension, not
hidden by warps; and of power. Hopper's blocks fill their steps in shared memory together before they compute; those
before it write together after a short inner dimension, while nothing computes, and drift apart in a long one.

A fused attention's products and the exponentials of its softmax wait for each other in part: their time is a norm of
both (Dao, 2023, arXiv:2307.08691; Shah et al., 2024, arXiv:2407.08608: the special-function units of an H100 have 3.9
teraflops beside 989 of its tensor cores).
"""

from __future__ import annotations

import math

import numpy as np

from iossim.backends.simulator.device_rates import DeviceRates
from iossim.backends.simulator.kernel_rows import (
    AVERAGE_WINDOW,
    CLASSES,
    CORE_CLASSES,
    TENSOR,
    TILED_CLASSES,
    KernelRow,
    KernelRows,
)
from iossim.base.compiled import Floats, jit
from iossim.hardware.lowering.residence import lost_part

#: Columns of the result of :func:`time_kernels`: microseconds, and of ``FOOTPRINT`` bytes.
ALONE, ARITHMETIC, L2, DRAM, ISSUE, POWER, FOOTPRINT, KEPT, L2_SHARED, WAITED = range(10)
RESULTS = 10

#: Classes whose times overlap by a norm, and whose traffic with L2 is that of the busiest SM.
_IS_TILED = tuple(work_class in (*TILED_CLASSES, *CORE_CLASSES) for work_class in CLASSES)
_IS_CORE = tuple(work_class in CORE_CLASSES for work_class in CLASSES)

#: The part of a tile's prologue that is seen where a block walks on to it: what no load ahead hides.
_WALKED_PROLOGUE = 0.25

#: Steps along the inner dimension after which blocks of a product hardly write together, as inner dimensions of 32 to
#: 256 show in CUDA graphs on an A100. With 4.5 to 12 the 1,925 products that are not held out are 8.2% off, without it
#: 8.8; those held out 8.5 and 9.1.
_DRIFT_STEPS = 6.0

#: A thread of cuDNN's averages waits for each tap in turn (Little's law): for DRAM, in us per operation that is counted
#: for it, 0.52 for each of 3x3 taps. And the part of an SM's blocks that they hold. Both are pinned on Inception at
#: batch 32 on a V100: the averages one after another, and beside other kernels.
AVERAGE_WAIT_US, AVERAGE_SLOTS = 0.0808, 0.18


def time_kernels(kernels: KernelRows, rates: DeviceRates) -> Floats:
    """Times of each kernel in microseconds, and what it needs of L2, shape ``[kernels, RESULTS]``.

    ``ALONE`` is the duration on an idle device, with the gap before it; ``ARITHMETIC``, ``L2`` and ``DRAM`` are what
    it is made of, the latter two as if a kernel had enough in flight; ``ISSUE`` is the arithmetic or L2 time if its
    blocks were spread evenly over all SMs and hid all latency: the part of the device's issue capacity that it needs.
    ``POWER`` is the arithmetic at the rate that the board sustains. ``FOOTPRINT`` is the L2 that all it touches takes,
    and ``KEPT`` the DRAM time of what L2 keeps of it while nothing else runs: what it moves besides once L2 has lost
    that to others. ``L2_SHARED`` is the time that the whole L2 takes to move each operand once. ``WAITED`` is the time
    in which blocks do nothing but wait for DRAM. A kernel of which no block fits an SM takes forever.
    """
    times = np.empty((len(kernels), RESULTS), dtype=np.float64)
    _time_kernels(kernels, rates, times)
    return times


@jit
def _time_kernels(kernels: KernelRows, rates: DeviceRates, times: Floats) -> None:
    for index in range(len(kernels)):
        kernel = kernels[index]
        if kernel["resident"] == 0.0:
            times[index] = np.inf
            continue
        spread = kernel["blocks"] / rates.sms
        busiest = math.ceil(spread)
        arithmetic_us, issue_us = arithmetic_times(kernel, rates, spread, busiest)
        power_us = kernel["flops"] / rates.sustained_flops_per_us[kernel["work_class"], kernel["precision"]]
        arithmetic_us = max(arithmetic_us, power_us)
        l2_us = busiest * (kernel["l2_bytes"] / kernel["blocks"]) / rates.l2_bytes_per_us_per_sm[kernel["work_class"]]
        if not _IS_TILED[kernel["work_class"]]:
            # Blocks of streaming kernels are short and many: their traffic spreads evenly.
            l2_us *= spread / busiest
        operands = kernel["activation_bytes"] + kernel["weight_bytes"] + kernel["bytes_written"]
        lost = lost_part(operands, rates.core_cache_bytes)
        if lost > 0.0:
            again = lost * (1.0 / rates.beyond_core_cache[kernel["work_class"]] - 1.0)
            l2_us += again * operands / rates.l2_bytes_per_us_per_sm[kernel["work_class"]]
        dram_us, kept_us = _dram_us(kernel, rates)
        drawn_us = max(l2_us / rates.l2_drawn[kernel["work_class"]], dram_us / rates.dram_drawn[kernel["work_class"]])
        waiting_us = 0.0
        if kernel["work_class"] == AVERAGE_WINDOW and dram_us > 0.0:
            missed = min(1.0, dram_us * rates.dram_bytes_per_us[AVERAGE_WINDOW] / operands)
            threads = rates.sms * min(spread, kernel["resident"]) * kernel["threads"]
            waiting_us = missed * AVERAGE_WAIT_US * kernel["flops"] / threads
        longest_us = max(arithmetic_us + waiting_us, drawn_us)
        norm = rates.overlap_norm[kernel["work_class"]]
        duration_us = longest_us
        if longest_us > 0.0 and _IS_TILED[kernel["work_class"]]:
            duration_us *= (
                (arithmetic_us / longest_us) ** norm + (l2_us / longest_us) ** norm + (dram_us / longest_us) ** norm
            ) ** (1.0 / norm)
        latency_us = rates.dram_latency_us[kernel["work_class"]] * (dram_us > 0.0)
        duration_us += latency_us + _together_us(kernel, rates)
        shared_us = operands / rates.l2_bytes_per_us
        duration_us = max(duration_us, shared_us)
        times[index, ALONE] = rates.gap_us + rates.ramp_us[kernel["work_class"]] + duration_us
        times[index, ARITHMETIC] = arithmetic_us
        times[index, L2] = l2_us
        times[index, DRAM] = dram_us
        times[index, ISSUE] = max(issue_us, l2_us * spread / busiest)
        if kernel["contention"] > 0.0:
            held = min(1.0, kernel["contention"] * min(busiest, kernel["resident"]))
            times[index, ISSUE] = max(
                times[index, ISSUE], held * (times[index, ALONE] - rates.gap_us) * spread / busiest
            )
        if _IS_CORE[kernel["work_class"]]:
            # A thread has its core for itself as long as it runs, also while it waits for memory.
            times[index, ISSUE] = times[index, ALONE] * spread / busiest
        times[index, POWER] = power_us
        times[index, FOOTPRINT] = _footprint_bytes(kernel, rates)
        times[index, KEPT] = kept_us
        times[index, L2_SHARED] = shared_us
        times[index, WAITED] = latency_us + longest_us - max(arithmetic_us, drawn_us)


@jit
def _together_us(kernel: KernelRow, rates: DeviceRates) -> float:
    """Time in which blocks do nothing but write, all at once."""
    if kernel["work_class"] != TENSOR or rates.tile_persistent[kernel["tile"]] > 0.0:
        return 0.0
    apart = 1.0 + (kernel["steps"] / _DRIFT_STEPS) ** 2
    written_us: float = kernel["bytes_written"] / (apart * rates.l2_bytes_per_us)
    return written_us


@jit
def grid_blocks(kernel: KernelRow, rates: DeviceRates) -> float:
    """The blocks that a kernel is launched with: for averages only those that draw."""
    blocks: float = kernel["blocks"]
    if kernel["work_class"] == AVERAGE_WINDOW:
        blocks = min(blocks, rates.sms * math.ceil(AVERAGE_SLOTS * kernel["resident"]))
    if rates.tile_persistent[kernel["tile"]] > 0.0:
        blocks = min(blocks, rates.sms)
    return blocks


@jit
def arithmetic_times(kernel: KernelRow, rates: DeviceRates, spread: float, busiest: float) -> tuple[float, float]:
    """Arithmetic as its blocks are scheduled, and as if they filled the device evenly and hid all latency, us."""
    rate = rates.flops_per_us_per_sm[kernel["work_class"], kernel["precision"]]
    rate *= rates.tile_factor[kernel["tile"], kernel["precision"]]
    block_us = kernel["flops"] / kernel["blocks"] / rate
    if kernel["exponentials"] > 0.0:
        softmax_us = kernel["exponentials"] / kernel["blocks"] / rates.exponentials_per_us_per_sm
        norm = rates.attention_overlap_norm
        block_us = (block_us**norm + softmax_us**norm) ** (1.0 / norm)
    is_persistent = rates.tile_persistent[kernel["tile"]] > 0.0
    seen = rates.wave_quantisation * busiest + (1.0 - rates.wave_quantisation) * max(spread, 1.0)
    if is_persistent:
        # A block walks over whole tiles: the SM with one more takes that much longer.
        seen = busiest
    waves = math.floor(seen / kernel["resident"])
    rest = seen - waves * kernel["resident"]
    hiding = rates.hiding_threads / kernel["threads"]
    if kernel["waits_for_dram"] > 0.0 and _IS_TILED[kernel["work_class"]]:
        hiding *= rates.dram_latency_factor
    if kernel["steps"] > 0.0:
        # Steps follow one another: a block takes their latency at least, alone on its SM or not.
        block_us *= kernel["slowdown"]
        hiding = kernel["steps"] * kernel["slowdown"] * rates.tensor_step_us / block_us
    slots = waves * max(kernel["resident"], hiding)
    if rest > 1e-9:
        part = 1.0 if waves == 0 or _IS_TILED[kernel["work_class"]] else rest / kernel["resident"]
        slots += max(rest, hiding * part)
        waves += 1
    arithmetic_us = (slots + kernel["longest"] - 1.0) * block_us
    if is_persistent:
        # The next tile is loaded while the last one is written.
        waves = 1.0 + _WALKED_PROLOGUE * (waves - 1.0)
    arithmetic_us += rates.prologue_us[kernel["work_class"]] * rates.tile_prologue[kernel["tile"]] * waves
    filled_bytes = min(rates.tile_filled_bytes[kernel["tile"]], kernel["l2_bytes"] / kernel["blocks"])
    arithmetic_us += filled_bytes * min(kernel["blocks"], rates.sms * kernel["resident"]) / rates.l2_bytes_per_us
    issue_us = spread * block_us
    return arithmetic_us, issue_us


@jit
def _footprint_bytes(kernel: KernelRow, rates: DeviceRates) -> float:
    """Bytes of L2 that all operands of a kernel take."""
    read: float = kernel["activation_bytes"] + kernel["weight_bytes"]
    written: float = rates.l2_written_factor * kernel["bytes_written"]
    return read + written


@jit
def _dram_us(kernel: KernelRow, rates: DeviceRates) -> tuple[float, float]:
    """DRAM time, and that of what L2 keeps: activations, not what a wave reads again."""
    activations = kernel["activation_bytes"] + kernel["bytes_written"]
    lost = activations * lost_part(_footprint_bytes(kernel, rates), rates.resident_bytes)
    moved = kernel["weight_bytes"] + lost
    if kernel["reread_bytes"] > 0.0:
        at_once = min(1.0, rates.sms * kernel["resident"] / kernel["blocks"]) * kernel["reread_bytes"]
        moved += kernel["reread_bytes"] * lost_part(at_once, rates.resident_bytes)
    slower = 1.0
    if kernel["row_tiles"] > 0.0:
        tiles = kernel["row_tiles"] * kernel["column_tiles"]
        wave = max(1.0, min(rates.sms * kernel["resident"], tiles) / (1.0 + kernel["inner"] / rates.drift_inner))
        # A wave covers whole columns of tiles, or a part of one: how often each operand is loaded.
        row_loads = max(1.0, kernel["column_tiles"] / max(1.0, wave / kernel["row_tiles"]))
        column_loads = max(1.0, kernel["row_tiles"] / wave)
        missed_rows = kernel["row_bytes"] / (kernel["row_bytes"] + rates.reuse_bytes)
        missed_columns = kernel["column_bytes"] / (kernel["column_bytes"] + rates.reuse_bytes)
        moved += missed_rows * kernel["row_bytes"] * (row_loads - 1.0)
        moved += missed_columns * kernel["column_bytes"] * (column_loads - 1.0)
        slower += rates.translation_penalty * math.log1p(kernel["strided_bytes"] / rates.translation_reach_bytes)
    if kernel["steps"] > 0.0:
        # A step loads a short piece of each row of an operand that lies along the inner dimension.
        moved += rates.tensor_strided_excess * min(kernel["strided_bytes"], moved)
    dram_us: float = moved / rates.dram_bytes_per_us[kernel["work_class"]] * slower
    # Some classes reach less than the device's bandwidth by themselves.
    bandwidth = 0.0
    for rate in rates.dram_bytes_per_us:
        bandwidth = max(bandwidth, rate)
    return dram_us, (activations - lost) / bandwidth
