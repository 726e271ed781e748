"""Rates of a device per microsecond, by class of work and precision, as the formula of kernel times reads them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from iossim.backends.simulator.kernel_rows import (
    CACHED_CLASSES,
    CLASS,
    CLASSES,
    CORE_CLASSES,
    MATRIX_CLASSES,
    NARROW_STREAM,
    PRECISION_NUMBER,
    TENSOR_CLASSES,
    TILE_NUMBER,
    TILED_CLASSES,
)
from iossim.base.compiled import Floats
from iossim.base.errors import OptionError
from iossim.hardware.compute_capability import SINCE_AMPERE, SINCE_HOPPER, WARP_THREADS
from iossim.hardware.lowering.gpu.matrix_product import BEFORE_VOLTA
from iossim.hardware.lowering.gpu.tensor_core_families import ATTENTION_ROWS, TENSOR_TILES
from iossim.hardware.lowering.kernel import ROW_LANES, Issue, WorkClass
from iossim.hardware.parameters import EngineOverheads
from iossim.hardware.profile import DeviceProfile
from iossim.ir.types import Precision

#: Latency of a load from DRAM and from L2 in kernels whose threads load one half at a time. The first follows from
#: normalisations of language models on an A100 and an A40 alike, 1003 and 585 GB/s (Little's law).
_HALF_BYTES = 2.0
_NARROW_DRAM_US, _NARROW_L2_US = 0.44, 0.22
#: Two passes of dependent loads with a sum over the block between them, however little they move; and one pass with a
#: sum: 12 fp32 products with a vector on an H200 are 8% off with it (*in-sample*), 23% without.
PASSES_RAMP_US, SUM_RAMP_US = 3.0, 1.0
#: Kernels of a thread an output that issuing their instructions bounds, counted in multiply-adds of a window's taps;
#: and operations of Volta's FP32 lanes per clock and warp scheduler: ``depthwise_efficiency`` is a part of these. A
#: scheduler issues an instruction a clock in all generations, however many lanes it feeds.
ISSUED_CLASSES = (WorkClass.DEPTHWISE, WorkClass.WINDOW, WorkClass.AVERAGE_WINDOW)
_ISSUED_FLOPS = 2 * 16
#: Exponentials of an SM per clock, from Volta to Blackwell (CUDA C++ Programming Guide).
_EXPONENTIALS_A_CLOCK = 16
_FP32_TILED = frozenset((*TILED_CLASSES, *CORE_CLASSES)) - frozenset(TENSOR_CLASSES)
_TRANSFORMS = (WorkClass.TRANSFORM, WorkClass.FILTER_TRANSFORM, WorkClass.TILE_GENERATION)
#: Multiply-adds a loaded element at which tensor cores wait for their operands half of the time. Volta and Turing
#: load through registers; where copies are asynchronous, units that take fewer bytes are fed more easily.
_HALF_FED_REUSE, _HALF_FED_BYTES = 10.0, 4096.0

#: The part of filling and draining that is seen in kernels that hold many short blocks on an SM, at all stages of
#: their lives. Pinned on the published latency of NasNet-A run unit after unit.
GROUPED_PROLOGUE_SEEN = 0.35


class DeviceRates(NamedTuple):
    """Rates of a device per microsecond, and other inputs of the formula; see ``ModelParameters``."""

    sms: float
    flops_per_us_per_sm: Floats  #: shape ``[classes, precisions]``
    tile_factor: Floats  #: shape ``[tiles, precisions]``
    dram_bytes_per_us: Floats  #: shape ``[classes]``
    l2_bytes_per_us_per_sm: Floats  #: shape ``[classes]``
    l2_bytes_per_us: float  #: of all SMs together
    #: Parts of these that a class has enough in flight to draw, shape ``[classes]``.
    dram_drawn: Floats
    l2_drawn: Floats
    #: The factor on it for operands beyond ``core_cache_bytes`` in all, shape ``[classes]``.
    beyond_core_cache: Floats
    core_cache_bytes: float
    resident_bytes: float
    l2_written_factor: float  #: bytes of L2 that a written byte takes
    #: Arithmetic that the board's power allows, inf where no limit is known, shape ``[classes, precisions]``.
    sustained_flops_per_us: Floats
    hiding_threads: float
    dram_latency_factor: float
    prologue_us: Floats  #: shape ``[classes]``
    tile_prologue: Floats  #: shape ``[tiles]``: of a tile, over that of one of 128x128
    tile_filled_bytes: Floats  #: shape ``[tiles]``: of a block, for whose loading all blocks wait together
    tile_persistent: Floats  #: shape ``[tiles]``: 1 where a block walks over tiles, 0 where it computes one
    ramp_us: Floats  #: shape ``[classes]``
    gap_us: float
    wave_quantisation: float
    overlap_norm: Floats  #: shape ``[classes]``
    tensor_step_us: float
    dram_latency_us: Floats  #: that a kernel sees, shape ``[classes]``
    exponentials_per_us_per_sm: float
    attention_overlap_norm: float
    #: Additional loads of tensor-core products, as a part of operands in DRAM whose inner dimension is contiguous.
    tensor_strided_excess: float
    reuse_bytes: float
    drift_inner: float
    translation_penalty: float
    translation_reach_bytes: float


#: The rates that were asked for last: a fit prices set after set of one device with the same profile object.
_LAST_RATES: dict[Issue, tuple[DeviceProfile, DeviceRates]] = {}

#: Exponent of the p-norm by which the bandwidth of a few SMs turns into that of the device. One for all
#: devices: an A6000 turns more sharply (8 and more), an RTX 5090 more softly (2.5); 4 is within 4% of both.
REACH_NORM = 4.0


def device_rates(profile: DeviceProfile, issue: Issue = Issue.CALLS, sms: int | None = None) -> DeviceRates:
    """The rates of a profile, or of ``sms`` of its SMs, for kernels that come by ``issue``.

    A transform of layout inside a call shows what the host takes to launch it
    (:attr:`~EngineOverheads.dispatch_layout_us`). A node of a graph has a shorter gap before it and takes
    :attr:`~EngineOverheads.graph_kernel_us` at least, on tensor cores ``graph_tensor_kernel_us``. In a network the
    code of each tensor-core convolution comes from DRAM (:attr:`~EngineOverheads.cold_convolution_us`).

    A part of the SMs has fewer of them to lay blocks on, and of DRAM what those SMs can draw
    (:func:`bandwidth_part`). Each SM has what it had: its lanes, and its port to L2. The board's power is not
    divided. Raises OptionError for no SMs, or for more than there are.
    """
    last = _LAST_RATES.get(issue)
    if last is None or last[0] is not profile:
        last = _LAST_RATES[issue] = (profile, _device_rates(profile, issue))
    return last[1] if sms is None or sms == profile.sm_count else _on_part(last[1], profile, sms)


def bandwidth_part(part: float, reach: float) -> float:
    """The part of the device's DRAM bandwidth that a part of its SMs can draw: ``min(1, reach * part)``, smoothly.

    An SM draws at most ``reach`` times its even share: what it can have in flight over the latency (Little's law).
    The minimum is by a p-norm, over its value for all SMs: those draw all that there is.
    """
    return float(((1.0 + reach**-REACH_NORM) / (1.0 + (reach * part) ** -REACH_NORM)) ** (1.0 / REACH_NORM))


def _on_part(whole: DeviceRates, profile: DeviceProfile, sms: int) -> DeviceRates:
    if not 0 < sms < profile.sm_count:
        raise OptionError(f"{sms} SMs of {profile.name!r}: it has {profile.sm_count}; give 1 to {profile.sm_count}")
    part = bandwidth_part(sms / profile.sm_count, profile.parameters.sm_bandwidth_reach)
    dram = whole.dram_bytes_per_us * part
    drawn = whole.dram_drawn.copy()
    drawn[NARROW_STREAM] = _narrow_part(profile, sms * _HALF_BYTES / _NARROW_DRAM_US, dram[NARROW_STREAM])
    l2 = whole.l2_bytes_per_us * part
    return whole._replace(sms=float(sms), dram_bytes_per_us=dram, l2_bytes_per_us=l2, dram_drawn=drawn)


def _narrow_part(profile: DeviceProfile, bytes_per_us: float, bandwidth: float) -> float:
    """The part of a bandwidth that an SM's threads draw, each ``bytes_per_us``."""
    return min(1.0, profile.limits.max_threads * bytes_per_us / bandwidth)


def _device_rates(profile: DeviceProfile, issue: Issue) -> DeviceRates:
    p, engine = profile.parameters, profile.engine
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
        WorkClass.ATTENTION: p.attention_efficiency,
        WorkClass.CORE_PRODUCT: p.gemm_efficiency,
        WorkClass.CORE_BLOCKED: p.implicit_gemm_efficiency,
        WorkClass.CORE_BLOCKED_WINDOW: p.depthwise_efficiency,
    }
    streaming = (
        *(WorkClass.STREAM, WorkClass.PARTS, WorkClass.SUM, WorkClass.ROW, WorkClass.NARROW_STREAM),
        *(WorkClass.WINDOW, WorkClass.AVERAGE_WINDOW, WorkClass.DEPTHWISE),
    )
    memory = {
        **dict.fromkeys(streaming, p.stream_efficiency),
        **dict.fromkeys(TENSOR_CLASSES, p.tensor_dram_efficiency),
        WorkClass.TRANSFORM: p.transform_efficiency,
        WorkClass.FILTER_TRANSFORM: p.filter_transform_efficiency,
        WorkClass.TILE_GENERATION: p.tile_generation_efficiency,
        WorkClass.LAYOUT: p.layout_efficiency,
    }
    ramps_us = {
        **dict.fromkeys((*TILED_CLASSES, *CORE_CLASSES, WorkClass.INDEX), 0.0),
        **dict.fromkeys((WorkClass.WINDOW, WorkClass.AVERAGE_WINDOW), p.stream_ramp_us + p.window_ramp_us),
        **dict.fromkeys((WorkClass.ROW, WorkClass.NARROW_STREAM), p.stream_ramp_us + PASSES_RAMP_US),
        **dict.fromkeys(_TRANSFORMS, p.transform_ramp_us),
        WorkClass.SUM: p.stream_ramp_us + SUM_RAMP_US,
        WorkClass.PARTS: p.stream_ramp_us + SUM_RAMP_US * (profile.architecture in SINCE_HOPPER),
        WorkClass.LAYOUT: p.layout_ramp_us,
        WorkClass.ATTENTION: p.attention_ramp_us,
    }
    overlap_norms = {**dict.fromkeys(TENSOR_CLASSES, p.tensor_overlap_norm), WorkClass.GEMM: p.gemm_overlap_norm}
    prologue_clocks = {
        **dict.fromkeys(TILED_CLASSES, p.block_prologue_clocks),
        **dict.fromkeys(TENSOR_CLASSES, p.tensor_prologue_clocks),
        WorkClass.GEMM: p.gemm_prologue_clocks,
        WorkClass.ATTENTION: p.attention_prologue_clocks,
        WorkClass.GROUPED: GROUPED_PROLOGUE_SEEN * p.block_prologue_clocks,
    }
    gflops_per_watt = {
        **dict.fromkeys(TENSOR_CLASSES, p.tensor_sustained_gflops_per_watt),
        WorkClass.GEMM: p.gemm_sustained_gflops_per_watt,
    }
    peak = profile.fp32_tflops * 1e6 / sms  # a teraflop a second is a megaflop a microsecond
    flops = np.empty((len(CLASSES), len(PRECISION_NUMBER)))
    for work_class, index in CLASS.items():
        flops[index] = peak * efficiency.get(work_class, p.vector_efficiency)
    flops[CLASS[WorkClass.ROW]] = 2 * ROW_LANES * clocks_per_us * _row_rate(profile)
    gflops = np.array([gflops_per_watt.get(c, p.sustained_gflops_per_watt) * profile.board_power_w for c in CLASSES])
    sustained = np.repeat(gflops[:, None] * 1e3, len(PRECISION_NUMBER), axis=1)
    for work_class in ISSUED_CLASSES:
        index = CLASS[work_class]
        flops[index] = _ISSUED_FLOPS * profile.limits.warp_schedulers * clocks_per_us * p.depthwise_efficiency
        # The clock that the board's power leaves to products is that of the schedulers, too.
        sustained[index] = sms * flops[index] * np.minimum(1.0, sustained[index] / (sms * peak))
    is_matrix = [work_class in MATRIX_CLASSES for work_class in CLASSES]
    half_tflops = profile.reduced_precision_tflops(Precision.FP16)
    accumulation = datasheet.fp16_accumulation_tflops
    for precision, column in PRECISION_NUMBER.items():
        # Reduced precision: the same kernels on units that are faster than the fp32 lanes.
        tflops = fp32_sums = profile.reduced_precision_tflops(precision)
        if accumulation and issue is Issue.GRAPH and precision is Precision.FP16:
            tflops = accumulation.value  # what inference compilers accumulate in
        if tflops is not None:
            flops[is_matrix, column] = tflops * 1e6 / sms * p.reduced_precision_efficiency
            sustained[is_matrix, column] = np.inf
            for work_class in TENSOR_CLASSES:
                # Attention sums in fp32 whatever it reads.
                reached = fp32_sums or tflops if work_class is WorkClass.ATTENTION else tflops
                flops[CLASS[work_class], column] = reached * 1e6 / sms * efficiency[work_class]
                # A multiply-add of fewer bits takes that much less energy as there are more of them in a clock.
                sustained[CLASS[work_class], column] *= reached / (half_tflops or reached)
    factors = {name: getattr(p, f"tile_{name}_factor", 1.0) for name in TILE_NUMBER}
    tile_factor = np.repeat(np.array(list(factors.values()))[:, None], len(PRECISION_NUMBER), axis=1)
    for precision, column in PRECISION_NUMBER.items():
        half_fed = _half_fed_reuse(profile, precision)
        for name, tile in TENSOR_TILES.items():
            tile_factor[TILE_NUMBER[name], column] = tile.rate * tile.reuse / (tile.reuse + half_fed)
    l2_bytes_per_clock = dict.fromkeys(TENSOR_CLASSES, p.tensor_l2_bytes_per_clock_per_sm)
    l2_factor = dict.fromkeys((WorkClass.CORE_BLOCKED, WorkClass.CORE_BLOCKED_WINDOW), p.transform_efficiency)
    # A gigabyte a second is a kilobyte a microsecond.
    dram = np.array([profile.dram_bandwidth_gbps * 1e3 * memory.get(c, p.dram_efficiency) for c in CLASSES])
    l2_per_clock = [l2_bytes_per_clock.get(c, p.l2_bytes_per_clock_per_sm) for c in CLASSES]
    l2 = np.array([b * clocks_per_us * l2_factor.get(c, 1.0) for b, c in zip(l2_per_clock, CLASSES, strict=True)])
    prologues = {name: tile.prologue for name, tile in TENSOR_TILES.items()} | ATTENTION_ROWS
    dram_drawn, l2_drawn = np.ones(len(CLASSES)), np.ones(len(CLASSES))
    dram_drawn[NARROW_STREAM] = _narrow_part(profile, sms * _HALF_BYTES / _NARROW_DRAM_US, dram[NARROW_STREAM])
    l2_drawn[NARROW_STREAM] = _narrow_part(profile, _HALF_BYTES / _NARROW_L2_US, l2[NARROW_STREAM])
    return DeviceRates(
        float(sms),
        flops,
        tile_factor,
        dram,
        l2,
        # Data from DRAM pass through L2, so that its bandwidth is no lower.
        max(p.l2_shared_bytes_per_clock_per_sm * clocks_per_us * sms, profile.dram_bandwidth_gbps * 1e3)
        if datasheet.core_cache_bytes is None
        else math.inf,
        dram_drawn,
        l2_drawn,
        np.array([p.beyond_core_cache_factor if c in CACHED_CLASSES else 1.0 for c in CLASSES]),
        float(datasheet.core_cache_bytes.value) if datasheet.core_cache_bytes else math.inf,
        p.l2_resident_fraction * datasheet.l2_bytes.value,
        p.l2_written_factor,
        sustained,
        p.latency_hiding_warps * WARP_THREADS,
        p.dram_latency_factor,
        np.array([prologue_clocks.get(c, 0.0) / clocks_per_us for c in CLASSES]),
        np.array([prologues.get(name, 1.0) for name in TILE_NUMBER]),
        np.array([TENSOR_TILES[name].filled_bytes if name in TENSOR_TILES else 0.0 for name in TILE_NUMBER]),
        np.array([name in TENSOR_TILES and TENSOR_TILES[name].is_persistent for name in TILE_NUMBER], dtype=float),
        np.array([_ramp_us(c, ramps_us.get(c, p.stream_ramp_us), p.kernel_gap_us, engine, issue) for c in CLASSES]),
        p.kernel_gap_us * (engine.graph_gap_factor if issue is Issue.GRAPH else 1.0),
        p.wave_quantisation,
        np.array([overlap_norms.get(c, p.overlap_norm) for c in CLASSES]),
        p.tensor_step_clocks / clocks_per_us,
        np.array([p.tensor_dram_latency_us * (c in TENSOR_CLASSES) for c in CLASSES]),
        _EXPONENTIALS_A_CLOCK * clocks_per_us,
        p.attention_overlap_norm,
        1.0 / p.tensor_strided_efficiency - 1.0,
        p.reuse_l2_fraction * datasheet.l2_bytes.value,
        p.drift_inner,
        p.translation_penalty,
        p.translation_reach_bytes,
    )


