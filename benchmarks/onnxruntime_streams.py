"""Cost of ONNX Runtime's streams beside their kernels: synthetic chains and modules on a CPU, as a CSV.

    python benchmarks/onnxruntime_streams.py FILE [RUNS]

It measures the rows of ``hw_profiles/measurements/epyc-2-cores/onnxruntime_streams.csv``; ``python -m
evidence.profiles.runtime_streams FILE`` derives the costs. Other work on the machine affects the medians, since a
stream whose thread has no core waits for one.
"""

from __future__ import annotations

import csv
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from iossim.deploy.runtime import Provider, open_session, session_options

COLUMNS = (
    "shape",
    "node",
    "nodes",
    "crossings",
    "one_thread_least_us",
    "one_worker_least_us",
    "one_thread_median_us",
    "streams_median_us",
)
CPU = Provider("CPUExecutionProvider", "0")
#: Products of a node: rows, and columns of a square matrix.
PRODUCTS = {"tiny": (4, 16), "s": (16, 96), "m": (64, 160), "l": (128, 320)}
#: Chains: products, nodes, and number of crossings.
CHAINS = [("tiny", 32, 0), ("tiny", 256, 0)] + [(node, 32, often) for node in PRODUCTS for often in (1, 4, 16)]
#: Fork-joins: products, modules, and the nodes of the two chains in each.
FORK_JOINS = [
    *[("tiny", 4, (4, 4)), ("tiny", 16, (4, 4))],
    *[("s", 4, (4, 4)), ("s", 16, (4, 4)), ("s", 16, (8, 8))],
    *[("m", 4, (4, 4)), ("m", 16, (4, 4)), ("m", 16, (8, 8)), ("m", 8, (20, 20)), ("m", 32, (3, 3))],
    *[("l", 4, (4, 4)), ("l", 16, (4, 4)), ("l", 8, (10, 10)), ("l", 8, (2, 2)), ("l", 32, (2, 1))],
]
_WARM_UP = 3


@dataclass(frozen=True)
class Case:
    """A model, the stream of each of its nodes, by name, and the number of crossings between streams."""

    shape: str
    node: str
    model: onnx.ModelProto
    stream_of: dict[str, int]

    @property
    def crossings(self) -> int:
        """Values that another stream reads."""
        made = {node.output[0]: self.stream_of[node.name] for node in self.model.graph.node}
        reads = ((self.stream_of[node.name], value) for node in self.model.graph.node for value in node.input)
        return sum(made.get(value, stream) != stream for stream, value in reads)


class Writer:
    """Adds nodes to a model: each is the product of a value and its own matrix, or the sum of two values."""

    def __init__(self, product: str) -> None:
        self.product = product
        self.rows, self.columns = PRODUCTS[product]
        self._random = np.random.default_rng(0)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[TensorProto] = []
        self._stream_of: dict[str, int] = {}

    def multiplied(self, value: str, stream: int) -> str:
        matrix = self._random.standard_normal((self.columns, self.columns)) / self.columns**0.5
        self._weights.append(numpy_helper.from_array(matrix.astype(np.float32), f"w{len(self._weights)}"))
        return self._added("MatMul", [value, self._weights[-1].name], stream)

    def summed(self, left: str, right: str, stream: int) -> str:
        return self._added("Add", [left, right], stream)

    def _added(self, op_type: str, inputs: list[str], stream: int) -> str:
        name = f"n{len(self._nodes)}"
        self._nodes.append(helper.make_node(op_type, inputs, [f"{name}.out"], name))
        self._stream_of[name] = stream
        return f"{name}.out"

    def case(self, shape: str, output: str) -> Case:
        ends = [helper.make_tensor_value_info(v, TensorProto.FLOAT, [self.rows, self.columns]) for v in ("x", output)]
        graph = helper.make_graph(self._nodes, shape, ends[:1], ends[1:], self._weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return Case(shape, self.product, model, self._stream_of)


def chain(product: str, nodes: int, crossings: int) -> Case:
    """Products in sequence, which change between two streams ``crossings`` times."""
    writer, value = Writer(product), "x"
    for place in range(nodes):
        value = writer.multiplied(value, place * (crossings + 1) // nodes % 2)
    return writer.case("chain", value)


def fork_join(product: str, modules: int, lengths: tuple[int, int]) -> Case:
    """Modules in sequence: two concurrent chains, and their sum in the stream of the first."""
    writer, value = Writer(product), "x"
    for _ in range(modules):
        ends = []
        for stream, length in enumerate(lengths):
            end = value
            for _ in range(length):
                end = writer.multiplied(end, stream)
            ends.append(end)
        value = writer.summed(*ends, stream=0)
    return writer.case("fork-join", value)


def cases() -> Iterator[Case]:
    yield from (chain(*each) for each in CHAINS)
    yield from (fork_join(*each) for each in FORK_JOINS)


def times_us(case: Case, runs: int) -> dict[str, list[float]]:
    """Times of one thread and, if data crosses, of streams with a single worker and as deployed."""
    taken: dict[str, list[float]] = {}
    order = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        model, partition = Path(folder) / "model.onnx", Path(folder) / "partition.json"
        model.write_bytes(case.model.SerializeToString())
        streams = [[name for name, own in case.stream_of.items() if own == stream] for stream in (0, 1)]
        document = {"type": "DeviceBasedPartitioner", "devices": [CPU.device_type] * 2, "streams": streams}
        partition.write_text(json.dumps(document))
        given = {"one thread": session_options()}
        if case.crossings:
            given["one worker"] = session_options(2, partition=partition)
            given["one worker"].inter_op_num_threads = 2  # the calling thread, which waits, and another
            given["streams"] = session_options(2, partition=partition)
        x = np.random.default_rng(1).standard_normal(PRODUCTS[case.node]).astype(np.float32)
        run: dict[str, Callable[[], Any]] = {
            name: partial(open_session(model, options, CPU, optimised=True).run, None, {"x": x})
            for name, options in given.items()
        }
        for number in range(_WARM_UP + runs):
            for name in order.sample(list(run), len(run)):
                begin_ns = perf_counter_ns()
                run[name]()
                if number >= _WARM_UP:
                    taken.setdefault(name, []).append((perf_counter_ns() - begin_ns) / 1e3)
    return taken


def row(case: Case, taken: dict[str, list[float]]) -> dict[str, str | int]:
    def told(of: Callable[[list[float]], float], name: str) -> str:
        return f"{of(taken[name]):.1f}" if name in taken else ""

    times = told(min, "one thread"), told(min, "one worker"), told(median, "one thread"), told(median, "streams")
    known = case.shape, case.node, len(case.stream_of), case.crossings
    return dict(zip(COLUMNS, (*known, *times), strict=True))


def main() -> None:
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 40
    with Path(sys.argv[1]).open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for case in cases():
            writer.writerow(row(case, times_us(case, runs)))
            file.flush()


if __name__ == "__main__":
    main()
