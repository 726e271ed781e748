#!/usr/bin/env python3
"""Matrix products and attention by PyTorch, in CUDA graphs, as measurement sets that profiles are fitted to.

    python3 benchmarks/gpu_operators.py --out OUT               # on a CUDA GPU; half a minute
    python3 benchmarks/gpu_operators.py --out OUT --dry-run     # the same path on the CPU, with a few tiny shapes

OUT gets ``products.jsonl`` (cuBLAS: products of a matrix with weights, and stacks of them) and ``attention.jsonl``
(cuDNN's). Each time is that of a replayed graph of copies of one operator, between two events, per copy: the median of
20 replays. Needs PyTorch and iossim.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch

from iossim.hardware.lowering.kernel import Issue
from iossim.ir.types import Precision
from iossim.measurements.measurement import Header, Measurement, MeasurementSet, device_of_product
from iossim.measurements.measurement_set import write_measurements
from iossim.measurements.operator_kinds import read_record

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}
ROWS = (1, 8, 32, 128, 512, 2048, 8192)
#: Inner and outer size of weights, mostly of transformers.
WEIGHTS = ((1024, 1024), (1024, 4096), (4096, 1024), (768, 3072), (4096, 4096), (2048, 1000))
#: Batch, heads, queries, keys, features, and whether later keys are masked.
ATTENTIONS = (
    (1, 12, 128, 128, 64, 0), (1, 16, 128, 128, 64, 0), (1, 16, 384, 384, 64, 0), (1, 16, 512, 512, 64, 0),
    (8, 16, 128, 128, 64, 0), (8, 16, 512, 512, 64, 0), (32, 16, 512, 512, 64, 0), (1, 32, 1, 512, 128, 0),
    (1, 32, 1, 2048, 128, 0), (1, 32, 1, 8192, 128, 0), (8, 32, 1, 2048, 128, 0), (1, 32, 512, 512, 128, 1),
    (1, 32, 2048, 2048, 128, 1), (1, 32, 2048, 2048, 128, 0), (4, 32, 2048, 2048, 128, 1), (1, 32, 8192, 8192, 128, 1),
)  # fmt: skip
REPLAYS = 20
#: Duration of a graph's copies, so that its own start is negligible.
GRAPH_US = 400.0
MOST_COPIES = 64


def graph_us(call: Callable[[], object], stream: Any) -> float:
    """Time of one of many copies of a call in a CUDA graph, with the host ahead."""
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
        stream.synchronize()

        def replayed_us(copies: int, replays: int) -> float:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                for _ in range(copies):
                    call()
            events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(replays)]
            torch.cuda._sleep(400_000)  # cycles in which the host issues all replays
            for begin, end in events:
                begin.record(stream)
                graph.replay()
                end.record(stream)
            stream.synchronize()
            return median(begin.elapsed_time(end) * 1e3 for begin, end in events) / copies

        estimate_us = max(0.5, replayed_us(4, 5))
        return replayed_us(int(max(2, min(MOST_COPIES, GRAPH_US // estimate_us))), REPLAYS)


def host_us(call: Callable[[], object]) -> float:
    """Time of a call by the host's clock, for a dry run."""
    begin_s = time.perf_counter()
    call()
    return (time.perf_counter() - begin_s) * 1e6


def products(place: str, rows: tuple[int, ...], weights: tuple[tuple[int, int], ...]) -> Iterator[tuple[Any, str, Any]]:
    """Descriptions, precisions and calls."""
    for dtype, m, (k, n) in product(DTYPES, rows, weights):
        a, w = (torch.randn(size, device=place, dtype=DTYPES[dtype]) for size in ((m, k), (n, k)))
        sizes = {"op": "gemm", "m": m, "n": n, "k": k, "trans_a": "N", "trans_b": "T"}
        yield sizes, dtype, lambda a=a, w=w: torch.mm(a, w.t())


def attentions(place: str, shapes: tuple[tuple[int, ...], ...]) -> Iterator[tuple[Any, Any, str, Any, Any]]:
    """Descriptions of the product of queries and keys and of the whole, the precision, and a call of each."""
    for dtype, (batch, heads, queries, keys, features, causal) in product(("bf16", "fp16"), shapes):
        sizes = ((batch, heads, count, features) for count in (queries, keys, keys))
        q, k, v = (torch.randn(size, device=place, dtype=DTYPES[dtype]) for size in sizes)
        scores = {"op": "bmm", "batch": batch * heads, "m": queries, "n": keys, "k": features}
        whole = {"op": "attention", "batch": batch, "heads": heads, "queries": queries, "keys": keys}
        whole |= {"features": features, "causal": causal}
        yield (
            scores, whole, dtype, lambda q=q, k=k: torch.matmul(q, k.transpose(-1, -2)),
            lambda q=q, k=k, v=v, causal=causal: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=bool(causal)),
        )  # fmt: skip


def measure(dry: bool) -> tuple[list[Measurement], list[Measurement]]:
    place = "cpu" if dry else "cuda"
    stream = None if dry else torch.cuda.Stream()
    rows, weights, shapes = ((1, 8), WEIGHTS[:1], ATTENTIONS[:2]) if dry else (ROWS, WEIGHTS, ATTENTIONS)

    def measured(sizes: Any, dtype: str, call: Callable[[], object]) -> Measurement:
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        time_us = host_us(call) if stream is None else graph_us(call, stream)
        return Measurement(read_record(sizes, Precision(dtype)), time_us, samples=1 if dry else REPLAYS)

    multiplied = [measured(*each) for each in products(place, rows, weights)]
    attended = []
    with torch.nn.attention.sdpa_kernel(
        torch.nn.attention.SDPBackend.MATH if dry else torch.nn.attention.SDPBackend.CUDNN_ATTENTION
    ):
        for scores, whole, dtype, multiply, attend in attentions(place, shapes):
            multiplied.append(measured(scores, dtype, multiply))
            attended.append(measured(whole, dtype, attend))
    return multiplied, attended


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the measurement sets")
    parser.add_argument("--device", help="name of the device (default: that of the GPU's name)")
    parser.add_argument("--dry-run", action="store_true", help="without a GPU")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    name = args.device or ("cpu" if args.dry_run else device_of_product(torch.cuda.get_device_name()))
    versions = {
        "pytorch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),
    }
    multiplied, attended = measure(args.dry_run)
    for file, rows in (("products", multiplied), ("attention", attended)):
        header = Header(
            device=name, data_set=f"{args.out.name}/{file}", libraries=versions, issue=Issue.GRAPH,
            date=datetime.now(UTC).date().isoformat(), source="benchmarks/gpu_operators.py",
        )  # fmt: skip
        write_measurements(MeasurementSet(header, tuple(rows), (), ()), args.out / f"{file}.jsonl")
        print(f"{args.out / file}.jsonl: {len(rows)} operators")


if __name__ == "__main__":
    main()