def _row_rate(profile: DeviceProfile) -> float:
    """Rate of an SM at row kernels, relative to one of Volta or later.

    Before Volta integers shared the lanes; a P100's SM has two schedulers. Pinned on layer norm and softmax (P4,
    P100).
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


def _ramp_us(work_class: WorkClass, ramp_us: float, gap_us: float, engine: EngineOverheads, issue: Issue) -> float:
    """The ramp of a class whose own is ``ramp_us``, for kernels that come by ``issue`` after gaps of ``gap_us``."""
    if issue is Issue.CALLS:
        return ramp_us + engine.dispatch_layout_us if work_class is WorkClass.LAYOUT else ramp_us
    if issue is Issue.PROFILER:
        return ramp_us  # what starts and ends a kernel there is a constant of the recording
    is_cold = work_class is WorkClass.TENSOR_CONVOLUTION
    if not is_cold and (issue is Issue.STREAM or work_class in _FP32_TILED):
        return ramp_us  # what a kernel takes at least is in the gap, or in the prologues of products on FP32 lanes
    least_us = engine.graph_tensor_kernel_us if work_class in TENSOR_CLASSES else engine.graph_kernel_us
    ramp_us = max(ramp_us, least_us - gap_us * engine.graph_gap_factor)
    return ramp_us + engine.cold_convolution_us if is_cold else ramp_us
