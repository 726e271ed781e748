"""Recurrent layers: one product for all inputs, then a small product and an element-wise kernel a step.

That is cuDNN's standard algorithm. Its persistent kernels, which keep the weights in registers, are not modelled.
"""

from __future__ import annotations

from iossim.hardware.lowering.gpu.matrix_product import TILES, Product, product_kernel, stream_kernel
from iossim.hardware.lowering.kernel import Candidate, WorkClass
from iossim.hardware.lowering.step import Step
from iossim.ir.ops.recurrent import Recurrent


def recurrent(step: Step) -> list[Candidate]:
    """A candidate for each tile of the products. Directions run in the same launches."""
    op = step.op
    assert isinstance(op, Recurrent)
    x = step.operands[0].type
    steps, batch = (x.shape[1], x.shape[0]) if op.batch_first else (x.shape[0], x.shape[1])
    size, columns, d = x.dtype.bytes, op.gates * op.hidden, op.directions
    gates_bytes, state_bytes = batch * columns * d * size, batch * op.hidden * d * size

    def product(count: int, inner: int, read_bytes: int, made_bytes: int) -> Product:
        """The gates of ``count`` columns of the input or the state, for each direction."""
        weight_bytes = d * columns * inner * size
        return Product(columns, count, inner, read_bytes, weight_bytes, made_bytes, size, step.precision, d)

    whole = product(steps * batch, x.shape[2], x.bytes, steps * gates_bytes)
    one = product(batch, op.hidden, state_bytes, gates_bytes)
    products = 2 * steps * batch * d * columns * (x.shape[2] + op.hidden)
    cell = stream_kernel(
        "recurrent_cell",
        batch * op.hidden * d,
        max(0, step.flops - products) // steps,
        activation_bytes=2 * gates_bytes + state_bytes,
        bytes_written=2 * state_bytes,
    )
    found = []
    for tile in TILES:
        first, each = (product_kernel(part, tile, WorkClass.GEMM) for part in (whole, one))
        found.append(Candidate(f"recurrent_{tile}", (first, *(each, cell) * steps), steps * gates_bytes))
    return found
