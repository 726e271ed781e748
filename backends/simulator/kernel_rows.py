"""Tables of kernels, as compiled formulas read them: a row a kernel, its work class, tile and precision by number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypeAlias

import numpy as np
from numpy.typing import NDArray

from iossim.hardware.compute_capability import MultiprocessorLimits
from iossim.hardware.lowering.gpu.matrix_product import TILES
from iossim.hardware.lowering.gpu.tensor_core_families import ATTENTION_ROWS, TENSOR_TILES
from iossim.hardware.lowering.kernel import Kernel, WorkClass, resident_blocks
from iossim.ir.types import Precision

CLASSES = list(WorkClass)
CLASS = {work_class: index for index, work_class in enumerate(CLASSES)}
TILE_NUMBER = {name: index for index, name in enumerate(("", *map(str, TILES), *TENSOR_TILES, *ATTENTION_ROWS))}
PRECISION_NUMBER = {precision: index for index, precision in enumerate(Precision)}

MATRIX_CLASSES = (
    WorkClass.GEMM, WorkClass.IMPLICIT_PRECOMP_GEMM, WorkClass.IMPLICIT_GEMM, WorkClass.WINOGRAD_GEMM,
)  # fmt: skip
TENSOR_CLASSES = (WorkClass.TENSOR, WorkClass.TENSOR_CONVOLUTION, WorkClass.ATTENTION)
TILED_CLASSES = (*MATRIX_CLASSES, WorkClass.WINOGRAD_FUSED, *TENSOR_CLASSES)
#: The work that one core of a CPU does as one block. ``CACHED_CLASSES`` keep their order, and may fit its cache.
CACHED_CLASSES = (WorkClass.CORE_PRODUCT, WorkClass.CORE_WINDOW, WorkClass.CORE_STREAM)
CORE_CLASSES = (*CACHED_CLASSES, WorkClass.CORE_BLOCKED, WorkClass.CORE_BLOCKED_WINDOW)
#: Work classes by their number in a table.
AVERAGE_WINDOW, NARROW_STREAM, TENSOR = (
    CLASS[work_class] for work_class in (WorkClass.AVERAGE_WINDOW, WorkClass.NARROW_STREAM, WorkClass.TENSOR)
)

#: A row of a table of kernels. ``resident`` is the blocks that an SM holds, or 0; six figures are panels.
_NUMBERS = ("work_class", "tile", "precision")
_FIGURES = (
    "blocks", "threads", "resident", "flops", "l2_bytes", "activation_bytes", "weight_bytes", "bytes_written",
    *("row_tiles", "column_tiles", "row_bytes", "column_bytes", "inner", "strided_bytes"),
    "steps", "slowdown", "reread_bytes", "exponentials", "contention", "waits_for_dram", "longest",
)  # fmt: skip
KERNEL_ROW = np.dtype([*((name, np.int64) for name in _NUMBERS), *((name, np.float64) for name in _FIGURES)])
#: A table of such rows and one row, as compiled code takes them.
KernelRows: TypeAlias = Annotated[NDArray[np.void], KERNEL_ROW]
KernelRow: TypeAlias = Annotated[np.void, KERNEL_ROW]


def kernel_table(limits: MultiprocessorLimits, kernels: Iterable[Kernel]) -> KernelRows:
    """The kernels as rows of :data:`KERNEL_ROW`, shape ``[kernels]``."""
    rows = []
    for kernel in kernels:
        numbers = CLASS[kernel.work_class], TILE_NUMBER[kernel.tile], PRECISION_NUMBER[kernel.precision]
        grid = kernel.blocks, kernel.threads_per_block, resident_blocks(limits, *kernel.block_needs)
        reads = kernel.l2_bytes, kernel.activation_bytes, kernel.weight_bytes
        panels = kernel.panels or (0, 0, 0, 0, 0, 0)
        walk = kernel.steps, kernel.slowdown, kernel.reread_bytes, kernel.exponentials
        waits = kernel.contention, kernel.waits_for_dram, kernel.longest
        rows.append((*numbers, *grid, kernel.flops, *reads, kernel.bytes_written, *panels, *walk, *waits))
    return np.array(rows, dtype=KERNEL_ROW)
