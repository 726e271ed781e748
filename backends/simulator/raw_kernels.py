"""Kernels from figures of Nsight Compute: grid, resources, time alone, bytes and arithmetic.

A raw kernel becomes the :class:`~iossim.backends.simulator.kernel_work.KernelWork` of the event-driven engine. It
asks of each resource what was given over what the device gives; what is left of its time alone is latency. Without a
time alone it takes the longest of what it asks for (a roofline). The rest is inferred, and said. The blocks of a
kernel that DRAM or L2 hold up run as fast as an SM can draw, where the kernel has fewer SMs or neighbours.

DRAM gives the part of its bandwidth that copies reach; the whole of L2 what library kernels reach on all SMs
(``l2_bytes_per_clock_per_sm``), and one SM ``sm_bandwidth_reach`` times its even share of it; a pipe what its lanes
do at boost clock; issue an instruction a clock for each warp scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import isfinite

from iossim.backends.simulator.device_rates import bandwidth_part
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.backends.simulator.kernel_rows import TENSOR_CLASSES
from iossim.backends.simulator.kernel_work import KernelWork, kernel_work, least_block_us, waves_us
from iossim.base.errors import OptionError
from iossim.hardware.compute_capability import TENSOR_CORES, WARP_THREADS
from iossim.hardware.lowering.kernel import Kernel, ceil_div, resident_blocks
from iossim.hardware.profile import DeviceProfile
from iossim.ir.types import Precision

#: fp64 multiply-adds per clock and SM (CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions").
FP64_LANES: dict[str, int] = {
    "3.5": 64, "3.7": 64, "5.0": 4, "5.2": 4, "6.0": 32, "6.1": 4, "6.2": 4, "7.0": 32, "7.2": 32, "7.5": 2,
    "8.0": 32, "8.6": 2, "8.7": 2, "8.9": 2, "9.0": 64, "10.0": 64, "12.0": 2,
}  # fmt: skip
#: 32-bit integer additions per clock and SM.
INT_LANES: dict[str, int] = {
    "3.5": 160, "3.7": 160, "5.0": 128, "5.2": 128, "6.0": 64, "6.1": 128, "6.2": 128, "7.0": 64, "7.2": 64,
    "7.5": 64, "8.0": 64, "8.6": 64, "8.7": 64, "8.9": 64, "9.0": 64, "10.0": 64, "12.0": 128,
}  # fmt: skip


class Pipe(StrEnum):
    """The arithmetic pipes of an SM; each has a capacity of its own."""

    FP32 = "fp32"
    FP64 = "fp64"
    TENSOR = "tensor"
    INT = "int"


@dataclass(frozen=True, slots=True)
class RawKernel:
    """One launch of a kernel in a stream; None is what was not given, and is inferred.

    ``flops`` are operations of ``pipe``; a multiply-add is two, and so is an addition or a multiplication by itself.
    """

    name: str
    stream: int
    blocks: int
    threads: int
    registers_per_thread: int | None = None
    shared_bytes: int | None = None
    alone_us: float | None = None
    dram_bytes: float | None = None
    l2_bytes: float | None = None
    footprint_bytes: float | None = None
    flops: float | None = None
    pipe: Pipe | None = None
    #: A library's kernel, from an op with its shape: then nothing else is needed.
    kernel: Kernel | None = None


#: Registers of a thread where the compiler was not asked: enough for a simple kernel.
_REGISTERS = 32
#: Operations of a multiply-add of a thread, and of a warp's instruction of a tensor core (m16n8k8).
_LANE_FLOPS, _TENSOR_INSTRUCTION_FLOPS = 2.0, 2048.0
#: Largest ratio of a measured rate to the device's peak: clocks move, and peaks are rounded.
_TOLERANCE = 1.05
_ASKS = ("dram_bytes", "l2_bytes", "flops")


def raw_kernel_work(raw: RawKernel, model: KernelModel) -> tuple[KernelWork, tuple[str, ...]]:
    """The work of a raw kernel on the SMs of the model, and what was inferred, a phrase each.

    ``alone_us`` is that on the whole device, whichever the model's SMs are. Raises OptionError, naming the kernel,
    for figures that cannot be, for more than the device gives in its time alone, and where nothing tells the time.
    """
    if raw.kernel is not None:
        work = kernel_work(model, raw.kernel)
        pipe = Pipe.TENSOR if raw.kernel.work_class in TENSOR_CLASSES else Pipe.FP32
        return replace(work, name=raw.name, pipe=str(pipe), pipe_us=work.issue_us if raw.kernel.flops else 0.0), ()
    _check(raw)
    profile = model.profile
    said: list[str] = []
    registers = _given(raw.registers_per_thread, _REGISTERS, f"{_REGISTERS} registers a thread assumed", said)
    shared = _given(raw.shared_bytes, 0, "no shared memory assumed", said)
    asked = _Asked(raw, profile, said)
    alone_us = raw.alone_us
    sms, used = profile.sm_count, int(model.rates.sms)
    busiest = ceil_div(raw.blocks, sms)
    if alone_us is None:
        alone_us, on_sms_us = asked.roofline_us(busiest)
        said.append(f"{alone_us:.6g} us alone by what it asks for (a roofline)")
        used = min(raw.blocks, used)
    else:
        on_sms_us = asked.fit_into(alone_us)
    reach = bandwidth_part(used / sms, profile.parameters.sm_bandwidth_reach)
    resident = max(1, resident_blocks(profile.limits, raw.threads, registers, shared))
    issue_us, pipe_us, l2_us = asked.block_us
    longest_us = max(issue_us, pipe_us, l2_us)
    least_us = least_block_us(on_sms_us, busiest, resident, longest_us)
    found_us = waves_us(busiest, resident, least_us, longest_us)
    # The busiest SM may have more blocks than its even share: then these are not all alike.
    even = min(1.0, alone_us / found_us) if found_us else 1.0
    work = KernelWork(
        raw.name,
        raw.blocks,
        raw.threads,
        registers,
        shared,
        issue_us=issue_us * even,
        least_us=least_us * even,
        l2_us=l2_us * even,
        dram_us=asked.dram_us,
        gap_us=model.rates.gap_us,
        power_us=min(asked.power_us, alone_us),
        pipe=str(asked.pipe or ""),
        pipe_us=pipe_us * even,
        l2_device_us=asked.l2_device_us,
        footprint_bytes=asked.footprint_bytes,
        kept_us=asked.kept_us,
        reach=reach,
    )
    return work, tuple(said)


class _Asked:
    """Demand of a raw kernel on the device: microseconds of each resource, and a block's on its SM (issue, pipe, L2
    port).
    """

    def __init__(self, raw: RawKernel, profile: DeviceProfile, said: list[str]) -> None:
        self._raw, self._said = raw, said
        parameters = profile.parameters
        clocks_per_us = profile.boost_clock_ghz * 1e3
        sms = profile.sm_count
        dram_bytes = raw.dram_bytes or 0.0
        l2_bytes = raw.l2_bytes
        if l2_bytes is None:
            l2_bytes = dram_bytes
            if dram_bytes:
                said.append("L2 traffic as that with DRAM")
        footprint = raw.footprint_bytes
        kept_bytes = l2_bytes - dram_bytes
        if footprint is None:
            footprint = dram_bytes or l2_bytes
            kept_bytes = footprint - dram_bytes
            if footprint:
                told = "DRAM" if dram_bytes else "L2"
                said.append(f"touches {footprint:.6g} bytes, as its traffic with {told}")
        self.pipe = raw.pipe
        flops = raw.flops or 0.0
        if flops and self.pipe is None:
            self.pipe = Pipe.FP32
            said.append("fp32 pipe assumed")
        if not flops:
            self.pipe = None
        if not (flops or l2_bytes):
            said.append("asks for nothing: it only holds its slots")
        self._most = parameters.sm_bandwidth_reach
        # A few blocks draw only what their few SMs can.
        self._reach = bandwidth_part(min(1.0, raw.blocks / sms), parameters.sm_bandwidth_reach)
        dram_rate = profile.dram_bandwidth_gbps * 1e3
        self._dram_peak_us = dram_bytes / dram_rate
        self.dram_us = self._dram_peak_us / parameters.stream_efficiency
        self.kept_us = max(0.0, kept_bytes) / (dram_rate * parameters.stream_efficiency)
        self.footprint_bytes = footprint
        share_rate = parameters.l2_bytes_per_clock_per_sm * clocks_per_us
        self.l2_device_us = l2_bytes / (sms * share_rate)
        l2_us = l2_bytes / raw.blocks / (share_rate * parameters.sm_bandwidth_reach)
        pipe_rate = _flops_per_us(self.pipe, profile, raw.name) if self.pipe else 1.0
        self._pipe_peak_us = flops / (sms * pipe_rate)
        tensor = self.pipe is Pipe.TENSOR
        self._efficiency = parameters.tensor_efficiency if tensor else parameters.vector_efficiency
        instruction_flops = _TENSOR_INSTRUCTION_FLOPS if tensor else WARP_THREADS * _LANE_FLOPS
        issue_rate = profile.limits.warp_schedulers * instruction_flops * clocks_per_us
        self.block_us = flops / raw.blocks / issue_rate, flops / raw.blocks / pipe_rate, l2_us
        watt = parameters.tensor_sustained_gflops_per_watt if tensor else parameters.sustained_gflops_per_watt
        has_power = self.pipe in (Pipe.FP32, Pipe.TENSOR)
        self.power_us = flops / (watt * profile.board_power_w * 1e3) if has_power else 0.0

    def roofline_us(self, busiest: int) -> tuple[float, float]:
        """The longest of its demands at the efficiencies of the profile, and that of its SMs.

        ``busiest`` is the number of blocks of the busiest SM.
        """
        arithmetic_us = busiest * self.block_us[1] / self._efficiency
        bandwidth_us = max(self.dram_us, self.l2_device_us)
        return (
            max(bandwidth_us / self._reach, arithmetic_us, self.power_us),
            max(bandwidth_us / self._most, arithmetic_us),
        )

    def fit_into(self, alone_us: float) -> float:
        """Take what exceeds a time alone, a little, as all of it; returns how long its SMs would take.

        Raises OptionError where it exceeds by much.
        """
        name = self._raw.name
        for given, peak_us in (("dram_bytes", self._dram_peak_us), ("flops", self._pipe_peak_us)):
            if peak_us > alone_us * _TOLERANCE:
                raise OptionError(
                    f"kernel {name!r}: {getattr(self._raw, given):g} {given} take the device {peak_us:.6g} us at its "
                    f"peak, and alone_us is {alone_us:g}; correct one of them"
                )
        over = [
            (self.dram_us, "all of DRAM's bandwidth"),
            (self.l2_device_us, "all of L2's bandwidth"),
            (self._pipe_peak_us, f"all of the {self.pipe} pipes"),
        ]
        self._said += [f"uses {what} (what was given is more)" for us, what in over if us > alone_us]
        holds_up = alone_us / _TOLERANCE
        waves_us = alone_us
        if max(self.dram_us, self.l2_device_us) > holds_up:
            waves_us = max(alone_us / self._most, self._pipe_peak_us)
        self.dram_us = alone_us if self.dram_us > holds_up else self.dram_us
        self.l2_device_us = alone_us if self.l2_device_us > holds_up else self.l2_device_us
        return waves_us


def _flops_per_us(pipe: Pipe, profile: DeviceProfile, name: str) -> float:
    """Rate of one SM's pipe per microsecond."""
    clocks_per_us = profile.boost_clock_ghz * 1e3
    if pipe is Pipe.TENSOR:
        tflops = profile.reduced_precision_tflops(Precision.FP16)
        if tflops is None or profile.architecture not in TENSOR_CORES[Precision.FP16]:
            raise OptionError(f"kernel {name!r}: {profile.name!r} has no tensor cores; give another pipe")
        return tflops * 1e6 / profile.sm_count
    lanes = {
        Pipe.FP32: profile.datasheet.fp32_lanes_per_sm.value,
        Pipe.FP64: FP64_LANES.get(profile.compute_capability, 0),
        Pipe.INT: INT_LANES.get(profile.compute_capability, 0),
    }[pipe]
    if not lanes:
        raise OptionError(f"kernel {name!r}: of {profile.name!r} no {pipe} pipe is known; give another device")
    return _LANE_FLOPS * lanes * clocks_per_us


def _given(value: int | None, otherwise: int, phrase: str, said: list[str]) -> int:
    if value is None:
        said.append(phrase)
        return otherwise
    return value


def _check(raw: RawKernel) -> None:
    for what in ("blocks", "threads"):
        if getattr(raw, what) < 1:
            raise OptionError(f"kernel {raw.name!r}: {what} is {getattr(raw, what)}; give 1 or more")
    for what in ("registers_per_thread", "shared_bytes", "alone_us", "footprint_bytes", *_ASKS):
        value = getattr(raw, what)
        if value is not None and not (isfinite(value) and value >= 0):
            raise OptionError(f"kernel {raw.name!r}: {what} is {value:g}; give 0 or more")
    if not raw.alone_us and not any(getattr(raw, what) for what in _ASKS):
        raise OptionError(
            f"kernel {raw.name!r}: nothing tells how long it takes; give alone_us, or what it asks for (dram_bytes, "
            "l2_bytes or flops)"
        )
