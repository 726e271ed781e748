"""How long kernels take alone on an idle device: the formula, compiled, over tables of kernels.

A kernel is a row of a table, a device a :class:`DeviceRates`. The duration combines three times, and adds the gap between
kernels of a stream:

- *arithmetic*: the busiest SM runs its share of the blocks in waves of as many as it holds (occupancy). A wave of ``b``
  blocks takes as long as ``max(b, h)``, where ``h`` blocks hide the latency of arithmetic: below that, an SM waits. A
  wave also fills and drains its pipelines. Blocks do not run in lockstep, so that only a part of the rounding up to
  whole blocks is seen. Boards of little power sustain less than their peak.
- *L2*: the busiest SM's part of the traffic between SMs and L2.
- *DRAM*: weights, and the activations, unless all that the kernel touches fits into the part of L2 that keeps it:
  caches lose what is gone through from end to end all at once, not in part.

They overlap, but not wholly: the duration is their ``p``-norm, the longest for a large ``p``, the sum for ``p = 1``.
Waves, latency hiding and the roofline follow Zhang and Owens (2011) and Williams et al. (2009).

Kernels that stream or transform fill and drain besides, however little they move.

Some have too little in flight to draw what L2 or DRAM would give (Little's law). They take as much longer, and what they
ask of L2 and DRAM is what they draw.

On a CPU an SM is a core, a kernel the one block of an op that one thread runs, and *L2* what the core moves from and
to the caches: more slowly where the operands do not fit into the cache of its own.

A library's dense product of large matrices loads its operands more than once: a wave of blocks covers a part of the
output, and loads the panels of that part again from DRAM where the operand does not stay in L2. The longer the inner
dimension, the further the blocks of a wave drift apart, and the fewer share a load; and operands that are read across
their contiguous dimension are read more slowly where they exceed the reach of address translation. These three have no
published formula; they are what the recorded dense layers of four GPUs show.

Products on tensor cores (``tensor_core_product``) have rates of their own: of arithmetic, the larger the tile the
nearer to the datasheet's peak, since operands come from shared memory as often as the tile is small; of the latency of
a step along the inner dimension, in place of the warps that hide it; and of power, for boards whose limit is below what
their tensor cores take.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iossim.compiled import jit
from iossim.devices.compute_capability import SINCE_AMPERE, WARP_THREADS, MultiprocessorLimits
from iossim.devices.parameters import ModelParameters
from iossim.devices.profile import DeviceProfile
from iossim.errors import OptionError
from iossim.ir.types import Precision
from iossim.lowering.gpu.matrix_product import BEFORE_VOLTA, ROW_LANES, TILES
from iossim.lowering.gpu.tensor_core_product import TILE_REUSE
from iossim.lowering.kernel import Kernel, WorkClass
from iossim.lowering.occupancy import resident_blocks

Floats = NDArray[np.float64]

#: Columns of the result of :func:`time_kernels`: microseconds, and of ``FOOTPRINT`` bytes.
ALONE, ARITHMETIC, L2, DRAM, ISSUE, POWER, FOOTPRINT, KEPT = range(8)
RESULTS = 8

_CLASSES = list(WorkClass)
_CLASS = {work_class: index for index, work_class in enumerate(_CLASSES)}
_TILE = {name: index for index, name in enumerate(("", *map(str, TILES), *TILE_REUSE))}
_PRECISION = {precision: index for index, precision in enumerate(Precision)}

MATRIX_CLASSES = (
    WorkClass.GEMM,
    WorkClass.IMPLICIT_PRECOMP_GEMM,
    WorkClass.IMPLICIT_GEMM,
    WorkClass.WINOGRAD_GEMM,
)
TENSOR_CLASSES = (WorkClass.TENSOR, WorkClass.TENSOR_CONVOLUTION)
TILED_CLASSES = (*MATRIX_CLASSES, WorkClass.WINOGRAD_FUSED, *TENSOR_CLASSES)
#: What one core of a CPU does as one block. Of those whose tensors keep their order, ``CACHED_CLASSES``, the cache
#: of the core may hold all.
CORE_CLASSES = (
    WorkClass.CORE_PRODUCT,
    WorkClass.CORE_BLOCKED,
    WorkClass.CORE_BLOCKED_WINDOW,
    WorkClass.CORE_WINDOW,
    WorkClass.CORE_STREAM,
)
CACHED_CLASSES = (WorkClass.CORE_PRODUCT, WorkClass.CORE_WINDOW, WorkClass.CORE_STREAM)
#: Of kernels whose threads load one half at a time: what such a load takes from DRAM and from L2. The first is what
#: normalisations of language models show on an A100 and an A40 alike, 1003 and 585 GB/s (Little's law).
_HALF_BYTES = 2.0
_NARROW_DRAM_US, _NARROW_L2_US = 0.44, 0.22
#: Two passes of dependent loads with a sum over the block between them, however little they move.
PASSES_RAMP_US = 3.0
#: Kernels of a thread an output that issuing their instructions bounds, counted in multiply-adds of a window's taps; and what
#: the FP32 lanes of Volta do a clock for each warp scheduler, of which ``depthwise_efficiency`` is a part. A scheduler issues
#: an instruction a clock in all generations, however many lanes it feeds.
ISSUED_CLASSES = (WorkClass.DEPTHWISE, WorkClass.WINDOW, WorkClass.AVERAGE_WINDOW)
_ISSUED_FLOPS = 2 * 16
_TRANSFORMS = (WorkClass.TRANSFORM, WorkClass.FILTER_TRANSFORM, WorkClass.TILE_GENERATION)
_GEMM, _AVERAGE, _NARROW = (
    _CLASS[work_class] for work_class in (WorkClass.GEMM, WorkClass.AVERAGE_WINDOW, WorkClass.NARROW_STREAM)
)
#: The work class of matrix products on tensor cores, in a table.
TENSOR = _CLASS[WorkClass.TENSOR]
#: Classes whose times overlap by a norm, and whose traffic with L2 is that of the busiest SM.
_IS_TILED = tuple(work_class in (*TILED_CLASSES, *CORE_CLASSES) for work_class in _CLASSES)
_IS_CORE = tuple(work_class in CORE_CLASSES for work_class in _CLASSES)
_IS_MATRIX = tuple(work_class in MATRIX_CLASSES for work_class in _CLASSES)
_IS_TENSOR = tuple(work_class in TENSOR_CLASSES for work_class in _CLASSES)

#: Multiply-adds a loaded element at which tensor cores wait for their operands half of the time. Volta and Turing load
#: through registers; where copies are asynchronous, units that take fewer bytes a clock than this are fed more easily.
_HALF_FED_REUSE, _HALF_FED_BYTES = 10.0, 4096.0

#: Of filling and draining the blocks of a wave, the part that is seen of kernels that hold many short blocks on an SM, at
#: all stages of their lives. Pinned on the published latency of NasNet-A run unit after unit.
GROUPED_PROLOGUE_SEEN = 0.35

#: Of the bandwidth of copies, what cuDNN's averages reach, from L2 or DRAM. Pinned on Inception at batch 32 on a V100, whose
#: averages take that long one after another. A copy fills the SMs; threads that draw so much less are as much fewer.
AVERAGE_WINDOW_BANDWIDTH = 0.18

#: Operands of up to this part of a cache (a GPU's L2, that of a CPU's core) are all found there, of this part and more none
#: is, once they are gone through from end to end.
_FITS, _LOST = 0.85, 1.25

#: A row of a table of kernels. ``resident`` is the blocks that an SM holds, 0 where none fits.
KERNEL_ROW = np.dtype(
    [
        ("work_class", np.int64),
        ("tile", np.int64),
        ("precision", np.int64),
        ("blocks", np.float64),
        ("threads", np.float64),
        ("resident", np.float64),
        ("flops", np.float64),
        ("l2_bytes", np.float64),
        ("activation_bytes", np.float64),
        ("weight_bytes", np.float64),
        ("bytes_written", np.float64),
        ("row_tiles", np.float64),
        ("column_tiles", np.float64),
        ("row_bytes", np.float64),
        ("column_bytes", np.float64),
        ("inner", np.float64),
        ("strided_bytes", np.float64),
        ("steps", np.float64),
        ("slowdown", np.float64),
        ("reread_bytes", np.float64),
    ]
)


class DeviceRates(NamedTuple):
    """What a device does in a microsecond, and what else the formula needs; see ``ModelParameters``."""

    sms: float
    flops_per_us_per_sm: Floats  #: shape ``[classes, precisions]``
    tile_factor: Floats  #: shape ``[tiles, precisions]``
    dram_bytes_per_us: Floats  #: shape ``[classes]``
    l2_bytes_per_us_per_sm: Floats  #: shape ``[classes]``
    #: Of these, the parts that a class has enough in flight to draw, shape ``[classes]``.
    dram_drawn: Floats
    l2_drawn: Floats
    beyond_core_cache: (
        Floats  #: shape ``[classes]``: the factor on it for operands beyond ``core_cache_bytes`` in all
    )
    core_cache_bytes: float
    resident_bytes: float
    sustained_flops_per_us: (
        Floats  #: shape ``[classes, precisions]``: what the board's power allows; inf: no limit known
    )
    hiding_threads: float
    prologue_us: Floats  #: shape ``[classes]``
    ramp_us: Floats  #: shape ``[classes]``
    gap_us: float
    wave_quantisation: float
    overlap_norm: float
    gemm_overlap_norm: float
    tensor_overlap_norm: float
    tensor_step_us: float
    #: Of operands in DRAM whose inner dimension is contiguous, what is loaded besides, in tensor-core products.
    tensor_strided_excess: float
    reuse_bytes: float
    drift_inner: float
    translation_penalty: float
    translation_reach_bytes: float


#: The rates that were asked for last: a fit prices set after set of one device with the same profile object.
_LAST_RATES: dict[float, tuple[DeviceProfile, DeviceRates]] = {}

#: How sharply the bandwidth of a few SMs turns into that of the device: the exponent of a p-norm. One for all devices: an A6000
#: turns more sharply (8 and more), an RTX 5090 more softly (2.5); 4 is within 4% of either curve in the mean.
REACH_NORM = 4.0


def device_rates(profile: DeviceProfile, gap_factor: float = 1.0, sms: int | None = None) -> DeviceRates:
    """The rates of a profile, or of ``sms`` of its SMs; ``gap_factor`` shortens the gap between kernels.

    A part of the SMs has fewer of them to lay blocks on, and of DRAM what those SMs can draw (:func:`bandwidth_part`). Each SM
    has what it had: its lanes, and its port to L2. The board's power is not divided. Raises OptionError for no SMs, or for
    more than there are.
    """
    last = _LAST_RATES.get(gap_factor)
    if last is None or last[0] is not profile:
        last = _LAST_RATES[gap_factor] = (profile, _device_rates(profile, gap_factor))
    return last[1] if sms is None or sms == profile.sm_count else _on_part(last[1], profile, sms)


def bandwidth_part(part: float, reach: float) -> float:
    """The part of the device's DRAM bandwidth that a part of its SMs can draw: ``min(1, reach * part)``, smoothly.

    An SM draws at most ``reach`` times its even share: what it can have in flight over the latency (Little's law). The
    minimum is by a p-norm, over its value for all SMs: those draw all that kernels on the whole device are priced with.
    """
    return float(((1.0 + reach**-REACH_NORM) / (1.0 + (reach * part) ** -REACH_NORM)) ** (1.0 / REACH_NORM))


def _on_part(whole: DeviceRates, profile: DeviceProfile, sms: int) -> DeviceRates:
    if not 0 < sms < profile.sm_count:
        raise OptionError(f"{sms} SMs of {profile.name!r}: it has {profile.sm_count}; give 1 to {profile.sm_count}")
    part = bandwidth_part(sms / profile.sm_count, profile.parameters.sm_bandwidth_reach)
    dram = whole.dram_bytes_per_us * part
    drawn = whole.dram_drawn.copy()
    drawn[_NARROW] = _narrow_part(profile, sms * _HALF_BYTES / _NARROW_DRAM_US, dram[_NARROW])
    return whole._replace(sms=float(sms), dram_bytes_per_us=dram, dram_drawn=drawn)


def _narrow_part(profile: DeviceProfile, bytes_per_us: float, bandwidth: float) -> float:
    """The part of a bandwidth that an SM's threads draw, each ``bytes_per_us``."""
    return min(1.0, profile.limits.max_threads * bytes_per_us / bandwidth)


def _device_rates(profile: DeviceProfile, gap_factor: float) -> DeviceRates:
    p = profile.parameters
    datasheet = profile.datasheet
    sms = profile.sm_count
    clocks_per_us = profile.boost_clock_ghz * 1e3
    efficiency = {
        WorkClass.GEMM: p.gemm_efficiency,
        WorkClass.IMPLICIT_PRECOMP_GEMM: p.implicit_gemm_efficiency,
        WorkClass.IMPLICIT_GEMM: p.direct_efficiency,
        WorkClass.WINOGRAD_FUSED: p.winograd_fused_efficiency,
        WorkClass.WINOGRAD_GEMM: p.winograd_gemm_efficiency,
        WorkClass.GROUPED: p.implicit_gemm_efficiency,
        WorkClass.TENSOR: p.tensor_efficiency,
        WorkClass.TENSOR_CONVOLUTION: p.tensor_efficiency * p.tensor_convolution_factor,
        WorkClass.CORE_PRODUCT: p.gemm_efficiency,
        WorkClass.CORE_BLOCKED: p.implicit_gemm_efficiency,
        WorkClass.CORE_BLOCKED_WINDOW: p.depthwise_efficiency,
    }
    memory = {
        WorkClass.STREAM: p.stream_efficiency,
        WorkClass.ROW: p.stream_efficiency,
        WorkClass.NARROW_STREAM: p.stream_efficiency,
        WorkClass.WINDOW: p.stream_efficiency,
        WorkClass.AVERAGE_WINDOW: p.stream_efficiency,
        WorkClass.DEPTHWISE: p.stream_efficiency,
        WorkClass.TRANSFORM: p.transform_efficiency,
        WorkClass.FILTER_TRANSFORM: p.filter_transform_efficiency,
        WorkClass.TILE_GENERATION: p.tile_generation_efficiency,
        WorkClass.LAYOUT: p.layout_efficiency,
        WorkClass.TENSOR: p.tensor_dram_efficiency,
        WorkClass.TENSOR_CONVOLUTION: p.tensor_dram_efficiency,
    }
    peak = profile.fp32_tflops * 1e6 / sms  # a teraflop a second is a megaflop a microsecond
    flops = np.empty((len(_CLASSES), len(_PRECISION)))
    for work_class, index in _CLASS.items():
        flops[index] = peak * efficiency.get(work_class, p.vector_efficiency)
    flops[_CLASS[WorkClass.ROW]] = 2 * ROW_LANES * clocks_per_us * _row_rate(profile)
    gflops = np.array([_gflops_per_watt(c, p) * profile.board_power_w for c in _CLASSES])
    sustained = np.repeat(gflops[:, None] * 1e3, len(_PRECISION), axis=1)
    for work_class in ISSUED_CLASSES:
        index = _CLASS[work_class]
        flops[index] = _ISSUED_FLOPS * profile.limits.warp_schedulers * clocks_per_us * p.depthwise_efficiency
        # The clock that the board's power leaves to products is that of the schedulers, too.
        sustained[index] = sms * flops[index] * np.minimum(1.0, sustained[index] / (sms * peak))
    half_tflops = profile.reduced_precision_tflops(Precision.FP16)
    for precision, column in _PRECISION.items():
        # Reduced precision: the same kernels on units that are faster than the fp32 lanes.
        tflops = profile.reduced_precision_tflops(precision)
        if tflops is not None:
            flops[list(_IS_MATRIX), column] = tflops * 1e6 / sms * p.reduced_precision_efficiency
            sustained[list(_IS_MATRIX), column] = np.inf
            for work_class in TENSOR_CLASSES:
                flops[_CLASS[work_class], column] = tflops * 1e6 / sms * efficiency[work_class]
                # A multiply-add of fewer bits takes that much less energy as there are more of them in a clock.
                sustained[_CLASS[work_class], column] *= tflops / (half_tflops or tflops)
    factors = {name: getattr(p, f"tile_{name}_factor", 1.0) for name in _TILE}
    tile_factor = np.repeat(np.array(list(factors.values()))[:, None], len(_PRECISION), axis=1)
    for precision, column in _PRECISION.items():
        half_fed = _half_fed_reuse(profile, precision)
        for name, reuse in TILE_REUSE.items():
            tile_factor[_TILE[name], column] = reuse / (reuse + half_fed)
    l2_bytes_per_clock = dict.fromkeys(TENSOR_CLASSES, p.tensor_l2_bytes_per_clock_per_sm)
    l2_factor = {
        WorkClass.CORE_BLOCKED: p.transform_efficiency,
        WorkClass.CORE_BLOCKED_WINDOW: p.transform_efficiency,
    }
    # A gigabyte a second is a kilobyte a microsecond.
    dram = np.array([profile.dram_bandwidth_gbps * 1e3 * memory.get(c, p.dram_efficiency) for c in _CLASSES])
    l2 = np.array(
        [
            l2_bytes_per_clock.get(c, p.l2_bytes_per_clock_per_sm) * clocks_per_us * l2_factor.get(c, 1.0)
            for c in _CLASSES
        ]
    )
    dram_drawn, l2_drawn = np.ones(len(_CLASSES)), np.ones(len(_CLASSES))
    dram_drawn[_AVERAGE] = l2_drawn[_AVERAGE] = AVERAGE_WINDOW_BANDWIDTH
    dram_drawn[_NARROW] = _narrow_part(profile, sms * _HALF_BYTES / _NARROW_DRAM_US, dram[_NARROW])
    l2_drawn[_NARROW] = _narrow_part(profile, _HALF_BYTES / _NARROW_L2_US, l2[_NARROW])
    return DeviceRates(
        float(sms),
        flops,
        tile_factor,
        dram,
        l2,
        dram_drawn,
        l2_drawn,
        np.array([p.beyond_core_cache_factor if c in CACHED_CLASSES else 1.0 for c in _CLASSES]),
        float(datasheet.core_cache_bytes.value) if datasheet.core_cache_bytes else math.inf,
        p.l2_resident_fraction * datasheet.l2_bytes.value,
        sustained,
        p.latency_hiding_warps * WARP_THREADS,
        np.array([_prologue_clocks(c, p) / clocks_per_us for c in _CLASSES]),
        np.array([_ramp_us(c, p) for c in _CLASSES]),
        p.kernel_gap_us * gap_factor,
        p.wave_quantisation,
        p.overlap_norm,
        p.gemm_overlap_norm,
        p.tensor_overlap_norm,
        p.tensor_step_clocks / clocks_per_us,
        1.0 / p.tensor_strided_efficiency - 1.0,
        p.reuse_l2_fraction * datasheet.l2_bytes.value,
        p.drift_inner,
        p.translation_penalty,
        p.translation_reach_bytes,
    )


def _row_rate(profile: DeviceProfile) -> float:
    """How many clocks' worth of a row kernel an SM does in a clock, over one of Volta or later.

    Before Volta integers shared the lanes; a P100's SM has two schedulers. Pinned on layer norm and long softmax of a P4
    and of a P100.
    """
    if profile.limits.warp_schedulers == 2:
        return 0.65
    return 0.87 if profile.architecture in BEFORE_VOLTA else 1.0


def _half_fed_reuse(profile: DeviceProfile, precision: Precision) -> float:
    tflops = profile.reduced_precision_tflops(precision) or profile.fp32_tflops
    flops_per_clock = tflops * 1e3 / (profile.sm_count * profile.boost_clock_ghz)
    bytes_per_clock = flops_per_clock * precision.storage.bytes
    copies_ahead = profile.architecture in SINCE_AMPERE
    return _HALF_FED_REUSE * (min(1.0, bytes_per_clock / _HALF_FED_BYTES) if copies_ahead else 1.0)


def _ramp_us(work_class: WorkClass, parameters: ModelParameters) -> float:
    if work_class in _TRANSFORMS:
        return parameters.transform_ramp_us
    if work_class is WorkClass.LAYOUT:
        return parameters.layout_ramp_us
    if work_class in (WorkClass.ROW, WorkClass.NARROW_STREAM):
        return parameters.stream_ramp_us + PASSES_RAMP_US
    is_without = work_class in (*TILED_CLASSES, *CORE_CLASSES, WorkClass.INDEX)
    return 0.0 if is_without else parameters.stream_ramp_us


def _prologue_clocks(work_class: WorkClass, parameters: ModelParameters) -> float:
    if work_class is WorkClass.GEMM:
        return parameters.gemm_prologue_clocks
    if work_class in TENSOR_CLASSES:
        return parameters.tensor_prologue_clocks
    if work_class is WorkClass.GROUPED:
        return GROUPED_PROLOGUE_SEEN * parameters.block_prologue_clocks
    return parameters.block_prologue_clocks if work_class in TILED_CLASSES else 0.0


def _gflops_per_watt(work_class: WorkClass, parameters: ModelParameters) -> float:
    if work_class in TENSOR_CLASSES:
        return parameters.tensor_sustained_gflops_per_watt
    is_gemm = work_class is WorkClass.GEMM
    return parameters.gemm_sustained_gflops_per_watt if is_gemm else parameters.sustained_gflops_per_watt


def kernel_table(limits: MultiprocessorLimits, kernels: Iterable[Kernel]) -> NDArray[np.void]:
    """The kernels as rows of :data:`KERNEL_ROW`, shape ``[kernels]``."""
    return np.array(
        [
            (
                _CLASS[kernel.work_class],
                _TILE[kernel.tile],
                _PRECISION[kernel.precision],
                kernel.blocks,
                kernel.threads_per_block,
                resident_blocks(
                    limits, kernel.threads_per_block, kernel.registers_per_thread, kernel.shared_bytes_per_block
                ),
                kernel.flops,
                kernel.l2_bytes,
                kernel.activation_bytes,
                kernel.weight_bytes,
                kernel.bytes_written,
                *(kernel.panels or (0, 0, 0, 0, 0, 0)),
                kernel.steps,
                kernel.slowdown,
                kernel.reread_bytes,
            )
            for kernel in kernels
        ],
        dtype=KERNEL_ROW,
    )


def time_kernels(kernels: NDArray[np.void], rates: DeviceRates) -> Floats:
    """Times of each kernel in microseconds, and what it needs of L2, shape ``[kernels, RESULTS]``.

    ``ALONE`` is the duration on an idle device, with the gap before it; ``ARITHMETIC``, ``L2`` and ``DRAM`` are what it
    is made of, the latter two as if a kernel had enough in flight; ``ISSUE`` is the arithmetic or L2 time if its blocks
    were spread evenly over all SMs and hid all latency: the part of the device's issue capacity that it needs. ``POWER``
    is the arithmetic at the rate that the board sustains. ``FOOTPRINT`` is all that it touches, in bytes, and ``KEPT`` the
    DRAM time of what L2 keeps of it while nothing else runs: what it moves besides once L2 has lost that to others. A
    kernel of which no block fits an SM takes forever.
    """
    times = np.empty((len(kernels), RESULTS), dtype=np.float64)
    _time_kernels(kernels, rates, times)
    return times


@jit
def _time_kernels(kernels: NDArray[np.void], rates: DeviceRates, times: Floats) -> None:
    for index in range(len(kernels)):
        kernel = kernels[index]
        if kernel["resident"] == 0.0:
            times[index] = np.inf
            continue
        spread = kernel["blocks"] / rates.sms
        busiest = math.ceil(spread)
        arithmetic_us, issue_us = _arithmetic_us(kernel, rates, spread, busiest)
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
        longest_us = max(arithmetic_us, drawn_us)
        norm = rates.gemm_overlap_norm if kernel["work_class"] == _GEMM else rates.overlap_norm
        if _IS_TENSOR[kernel["work_class"]]:
            norm = rates.tensor_overlap_norm
        duration_us = longest_us
        if longest_us > 0.0 and _IS_TILED[kernel["work_class"]]:
            duration_us *= (
                (arithmetic_us / longest_us) ** norm + (l2_us / longest_us) ** norm + (dram_us / longest_us) ** norm
            ) ** (1.0 / norm)
        times[index, 0] = rates.gap_us + rates.ramp_us[kernel["work_class"]] + duration_us
        times[index, 1] = arithmetic_us
        times[index, 2] = l2_us
        times[index, 3] = dram_us
        times[index, 4] = max(issue_us, l2_us * spread / busiest)
        if _IS_CORE[kernel["work_class"]]:
            # A thread has its core for itself as long as it runs, also while it waits for memory.
            times[index, 4] = times[index, 0] * spread / busiest
        times[index, 5] = power_us
        times[index, 6] = operands
        times[index, 7] = kept_us


@jit
def grid_blocks(kernel: np.void, rates: DeviceRates) -> float:
    """The blocks that a kernel is launched with: its own, but of averages no more than have in flight what they draw."""
    blocks: float = kernel["blocks"]
    if kernel["work_class"] == _AVERAGE:
        blocks = min(blocks, rates.sms * math.ceil(rates.l2_drawn[_AVERAGE] * kernel["resident"]))
    return blocks


@jit
def _arithmetic_us(kernel: np.void, rates: DeviceRates, spread: float, busiest: float) -> tuple[float, float]:
    """Arithmetic as its blocks are scheduled, and as if they filled the device evenly."""
    rate = (
        rates.flops_per_us_per_sm[kernel["work_class"], kernel["precision"]]
        * rates.tile_factor[kernel["tile"], kernel["precision"]]
    )
    block_us = kernel["flops"] / kernel["blocks"] / rate
    seen = rates.wave_quantisation * busiest + (1.0 - rates.wave_quantisation) * max(spread, 1.0)
    waves = math.floor(seen / kernel["resident"])
    rest = seen - waves * kernel["resident"]
    hiding = rates.hiding_threads / kernel["threads"]
    if kernel["steps"] > 0.0:
        # Steps follow one another: a block takes their latency at least, alone on its SM or not.
        block_us *= kernel["slowdown"]
        hiding = kernel["steps"] * kernel["slowdown"] * rates.tensor_step_us / block_us
    slots = waves * max(kernel["resident"], hiding)
    if rest > 1e-9:
        slots += max(rest, hiding)
        waves += 1
    arithmetic_us = slots * block_us
    arithmetic_us += rates.prologue_us[kernel["work_class"]] * waves
    issue_us = spread * block_us
    return arithmetic_us, issue_us


@jit
def lost_part(operand_bytes: float, cache_bytes: float) -> float:
    """The part of operands that a cache has lost by the time they are read again."""
    if operand_bytes <= _FITS * cache_bytes:
        return 0.0
    if operand_bytes >= _LOST * cache_bytes:
        return 1.0
    return (operand_bytes / cache_bytes - _FITS) / (_LOST - _FITS)


@jit
def _dram_us(kernel: np.void, rates: DeviceRates) -> tuple[float, float]:
    """DRAM time, and that of what L2 keeps: activations; what is read again within a wave, no neighbour pushes out."""
    activations = kernel["activation_bytes"] + kernel["bytes_written"]
    lost = activations * lost_part(activations + kernel["weight_bytes"], rates.resident_bytes)
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
    # What some classes reach by themselves is less than the device's bandwidth.
    return dram_us, (activations - lost) / rates.dram_bytes_per_us.max()
