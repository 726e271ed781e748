"""Families of tensor-core kernels: their tiles, the resources of a block, and its steps along the inner dimension.

Until Ampere a library has one family: a block computes one tile of the output, in steps along the inner dimension.
Hopper's libraries have three, as the names and launch records of cuBLAS's and cuDNN 9's bf16 kernels on an H100 show:

- ``nvjet``: products, and 1x1 convolutions. A block of three warp groups occupies an SM alone, with as many steps in
  shared memory as fit, and processes several tiles in turn (it is *persistent*). Tiles are small if there are few rows
  or columns: a multiple of 64 by one of 8. Grids of few blocks are in clusters of four or eight.
- ``xmma_sm90``: convolutions of any window, persistent as well. They take long to begin and end.
- ``mma_sm80``: Ampere's kernels, of which several blocks share an SM. They begin sooner and compute at a third of the
  speed: they run convolutions with a short inner dimension. A step covers 64 channels, or 32 (``mma_sm80_k32``), of one
  position of the window (CUTLASS, implicit GEMM), as names say (``64x32x64_stage5``, ``64x128_32x6``).

Latency, rate and prologue of the three relative to each other are rounded from a fit to 152 of these convolutions, each
with kernels of the family that ran; growth by 112 launches of the first, and 1,395 products of an H100 and an H200.
``python -m evidence hopper`` reports their errors, also with each network left out of the fit, and the cases in which
another family ran than is predicted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from iossim.hardware.compute_capability import SINCE_AMPERE, SINCE_HOPPER, Architecture
from iossim.hardware.lowering.gpu.matrix_product import Tile

#: Rows, columns, threads of a block, registers of a thread.
Shape = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Family:
    """Kernels of some architectures that differ by their tile.

    A step covers ``step_bytes`` of each row of an operand; ``stages`` steps are in shared memory, or as many as fit
    ``most_shared_bytes``. A step takes at least ``latency`` times ``tensor_step_clocks``, its arithmetic runs at
    ``rate`` times the reachable rate, and a tile takes ``prologue`` times ``tensor_prologue_clocks``, and
    ``growth`` times more for 128x128 outputs. A grid has at least ``least_blocks``, some of which only occupy their
    SM. A part of a split inner dimension has at least ``least_part_bytes`` of a row. With ``is_chosen_by_cost``
    heuristics choose the tile, and small grids are in clusters. Channels of a convolution are padded to
    ``piece_bytes``, or to a step. All blocks load ``filled_bytes`` of their first steps at once, as fast as the
    whole of L2, before they compute.
    """

    name: str
    architectures: frozenset[Architecture]
    step_bytes: int
    stages: int
    shapes: tuple[Shape, ...]
    latency: float = 1.0
    rate: float = 1.0
    prologue: float = 0.0
    most_shared_bytes: int = 0
    contention: float = 0.0
    least_blocks: int = 1
    is_chosen_by_cost: bool = False
    least_part_bytes: int = 256
    piece_bytes: int = 0
    filled_bytes: float = 0.0
    growth: float = 1.0

    @property
    def is_persistent(self) -> bool:
        """True if a block occupies its SM and processes several tiles, of which only the first waits for a prologue."""
        return self.most_shared_bytes > 0

    def tile(self, rows: int, columns: int, threads: int, registers: int) -> Tile:
        """A tile with the shared memory of its stages."""
        stage_bytes = (rows + columns) * self.step_bytes
        if not self.is_persistent:
            return Tile(rows, columns, threads, registers, stage_bytes * self.stages)
        stages = min(self.stages, (self.most_shared_bytes - _BARRIERS_BYTES) // stage_bytes)
        return Tile(rows, columns, threads, registers, stage_bytes * stages + _BARRIERS_BYTES)

    def tile_name(self, tile: Tile) -> str:
        """The tile's key in :data:`TENSOR_TILES`."""
        return f"{self.name}_{tile}"


#: Shared memory of a persistent block beside its stages: recorded for 54 tiles, within 0.2 KB.
_BARRIERS_BYTES = 16_700
_MOST_SHARED_BYTES = 231_424
#: Shared memory of most of Ampere's blocks on Hopper, and the part of a block's that it fills before it computes.
_AMPERES_BYTES, _FILLED = 81_920, 0.6

#: Fraction of its time in which a block keeps its SM busy, of several that an SM holds and of one that has it alone:
#: chosen among 0.5, 0.7, 0.85 and 1 by 192 sets of two to eight concurrent convolutions on an H100, and by 24 of
#: products (``evidence hopper``).
CONTENTION, ALONE_CONTENTION = 0.85, 0.7

