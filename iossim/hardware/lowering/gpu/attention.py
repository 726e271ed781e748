"""Fused attention: FlashAttention-2 since Ampere (arXiv:2307.08691), on Hopper 3 (arXiv:2407.08608) and cuDNN's.

A block has a tile of queries of one head, and processes the keys and values in steps: a product, the exponentials of
the tile's scores, a second product. Scores never leave the SM, so that only queries, keys, values and outputs move to
or from DRAM. Features of a head are rounded up to the next size that a kernel is compiled for. For few queries, such as
those of a decode step, the keys are divided among blocks, whose results a second kernel combines.

Tiles and threads are those of FlashAttention; a block holds most of an SM's registers. On Hopper compilers and backends
call cuDNN: its kernels begin and end as those of products do, in 8 us less than recorded of a framework, and the blocks
of a causal one begin in order, the longest last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from iossim.hardware.compute_capability import SINCE_AMPERE, SINCE_HOPPER, Architecture
from iossim.hardware.lowering.attention import unfused
from iossim.hardware.lowering.gpu import FAMILIES
from iossim.hardware.lowering.gpu.matrix_product import stream_kernel
from iossim.hardware.lowering.kernel import OF_FRAMEWORKS, Candidate, Kernel, Libraries, WorkClass, ceil_div
from iossim.hardware.lowering.step import Step
from iossim.ir.ops.attention import Attention, AttentionShape
from iossim.ir.types import Precision

#: Precisions with fused kernels.
FUSED_PRECISIONS = frozenset({Precision.FP16, Precision.BF16})
#: Most queries of a call whose keys are divided, and the numbers of parts.
_FEW, _PARTS = 64, (1, 2, 4, 8, 16, 32)
_PARTIAL_BYTES = 4


class _Tile(NamedTuple):
    """For heads of at most ``features``: queries and keys of a step, threads, registers and steps in flight."""

    features: int
    queries: int
    keys: int
    threads: int
    registers: int
    stages: int


_AMPERE = (
    _Tile(64, 128, 128, 128, 255, 1),
    _Tile(96, 128, 64, 128, 255, 1),
    _Tile(128, 128, 64, 128, 255, 1),
    _Tile(192, 128, 64, 256, 255, 1),
    _Tile(256, 128, 64, 256, 255, 1),
)
_HOPPER = (
    _Tile(64, 192, 128, 512, 128, 2),
    _Tile(96, 192, 128, 512, 128, 2),
    _Tile(128, 128, 128, 384, 168, 2),
    _Tile(192, 128, 96, 384, 168, 2),
    _Tile(256, 128, 80, 384, 168, 2),
)
#: Fields by which Hopper's tiles for few queries differ.
_SHORT = {"queries": 64, "threads": 256, "registers": 168}
#: Time of cuDNN's steps over that of the model: by 16 attentions on an H200, in bf16 and in fp16 (mean error 9%).
_CUDNN, _CUDNN_SLOWDOWN = "cudnn", 1.3
#: Name, architectures, tiles, libraries, and the most features of heads with small tiles for few queries.
_GENERATIONS = (
    ("flash_2", SINCE_AMPERE - SINCE_HOPPER, _AMPERE, OF_FRAMEWORKS, 0),
    ("flash_3", SINCE_HOPPER, _HOPPER, frozenset({Libraries.CURRENT}), 64),
    (_CUDNN, SINCE_HOPPER, _HOPPER, OF_FRAMEWORKS - {Libraries.CURRENT}, 256),
)


def fused_attention(step: Step[Attention]) -> Iterator[Candidate]:
    """The kernels of each generation with fused attention, for half precisions and heads of up to 256 features."""
    shape = step.op.shape([operand.type for operand in step.operands])
    if step.precision not in FUSED_PRECISIONS:
        return
    for name, architectures, tiles, libraries, small in _GENERATIONS:
        fitting = [tile for tile in tiles if tile.features >= max(shape.features, shape.value_features)]
        if not fitting:
            continue
        is_short = shape.queries <= _FEW and fitting[0].features <= small
        tile = fitting[0]._replace(**_SHORT) if is_short else fitting[0]
        for parts in _PARTS if shape.queries <= _FEW else _PARTS[:1]:
            if parts == 1 or shape.keys >= 2 * parts * tile.keys:
                yield replace(_candidate(step, shape, name, architectures, tile, parts), libraries=libraries)


def _candidate(
    step: Step[Attention], shape: AttentionShape, name: str, where: frozenset[Architecture], tile: _Tile, parts: int
) -> Candidate:
    size = step.precision.storage.bytes
    tiles = ceil_div(shape.queries, tile.queries)
    blocks, outputs = shape.batch * shape.heads * tiles * parts, step.outputs[0].elements
    ends = [min(shape.keys, (index + 1) * tile.queries) if step.op.is_causal else shape.keys for index in range(tiles)]
    steps = shape.batch * shape.heads * sum(parts * ceil_div(ceil_div(end, parts), tile.keys) for end in ends)
    written = step.bytes_written if parts == 1 else parts * outputs * _PARTIAL_BYTES
    loaded = blocks * tile.queries * shape.features + steps * tile.keys * (shape.features + shape.value_features)
    mask_bytes = sum(operand.type.bytes for operand in step.operands[3:])
    pairs = steps * tile.queries * tile.keys
    kernel = Kernel(
        f"{name}_{tile.queries}x{tile.features}" + (f"_split{parts}" if parts > 1 else ""),
        WorkClass.ATTENTION,
        blocks,
        tile.threads,
        tile.registers,
        (tile.queries + 2 * tile.stages * tile.keys) * tile.features * size,
        4 * pairs * tile.features,
        step.activation_bytes,
        step.weight_bytes,
        written,
        loaded * size + mask_bytes + written,
        step.precision,
        f"attention_{tile.queries}",
        exponentials=pairs * (2 if step.op.softcap else 1),
    )
    if name == _CUDNN:
        count, longest = ceil_div(shape.keys, parts * tile.keys), max(ends) * tiles / sum(ends)
        kernel = replace(kernel, work_class=WorkClass.TENSOR, steps=count, slowdown=_CUDNN_SLOWDOWN, longest=longest)
    kernels: tuple[Kernel, ...] = (kernel,)
    if parts > 1:
        moved = {"read": written, "written": step.bytes_written}
        combine = stream_kernel("attention_combine", outputs, parts * outputs, **moved, work_class=WorkClass.PARTS)
        kernels = (kernel, combine)
    workspace_bytes = 0 if parts == 1 else written
    return Candidate(kernel.name, kernels, workspace_bytes, architectures=where)


_OTHERS = frozenset(Libraries) - OF_FRAMEWORKS


def attention(step: Step[Attention]) -> list[Candidate]:
    """Fused candidates, and unfused ones: frameworks and compilers call no others if there are fused ones."""
    found = list(fused_attention(step))
    having = frozenset[Architecture]().union(*(one.architectures or () for one in found))
    for one in unfused(step, FAMILIES):
        replaced = one.architectures is not None and one.architectures <= having
        found.append(replace(one, libraries=(one.libraries or _OTHERS) & _OTHERS) if replaced else one)
    return [one for one in found if one.libraries != frozenset()]
