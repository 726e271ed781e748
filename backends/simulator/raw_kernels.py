"""Kernels from what a CUDA engineer has, as figures of Nsight Compute: grid, resources, time alone, bytes and arithmetic.

A raw kernel becomes the :class:`~iossim.backends.simulator.kernel_work.KernelWork` of the event-driven engine. What it
asks of each resource is what was given over what the device gives; what is left of its time alone is latency. What was not
given is inferred, and said.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from iossim.backends.simulator.kernel_model import KernelModel
from iossim.backends.simulator.kernel_work import KernelWork, kernel_work
from iossim.errors import OptionError
from iossim.lowering.kernel import Kernel, ceil_div
from iossim.lowering.occupancy import resident_blocks


class Pipe(StrEnum):
    """The arithmetic pipes of an SM; each has a capacity of its own."""

    FP32 = "fp32"
    FP64 = "fp64"
    TENSOR = "tensor"
    INT = "int"


@dataclass(frozen=True, slots=True)
class RawKernel:
    """One launch of a kernel in a stream; None is what was not given, and is inferred.

    ``flops`` are operations of ``pipe``; a multiply-add is two, and so is what takes the place of one: an addition or a
    multiplication by itself.
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


def raw_kernel_work(raw: RawKernel, model: KernelModel, sms: int | None = None) -> tuple[KernelWork, tuple[str, ...]]:
    """The work of a raw kernel, and what was inferred, a phrase each."""
    if raw.kernel is not None:
        return kernel_work(model, raw.kernel), ()
    if raw.alone_us is None:
        raise OptionError(f"kernel {raw.name!r}: no time alone is given; give alone_us")
    profile = model.profile
    registers = 32 if raw.registers_per_thread is None else raw.registers_per_thread
    shared = raw.shared_bytes or 0
    resident = max(1, resident_blocks(profile.limits, raw.threads, registers, shared))
    waves = ceil_div(ceil_div(raw.blocks, sms or profile.sm_count), resident)
    dram_us = min(raw.alone_us, (raw.dram_bytes or 0.0) / (profile.dram_bandwidth_gbps * 1e3))
    work = KernelWork(
        raw.name, raw.blocks, raw.threads, registers, shared,
        issue_us=0.0, least_us=raw.alone_us / waves, l2_us=0.0, dram_us=dram_us, gap_us=model.rates.gap_us,
    )  # fmt: skip
    return work, ()
