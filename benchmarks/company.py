"""Gain of choosing kernels for concurrency, on simulated devices.

    python benchmarks/company.py [--devices v100-sxm2,t4] [--networks squeezenet,...] [--batches 1,8]

One row per network, batch, device and engine: ios-both with the kernels that are fastest alone, the saving by choosing
them for each stage (in the fluid model, which chose them, and event by event), and for the stage that saves most its
units with other kernels. The first row's seconds include loading compiled code.
"""

from __future__ import annotations

from dataclasses import replace
from time import process_time

import typer

from benchmarks import markdown
from iossim import api
from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.execution.lower import lower_schedule
from iossim.hardware.load import device
from iossim.ir.network import Network
from iossim.models.load import load
from iossim.schedule.planned_stage import PlannedStage, batch_of
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import Schedule
from iossim.search.scheduler import schedule

DEVICES = "v100-sxm2,a100-sxm-40gb,h100-sxm,t4"
NETWORKS = "squeezenet,inception_v3,randwire,nasnet_a"
COLUMNS = "network", "device", "engine", "batch", "ios-both, ms", "saved", "event by event", "stages", "CPU s without"


def row(network: Network, batch: int, board: str, engine: str) -> tuple[object, ...]:
    options = api.search_options(max_group_size=3, max_groups=8)
    found, cpu_s = [], []
    for company in (False, True):
        prices = SimulatorCostModel(device(board), network.precision, engine)  # type: ignore[arg-type]
        began_s = process_time()
        found.append(schedule(network, prices, "ios-both", replace(options, company=company)))
        cpu_s.append(process_time() - began_s)
    alone, chosen = found
    seen = [prices.simulated_plan_us(network, lower_schedule(each, network, engine)) for each in (alone, chosen)]
    saved = 1 - chosen.latency_us / alone.latency_us
    stages = [stage for block in chosen.blocks for stage in block.stages if len(stage.groups) > 1]
    changed = sum(bool(stage.variants) for stage in stages)
    percents = percent(saved), percent(1 - seen[1] / seen[0])
    spent = f"{changed} of {len(stages)}", *(f"{each:.1f}" for each in cpu_s)
    best = best_stage(network, chosen, prices)
    return network.name, board, engine, batch, f"{alone.latency_us / 1e3:.3f}", *percents, *spent, best


def percent(part: float) -> str:
    return f"{100 * part:.1f}%" if abs(part) >= 5e-4 else "0"


def best_stage(network: Network, chosen: Schedule, prices: SimulatorCostModel) -> str:
    """The stage that saves most over its fastest kernels, us, and the kernels of its units; empty where none saves."""
    found = ""
    most_us = 0.0
    for block, stages in zip(network.blocks, chosen.blocks, strict=True):
        problem = ScheduleProblem.of_block(network, block)
        for stage in stages.stages:
            planned = PlannedStage.of(problem, stage)
            (fastest_us,) = prices.price_stages(batch_of(problem, [replace(planned, variants=())])).tolist()
            if stage.variants and fastest_us - stage.latency_us > most_us:
                most_us = fastest_us - stage.latency_us
                kernels = ", ".join(f"{unit} `{name}`" for unit, name in list(stage.variants.items())[:2])
                more = f" and {len(stage.variants) - 2} more" if len(stage.variants) > 2 else ""
                found = f"{fastest_us:.0f} to {stage.latency_us:.0f} us: {kernels}{more}"
    return found


def main(devices: str = DEVICES, networks: str = NETWORKS, batches: str = "1") -> None:
    markdown.head(*COLUMNS, "with", "the stage that saves most")
    for name in networks.split(","):
        for batch in map(int, batches.split(",")):
            network = load(name, batch=batch)
            for board in devices.split(","):
                for engine in ("paper", "graph"):
                    markdown.row(*row(network, batch, board, engine))


if __name__ == "__main__":
    typer.run(main)
