"""Gains of micro-batches beside those that u-cuDNN published (Oyama et al., 2018): tables of :mod:`benchmarks.result_tables`.

The convolutions are those of two studies that ship. In a whole iteration the other units are not divided.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import iossim
from benchmarks.kept_runs import Rows, Runs
from iossim import api
from iossim.related import microbatch


class Published(NamedTuple):
    """A published configuration of the study ``micro_batches_training``, and its gains: of the convolutions, and of a
    whole iteration. They are over the convolutions undivided under the same limit, or divided under that of ``over``.
    """

    says: str
    model: str
    device: str
    workspace: str
    gain: float
    whole: float | None = None
    over: str = ""


CONV2, CONV2_GAIN = (
    "AlexNet conv2 (48 to 128 channels, of AlexNet in two columns), forward, batch 256, P100, 64 MiB",
    2.33,
)
CONFIGURATIONS = (
    Published("AlexNet, batch 256, P100, 64 MiB a kernel", "alexnet", "p100-sxm2", "64MiB a kernel", 1.63, 1.40),
    Published("the same on a K80", "alexnet", "k80", "64MiB a kernel", 2.10, 1.81),
    Published("AlexNet, 120 MiB in all, over 8 MiB a kernel", "alexnet", "p100-sxm2", "120MiB in all", 1.38, 1.24, "8MiB a kernel"),
    Published("ResNet-18, batch 128, P100, 64 MiB a kernel", "resnet18", "p100-sxm2", "64MiB a kernel", 1.21, 1.11),
    Published(
        "ResNet-50, batch 32, P100, 2,544 MiB in all, over 8 MiB a kernel", "resnet50", "p100-sxm2", "2544MiB in all", 1.14, 1.05,
        "8MiB a kernel",
    ),
    Published("AlexNet, 512 MiB a kernel", "alexnet", "p100-sxm2", "512MiB a kernel", 1.00),
    Published("ResNet-18, 512 MiB a kernel", "resnet18", "p100-sxm2", "512MiB a kernel", 1.00),
)  # fmt: skip


def divided_ms(runs: Runs, one: Published) -> tuple[float, float, int]:
    """The convolutions of a configuration before and after, and their batch."""
    rows = {
        row["workspace"]: row
        for row in runs.study("micro_batches_training")["rows"]
        if (row["model"], row["device"]) == (one.model, one.device)
    }
    found = rows[one.workspace]
    ms: float = found["convolutions_ms"]
    before_ms = rows[one.over]["convolutions_ms"] if one.over else ms * found["micro_batch_gain"]
    return before_ms, ms, found["batch"]


def convolutions(runs: Runs) -> Rows:
    """Milliseconds of convolutions undivided and divided, of a training iteration but for the first row."""
    conv2 = next(
        each
        for each in microbatch(iossim.load("alexnet_two_columns", batch=256), "p100-sxm2", workspace="64MiB").kernels
        if each.name.layer.startswith("conv2")
    )
    assert conv2.undivided is not None
    times = [(CONV2, conv2.undivided.time_us / 1e3, conv2.configuration.time_us / 1e3, CONV2_GAIN)]
    times += [(one.says, *divided_ms(runs, one)[:2], one.gain) for one in CONFIGURATIONS]
    rows = [["", "undivided, ms", "divided, ms", "gain", "published"]]
    return rows + [
        [says, f"{before_ms:.2f}", f"{ms:.2f}", f"{before_ms / ms:.2f}", f"{gain:.2f}"]
        for says, before_ms, ms, gain in times
    ]


def iterations(runs: Runs) -> Rows:
    """Milliseconds of training iterations with undivided convolutions, and their gain if these are divided."""
    rows = [["", "undivided, ms", "of these convolutions", "gain", "published"]]
    for one in CONFIGURATIONS:
        if one.whole is None:
            continue
        _, divided, batch = divided_ms(runs, one)
        network = iossim.load(one.model, batch=batch, training=True)
        limit = (one.over or one.workspace).split()[0]
        options = api.search_options(workspace_limit=limit)
        found = iossim.optimize(network, one.device, scheduler="sequential", options=options)
        of_unit = {unit.name: unit for unit in network.units}
        own = [
            stage.latency_us / 1e3
            for stage in found.stages
            if any(node.op.kind.startswith("conv") for node in network.unit_nodes(of_unit[stage.units[0]]))
        ]
        whole_ms, own_ms = found.latency_us / 1e3, sum(own)
        gain = whole_ms / (whole_ms - own_ms + divided)
        rows.append([one.says, f"{whole_ms:.2f}", f"{own_ms:.2f}", f"{gain:.2f}", f"{one.whole:.2f}"])
    return rows


MICRO_BATCHES: dict[str, Callable[[Runs], Rows]] = {
    "micro-batches-convolutions": convolutions,
    "micro-batches-iterations": iterations,
}
