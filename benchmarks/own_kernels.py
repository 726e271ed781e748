#!/usr/bin/env python3
"""Number, traffic in bytes and accesses of the networks' own GPU kernels, without a GPU.

    python3 benchmarks/own_kernels.py

Schedules are sequential, in bf16 with channels last, where every convolution has one call of cuDNN with its epilogue.
*Bytes* are those of operands and outputs, each once. An *access* is one load or store of a thread, in the kernels'
source; *one by one* are those of a thread per output that reads and writes single elements.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from iossim.backends.cupy_cudnn.views import KernelCall
    from iossim.ir.network import Network

NETWORKS = (("inception_v3", 32), ("nasnet_a", 1), ("mobilenet_v1", 1))


class Moved(NamedTuple):
    """Traffic of a kernel: bytes, accesses, and accesses one by one."""

    bytes: int
    accesses: int
    one_by_one: int


def own_kernels(network: Network) -> Iterator[KernelCall]:
    """All launches of a network's sequential schedule."""
    from iossim.backends.cupy_cudnn.prepared_plan import launch_program
    from iossim.backends.cupy_cudnn.views import KernelCall
    from iossim.backends.cupy_cudnn.weights import Weights
    from iossim.execution.layouts import suits_channels_last
    from iossim.execution.lower import lower_schedule
    from iossim.tasks.measured_schedules import plain_schedule

    plan = lower_schedule(plain_schedule(network, "sequential"), network, in_place=True)
    weights = Weights(network.graph, cast("Any", None), suits_channels_last(network.graph))
    for launch in plan.launches:
        for call in launch_program(network, plan, launch, weights).calls:
            kernel = call if isinstance(call, KernelCall) else call.after if call.fused else call.epilogue
            if kernel is not None:
                yield kernel


def moved(call: KernelCall) -> Moved:
    """Traffic of a call, from its source."""
    from iossim.backends.cupy_cudnn.views import View

    views = [item for item in call.arguments if isinstance(item, View)]
    sizes = [math.prod(size for size, step in zip(v.shape, v.strides, strict=True) if step) for v in views]
    n = {name: int(value) for name, value in re.findall(r"constexpr int (\w+) = (-?\d+);", call.source)}
    count = int(cast("Any", call.arguments[0]))
    size_bytes = sum(size * view.dtype.bytes for size, view in zip(sizes, views, strict=True))
    if call.name == "chain":
        body = call.source[call.source.index("extern") :]
        pieces = re.findall(r"(?:take|put)<(\d+)>|pick\(\S+ [^;]*?, (\S+?)\);", body)
        each = sum(n["W"] // int(piece) if piece else 1 if step == "0" else n["W"] for piece, step in pieces)
        return Moved(size_bytes, count * each, views[0].elements * len(views))
    if "KY" in n:
        rows = (n["R"] - 1) * n["SY"] + (n["KY"] - 1) * n["DY"] + 1
        each = rows * n["KX"] * n["W"] // n["P"] + n["R"] * n["W"] // n["Q"]
        return Moved(size_bytes, count * each, views[1].elements * (n["KY"] * n["KX"] + 1))
    reads = {"softmax": 3, "layer_norm": 5, "rms_norm": 3}.get(call.name, 1)
    writes = 1 if reads == 1 else views[0].elements
    held = sizes[0] // n["P"] * (1 if n.get("K", 1) else min(reads, 3)) + sum(sizes[1] // n["W"] for _ in views[2:])
    return Moved(size_bytes, held + sizes[1] // n["Q"], sizes[0] * reads + writes)


def main() -> int:
    from iossim.models.load import load

    print("| network, bf16 | kernels | MB | accesses (million) | one by one | bytes an access | one by one |")
    print(f"|{'---|' * 7}")
    for name, batch in NETWORKS:
        found = [moved(call) for call in own_kernels(load(name, batch=batch, dtype="bf16"))]
        size_bytes, accesses, one_by_one = (sum(numbers) for numbers in zip(*found, strict=True))
        cells = [f"{name}, batch {batch}", len(found), f"{size_bytes / 1e6:.1f}", f"{accesses / 1e6:.2f}"]
        cells += [f"{one_by_one / 1e6:.1f}", f"{size_bytes / accesses:.1f}", f"{size_bytes / one_by_one:.2f}"]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
