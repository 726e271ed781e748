"""Streams compared with stages, on simulated devices: their gain, and the accuracy of the prices that find them.

    python benchmarks/streams.py table [--devices v100,a100] [--networks squeezenet,...] [--batches 1,8]
    python benchmarks/streams.py agreement [--schedules 1000]

``table`` prints one row per network, device, engine and batch: the schedulers' latencies as plans in the fluid model,
ms, the bound of all stream schedules, the gap of ios-streams to it, and ios-streams event by event beside ios-both.
``agreement`` prices random stream schedules (the searched one, with more and more random changes) in the fluid model
and event by event: the error's median and 95th percentile, the rank correlation, and prices per second of CPU time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from time import process_time

import numpy as np
import typer

from benchmarks import markdown
from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.execution.lower import lower_schedule
from iossim.hardware.load import device
from iossim.ir.network import Network
from iossim.models.load import load
from iossim.schedule.streams import StreamBatch, StreamProblem, as_streams, in_streams, issue_order
from iossim.search.options import SearchOptions
from iossim.search.scheduler import schedule, schedule_any
from iossim.search.streams.search import Neighbours, draw

DEVICES = "v100-sxm2,a100-pcie-40gb"
NETWORKS = "squeezenet,inception_v3,randwire,nasnet_a"
SCHEDULERS = "sequential", "greedy", "ios-both", "ios-streams"
PLACE = "network", "device", "engine", "batch"

app = typer.Typer(add_completion=False)


def priced(devices: str, networks: str, batches: str) -> Iterator[tuple[Network, SimulatorCostModel, list[object]]]:
    """Each network of each batch on each device under both engines, with the cells that say so."""
    for name, batch in product(networks.split(","), map(int, batches.split(","))):
        network = load(name, batch=batch)
        for board, engine in product(devices.split(","), ("paper", "graph")):
            model = SimulatorCostModel(device(board), network.precision, engine)  # type: ignore[arg-type]
            yield network, model, [name, board, engine, batch]


@app.command()
def table(devices: str = DEVICES, networks: str = NETWORKS, batches: str = "1,8", seconds: float | None = None) -> None:
    """Stages and streams of each network, milliseconds."""
    markdown.head(*PLACE, *SCHEDULERS, "against ios-both", "event by event", "bound", "gap", "CPU s")
    for network, model, place in priced(devices, networks, batches):
        markdown.row(*place, *row(network, model, seconds))


def row(network: Network, model: SimulatorCostModel, seconds: float | None) -> tuple[str, ...]:
    engine, plans = model.engine, {}
    for name in SCHEDULERS:
        began = process_time()
        found = schedule_any(network, model, name, SearchOptions(seconds=seconds))
        took_s = process_time() - began
        plans[name] = lower_schedule(found, network, engine)
        bound_us = found.relaxed_bound_us
    fluid = {name: model.plan_us(network, plan) for name, plan in plans.items()}
    events = {name: model.simulated_plan_us(network, plan) for name, plan in plans.items() if name.startswith("ios")}
    ms = [f"{us / 1e3:.3f}" for us in (*fluid.values(), bound_us)]
    gain, seen = (found["ios-streams"] / found["ios-both"] - 1 for found in (fluid, events))
    gap = fluid["ios-streams"] / bound_us - 1
    return *ms[:-1], f"{gain:+.1%}", f"{seen:+.1%}", ms[-1], f"{gap:.1%}", f"{took_s:.0f}"


@app.command()
def agreement(devices: str = DEVICES, networks: str = NETWORKS, batches: str = "1,8", schedules: int = 1000) -> None:
    """Prices of random streams in the fluid model beside those event by event."""
    errors = "median error", "95th percentile", "rank correlation", "prices a CPU second", "event by event"
    markdown.head(*PLACE, "schedules", *errors)
    for network, model, place in priced(devices, networks, batches):
        markdown.row(*place, schedules, *agreement_row(network, model, schedules))


def agreement_row(network: Network, model: SimulatorCostModel, schedules: int) -> tuple[str, ...]:
    begun = as_streams(schedule(network, model, "greedy"), network)
    order = issue_order(begun)
    problem = StreamProblem.of(network, [[network.unit_index[unit] for unit in one.units] for _, one in order])
    drawn = np.random.default_rng(0)
    orders, streams = (np.empty((schedules, len(problem)), dtype=np.int64) for _ in range(2))
    for index in range(schedules):
        # This is a walk of random changes, which begins anew ten times.
        if index % (schedules // 10 or 1) == 0:
            now = np.arange(len(problem)), np.array([stream for stream, _ in order], dtype=np.int64)
        near = Neighbours.room(problem, 1)
        draw(*now, 0, 12, np.uint64(drawn.integers(1, 2**62)), near)
        now = near.orders[0], near.streams[0]
        orders[index], streams[index] = now
    batch_of = StreamBatch(problem, orders, streams)
    model.price_streams(batch_of)
    began = process_time()
    fluid = model.price_streams(batch_of).latency_us
    fluid_s = process_time() - began
    events = np.empty(schedules)
    began = process_time()
    for index in range(schedules):
        made = in_streams(network, problem.issued(orders[index].tolist(), streams[index].tolist()))
        plan = lower_schedule(begun.model_copy(update=made), network, model.engine)
        events[index] = model.simulated_plan_us(network, plan)
    events_s = process_time() - began
    error = np.abs(fluid / events - 1)
    ranks = [np.argsort(np.argsort(values)) for values in (fluid, events)]
    correlation = np.corrcoef(*ranks)[0, 1]
    errors = f"{np.median(error):.1%}", f"{np.quantile(error, 0.95):.1%}", f"{correlation:.3f}"
    return *errors, f"{schedules / fluid_s:,.0f}", f"{schedules / events_s:,.0f}"


if __name__ == "__main__":
    app()
