"""Matrix products on tensor cores: the kernels of cuBLAS and cuDNN for fp16, bf16, tf32 and int8.

As on the fp32 lanes (``matrix_product``), a block computes one tile of the output. The differences:

- Tiles are larger: names such as ``s884gemm_fp16_256x128_ldg8``, ``s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5`` and
  ``tf32gemm_128x128_16x4`` contain the tile, the inner step and the number of such steps (stages) in shared memory.
- A block steps along the inner dimension by 64 bytes per row (32 halves, 16 tf32; 128 bytes on Hopper). Even on an idle
  device a step takes at least the latency of a load over the stages in flight, which limits skinny products.
- Volta and Turing load through registers into two buffers; Ampere and later copy asynchronously into three or more.
- Operands are loaded 16 bytes at a time if their rows begin at multiples of 16 bytes, 4 bytes at a time with little
  loss, and element by element if their number is odd.

Registers are those of kernels that hold 64 (256x128: 128) fp32 accumulators per thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import nsmallest

from iossim.hardware.compute_capability import TENSOR_CORES, Architecture
from iossim.hardware.lowering.gpu.matrix_product import MOST_TILES_TO_SPLIT, Product, Tile, sum_of_parts, tiles
from iossim.hardware.lowering.gpu.tensor_core_families import Family
from iossim.hardware.lowering.kernel import Candidate, Kernel, Panels, WorkClass, ceil_div
from iossim.ir.types import Precision

#: Kernels for stacks of products do not split the inner dimension.
UNSPLIT = (1,)
SPLITS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64)
#: Rows or columns up to which they count as few, and the smallest side of a tile: products of 32 tokens by experts run
#: in tiles of 16, although smaller ones fit.
_FEW, _LEAST_SIDE = 64, 8
#: SMs of an H100, and the largest grid that cuBLAS launches in clusters of four and eight blocks there.
_SMS, _MOST_IN_CLUSTERS = 132, 120
#: If a tile makes this many blocks, cuBLAS splits only inner dimensions of at least the second number.
_FILLING, _LONG = 128, 8_192
#: Cost, in loaded elements, of the arithmetic of an output per inner element, of writing an output, and of adding a
#: partial result to others; relative cost of blocks without clusters. Chosen by grids of 40 products and 72
#: convolutions on an H100 (``python -m evidence hopper`` counts those within 15%), by those of a
#: mixture of experts, and by durations of products on H100 and H200 in CUDA graphs.
_ARITHMETIC, _OUTPUT, _SUMMED, _APART = 1 / 64, 14, 12, 1.27
#: Number of kernels that a library's heuristics return for a product, its own choice first; and how much sooner another
#: ends that ran nevertheless, as the cost above leaves much out: with 1 to 3 us products in CUDA graphs that are not
#: held out are 7.4 to 7.5% off, without it 7.7.
_RETURNED, _MISSED_US = 8, 1.5
#: Bytes of a partial sum: fp32, or int32 for int8.
_PARTIAL_BYTES = 4
#: Cost of a step with an odd contiguous dimension, whose operands are loaded element by element, relative to an aligned
#: one (assumed). On a V100, products of 1530 inner elements run as fast as those of 1536.
_UNALIGNED_SLOWDOWN = 1.6


def without_tensor_cores(
    precision: Precision, architectures: frozenset[Architecture] | None
) -> frozenset[Architecture] | None:
    """The architectures, of those given (None: all), without tensor cores for a precision; None for all."""
    having = TENSOR_CORES.get(precision)
    if having is None:
        return architectures
    return (frozenset(Architecture) if architectures is None else architectures) - having


def tensor_products(
    product: Product,
    family: Family,
    work_class: WorkClass = WorkClass.TENSOR,
    *,
    extra_flops: int = 0,
    splits: tuple[int, ...] = SPLITS,
) -> Iterator[tuple[Kernel, ...]]:
    """The product with every tile of a family, whole, and with its inner dimension split, followed by the sum.

    For a family that is chosen by cost, only those that the library's heuristics return, its own choice first.
    """
    tiles_of_all = [family.tile(*shape) for shape in family.shapes]
    cut = [one for one in tiles_of_all if _is_cut(product.rows, one.rows) and _is_cut(product.columns, one.columns)]
    possible = cut if cut and family.is_persistent else tiles_of_all
    most = product.inner * product.element_bytes // family.least_part_bytes
    if family.is_chosen_by_cost and product.inner < _LONG and max(tiles(product, one) for one in possible) >= _FILLING:
        most = 1
    ways = [
        (tile, split)
        for tile in possible
        for split in splits
        if split == 1 or (split <= most and tiles(product, tile) <= MOST_TILES_TO_SPLIT)
    ]
    if family.is_chosen_by_cost:
        ways = nsmallest(_RETURNED, ways, key=lambda way: (_cost(product, *way), -way[0].rows * way[0].columns))
    for tile, split in ways:
        kernel = _kernel(product, family, tile, work_class, split)
        if split == 1:
            yield (replace(kernel, flops=kernel.flops + extra_flops),)
        else:
            yield kernel, sum_of_parts(product, split, extra_flops, _PARTIAL_BYTES)


def on_tensor_cores(
    product: Product,
    families: Iterable[Family],
    work_class: WorkClass,
    *,
    extra_flops: int = 0,
    splits: tuple[int, ...] = SPLITS,
    name: str = "",
) -> Iterator[Candidate]:
    """Candidates of a product by families whose devices have tensor cores for its precision; ``name`` begins theirs."""
    having = TENSOR_CORES.get(product.precision, frozenset())
    for family in families:
        if where := family.architectures & having:
            ways = tensor_products(product, family, work_class, extra_flops=extra_flops, splits=splits)
            for place, kernels in enumerate(ways):
                called, lead_us = f"{name}{kernels[0].name}", passed_over_us(family, place)
                yield Candidate(called, kernels, parts_bytes(kernels), architectures=where, passed_over_us=lead_us)


def parts_bytes(kernels: Sequence[Kernel]) -> int:
    """Workspace of a product: the partial sums, if a second kernel adds them."""
    return kernels[0].bytes_written if len(kernels) > 1 else 0


def passed_over_us(family: Family, place: int) -> float:
    """Lead over others that a library ignores for the kernels at a place of :func:`tensor_products`."""
    return _MISSED_US if family.is_chosen_by_cost and place else 0.0


def _cost(product: Product, tile: Tile, split: int) -> float:
    """Cost by which cuBLAS's heuristics seem to choose: the time of the busiest SM, in loaded elements."""
    cluster, _ = _clusters(product, tile, split)
    count, outputs = tiles(product, tile) * split, tile.rows * tile.columns
    waves = ceil_div(count, _SMS if cluster == 1 else _MOST_IN_CLUSTERS)
    each = ceil_div(product.inner, split) * (tile.rows + tile.columns + _ARITHMETIC * outputs) + _OUTPUT * outputs
    cost = waves * each * (_APART if cluster == 1 and count <= _SMS else 1.0)
    if split > 1:
        cost += _SUMMED * product.rows * product.columns * product.count * split / _SMS
    return cost