_SHAPES = (
    (256, 128, 256, 230), (128, 256, 256, 230), (256, 64, 128, 230), (64, 256, 128, 230),
    (128, 128, 128, 230), (128, 64, 128, 150), (64, 128, 128, 150), (64, 64, 128, 100),
)  # fmt: skip
#: On Volta and Turing, which load through registers, 8 warps share the largest tiles.
_SHAPES_OF_TWO_BUFFERS = tuple(
    (rows, columns, 256 if rows * columns >= 128 * 128 else 128, 120 if rows * columns < 256 * 128 else 230)
    for rows, columns, _, _ in _SHAPES
)
_SIDES = (8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 128, 168, 192, 256)
_NVJET = tuple(
    (rows, columns, 384, 168)
    for rows in _SIDES
    for columns in _SIDES
    if (rows % 64 == 0 or columns % 64 == 0) and rows * columns <= 256 * 128
)
_XMMA = tuple((rows, columns, 384, 168) for rows, columns in ((64, 64), (128, 64), (64, 128), (128, 128), (256, 64)))
_MMA = ((64, 64, 128, 118), (64, 32, 128, 88))
_MMA_K32 = (
    (64, 64, 128, 104), (64, 128, 128, 154), (128, 32, 128, 118),
    (128, 128, 128, 242), (256, 32, 128, 168), (256, 64, 128, 246),
)  # fmt: skip

S884 = Family("s884", frozenset({Architecture.VOLTA, Architecture.TURING}), 64, 2, _SHAPES_OF_TWO_BUFFERS)
SM80 = Family("sm80", SINCE_AMPERE - SINCE_HOPPER, 64, 4, _SHAPES, piece_bytes=16)
NVJET = Family(
    *("nvjet", SINCE_HOPPER, 128, 16, _NVJET),
    most_shared_bytes=_MOST_SHARED_BYTES, contention=ALONE_CONTENTION, is_chosen_by_cost=True, least_part_bytes=2_560,
    growth=0.8,
)  # fmt: skip
XMMA_SM90 = Family(
    *("xmma_sm90", SINCE_HOPPER, 128, 16, _XMMA, 0.9, 1.0, 0.6, _MOST_SHARED_BYTES, ALONE_CONTENTION, 20),
    piece_bytes=64, filled_bytes=_FILLED * _MOST_SHARED_BYTES,
)  # fmt: skip
MMA_SM80 = Family(
    *("mma_sm80", SINCE_HOPPER, 128, 5, _MMA, 2.0, 0.4), contention=CONTENTION, filled_bytes=_FILLED * _AMPERES_BYTES
)
MMA_SM80_K32 = replace(MMA_SM80, name="mma_sm80_k32", step_bytes=64, shapes=_MMA_K32, latency=1.4)
#: Ampere's kernels in Hopper's libraries, where channels fill loads of 16 bytes.
OF_AMPERE = (MMA_SM80, MMA_SM80_K32)

#: The same for channels that fill no load of 16 bytes (eight recordings 5% off, *in-sample*; eight in networks 14%).
PIECEWISE_MMA_SM80 = replace(MMA_SM80, name="piecewise_mma_sm80", latency=3.4, rate=0.22)
#: The family of grouped convolutions, with its only tile: a step loads few channels, and zeros for others.
GROUPED_MMA_SM80 = replace(MMA_SM80, name="grouped_mma_sm80", shapes=((64, 64, 128, 118),), filled_bytes=0.0)

#: The families for matrix products, and those for convolutions.
PRODUCTS = (S884, SM80, NVJET)
CONVOLUTIONS = (S884, SM80, XMMA_SM90, *OF_AMPERE)


@dataclass(frozen=True, slots=True)
class TensorTile:
    """Performance of a tile relative to other tiles.

    ``reuse`` is the number of multiply-adds per loaded element, ``rate`` that of arithmetic (relative to the latency,
    which counts separately), ``prologue`` the time before the first step and after the last one, besides that of
    loading ``filled_bytes`` of all blocks.
    """

    reuse: float
    rate: float
    prologue: float
    is_persistent: bool
    filled_bytes: float


#: Every tile by its name in kernels.
TENSOR_TILES = {
    family.tile_name(tile): TensorTile(
        tile.rows * tile.columns / (tile.rows + tile.columns),
        family.rate * family.latency,
        family.prologue + family.growth * tile.rows * tile.columns / (128 * 128),
        family.is_persistent,
        family.filled_bytes,
    )
    for family in (*PRODUCTS, *CONVOLUTIONS[2:], PIECEWISE_MMA_SM80, GROUPED_MMA_SM80)
    for tile in (family.tile(*shape) for shape in family.shapes)
}
#: Queries of the tiles of fused attention, over 192, by the tile's name.
ATTENTION_ROWS = {f"attention_{queries}": queries / 192 for queries in (64, 128, 192)}
