"""Micro-batches and the schedule chosen jointly, compared with one after the other.

    python benchmarks/micro_batches_joint.py a100-sxm-40gb 8 vgg16 resnet18 --limit 1MiB --limit 64MiB

One row of Markdown per network and limit, in milliseconds: undivided; *divided first* (each block in the number of
micro-batches that is fastest sequentially, then scheduled); *scheduled first* (the stages of the undivided schedule,
each block's kept or run in sequential or concurrent micro-batches, if faster); *together*, with its divisions.
"""

from __future__ import annotations

from dataclasses import replace
from time import process_time
from typing import Annotated

import typer

import iossim
from benchmarks import markdown
from benchmarks.scheduled_first import scheduled_first
from iossim import api
from iossim.cost.workspace_limit import workspace_limited
from iossim.microbatching.divided_blocks import JOINED, divide_blocks
from iossim.microbatching.micro_batches_transform import JOINED_LIMITED, MicroBatch
from iossim.search.scheduler import schedule
from iossim.transforms.transform import Setting

app = typer.Typer(add_completion=False)


@app.command()
def joint(
    device: str,
    batch: int,
    models: list[str],
    limit: Annotated[list[str], typer.Option()] = ["none"],  # noqa: B006
    engine: str = "paper",
) -> None:
    """Print the table, each row as soon as it is ready."""
    ways = "undivided", "divided first", "scheduled first", "together"
    markdown.head("network", "batch", "limit", *ways, "divides", "CPU s")
    for model in models:
        network = iossim.load(model, batch=batch)
        given = api.cost_model("simulator", device, engine=engine)
        for size in limit:
            options = api.search_options(workspace_limit=None if size == "none" else size)
            started = process_time()
            together = MicroBatch("auto").apply(network, Setting(given, "ios-both", options))
            seconds = process_time() - started
            limited = options.workspace_limit_bytes
            prices = given if limited is None else workspace_limited(given, network, limited)
            options = replace(options, workspace_limit_bytes=None)
            found = schedule(network, prices, "ios-both", options)
            first = MicroBatch("auto").apply(network, Setting(prices, "sequential", options))
            divided = divide_blocks(network, first.parts, JOINED if limited is None else JOINED_LIMITED)
            divided_us = schedule(divided, prices, "ios-both", options).latency_us
            _, scheduled_us = scheduled_first(network, prices, found)
            assert together.after_us is not None
            times = [found.latency_us, divided_us, scheduled_us, together.after_us]
            told = (f"{us / 1e3:.3f}" for us in times)
            parts = ", ".join(f"{name} {count}" for name, count in together.parts.items()) or "nothing"
            markdown.row(model, batch, size, *told, parts, f"{seconds:.0f}")


if __name__ == "__main__":
    app()