def _is_cut(size: int, side: int) -> bool:
    """True if heuristics divide a dimension by such a side: few rows or columns into at most two parts."""
    return size > _FEW or size <= 2 * side < 4 * max(size, _LEAST_SIDE)


def _clusters(product: Product, tile: Tile, split: int) -> tuple[int, int]:
    """Blocks of a cluster, and of a grid including those that fill its last clusters; (1, all) for large grids.

    A cluster has four blocks along the side with more tiles, by two along the other unless that has one or three, in 67
    of 70 grids of such tiles recorded on an H100 (``h100_bf16``). Clusters of two, in large grids, fit like blocks.
    """
    few, many = sorted((ceil_div(product.rows, tile.rows), ceil_div(product.columns, tile.columns)))
    wide = 1 if few in (1, 3) else 2
    blocks = ceil_div(many, 4) * 4 * ceil_div(few, wide) * wide * product.count * split
    return (4 * wide, blocks) if blocks <= _MOST_IN_CLUSTERS else (1, tiles(product, tile) * split)


def _kernel(product: Product, family: Family, tile: Tile, work_class: WorkClass, split: int) -> Kernel:
    blocks = max(family.least_blocks, tiles(product, tile) * split)
    cluster, grid = _clusters(product, tile, split) if family.is_chosen_by_cost else (1, blocks)
    step = family.step_bytes // product.element_bytes
    steps = ceil_div(ceil_div(product.inner, split), step)
    outputs = tile.rows * tile.columns
    written = product.bytes_written if split == 1 else product.elements * _PARTIAL_BYTES * split
    element_bytes = _PARTIAL_BYTES if split > 1 else product.element_bytes
    strided_sides = product.rows * product.rows_are_strided + product.columns * product.columns_are_strided
    panels = Panels(0, 0, 0, 0, product.inner, product.element_bytes * product.inner * product.count * strided_sides)
    loaded = (tile.rows + tile.columns) * steps * family.step_bytes + outputs * element_bytes
    moved = product.activation_bytes, product.weight_bytes, written, blocks * loaded
    flops = blocks * outputs * steps * step * product.flops_per_step
    name = f"{family.name}_{tile}" + (f"_split{split}" if split > 1 else "")
    slowdown = family.latency * (_UNALIGNED_SLOWDOWN if (product.contiguous or product.inner) % 2 else 1.0)
    return Kernel(
        name,
        work_class,
        grid,
        *tile.block,
        flops,
        *moved,
        product.precision,
        family.tile_name(tile),
        panels,
        steps,
        slowdown,
        contention=family.contention,
        cluster=cluster,
    )
