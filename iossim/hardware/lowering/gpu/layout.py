"""Tensors from one layout to another: by tiles of positions by channels, turned in shared memory, a block each.

The same kernel serves wherever it runs: inside a library's call whose tensors lie otherwise than its kernel wants them, and as
an op of the graph.
"""

from __future__ import annotations

from iossim.hardware.lowering.kernel import Kernel, WorkClass, ceil_div
from iossim.ir.types import Precision

#: Transformed is by tiles of this many positions by as many channels, a block each; one that hangs over costs as much as a
#: full one. Filters are transformed one by one, of whose tiles a 3x3 window fills nine positions of 32: on an RTX A5000
#: the 8,192 tiles of 512 by 512 filters take 30 us and the 3,136 full ones of an image 38, which are held up by DRAM. So
#: many bytes an element of a tile count to L2, for each byte of it.
_TRANSPOSED, _TILE_TRAFFIC = 32, 3


def layout_kernel(
    name: str,
    images: int,
    channels: int,
    positions: int,
    activation_bytes: int = 0,
    weight_bytes: int = 0,
    element_bytes: int = Precision.FP32.storage.bytes,
) -> Kernel:
    """A transposition of ``positions`` by ``channels`` in each image, or filter, whatever of it is read."""
    tiles = images * ceil_div(channels, _TRANSPOSED) * ceil_div(positions, _TRANSPOSED)
    written = (activation_bytes + weight_bytes) and images * channels * positions * element_bytes
    tile_bytes = _TRANSPOSED * _TRANSPOSED * element_bytes
    return Kernel(
        name,
        WorkClass.LAYOUT,
        tiles,
        256,
        32,
        2 * tile_bytes,
        0,
        activation_bytes,
        weight_bytes,
        written,
        tiles * tile_bytes * _TILE_TRAFFIC,
    )
