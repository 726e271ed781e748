"""Microbenchmarks of an RTX 5090 and of a V100 as raw kernels, by mechanism.

Grids and times alone are as measured. A kernel's demands are derived from its table: bytes from sizes and iterations,
arithmetic from threads, iterations and instruction-level parallelism (ILP). Missing values are inferred from other rows
of the same table, which each function names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

from evidence.concurrency.corun_cases import CorunCase, Figure
from evidence.concurrency.microbenchmarks import V100, Microbenchmark, MicroKernel, percent_in
from iossim.backends.simulator.raw_kernels import Pipe, RawKernel
from iossim.execution.engine import Engine
from iossim.hardware.lowering.residence import lost_part
from iossim.hardware.profile import DeviceProfile

#: Facts of the recorded V100: its clock, from its fp64 pipe, which at an ILP of 4 makes 3.45e12 products per second in
#: 2560 lanes; and the bandwidth of two copies in L2 (2.9 TB/s, where library kernels reach less) and DRAM (726 GB/s).
V100_BOARD = (("boost_clock_ghz", 1.38), ("l2_bytes_per_clock_per_sm", 26.4), ("stream_efficiency", 0.81))
#: Iterations of the RTX 5090's fp64 kernels: with two lanes per SM, those that fill the pipe at an ILP of 4.
_RTX_5090_FP64_ITERATIONS = 2_000_000
#: Factor by which a background kernel must outlast the others.
_PERSISTENT = 20.0
#: Buffers in repeated use are evicted between 1.0 and 1.5 times an RTX 5090's L2, alone and together, those of
#: operators between 0.85 and 1.25: this fraction of their bytes therefore counts.
_LOST_LATER = 0.84
#: From this multiple of its size on, L2 retains nothing of operands.
_FAR_BEYOND_L2 = 1.5

SLOTS, L2, L2_ROOM, DRAM, FP64, ISSUE, L1, PRIORITY, PROBES = (
    "slots", "L2 bandwidth", "L2 capacity", "DRAM by SMs", "fp64 pipe", "copy beside arithmetic", "L1",
    "warp priority", "pairs of probes",
)  # fmt: skip


def microbenchmark_cases(rows: Sequence[Microbenchmark], profile: DeviceProfile) -> list[CorunCase]:
    """A case of each conclusive experiment of one device's table."""
    make = _Cases(rows, profile)
    found = []
    for row in rows:
        case = make.case(row)
        if case is not None:
            found.append(case)
    return found


