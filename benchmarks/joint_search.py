"""One joint search beside each ingredient alone and one after another.

    python benchmarks/joint_search.py a100-sxm-40gb squeezenet resnet18 --engine graph --dtype tf32 --seconds 120

A row of Markdown for each network, in milliseconds: the schedule of ``ios-both`` as *given*; with each ingredient *alone*; the
best *two in turn*, the second by its own search on the network that the first one found; *jointly*, with the gap to the bound that is proven of
its network; *without* each ingredient. ``--seconds`` limits each joint search, and each of the searches in turn.

``--run`` runs each result instead, in NumPy and by ONNX Runtime, and prints the largest difference of its outputs from
those of the network as given, as a fraction of the largest value. A plan with a race is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from time import process_time
from typing import Annotated, Any

import typer

import iossim
from benchmarks import markdown
from benchmarks.kept_runs import BOARDS
from benchmarks.large_networks import BUILDS
from benchmarks.large_networks import network as wide
from iossim import api
from iossim.backends.numpy_reference.backend import numpy_outputs
from iossim.execution.backend import BackendError, create_backend
from iossim.execution.made_inputs import made_arrays
from iossim.execution.measured_run import largest_difference, plan_for
from iossim.ir.network import Network
from iossim.schedule.schedule import AnySchedule
from iossim.tasks.measured_schedules import for_backend
from iossim.transforms.joint import COMPANY, DIVISION, JOINS, REWRITING, STREAMS, JointlyFound, JointSearch
from iossim.transforms.transform import Setting

app = typer.Typer(add_completion=False)
#: The ingredients in the order in which commands apply them; what searches the second of two in turn, where the joint
#: search does not do the same.
IN_TURN: dict[str, dict[str, Any] | None] = {
    REWRITING: None,
    JOINS: {"choose_joins": True},
    DIVISION: {"micro_batch": "auto"},
    COMPANY: None,
    STREAMS: None,
}
COLUMNS = "device", "network", "batch", "given", "alone", "two in turn", "jointly", "gap", "without", "ways", "CPU s"
RUN_COLUMNS = "device", "network", "batch", "given", "jointly", "NumPy", "ONNX Runtime"


def two_in_turn_us(found: JointlyFound, prices: Any, options: Any) -> dict[tuple[str, str], float]:
    """By ingredients in turn, what the second makes of the network that is found with the first alone."""
    costs_us: dict[tuple[str, str], float] = {}
    for first, second in combinations([name for name in IN_TURN if name in found.ingredients], 2):
        if (own := IN_TURN[second]) is None:  # chosen in the schedule of a network: the same search
            both = found.tried.get(frozenset([first, second]))
            costs_us |= {} if both is None else {(first, second): both.us}
        elif frozenset([first]) in found.tried:
            network = found.tried[frozenset([first])].network
            given = {"choose_joins": False, "cost_model": prices, "options": options, **own}
            costs_us[first, second] = api.optimize(network, None, **given).latency_us
    return costs_us


def differences(network: Network, found: JointlyFound, schedule: AnySchedule) -> Iterator[str]:
    """By backend, the largest difference of a schedule's outputs from those of the network as given; "none" for a
    backend without kernels in the network's precision.
    """
    inputs = made_arrays(network.graph.inputs, network.graph.types)
    expected = numpy_outputs(network, inputs)
    numpy = create_backend("numpy_reference")
    plan = plan_for(for_backend(schedule, found.network, numpy)[0], found.network, numpy)
    for backend in (numpy, create_backend("onnxruntime_cpu")):
        try:
            outputs = backend.execute(found.network, plan, inputs)
        except BackendError:
            yield "none"
        else:
            yield f"{largest_difference(outputs, expected).relative:.0e}"


@app.command()
def joint(
    device: str,
    models: list[str],
    batch: int = 1,
    engine: str = "auto",
    dtype: str = "fp32",
    limit: str | None = None,
    seconds: float | None = None,
    graphs: Annotated[str, typer.Option(help="Graphs that each search over rewritings expands.")] = "20",
    run: bool = False,
) -> None:
    """Print the table, a row as it is ready."""
    markdown.head(*(RUN_COLUMNS if run else COLUMNS))
    named = ", ".join((BOARDS.get(device, device), engine, *([] if dtype == "fp32" else [dtype])))
    for model in models:
        network = wide(model, dtype=dtype) if model in BUILDS else iossim.load(model, batch=batch, dtype=dtype)
        prices = api.cost_model("simulator", device, network.precision, engine)
        plain = replace(api.search_options(workspace_limit=limit), seconds=seconds)
        task = api.task(network, None, cost_model=prices, options=plain, search="joint", rewrite_budget=graphs)
        (search,) = task.transforms
        assert isinstance(search, JointSearch)
        if limit is None:
            search = replace(search, streams="ios-streams")
        started = process_time()
        found = search.apply(network, Setting(prices, "ios-both", task.options))
        taken_s = process_time() - started
        made = found.best.schedule or api.optimize(
            found.network, None, cost_model=prices, options=task.options, choose_joins=False
        )
        given = [named, model, f"{batch}", f"{found.tried[frozenset()].us / 1e3:.3f}"]
        if run:
            markdown.row(*given, f"{found.us / 1e3:.3f}", *differences(network, found, made))
            continue
        two_us = two_in_turn_us(found, prices, replace(plain, seconds=None))
        best = min(two_us, key=lambda pair: two_us[pair], default=())
        alone, without = (
            ", ".join(f"{name} {us / 1e3:.3f}" for name, us in costs.items())
            for costs in (found.alone_us, found.without_us)
        )
        gap = "" if made.relaxed_bound_us is None else f"{1 - made.relaxed_bound_us / found.us:.0%}"
        in_turn = f"{two_us[best] / 1e3:.3f} ({', then '.join(best)})" if best else ""
        markdown.row(*given, alone, in_turn, f"{found.us / 1e3:.3f}", gap, without, f"{found.seen:,}", f"{taken_s:.0f}")


if __name__ == "__main__":
    app()
