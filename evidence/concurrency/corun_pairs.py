"""Measured pairs of kernels as raw kernels: operators in CUDA graphs, a framework's kernels on streams, prefill beside
decode.

Grids come from the tables where they have them. Operators with a known shape have the grid that the framework gives
them (as recorded for the same board and framework with other networks), or that of the library kernel that lowering
finds fastest, with times scaled to the measured ones. An operator without any information is a launch: one small block.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from evidence.concurrency.corun_cases import CorunCase, Figure, pair_figures, without_gap
from evidence.concurrency.pairs import KernelPair, PairKernel
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.backends.simulator.kernel_rows import TENSOR_CLASSES
from iossim.backends.simulator.raw_kernels import Pipe, RawKernel
from iossim.execution.engine import Engine
from iossim.hardware.lowering.kernel import Issue, Libraries, ceil_div, resident_blocks
from iossim.hardware.lowering.target import step_candidates
from iossim.hardware.profile import DeviceProfile
from iossim.ir.types import Precision
from iossim.measurements.operator_kinds import read_record

GRAPHS, STREAMS, PREFILL = "operators in graphs", "kernels on streams", "prefill beside decode"

#: Simulated repeats of a chain: the rest is periodic.
_REPEATS = 20
_FP32_BYTES = 4
#: Block size of PyTorch's element-wise kernels, and elements per thread.
_THREADS, _ELEMENTS = 128, 4
_SHAPE = re.compile(r"conv (\d+)->(\d+) (\d+)x\d+(?: s(\d+))?, (\d+)\^2")
#: Chunks of a prefill, each of which fills the device, so that no other kernel fits beside it.
_CHUNKS = 16
_FILLING_THREADS = 256
_WAVES = 8
#: A step of decode whose latency is this part of its time leaves the device empty meanwhile; device-filling work below
#: the other part is ignored.
_MOSTLY, _SEEN = 0.4, 0.1


def graph_pair_cases(pairs: Sequence[KernelPair], profile: DeviceProfile) -> list[CorunCase]:
    """Chains of one operator each in two graphs that are launched at once."""
    model = KernelModel(profile, Issue.GRAPH, Libraries.CURRENT)  # PyTorch, recorded into graphs
    cases = []
    for pair in pairs:
        repeats = min(pair.repeats, _REPEATS)
        chains = [_operator(kernel, stream, model) for stream, kernel in enumerate(pair.kernels)]
        kernels = [raw for _ in range(repeats) for chain in chains for raw in chain]
        figures = pair_figures(pair, [operator_family(kernel) for kernel in pair.kernels], repeats)
        cases.append(_case(pair, GRAPHS, kernels, Engine.GRAPH, figures))
    return cases


def operator_family(kernel: PairKernel) -> str:
    """Kind of an operator: ``add`` of ``add_19``, ``silu`` of ``silu__76``, ``cudnn_batch_norm``."""
    return re.sub(r"_*\d*$", "", kernel.name).lstrip("_")


def _operator(kernel: PairKernel, stream: int, model: KernelModel) -> list[RawKernel]:
    """Kernels of one operator; its time alone includes a gap before each of them."""
    gap_us = model.rates.gap_us
    family = operator_family(kernel)
    if family == "convolution":
        return _convolution(kernel, stream, model)
    alone_us = without_gap(kernel.alone_us, gap_us)
    if not kernel.shape:
        return [RawKernel(kernel.name, stream, 1, _THREADS, alone_us=alone_us)]
    channels, height, width = map(int, kernel.shape.split("x"))
    pixels = height * width
    moved = 2.0 * _FP32_BYTES * channels * pixels
    if family == "cudnn_batch_norm":
        # One block per channel (bn_fw_inf_1C11_kernel_NCHW) has fewer threads if an image has few pixels.
        threads = 512 if pixels > 28 * 28 else 256 if pixels > 14 * 14 else 64
        blocks, registers = channels, 20
    else:
        threads, registers = _THREADS, 22
        blocks = ceil_div(channels * pixels, _THREADS * _ELEMENTS)
    in_l2 = moved <= model.profile.datasheet.l2_bytes.value
    return [
        RawKernel(
            kernel.name, stream, blocks, threads, registers, 0, alone_us,
            dram_bytes=0.0 if in_l2 else moved, l2_bytes=moved, footprint_bytes=moved,
        )
    ]  # fmt: skip


def _convolution(kernel: PairKernel, stream: int, model: KernelModel) -> list[RawKernel]:
    found = _SHAPE.match(kernel.shape)
    assert found is not None, "the table's shapes are of this form"
    channels, outputs, window, stride, size = (int(number or 1) for number in found.groups())
    record = {"op": "conv", "batch": 1, "in_channels": channels, "out_channels": outputs}
    record |= {f"{name}_{axis}": value for axis in "hw" for name, value in
               (("in", size), ("kernel", window), ("stride", stride), ("pad", window // 2))}  # fmt: skip
    operator = read_record(record, Precision.TF32)
    candidate, prices = model.fastest(step_candidates(operator.step(), model.profile))
    gap_us = model.rates.gap_us
    own_us = [without_gap(price.alone_us, gap_us) for price in prices]
    scale = without_gap(kernel.alone_us, gap_us * len(prices)) / sum(own_us)
    return [
        RawKernel(
            f"{kernel.name}: {one.name}", stream, one.blocks, one.threads_per_block, one.registers_per_thread,
            one.shared_bytes_per_block, scale * us, l2_bytes=one.l2_bytes,
            dram_bytes=price.dram_demand * scale * us * model.profile.dram_bandwidth_gbps * 1e3,
            flops=one.flops, pipe=Pipe.TENSOR if one.work_class in TENSOR_CLASSES else Pipe.FP32,
        )
        for one, us, price in zip(candidate.kernels, own_us, prices, strict=True)
    ]  # fmt: skip


def stream_pair_cases(pairs: Sequence[KernelPair]) -> list[CorunCase]:
    """Two kernels that each fill the device: they can overlap in their tails."""
    cases = []
    for pair in pairs:
        kernels = [
            RawKernel(
                kernel.name, stream, kernel.blocks, kernel.threads, kernel.registers_per_thread, kernel.shared_bytes,
                kernel.alone_us,
            )
            for stream, kernel in enumerate(pair.kernels)
        ]  # fmt: skip
        figures = pair_figures(pair, [kernel.name for kernel in pair.kernels])
        cases.append(_case(pair, STREAMS, kernels, Engine.PAPER, figures))
    return cases


def prefill_pair_cases(pairs: Sequence[KernelPair], profile: DeviceProfile) -> list[CorunCase]:
    """A step of decode, issued first, beside a layer's prefill, on the same SMs or on some of their own.

    Prefill is a chain of kernels that fill the device. The part of a step that grows with the batch fills it too, and
    uses DRAM as decode attention does on all SMs at that batch; the rest is latency that leaves it empty.
    """
    cases = []
    for pair in pairs:
        step, prefill = pair.kernels
        floor_us = _floor_us(step.name, pairs)
        attends = "attn" in step.name
        kernels = _step(step, 0, floor_us, _decode_gbps(pair.batch or 1) if attends else None, profile)
        chunk = _filling(prefill.name, 1, prefill.alone_us / _CHUNKS, profile)
        kernels += [chunk] * _CHUNKS
        share = None if pair.sms is None else tuple(100.0 * sms / profile.sm_count for sms in pair.sms)
        how = "two streams" if pair.sms is None else "SMs of their own"
        figures = pair_figures(pair, [f"{part}, {how}" for part in ("decode", "prefill")])
        case = _case(pair, PREFILL, kernels, Engine.GRAPH, figures)
        cases.append(replace(case, sm_share=share, title=f"{step.name}, batch {pair.batch}, {pair.how}"))
    return cases


def _step(
    step: PairKernel, stream: int, floor_us: float, gbps: float | None, profile: DeviceProfile
) -> list[RawKernel]:
    """A step of mostly latency begins with it, and then fills the device; any other fills it from the start."""
    if floor_us < _MOSTLY * step.alone_us:
        full = _filling(step.name, stream, step.alone_us, profile)
        return [full if gbps is None else replace(full, dram_bytes=gbps * 1e3 * step.alone_us)]
    kernels = [RawKernel(f"{step.name}: latency", stream, 1, _THREADS, alone_us=floor_us)]
    filling_us = step.alone_us - floor_us
    if filling_us > _SEEN * step.alone_us:
        kernels.append(_filling(step.name, stream, filling_us, profile))
    return kernels


def _decode_gbps(batch: int) -> float:
    """DRAM bandwidth of decode attention on all SMs of the A100, GB/s, rounded: small batches use another kernel."""
    return 900.0 if batch < 2 else 1400.0 if batch < 8 else 1100.0 if batch < 16 else 1400.0


def _floor_us(name: str, pairs: Sequence[KernelPair]) -> float:
    """Time of a step at batch zero: on the line through the two smallest batches."""
    known = sorted({(pair.batch or 1, pair.kernels[0].alone_us) for pair in pairs if pair.kernels[0].name == name})
    (small, small_us), (large, large_us) = known[0], next(one for one in known if one[0] > known[0][0])
    return max(0.0, small_us - small * (large_us - small_us) / (large - small))


def _filling(name: str, stream: int, alone_us: float, profile: DeviceProfile) -> RawKernel:
    """A kernel that leaves no room for others."""
    resident = resident_blocks(profile.limits, _FILLING_THREADS, 32, 0)
    return RawKernel(name, stream, _WAVES * resident * profile.sm_count, _FILLING_THREADS, 32, 0, alone_us)


def _case(
    pair: KernelPair, mechanism: str, kernels: Sequence[RawKernel], engine: Engine, figures: tuple[Figure, ...]
) -> CorunCase:
    return CorunCase(pair.data_set, pair.device, pair.line, mechanism, pair.title, tuple(kernels), engine, figures)
