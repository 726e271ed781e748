"""How long a kernel takes alone on an idle device, and what it asks of the device meanwhile.

The duration is the longest of three times, plus the gap between kernels of a stream:

- *arithmetic*: the busiest SM runs ``ceil(blocks / SMs)`` blocks in waves of as many as it holds (occupancy). A wave
  of ``b`` blocks takes as long as ``max(b, h)``, where ``h`` blocks hide the latency of arithmetic: below that, an SM
  waits. A wave of tiled blocks also fills and drains its pipelines. Boards of little power sustain less than their peak.
- *L2*: the busiest SM's part of the traffic between SMs and L2.
- *DRAM*: weights, and what of the activations does not stay in L2.

A kernel that leaves SMs idle, or waits for latency, leaves room for others. ``issue_demand`` is the part of the
device's achievable issue capacity that it uses while running alone: its arithmetic (or L2) time on a full device over
its duration; ``dram_demand`` the same of DRAM. Waves, latency hiding and the roofline follow Zhang and Owens (2011)
and Williams et al. (2009).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import fsum

from iossim.devices.compute_capability import WARP_THREADS
from iossim.devices.profile import DeviceProfile
from iossim.ir.types import Precision
from iossim.lowering.kernel import Candidate, Kernel, WorkClass
from iossim.lowering.occupancy import resident_blocks

_MATRIX_CLASSES = (
    WorkClass.GEMM,
    WorkClass.IMPLICIT_GEMM,
    WorkClass.SMALL_TILE_GEMM,
    WorkClass.WINOGRAD_GEMM,
)
_TILED_CLASSES = (*_MATRIX_CLASSES, WorkClass.WINOGRAD_FUSED)
_WINDOW_CLASSES = (WorkClass.WINDOW, WorkClass.DEPTHWISE)


@dataclass(frozen=True, slots=True)
class KernelPrice:
    """``alone_us`` on an idle device; demands are fractions of the device's capacity, 0 to 1."""

    alone_us: float
    issue_demand: float
    dram_demand: float


class KernelModel:
    """Prices kernels on one device; ``gap_factor`` shortens the profile's gap between kernels of a stream."""

    def __init__(self, profile: DeviceProfile, gap_factor: float = 1.0) -> None:
        parameters = profile.parameters
        self.profile = profile
        self._limits = profile.limits
        self._sms = profile.sm_count
        self._gap_us = parameters.kernel_gap_us * gap_factor
        self._hiding_warps = parameters.latency_hiding_warps
        self._prologue_us = parameters.block_prologue_us
        self._resident_bytes = parameters.l2_resident_fraction * profile.datasheet.l2_bytes.value
        # A gigabyte a second is a kilobyte a microsecond, a teraflop a second a megaflop a microsecond.
        self._dram_bytes_per_us = profile.dram_bandwidth_gbps * 1e3 * parameters.dram_efficiency
        self._l2_bytes_per_us_per_sm = parameters.l2_bytes_per_clock_per_sm * profile.boost_clock_ghz * 1e3
        self._sustained_flops_per_us = (
            parameters.sustained_gflops_per_watt * profile.datasheet.board_power_w.value * 1e3
        )
        self._window_factor = parameters.window_memory_factor
        efficiency = {
            WorkClass.GEMM: parameters.gemm_efficiency,
            WorkClass.IMPLICIT_GEMM: parameters.implicit_gemm_efficiency,
            WorkClass.SMALL_TILE_GEMM: parameters.gemm_efficiency * parameters.small_tile_factor,
            WorkClass.WINOGRAD_FUSED: parameters.winograd_fused_efficiency,
            WorkClass.WINOGRAD_GEMM: parameters.winograd_gemm_efficiency,
            WorkClass.DEPTHWISE: parameters.depthwise_efficiency,
            WorkClass.WINDOW: parameters.vector_efficiency,
            WorkClass.STREAM: parameters.vector_efficiency,
        }
        peak = profile.fp32_tflops * 1e6 / self._sms
        self._flops_per_us_per_sm = {
            (work_class, precision): peak * efficiency[work_class]
            for work_class in WorkClass
            for precision in Precision
        }
        # Reduced precision: the same kernels on units that are faster than the fp32 lanes.
        self._is_reduced: set[Precision] = set()
        for precision in Precision:
            tflops = profile.reduced_precision_tflops(precision)
            if tflops is None:
                continue
            self._is_reduced.add(precision)
            for work_class in _MATRIX_CLASSES:
                factor = parameters.small_tile_factor if work_class is WorkClass.SMALL_TILE_GEMM else 1.0
                rate = tflops * 1e6 / self._sms * parameters.reduced_precision_efficiency * factor
                self._flops_per_us_per_sm[work_class, precision] = rate

    def price(self, kernel: Kernel) -> KernelPrice:
        """Duration and demands of a kernel; a kernel of which no block fits an SM takes forever."""
        resident = resident_blocks(
            self._limits, kernel.threads_per_block, kernel.registers_per_thread, kernel.shared_bytes_per_block
        )
        if resident == 0:
            return KernelPrice(float("inf"), 1.0, 1.0)
        on_busiest = -(-kernel.blocks // self._sms)
        waves, rest = divmod(on_busiest, resident)
        hiding = self._hiding_warps * WARP_THREADS / kernel.threads_per_block
        slots = waves * max(resident, hiding) + (max(rest, hiding) if rest else 0.0)

        block_us = kernel.flops / kernel.blocks / self._flops_per_us_per_sm[kernel.work_class, kernel.precision]
        device_blocks = kernel.blocks / self._sms
        arithmetic_us = slots * block_us
        if kernel.work_class in _TILED_CLASSES:
            arithmetic_us += self._prologue_us * (waves + (rest > 0))
        arithmetic_full_us = device_blocks * block_us
        if kernel.precision not in self._is_reduced or kernel.work_class not in _MATRIX_CLASSES:
            sustained_us = kernel.flops / self._sustained_flops_per_us
            arithmetic_us = max(arithmetic_us, sustained_us)
            arithmetic_full_us = max(arithmetic_full_us, sustained_us)

        memory_factor = self._window_factor if kernel.work_class in _WINDOW_CLASSES else 1.0
        l2_block_us = kernel.l2_bytes / kernel.blocks / (self._l2_bytes_per_us_per_sm * memory_factor)
        l2_us = on_busiest * l2_block_us
        dram_us = self.dram_bytes(kernel) / (self._dram_bytes_per_us * memory_factor)

        alone_us = self._gap_us + max(arithmetic_us, l2_us, dram_us)
        issue_us = max(arithmetic_full_us, device_blocks * l2_block_us)
        return KernelPrice(alone_us, issue_us / alone_us, dram_us / alone_us)

    def dram_bytes(self, kernel: Kernel) -> float:
        """Bytes that pass through DRAM: all weights, and what of the activations exceeds their part of L2."""
        return (
            kernel.weight_bytes
            + max(0.0, kernel.activation_bytes - self._resident_bytes)
            + max(0.0, kernel.bytes_written - self._resident_bytes)
        )

    def fastest(self, candidates: Iterable[Candidate]) -> tuple[Candidate, tuple[KernelPrice, ...]]:
        """The candidate that is fastest alone, the first of equals, with its kernels' prices."""
        best: tuple[Candidate, tuple[KernelPrice, ...]] | None = None
        best_us = float("inf")
        for candidate in candidates:
            prices = tuple(self.price(kernel) for kernel in candidate.kernels)
            total_us = fsum(price.alone_us for price in prices)
            if best is None or total_us < best_us:
                best, best_us = (candidate, prices), total_us
        assert best is not None, "every op has a candidate"
        return best
