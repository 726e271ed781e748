"""One joint search beside each ingredient alone and one after another.

    python benchmarks/joint_search.py a100-sxm-40gb squeezenet resnet18 --engine graph --seconds 120

A row of Markdown for each network, in milliseconds: the schedule of ``ios-both`` as *given*; with each ingredient *alone*; the best *two in
turn*; *jointly*, with the gap to the bound that is proven of its network; *without* each ingredient. Each search has the seconds, if any.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from time import process_time
from typing import Annotated, Any

import typer

import iossim
from iossim import api
from iossim.search.options import SearchOptions

app = typer.Typer(add_completion=False)
#: By ingredient, the options of a task in turn; a later one starts from what an earlier one leaves.
INGREDIENTS: dict[str, dict[str, Any]] = {
    "rewriting": {"rewrite": "default"},
    "joins": {"choose_joins": True},
    "micro_batches": {"micro_batch": "auto"},
    "company": {},
}


def in_turn_ms(
    network: iossim.Network, prices: Any, names: tuple[str, ...], options: SearchOptions, graphs: str
) -> float:
    """A task with some ingredients, each by its own search."""
    given: dict[str, Any] = {"choose_joins": False, "rewrite_budget": graphs}
    for name in names:
        given |= INGREDIENTS[name]
    options = replace(options, company="company" in names)
    return api.optimize(network, None, cost_model=prices, options=options, **given).latency_us / 1e3


@app.command()
def joint(
    device: str,
    models: list[str],
    batch: int = 1,
    engine: str = "auto",
    limit: str | None = None,
    seconds: float | None = None,
    graphs: Annotated[str, typer.Option(help="Graphs that each search over rewritings expands.")] = "20",
) -> None:
    """Print the table, a row as it is ready."""
    print("| network | given | alone | two in turn | jointly | gap | without | ways | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for model in models:
        network = iossim.load(model, batch=batch)
        prices = api.cost_model("simulator", device, network.precision, engine)
        plain = api.search_options(workspace_limit=limit)
        started = process_time()
        options = replace(plain, seconds=seconds)
        found = api.optimize(network, None, cost_model=prices, options=options, search="joint", rewrite_budget=graphs)
        taken_s = process_time() - started
        said = found.options["joint"]
        names = [name for name in INGREDIENTS if name in said["alone_us"]]
        pairs = [
            pair
            for pair in permutations(names, 2)
            if list(INGREDIENTS).index(pair[0]) < list(INGREDIENTS).index(pair[1])
        ]
        two_ms = {pair: in_turn_ms(network, prices, pair, plain, graphs) for pair in pairs}
        best = min(two_ms, key=lambda pair: two_ms[pair], default=())
        alone, without = (
            ", ".join(f"{name} {us / 1e3:.3f}" for name, us in said[way].items()) for way in ("alone_us", "without_us")
        )
        least_us = found.relaxed_bound_us or 0.0
        cells = [
            f"{model}, batch {batch}", f"{said['given_us'] / 1e3:.3f}", alone,
            f"{two_ms[best]:.3f} ({', then '.join(best)})" if best else "", f"{found.latency_us / 1e3:.3f}",
            f"{1 - least_us / found.latency_us:.0%}", without, f"{said['seen']:,}", f"{taken_s:.0f}",
        ]  # fmt: skip
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    app()
