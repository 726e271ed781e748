"""Matrix products on tensor cores: the kernels of cuBLAS and cuDNN for fp16, bf16, tf32 and int8.

As on the fp32 lanes (``matrix_product``), a block computes one tile of the output. The differences:

- Tiles are larger: names such as ``s884gemm_fp16_256x128_ldg8``, ``s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5`` and
  ``tf32gemm_128x128_16x4`` tell tiles, the inner step and how many such steps (stages) are in shared memory.
- A block walks the inner dimension in steps of 64 bytes a row (32 halves, 16 tf32; 128 bytes on Hopper). However
  empty the device, a step takes the latency of a load over the stages in flight: what bounds skinny products.
- Volta and Turing load through registers into two buffers; Ampere and later copy asynchronously into three and more.
- Operands are loaded 16 bytes at a time where their rows begin at multiples of that, 4 at a time with little loss,
  element by element where it is odd.

Registers are those of kernels that hold 64 (256x128: 128) fp32 accumulators a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from iossim.hardware.compute_capability import SINCE_AMPERE, SINCE_HOPPER, TENSOR_CORES, Architecture
from iossim.hardware.lowering.gpu.matrix_product import Product, Tile, stream_kernel, tiles
from iossim.hardware.lowering.kernel import Kernel, Panels, WorkClass, ceil_div
from iossim.ir.types import Precision

#: Kernels for stacks of products do not split the inner dimension.
UNSPLIT = (1,)
SPLITS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64)
#: Splitting stops where a block would walk fewer bytes of a row than this.
LEAST_INNER_BYTES = 256
MOST_TILES_TO_SPLIT = 256
#: Partial sums are fp32, of int8 int32.
_PARTIAL_BYTES = 4
#: What a step costs with an odd contiguous dimension, whose operands are loaded element by element, over an aligned
#: one: an assumption. On a V100, products of 1530 inner elements run as fast as those of 1536.
_UNALIGNED_SLOWDOWN = 1.6


@dataclass(frozen=True, slots=True)
class Generation:
    """How the kernels of some architectures walk the inner dimension."""

    name: str
    architectures: frozenset[Architecture]
    step_bytes: int
    stages: int
    tiles: tuple[tuple[int, int, int, int], ...]  #: rows, columns, threads, registers

    def tile(self, rows: int, columns: int, threads: int, registers: int) -> Tile:
        """A tile with the shared memory of its stages."""
        return Tile(rows, columns, threads, registers, (rows + columns) * self.step_bytes * self.stages)


_TILES = (
    (256, 128, 256, 230),
    (128, 256, 256, 230),
    (256, 64, 128, 230),
    (64, 256, 128, 230),
    (128, 128, 128, 230),
    (128, 64, 128, 150),
    (64, 128, 128, 150),
    (64, 64, 128, 100),
)
#: Through registers, 8 warps share the largest tiles of Volta and Turing.
_TILES_OF_TWO_BUFFERS = tuple(
    (rows, columns, 256 if rows * columns >= 128 * 128 else 128, 120 if rows * columns < 256 * 128 else 230)
    for rows, columns, _, _ in _TILES
)
GENERATIONS = (
    Generation("s884", frozenset({Architecture.VOLTA, Architecture.TURING}), 64, 2, _TILES_OF_TWO_BUFFERS),
    Generation("sm80", SINCE_AMPERE - SINCE_HOPPER, 64, 4, _TILES),
    Generation("sm90", SINCE_HOPPER, 128, 4, _TILES),
)
#: Every tile's name, to the multiply-adds that one loaded element of it takes part in on average.
TILE_REUSE = {f"tensor_{rows}x{columns}": rows * columns / (rows + columns) for rows, columns, _, _ in _TILES}

#: Every tile's name, to its outputs over those of one of 128x128: what a block writes at its end.
TILE_AREA = {f"tensor_{rows}x{columns}": rows * columns / (128 * 128) for rows, columns, _, _ in _TILES}


def without_tensor_cores(
    precision: Precision, architectures: frozenset[Architecture] | None
) -> frozenset[Architecture] | None:
    """Of the architectures (None: all GPUs) those that have no tensor cores for a precision; None for all still."""
    having = TENSOR_CORES.get(precision)
    if having is None:
        return architectures
    return (frozenset(Architecture) if architectures is None else architectures) - having


def tensor_products(
    product: Product,
    generation: Generation,
    work_class: WorkClass = WorkClass.TENSOR,
    *,
    extra_flops: int = 0,
    splits: tuple[int, ...] = SPLITS,
) -> Iterator[tuple[Kernel, ...]]:
    """Every tile of a generation, each whole and with its inner dimension split, followed by the sum of the parts."""
    for shape in generation.tiles:
        tile = generation.tile(*shape)
        count = tiles(product, tile)
        for split in splits:
            kernel = _kernel(product, generation, tile, work_class, split)
            if split == 1:
                yield (replace(kernel, flops=kernel.flops + extra_flops),)
            elif count <= MOST_TILES_TO_SPLIT and product.inner * product.element_bytes >= split * LEAST_INNER_BYTES:
                yield kernel, _sum_of_parts(product, split, extra_flops)


def _kernel(product: Product, generation: Generation, tile: Tile, work_class: WorkClass, split: int) -> Kernel:
    blocks = tiles(product, tile) * split
    step = generation.step_bytes // product.element_bytes
    steps = ceil_div(ceil_div(product.inner, split), step)
    outputs = tile.rows * tile.columns
    written = product.bytes_written if split == 1 else _parts_bytes(product, split)
    element_bytes = _PARTIAL_BYTES if split > 1 else product.element_bytes
    strided_sides = product.rows * product.rows_are_strided + product.columns * product.columns_are_strided
    panels = Panels(0, 0, 0, 0, product.inner, product.element_bytes * product.inner * product.count * strided_sides)
    loaded = (tile.rows + tile.columns) * steps * generation.step_bytes + outputs * element_bytes
    moved = product.activation_bytes, product.weight_bytes, written, blocks * loaded
    flops = blocks * outputs * steps * step * product.flops_per_step
    name = f"{generation.name}_{tile}" + (f"_split{split}" if split > 1 else "")
    slowdown = _UNALIGNED_SLOWDOWN if (product.contiguous or product.inner) % 2 else 1.0
    return Kernel(
        name,
        work_class,
        blocks,
        *tile.block,
        flops,
        *moved,
        product.precision,
        f"tensor_{tile}",
        panels,
        steps,
        slowdown,
    )


def _parts_bytes(product: Product, split: int) -> int:
    return product.rows * product.columns * product.count * _PARTIAL_BYTES * split


def _sum_of_parts(product: Product, split: int, extra_flops: int) -> Kernel:
    elements = product.rows * product.columns * product.count
    parts_bytes, flops = _parts_bytes(product, split), elements * (split - 1) + extra_flops
    return stream_kernel(
        "split_reduction", elements, flops, activation_bytes=parts_bytes, bytes_written=product.bytes_written
    )
