"""Streams compared with stages, on simulated devices: their gain, and the accuracy of the prices that find them.

    python benchmarks/streams.py table [--devices v100,a100] [--networks squeezenet,...] [--batches 1,8]
    python benchmarks/streams.py agreement [--schedules 1000]

``table`` prints one row per network, device, engine and batch: the schedulers' latencies as plans in the fluid model,
ms, the bound of all stream schedules, the gap of ios-streams to it, and ios-streams event by event beside ios-both.
``agreement`` prices random stream schedules (the searched one, with more and more random changes) in the fluid model
and event by event: the error's median and 95th percentile, the rank correlation, and prices per second.
"""

from __future__ import annotations

import argparse
import sys
from time import perf_counter

import numpy as np

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.execution.lower import lower_schedule
from iossim.hardware.load import device
from iossim.ir.network import Network
from iossim.models.load import load
from iossim.schedule.streams import StreamBatch, StreamProblem, as_streams, flat, in_streams, issue_order
from iossim.search.options import SearchOptions
from iossim.search.scheduler import schedule, schedule_any
from iossim.search.streams.moves import neighbours

NETWORKS = "squeezenet,inception_v3,randwire,nasnet_a"


def table(devices: list[str], networks: list[str], batches: list[int], seconds: float | None) -> None:
    """Print the rows of a Markdown table, each as soon as it is known."""
    print(
        "| network | device | engine | batch | sequential | greedy | ios-both | ios-streams | against ios-both |",
        end="",
    )
    print(" event by event | bound | gap | s |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for name in networks:
        for batch in batches:
            network = load(name, batch=batch)
            for board in devices:
                for engine in ("paper", "graph"):
                    print(row(network, board, engine, batch, seconds), flush=True)


def row(network: Network, board: str, engine: str, batch: int, seconds: float | None) -> str:
    model = SimulatorCostModel(device(board), network.precision, engine)  # type: ignore[arg-type]
    plans = {}
    for name in ("sequential", "greedy", "ios-both", "ios-streams"):
        began = perf_counter()
        found = schedule_any(network, model, name, SearchOptions(seconds=seconds))
        took_s = perf_counter() - began
        plans[name] = lower_schedule(found, network, engine)
        bound_us = found.relaxed_bound_us
    fluid = {name: model.plan_us(network, plan) for name, plan in plans.items()}
    events = {name: model.simulated_plan_us(network, plan) for name, plan in plans.items() if name.startswith("ios")}
    ms = " | ".join(f"{us / 1e3:.3f}" for us in fluid.values())
    gain, seen = (found["ios-streams"] / found["ios-both"] - 1 for found in (fluid, events))
    gap = fluid["ios-streams"] / bound_us - 1
    return (
        f"| {network.name} | {board} | {engine} | {batch} | {ms} | {gain:+.1%} | {seen:+.1%} | {bound_us / 1e3:.3f} | "
        f"{gap:.1%} | {took_s:.0f} |"
    )


def agreement(devices: list[str], networks: list[str], batches: list[int], schedules: int) -> None:
    print(
        "| network | device | engine | batch | schedules | median error | 95th percentile | rank correlation |", end=""
    )
    print(" prices a second | event by event |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in networks:
        for batch in batches:
            network = load(name, batch=batch)
            for board in devices:
                for engine in ("paper", "graph"):
                    print(agreement_row(network, board, engine, batch, schedules), flush=True)


def agreement_row(network: Network, board: str, engine: str, batch: int, schedules: int) -> str:
    model = SimulatorCostModel(device(board), network.precision, engine)  # type: ignore[arg-type]
    begun = as_streams(schedule(network, model, "greedy"), network)
    order = issue_order(begun)
    problem = StreamProblem.of(network, [[network.unit_index[unit] for unit in one.units] for _, one in order])
    drawn = np.random.default_rng(0)
    now = np.arange(len(problem)), np.array([stream for stream, _ in order], dtype=np.int64)
    orders, streams = (np.empty((schedules, len(problem)), dtype=np.int64) for _ in range(2))
    for index in range(schedules):
        # This is a walk of random changes, which begins anew ten times.
        if index % (schedules // 10 or 1) == 0:
            now = np.arange(len(problem)), np.array([stream for stream, _ in order], dtype=np.int64)
        one = np.empty((1, len(problem)), dtype=np.int64), np.empty((1, len(problem)), dtype=np.int64)
        seed = np.uint64(drawn.integers(1, 2**62))
        neighbours(*now, *problem.flat_reads, *flat(problem.readers), 0, 12, seed, *one)
        now = one[0][0], one[1][0]
        orders[index], streams[index] = now
    batch_of = StreamBatch(problem, orders, streams)
    model.price_streams(batch_of)
    began = perf_counter()
    fluid = model.price_streams(batch_of).latency_us
    fluid_s = perf_counter() - began
    events = np.empty(schedules)
    began = perf_counter()
    for index in range(schedules):
        made = in_streams(network, problem.issued(orders[index].tolist(), streams[index].tolist()))
        plan = lower_schedule(begun.model_copy(update=made), network, engine)
        events[index] = model.simulated_plan_us(network, plan)
    events_s = perf_counter() - began
    error = np.abs(fluid / events - 1)
    ranks = [np.argsort(np.argsort(values)) for values in (fluid, events)]
    correlation = np.corrcoef(*ranks)[0, 1]
    return (
        f"| {network.name} | {board} | {engine} | {batch} | {schedules} | {np.median(error):.1%} | "
        f"{np.quantile(error, 0.95):.1%} | {correlation:.3f} | {schedules / fluid_s:,.0f} | {schedules / events_s:,.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["table", "agreement"])
    parser.add_argument("--devices", default="v100-sxm2,a100-pcie-40gb")
    parser.add_argument("--networks", default=NETWORKS)
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=None)
    given = parser.parse_args(sys.argv[1:])
    lists = given.devices.split(","), given.networks.split(","), [int(one) for one in given.batches.split(",")]
    if given.what == "table":
        table(*lists, given.seconds)
    else:
        agreement(*lists, given.schedules)


if __name__ == "__main__":
    main()
