"""Tables of kernels, as compiled formulas read them: a row a kernel, its work class, tile and precision by number."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from iossim.hardware.compute_capability import MultiprocessorLimits
from iossim.hardware.lowering.gpu.matrix_product import TILES
from iossim.hardware.lowering.gpu.tensor_core_product import TILE_REUSE
from iossim.hardware.lowering.kernel import Kernel, WorkClass, resident_blocks
from iossim.ir.types import Precision

Floats = NDArray[np.float64]

CLASSES = list(WorkClass)
CLASS = {work_class: index for index, work_class in enumerate(CLASSES)}
TILE_NUMBER = {name: index for index, name in enumerate(("", *map(str, TILES), *TILE_REUSE))}
PRECISION_NUMBER = {precision: index for index, precision in enumerate(Precision)}

MATRIX_CLASSES = (
    WorkClass.GEMM,
    WorkClass.IMPLICIT_PRECOMP_GEMM,
    WorkClass.IMPLICIT_GEMM,
    WorkClass.WINOGRAD_GEMM,
)
TENSOR_CLASSES = (WorkClass.TENSOR, WorkClass.TENSOR_CONVOLUTION)
TILED_CLASSES = (*MATRIX_CLASSES, WorkClass.WINOGRAD_FUSED, *TENSOR_CLASSES)
#: The work that one core of a CPU does as one block. The cache of the core may hold all tensors of ``CACHED_CLASSES``, which
#: keep their order.
CORE_CLASSES = (
    WorkClass.CORE_PRODUCT,
    WorkClass.CORE_BLOCKED,
    WorkClass.CORE_BLOCKED_WINDOW,
    WorkClass.CORE_WINDOW,
    WorkClass.CORE_STREAM,
)
CACHED_CLASSES = (WorkClass.CORE_PRODUCT, WorkClass.CORE_WINDOW, WorkClass.CORE_STREAM)
#: Work classes by their number in a table.
GEMM, AVERAGE_WINDOW, NARROW_STREAM, TENSOR = (
    CLASS[work_class]
    for work_class in (WorkClass.GEMM, WorkClass.AVERAGE_WINDOW, WorkClass.NARROW_STREAM, WorkClass.TENSOR)
)

#: A row of a table of kernels. ``resident`` is the blocks that an SM holds, 0 where none fits.
KERNEL_ROW = np.dtype(
    [
        ("work_class", np.int64),
        ("tile", np.int64),
        ("precision", np.int64),
        ("blocks", np.float64),
        ("threads", np.float64),
        ("resident", np.float64),
        ("flops", np.float64),
        ("l2_bytes", np.float64),
        ("activation_bytes", np.float64),
        ("weight_bytes", np.float64),
        ("bytes_written", np.float64),
        ("row_tiles", np.float64),
        ("column_tiles", np.float64),
        ("row_bytes", np.float64),
        ("column_bytes", np.float64),
        ("inner", np.float64),
        ("strided_bytes", np.float64),
        ("steps", np.float64),
        ("slowdown", np.float64),
        ("reread_bytes", np.float64),
    ]
)


def kernel_table(limits: MultiprocessorLimits, kernels: Iterable[Kernel]) -> NDArray[np.void]:
    """The kernels as rows of :data:`KERNEL_ROW`, shape ``[kernels]``."""
    return np.array(
        [
            (
                CLASS[kernel.work_class],
                TILE_NUMBER[kernel.tile],
                PRECISION_NUMBER[kernel.precision],
                kernel.blocks,
                kernel.threads_per_block,
                resident_blocks(
                    limits, kernel.threads_per_block, kernel.registers_per_thread, kernel.shared_bytes_per_block
                ),
                kernel.flops,
                kernel.l2_bytes,
                kernel.activation_bytes,
                kernel.weight_bytes,
                kernel.bytes_written,
                *(kernel.panels or (0, 0, 0, 0, 0, 0)),
                kernel.steps,
                kernel.slowdown,
                kernel.reread_bytes,
            )
            for kernel in kernels
        ],
        dtype=KERNEL_ROW,
    )
