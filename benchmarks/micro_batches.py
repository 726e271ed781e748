"""Time of workspace division (WD): for a network in training, and for thousands of kernels with random fronts.

    python benchmarks/micro_batches.py network resnet152 --batch 32 --total 4GiB
    python benchmarks/micro_batches.py kernels 5000

One line of JSON each, with CPU seconds. ``network`` separates those of the simulated benchmarks, the fronts, and the
integer program; ``kernels`` draws fronts of up to 20 configurations, and allows an eighth of the fastest workspaces.
"""

from __future__ import annotations

import json
import random
from time import process_time
from typing import Annotated

import typer

import iossim
from iossim import api
from iossim.base.memory import size_bytes
from iossim.microbatching.convolutions_in_micro_batches import benchmarks
from iossim.microbatching.division import Configuration, Division, Part, divide, front

app = typer.Typer(add_completion=False)


def told(division: Division) -> dict[str, float | bool]:
    return {"time_ms": division.time_us / 1e3, "workspace_mib": division.workspace_bytes / 2**20, "proved": division.proved,
            "gap": division.gap}  # fmt: skip


@app.command()
def network(
    model: str, batch: int = 32, total: str = "4GiB", device: Annotated[str, typer.Option()] = "p100-sxm2"
) -> None:
    """All three kernels of each convolution, all sizes of micro-batches."""
    loaded = iossim.load(model, batch=batch)
    prices = api.cost_model("simulator", device, engine="paper")
    started = process_time()
    known = benchmarks(loaded, prices, training=True)
    benchmarked = process_time()
    distinct = {(known.batches[name], rows): front(rows, known.batches[name]) for name, rows in known.rows.items()}
    fronts = {str(name): distinct[known.batches[name], rows] for name, rows in known.rows.items()}
    found = process_time()
    division = divide(fronts, size_bytes(total, "total"))
    ended = process_time()
    seconds = {"benchmarks_s": benchmarked - started, "fronts_s": found - benchmarked, "division_s": ended - found}
    print(
        json.dumps({"network": model, "kernels": len(fronts), "distinct": len(distinct), **told(division), **seconds})
    )


@app.command()
def kernels(count: int, seed: int = 3) -> None:
    """Random fronts: times from 50 to 100 us and up, workspaces from 10 to 100 MB and down."""
    rng = random.Random(seed)
    fronts: dict[str, tuple[Configuration, ...]] = {}
    for number in range(count):
        time_us, size = rng.uniform(50, 100), int(rng.uniform(1e7, 1e8))
        own: list[Configuration] = []
        for _ in range(rng.randint(2, 20)):
            own.append(Configuration((Part(1, 1, "a"),), time_us, size))
            time_us, size = time_us * rng.uniform(1.01, 1.5), int(size * rng.uniform(0.2, 0.95)) - 1
            if size < 0:
                break
        fronts[f"k{number}"] = tuple(own)
    limit = sum(own[0].workspace_bytes for own in fronts.values()) // 8
    started = process_time()
    division = divide(fronts, limit)
    print(json.dumps({"kernels": count, **told(division), "division_s": process_time() - started}))


if __name__ == "__main__":
    app()
