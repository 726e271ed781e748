#!/usr/bin/env python3
"""Number, traffic in bytes and accesses of the networks' own GPU kernels, without a GPU.

    python3 benchmarks/own_kernels.py [NETWORK ...]

The first table has the launches of each network (library calls and our own kernels), next to the kernels that were recorded
on an H100 before one generator made our kernels (commit 1165d4a7, batch 1), and the least time of our own kernels: 1.5 us
each, or their bytes at the H100's bandwidth. The last part lists what remains to be measured, with the commands. Schedules are
sequential, in bf16 with channels last, where every convolution has one call of cuDNN with its epilogue. *Bytes* are those of
operands and outputs, each once. An *access* is one load or store of a thread, in the kernels' source; *one by one* are those
of a thread per output that reads and writes single elements.
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

#: By network and batch: kernels and microseconds of the sequential schedule as recorded, and what is asked of it.
NETWORKS: dict[tuple[str, int], tuple[int | str, float | str, float | str]] = {
    ("inception_v3", 32): ("", 3300.0, 1700.0),
    ("nasnet_a", 1): (967, 5912.4, 3400.0),
    ("mobilenet_v1", 1): (30, 213.9, 110.0),
    ("shufflenet_v1", 1): (299, 507.6, 260.0),
    ("randwire", 1): (558, 2043.7, 1300.0),
    ("resnet50", 1): (73, 358.7, ""),
    ("squeezenet", 1): (58, 187.7, ""),
    ("inception_v3", 1): (152, 641.3, ""),
    ("gpt2", 1): (170, 683.6, ""),
    ("moe_layer", 1): (35, 93.8, ""),
    ("whisper_encoder", 1): ("", 1663.0, 1200.0),
}
#: The least that a kernel takes, and how far above its least one may be.
LEAST_US, MOST = 1.5, 1.6


class Moved(NamedTuple):
    """Traffic of a kernel: bytes, accesses, and accesses one by one."""

    bytes: int
    accesses: int
    one_by_one: int


def own_kernels(network: Network) -> Iterator[KernelCall | None]:
    """All launches of a network's sequential schedule; None for a library call."""
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
            if isinstance(call, KernelCall):
                yield call
                continue
            yield None
            last = call.ways["fused" if "fused" in call.ways else "apart"][-1]
            if isinstance(last, KernelCall):
                yield last


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
    passes = {"softmax": 3, "layer_norm": 3, "rms_norm": 2}.get(call.name, 1)
    accesses = sizes[-1] // max(n["Q"], 1)
    one_by_one = sizes[-1] if passes > 1 else 1
    for name, size in zip(re.findall(r"typedef [\w ]+ (\w+)_t;", call.source), sizes[:-1], strict=False):
        width = re.search(rf"take<(\d+)>\(v\d+, from_{name} ", call.source)
        own = size * passes if name.startswith("x") else sizes[-1]
        one_by_one += own
        accesses += (size if n.get("K") and name.startswith("x") else own) // (int(width[1]) if width else 1)
    return Moved(size_bytes, accesses, one_by_one)


def main(names: list[str]) -> int:
    from iossim.hardware.load import device
    from iossim.models.load import load

    bytes_per_us = device("h100-sxm").dram_bandwidth_gbps * 1e3
    asked = {key: NETWORKS.get(key, ("", "", "")) for key in [(name, 1) for name in names] or NETWORKS}
    print("| network, bf16 | launches | recorded before | own kernels | MB | accesses (million) | one by one ", end="")
    print(f"| bytes an access | one by one | at least, us |\n|{'---|' * 10}")
    for (name, batch), (before, _, _) in asked.items():
        launched = list(own_kernels(load(name, batch=batch, dtype="bf16")))
        found = [moved(call) for call in launched if call is not None]
        size_bytes, accesses, one_by_one = (sum(numbers) for numbers in zip(*found or [Moved(0, 0, 0)], strict=True))
        least_us = sum(max(LEAST_US, each.bytes / bytes_per_us) for each in found)
        cells = [f"{name}, batch {batch}", len(launched), before, len(found), f"{size_bytes / 1e6:.1f}"]
        cells += [f"{accesses / 1e6:.2f}", f"{one_by_one / 1e6:.1f}", f"{size_bytes / max(1, accesses):.1f}"]
        cells += [f"{size_bytes / max(1, one_by_one):.2f}", f"{least_us:.0f}"]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    print(
        f"\nTo be measured on a GPU (python3 benchmarks/gpu_report.py): own kernels within {MOST} times the least, and"
    )
    for (name, batch), (_, before_us, wanted_us) in asked.items():
        told = f"{before_us} us before" if before_us else "never recorded"
        print(f"  {name}, batch {batch}, sequential: {told}" + (f", {wanted_us} us wanted" if wanted_us else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