class _Cases:
    def __init__(self, rows: Sequence[Microbenchmark], profile: DeviceProfile) -> None:
        self._profile = profile
        self._l2_bytes = profile.datasheet.l2_bytes.value
        #: This is the DRAM bandwidth of several blocks per SM.
        self._dram_bytes_per_us = 1e3 * max(
            (row.bandwidth_gbps or 0.0 for row in rows if row.how == "alone"), default=0.0
        )
        self._copy_iterations = self._inferred_iterations(rows)
        self._diagonal = {
            row.kernels[0].name: row.ratio or 1.0
            for row in rows
            if row.ratio is not None and len({kernel.name for kernel in row.kernels}) == 1
        }
        self._makers: dict[str, Callable[[Microbenchmark], CorunCase | None]] = {
            "thread_block_scheduler": self._sleep,
            "l2_cache": self._copies,
            "fp64_pipeline": self._fp64,
            "ipc_copy_plus_fp32": self._copy_beside_fp32,
            "ipc_copy_plus_fp32mul": self._copy_beside_fp32,
            "dram_bandwidth_vs_blocks": self._dram_by_blocks,
            "dram_bandwidth_mps_half_colocated_aggregate": lambda row: self._halves(row, rows),
            "l1_cache": self._l1,
            "torch.mm_fp32_beside_fma": self._product_beside_fma,
            "pair_matrix_slowdown_of_a": self._probes,
        }

    def case(self, row: Microbenchmark) -> CorunCase | None:
        make = self._makers.get(row.experiment)
        return None if make is None else make(row)

    def _inferred_iterations(self, rows: Sequence[Microbenchmark]) -> float:
        """Iterations of copies without a count in the table: two copies far beyond L2 use all of DRAM's bandwidth."""
        told = [
            row.together_us * self._dram_bytes_per_us / (4.0 * row.size_bytes)
            for row in rows
            if row.experiment == "l2_cache" and row.together_us and row.size_bytes
            if 2.0 * row.size_bytes > _FAR_BEYOND_L2 * self._l2_bytes
        ]
        return median(told) if told else 0.0

    def _sleep(self, row: Microbenchmark) -> CorunCase:
        return self._together(row, SLOTS, _raw_kernels(row))

    def _copies(self, row: Microbenchmark) -> CorunCase:
        """Repeated copies of ``size_bytes``: each iteration touches both buffers, and evictions from L2 cause DRAM
        traffic.

        The V100's copies are partly in L1, and show no eviction where two of them touch twice the size of L2: they have
        no footprint.
        """
        assert row.size_bytes is not None
        touched = 2.0 * _LOST_LATER * row.size_bytes
        moved = 2.0 * row.size_bytes * (row.iterations or self._copy_iterations)
        kernels = [
            replace(
                raw,
                l2_bytes=moved,
                dram_bytes=self._carried(moved * lost_part(touched, self._l2_bytes), raw),
                footprint_bytes=None if row.device == V100 else touched,
            )
            for raw in _raw_kernels(row)
        ]
        return self._together(
            row, L2 if 4.0 * row.size_bytes < self._l2_bytes else L2_ROOM, kernels, f"{row.size_bytes / 2**20:g} MiB"
        )

    def _carried(self, lost_bytes: float, raw: RawKernel) -> float:
        """DRAM traffic of lost bytes; 0 if DRAM cannot have carried them in the time alone, so that a cache did."""
        return lost_bytes if lost_bytes < 1e3 * self._profile.dram_bandwidth_gbps * (raw.alone_us or 0.0) else 0.0

    def _fp64(self, row: Microbenchmark) -> CorunCase:
        kernels = [replace(raw, flops=self._products(raw, row), pipe=Pipe.FP64) for raw in _raw_kernels(row)]
        return self._together(row, FP64, kernels)

    def _products(self, raw: RawKernel, row: Microbenchmark) -> float:
        """Operations of a kernel of multiplications; each occupies the slot of a multiply-add."""
        told = re.search(r"ILP (\d)", raw.name)
        parallel = int(told[1]) if told else 1
        iterations = row.iterations or _RTX_5090_FP64_ITERATIONS
        return 2.0 * raw.blocks * raw.threads * parallel * iterations

    def _copy_beside_fp32(self, row: Microbenchmark) -> CorunCase:
        copy, multiply = _raw_kernels(row)
        if row.device == V100:
            assert row.size_bytes is not None
            assert row.iterations is not None
            copy = replace(copy, dram_bytes=2.0 * row.size_bytes * row.iterations)
        multiply = replace(
            multiply, flops=self._fp32_flops(multiply, 0.79 if row.device != V100 else 0.93), pipe=Pipe.FP32
        )
        return self._together(row, ISSUE, [copy, multiply])

    def _fp32_flops(self, raw: RawKernel, part: float) -> float:
        """Operations that use a part of the device's fp32 pipes for the kernel's time alone."""
        return part * self._profile.fp32_tflops * 1e6 * (raw.alone_us or 0.0)

    def _dram_by_blocks(self, row: Microbenchmark) -> CorunCase:
        """A copy by few blocks, alone: its slowdown over many blocks."""
        (kernel,) = row.kernels
        assert row.bandwidth_gbps is not None
        assert row.size_bytes is not None
        moved = 2.0 * row.size_bytes
        base_us = moved / self._dram_bytes_per_us
        raw = replace(_raw(kernel, 0), alone_us=None, dram_bytes=moved)
        measured = self._dram_bytes_per_us / (1e3 * row.bandwidth_gbps)
        figure = Figure(kernel.name, DRAM, 0, measured, base_us, total=measured_sms(kernel, self._profile))
        return self._case(row, DRAM, [raw], (figure,), f"{kernel.blocks} blocks")

    def _halves(self, row: Microbenchmark, rows: Sequence[Microbenchmark]) -> CorunCase:
        """Two copies on half of the SMs each: over the time of one on its half while the other is idle."""
        (half,) = (one for one in rows if one.experiment == "dram_bandwidth_mps_half_alone_half")
        (alone_us,) = (kernel.alone_us for kernel in half.kernels)
        assert alone_us is not None
        assert half.bandwidth_gbps is not None
        assert row.together_us is not None
        moved = 1e3 * half.bandwidth_gbps * alone_us
        kernels = [
            replace(_raw(kernel, stream), alone_us=None, dram_bytes=moved) for stream, kernel in enumerate(row.kernels)
        ]
        figure = Figure(row.kernels[0].name, DRAM, None, row.together_us / alone_us, alone_us, total=2.0)
        return self._case(row, DRAM, kernels, (figure,), "two halves", sm_share=(50.0, 50.0))

    def _l1(self, row: Microbenchmark) -> CorunCase:
        assert row.size_bytes is not None
        return self._together(row, L1, _raw_kernels(row), f"{row.size_bytes / 2**10:g} KiB")

    def _product_beside_fma(self, row: Microbenchmark) -> CorunCase:
        """A matrix product that starts beside a long-running kernel."""
        product, fma = row.kernels
        assert row.together_us is not None
        assert product.alone_us is not None
        own, others = percent_in(row.note, "alone"), percent_in(row.note, "competitor")
        assert own is not None
        assert others is not None
        running = replace(_raw(fma, 0), alone_us=_PERSISTENT * product.alone_us, pipe=Pipe.FP32)
        starting = replace(_raw(product, 1), pipe=Pipe.FP32)
        running = replace(running, flops=self._fp32_flops(running, others))
        starting = replace(starting, flops=self._fp32_flops(starting, own))
        figure = Figure(product.name, PRIORITY, 1, row.together_us / product.alone_us, product.alone_us, total=2.0)
        return self._case(row, PRIORITY, [running, starting], (figure,), f"N = {row.size_bytes:g}")

    def _probes(self, row: Microbenchmark) -> CorunCase | None:
        """A probe beside another, each using one resource: the amount is inferred from its slowdown beside itself."""
        first, second = row.kernels
        if first.name == second.name or row.ratio is None:
            return None
        alone_us = 1_000.0
        raws = [self._probe(first.name, 1, alone_us), self._probe(second.name, 0, _PERSISTENT * alone_us)]
        figure = Figure(first.name, PROBES, 1, row.ratio, alone_us, total=2.0)
        return self._case(row, PROBES, raws[::-1], (figure,), f"{first.name} beside {second.name}")

    def _probe(self, name: str, stream: int, alone_us: float) -> RawKernel:
        part = min(1.0, self._diagonal.get(name, 1.0) / 2.0)
        raw = RawKernel(name, stream, self._profile.sm_count, 128, alone_us=alone_us)
        if name.endswith("dram"):
            return replace(raw, dram_bytes=part * self._dram_bytes_per_us * alone_us)
        if name.endswith("fma"):
            return replace(raw, flops=self._fp32_flops(raw, part), pipe=Pipe.FP32)
        if name.endswith("fp64"):
            return replace(raw, flops=self._fp32_flops(raw, part) / 64.0, pipe=Pipe.FP64)
        return raw

    def _together(
        self, row: Microbenchmark, mechanism: str, kernels: Sequence[RawKernel], title: str = ""
    ) -> CorunCase:
        assert row.together_us is not None
        alone_us = [kernel.alone_us or 0.0 for kernel in kernels]
        longest_us = max(alone_us)
        figure = Figure(
            kernels[0].name, mechanism, None, row.together_us / longest_us, longest_us, total=sum(alone_us) / longest_us
        )
        return self._case(row, mechanism, kernels, (figure,), title)

    def _case(
        self,
        row: Microbenchmark,
        mechanism: str,
        kernels: Sequence[RawKernel],
        figures: tuple[Figure, ...],
        title: str = "",
        sm_share: tuple[float, ...] | None = None,
    ) -> CorunCase:
        grids = " + ".join(f"{kernel.blocks} x {kernel.threads}" for kernel in kernels)
        name = " ".join(filter(None, [row.kernels[0].name if mechanism in (FP64,) else "", title or grids]))
        return CorunCase(
            row.data_set,
            row.device,
            row.line,
            mechanism,
            name,
            tuple(kernels),
            Engine.GRAPH,
            figures,
            sm_share,
            V100_BOARD if row.device == V100 else (),
        )


def measured_sms(kernel: MicroKernel, profile: DeviceProfile) -> float:
    """The total number of SMs over the number on which a kernel has blocks."""
    return max(1.0, profile.sm_count / (kernel.blocks or profile.sm_count))


def _raw(kernel: MicroKernel, stream: int) -> RawKernel:
    return RawKernel(kernel.name, stream, kernel.blocks or 1, kernel.threads or 32, alone_us=kernel.alone_us)


def _raw_kernels(row: Microbenchmark) -> list[RawKernel]:
    return [_raw(kernel, stream) for stream, kernel in enumerate(row.kernels)]
