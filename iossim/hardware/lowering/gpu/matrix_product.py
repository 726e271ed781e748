"""Tiled matrix products: the kernels of dense layers, convolutions, and the middle step of Winograd and FFT.

A block computes one tile of the output; a partial tile costs as much as a full one. Splitting the inner dimension over
several blocks (split-K) fills the device if the output has few tiles, and adds a reduction. Tile shapes, threads and
registers come from the names and launch records of cuBLAS's and cuDNN's fp32 kernels (``sgemm_128x64``: 128 threads of
8x8 outputs; ``sgemm_32x32_sliced1x4``: four slices of the inner dimension inside a block); registers are typical of
kernels that hold 64 accumulators per thread.

The libraries' kernels for Kepler, Maxwell and Pascal have fewer tiles for dense products than those since Volta.
"""

from __future__ import annotations

from dataclasses import dataclass

from iossim.hardware.compute_capability import SINCE_AMPERE, Architecture
from iossim.hardware.lowering.kernel import Kernel, Panels, WorkClass, ceil_div
from iossim.ir.types import Precision

#: Elements of the inner dimension in a step of a block.
INNER_STEP = 8
#: Smallest part of the inner dimension that a split leaves to a block.
LEAST_INNER = 64
#: Splitting pays only if the output has few tiles.
MOST_TILES_TO_SPLIT = 256
#: Generations that run the libraries' older kernels.
BEFORE_VOLTA = frozenset({Architecture.KEPLER, Architecture.MAXWELL, Architecture.PASCAL})
SINCE_VOLTA = frozenset(Architecture) - BEFORE_VOLTA


@dataclass(frozen=True, slots=True)
class Tile:
    """The part of the output that one block computes, and the resources of the block."""

    rows: int
    columns: int
    threads: int
    registers: int
    shared_bytes: int

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads, registers per thread, and bytes of shared memory."""
        return self.threads, self.registers, self.shared_bytes

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"


TILES = (
    Tile(128, 128, 256, 122, 16_640),
    Tile(128, 64, 128, 122, 12_544),
    Tile(64, 128, 128, 122, 12_544),
    Tile(128, 32, 256, 57, 16_384),
    Tile(32, 128, 256, 57, 16_384),
    Tile(64, 64, 64, 118, 8_448),
    Tile(64, 32, 128, 70, 12_288),
    Tile(32, 32, 128, 86, 16_896),
)
#: The tiles by name.
TILE = {str(tile): tile for tile in TILES}

#: Tiles for stacks of products, of which libraries have few: those that cuBLAS launches for ``bmm`` in recordings of
#: five generations, whatever the sizes, except for matrices of a few elements.
BATCHED_TILES = {
    TILE["128x128"]: SINCE_AMPERE,
    TILE["128x64"]: BEFORE_VOLTA | {Architecture.TURING},
    TILE["64x64"]: frozenset({Architecture.VOLTA, Architecture.TURING}),
    TILE["32x128"]: frozenset({Architecture.VOLTA}),
    TILE["128x32"]: frozenset({Architecture.VOLTA, Architecture.TURING}),
}


@dataclass(frozen=True, slots=True)
class Product:
    """``count`` independent products ``[rows, inner] @ [inner, columns]`` and the unique bytes of their operands."""

    rows: int
    columns: int
    inner: int
    activation_bytes: int
    weight_bytes: int
    bytes_written: int
    element_bytes: int
    precision: Precision
    count: int = 1
    #: Arithmetic of a multiply-add: 2, or 8 for complex numbers.
    flops_per_step: int = 2
    #: Whether the inner dimension is the contiguous one of the rows' operand, and of the columns'.
    rows_are_strided: bool = False
    columns_are_strided: bool = False
    #: Elements of the contiguous dimension of an operand, if that is not the inner one.
    contiguous: int = 0

    @property
    def elements(self) -> int:
        """Elements of the output."""
        return self.rows * self.columns * self.count


def tiles(product: Product, tile: Tile) -> int:
    """Number of output tiles of all products."""
    return ceil_div(product.rows, tile.rows) * ceil_div(product.columns, tile.columns) * product.count


def product_kernel(
    product: Product, tile: Tile, work_class: WorkClass, split: int = 1, extra_flops: int = 0, name: str = ""
) -> Kernel:
    """The product with one tile shape and its inner dimension in ``split`` parts; named ``name``, or by its class."""
    blocks = tiles(product, tile) * split
    inner = ceil_div(ceil_div(product.inner, split), INNER_STEP) * INNER_STEP
    written = product.bytes_written * split
    loaded = blocks * (tile.rows + tile.columns) * inner * product.element_bytes * (product.flops_per_step // 2)
    panels = _panels(product, tile) if work_class is WorkClass.GEMM else None
    flops = blocks * tile.rows * tile.columns * inner * product.flops_per_step + extra_flops
    moved = product.activation_bytes, product.weight_bytes, written, loaded + written
    name = f"{name or work_class}_{tile}" + (f"_split{split}" if split > 1 else "")
    return Kernel(name, work_class, blocks, *tile.block, flops, *moved, product.precision, str(tile), panels)


def _panels(product: Product, tile: Tile) -> Panels:
    row_bytes = product.rows * product.inner * product.element_bytes
    column_bytes = product.columns * product.inner * product.element_bytes
    tiles = ceil_div(product.rows, tile.rows), ceil_div(product.columns, tile.columns)
    strided_bytes = row_bytes * product.rows_are_strided + column_bytes * product.columns_are_strided
    return Panels(*tiles, row_bytes, column_bytes, product.inner, strided_bytes)


def stream_kernel(
    name: str,
    elements: int,
    flops: int,
    *,
    read: int,
    written: int,
    weights: int = 0,
    work_class: WorkClass = WorkClass.STREAM,
) -> Kernel:
    """A kernel that makes ``elements`` outputs in order, four per thread in blocks of 128 threads.

    It moves ``read`` bytes of activations, and ``weights`` and ``written`` bytes. Addresses and loads are instructions
    too: each output counts a few besides its arithmetic.
    """
    blocks, flops = max(1, ceil_div(elements, 512)), flops + 4 * elements
    return Kernel(name, work_class, blocks, 128, 32, 0, flops, read, weights, written, read + weights + written)


def sum_of_parts(product: Product, split: int, extra_flops: int, element_bytes: int = 0) -> Kernel:
    """Sum of the partial results of split-K, with elements of the output's size or of ``element_bytes``."""
    part_bytes = product.elements * element_bytes or product.bytes_written
    flops = product.elements * (split - 1) + extra_flops
    written = product.bytes_written
    moved = {"read": part_bytes * split, "written": written}
    return stream_kernel("split_reduction", product.elements, flops, **moved, work_class=WorkClass.PARTS)


#: The computation of a library's table before its convolution: a launch with negligible work.
OFFSETS_KERNEL = Kernel("compute_offsets", WorkClass.INDEX, 1, 128, 32, 0, 0, 0, 0, 0, 0)
