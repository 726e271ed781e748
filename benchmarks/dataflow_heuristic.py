"""Gap of Xenos' priority to the best split: random operators, split by the priority and by exhaustive search.

    python benchmarks/dataflow_heuristic.py [--device c6678] [--operators 500] [--seed 0] [--check]

Operators are convolutions (dense, depthwise, in groups, strided), poolings, matrix products, sums and softmaxes of
random shapes. One line of Markdown per kind: the number of operators, those for which the priority is best,
the median, 90th percentile and worst of its time over the least (closed forms, horizontal). ``--check`` runs each on a
small device by NumPy in its memories, whole, split and linked, by both policies, and prints the largest error.
"""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import typer

from benchmarks import markdown
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import DeviceError
from iossim.edge.capacity import check as check_capacity
from iossim.edge.optimize import POLICIES, plan
from iossim.edge.plan import Variant, step_load
from iossim.edge.simulator.execute import run
from iossim.execution.made_inputs import made_arrays
from iossim.execution.measured_run import largest_difference
from iossim.hardware.edge import EdgeDevice, edge_device
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Add
from iossim.ir.ops.pool import AveragePool, MaxPool
from iossim.ir.ops.softmax import Softmax

#: Units, private, shared and cache bytes, so small that operators are sliced and cut.
SMALL = ((8, 2048, 9000, 256), (5, 512, 3000, 0), (3, 100_000, 100_000, 1024), (9, 1000, 1800, 64))
#: Kinds as the table names them.
TITLES = {
    "add": "sums",
    "conv": "convolutions",
    "grouped": "in three groups",
    "matmul": "matrix products",
    "pool": "pooling",
}


def random_operator(seed: int, most_channels: int = 512, largest: int = 56) -> tuple[str, Network]:
    """Its kind, and a network with only this operator."""
    draw = random.Random(seed)
    b = GraphBuilder(f"operator{seed}")
    kind = draw.choice(("conv", "conv", "conv", "depthwise", "grouped", "pool", "matmul", "add", "softmax"))
    channels = draw.choice([n for n in (3, 8, 16, 24, 48, 64, 96, 128, 256, 512) if n <= most_channels])
    size = draw.choice([n for n in (5, 7, 13, 14, 27, 28, 55, 56) if n <= largest])
    if kind in ("matmul", "softmax"):
        x = b.input("x", (1, size, channels))
        with b.unit("one", kind):
            weights = (channels, draw.choice((10, 64, channels)))
            y = b.add(MatMul(), x, b.constant("w", weights)) if kind == "matmul" else b.add(Softmax(), x)
        return kind, b.network([y])
    if kind == "grouped":
        channels = 3 * max(1, channels // 3)
    x = b.input("x", (1, channels, size, size))
    with b.unit("one", kind):
        if kind == "pool":
            y = b.add(draw.choice((MaxPool, AveragePool))((3, 3), (2, 2), (1, 1, 1, 1)), x)
        elif kind == "add":
            y = b.add(Add(), x, x)
        else:
            kernel = draw.choice((1, 3, 5)) if kind == "conv" else 3
            groups = {"conv": 1, "depthwise": channels, "grouped": 3}[kind]
            filters = channels if kind != "conv" else draw.choice([n for n in (16, 48, 100, 256) if n <= most_channels])
            y = b.conv(x, filters, kernel, draw.choice((1, 1, 2)), kernel // 2, groups)
    return kind, b.network([y])


def times_us(network: Network, device: EdgeDevice) -> dict[str, float]:
    """Time of the split operator by policy."""
    plans = {policy: plan(network, device, Variant.HORIZONTAL, policy) for policy in POLICIES}
    return {policy: step_load(found, found.steps[0]).us for policy, found in plans.items()}


def worst_error(seed: int) -> float:
    """Largest difference from the reference in any plan of a small operator on a small device; capacity is checked."""
    _, network = random_operator(seed, 24, 14)
    units, private, shared, cache = SMALL[seed % len(SMALL)]
    board = edge_device(f"c6678+units={units},private_bytes={private},shared.bytes={shared},cache_bytes={cache}")
    inputs = made_arrays(network.graph.inputs, network.graph.types)
    expected = evaluate_graph(network.graph, inputs)
    worst = 0.0
    for policy in POLICIES:
        for variant in Variant:
            try:
                found = plan(network, board, variant, policy)
            except DeviceError:  # no split makes it fit, as the error reports
                continue
            check_capacity(found)
            worst = max(worst, largest_difference(run(found, inputs), expected).relative)
    return worst


def main(device: str = "c6678", operators: int = 500, seed: int = 0, check: bool = False) -> None:
    ratios: dict[str, list[float]] = defaultdict(list)
    for number in range(operators):
        kind, network = random_operator(seed + number)
        found = times_us(network, edge_device(device))
        ratio = found["priority"] / min(found.values())
        ratios[kind].append(ratio)
        ratios["all"].append(ratio)
    markdown.head("", "operators", "priority is best", "median of its time over the best", "90%", "worst")
    for kind, own in sorted(ratios.items(), key=lambda item: (item[0] != "all", item[0])):
        best = sum(ratio < 1 + 1e-9 for ratio in own)
        median, high = np.percentile(own, (50, 90))
        errors = (f"{each:.2f}" for each in (median, high, max(own)))
        markdown.row(TITLES.get(kind, kind), len(own), f"{best / len(own):.0%}", *errors)
    if check:
        worst = max(worst_error(seed + number) for number in range(operators))
        print(f"{operators} operators in their own memories: at most {worst:.1e} of the largest value off")


if __name__ == "__main__":
    typer.run(main)
