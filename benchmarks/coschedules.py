"""Several models on one device: one row per set of models and device, as Markdown.

    python benchmarks/coschedules.py [--devices t4,a100-sxm-40gb,h100-sxm]

Makespan in milliseconds for each way of running them, with the gap of streams to the bound; then the same models with
random requests, 95th percentiles of latency at 30, 70 and 90% of the capacity of one after another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import typer

import iossim
from benchmarks import markdown
from iossim.cost.model import CostModel
from iossim.ir.network import Network
from iossim.search.options import SearchOptions
from iossim.serving.arrivals import poisson
from iossim.serving.coschedule import (
    ONE_AFTER_ANOTHER,
    ONE_STREAM_EACH,
    PARTITIONS,
    STAGES_BESIDE,
    STREAMS,
    Server,
    coschedule,
)

SETS = (("squeezenet",) * 2, ("squeezenet",) * 4, ("inception_v3", "resnet50"), ("bert_l", "randwire"))
WAYS = (ONE_AFTER_ANOTHER, ONE_STREAM_EACH, PARTITIONS, STAGES_BESIDE, STREAMS)
LOADS = (0.3, 0.7, 0.9)
REQUESTS = 2000


def main(devices: str = "t4,a100-sxm-40gb,h100-sxm", seed: int = 0) -> None:
    served = "p95 at 30, 70, 90%: in turn", "side by side", "streams"
    markdown.head("models", "device", "engine", *WAYS, "bound", "gap", *served)
    for names in SETS:
        counts = Counter(names)
        labels = [name if counts[name] == 1 else f"{name}{number}" for number, name in enumerate(names, 1)]
        networks = {label: iossim.load(name) for label, name in zip(labels, names, strict=True)}
        title = " + ".join(name if count == 1 else f"{count} {name}" for name, count in counts.items())
        for device in devices.split(","):
            markdown.row(title, device, *row(networks, iossim.cost_model("simulator", device), seed))


def row(networks: Mapping[str, Network], prices: CostModel, seed: int) -> Iterator[str]:
    found = coschedule(networks, prices)
    ends_ms = {way.name: f"{way.makespan_us / 1e3:.3f}" for way in found.ways}
    yield from (found.engine, *(ends_ms.get(name, "") for name in WAYS), f"{found.bound_us / 1e3:.3f}")
    yield f"{found.ways[-1].makespan_us / found.bound_us - 1:.0%}"
    server = Server(networks, prices, SearchOptions(), found)
    rate_per_us = len(networks) / found.baseline.makespan_us
    served = [server.serve(poisson(list(networks), load * rate_per_us, REQUESTS, seed), load) for load in LOADS]
    for policy in range(3):
        yield ", ".join(f"{each[policy].percentiles_us[95] / 1e3:.1f}" for each in served)


if __name__ == "__main__":
    typer.run(main)
