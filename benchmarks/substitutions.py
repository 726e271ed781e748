"""Substitutions of networks: three searches beside each other, and backtracking beside exhaustive search.

    python benchmarks/substitutions.py searches alexnet squeezenet --out rows.jsonl
    python benchmarks/substitutions.py exhaustive alexnet inception_v3:12 --seconds 400

``searches`` prices each network as given, rewritten for the least sum of operators by backtracking and by saturation and scheduled then, and
jointly. Each network and search is a line of JSON: latencies in us by the sum of operators and by ``ios-both``, and CPU seconds.

``exhaustive`` compares backtracking at alpha 1.05 with all graphs there are, under the sum of operators: graphs seen, CPU seconds, and whether
the cost is the same; ``complete`` is false where the seconds ended it.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from math import inf
from pathlib import Path
from time import process_time
from typing import Annotated, Any

import typer

import iossim
from iossim import api
from iossim.analysis.rewriting import rewrite
from iossim.cost.model import CostModel
from iossim.ir.network import Network
from iossim.rewriting.backtracking import ALPHA, RELATIVE_TOLERANCE, RewriteBudget, search
from iossim.rewriting.graph_costs import SumOfOperators
from iossim.rewriting.rule_sets import rules_named
from iossim.rewriting.trusted import trusted

#: MetaFlow's rules that match these networks, but for those that double the graphs at each convolution, sum or relu: the enlargement of 3x3 to
#: 5x5, identities beside sums, and the merging of relus.
FEW = ("merge-convolutions", "enlarge-1x1-to-3x3", "enlarge-1xk-to-3xk", "enlarge-kx1-to-kx3", "relu-behind-max-pool")
SEARCHES = ("backtracking", "saturation", "joint")

app = typer.Typer(add_completion=False)
Models = Annotated[list[str], typer.Argument(help="Of the zoo; NAME:BLOCK for one block.")]
Device = Annotated[str, typer.Option()]


def loaded(model: str) -> Network:
    name, _, block = model.partition(":")
    return iossim.load(name, block=int(block)) if block else iossim.load(name)


def of_searches(network: Network, prices: CostModel, budget: str) -> Iterator[dict[str, Any]]:
    operators = SumOfOperators(prices)
    for name in SEARCHES:
        started = process_time()
        found = rewrite(network, prices, rules_named("default"), search=name, budget=RewriteBudget.parse(budget))  # type: ignore[arg-type]
        yield {
            "network": network.name,
            "search": name,
            "sum_before_us": operators.us(network),
            "sum_after_us": operators.us(found.network),
            "schedule_before_us": found.before_us,
            "schedule_after_us": found.after_us,
            "gain_percent": 100 * (found.before_us / found.after_us - 1),
            "rules": dict(Counter(step.rule for step in found.steps)),
            "seen": found.seen,
            "complete": found.complete,
            "cpu_s": process_time() - started,
        }


def of_exhaustive(network: Network, prices: CostModel, seconds: float, every: bool) -> dict[str, Any]:
    rules = [rule for rule in trusted(rules_named("metaflow"))[0] if every or rule.name in FEW]
    row: dict[str, Any] = {"network": network.name, "rules": "metaflow" if every else "few"}
    costs = []
    for name, alpha in (("backtracking", ALPHA), ("exhaustive", inf)):
        started = process_time()
        found = search(network, rules, SumOfOperators(prices), alpha=alpha, budget=RewriteBudget(seconds=seconds))
        costs.append(found.best.cost_us)
        row[name] = {
            "us": found.best.cost_us,
            "seen": found.seen,
            "complete": found.complete,
            "cpu_s": process_time() - started,
        }
    return {**row, "same": abs(costs[0] - costs[1]) <= RELATIVE_TOLERANCE * costs[1]}


def tell(row: dict[str, Any], out: Path | None) -> None:
    line = json.dumps(row)
    print(line, flush=True)
    if out is not None:
        with out.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


@app.command()
def searches(
    models: Models,
    device: Device = "v100-sxm2",
    budget: str = "200",
    out: Annotated[Path | None, typer.Option()] = None,
) -> None:
    """The three searches on each network."""
    prices = api.cost_model("simulator", device)
    worse = []
    for model in models:
        rows = list(of_searches(loaded(model), prices, budget))
        for row in rows:
            tell(row, out)
        *first, joint = (row["schedule_after_us"] for row in rows)
        if joint > min(*first, rows[0]["schedule_before_us"]) * (1 + RELATIVE_TOLERANCE):
            worse.append(model)
    if worse:
        sys.exit(f"jointly it is worse on {', '.join(worse)}")


@app.command()
def exhaustive(
    models: Models,
    device: Device = "v100-sxm2",
    seconds: float = 60.0,
    every: Annotated[bool, typer.Option("--all-rules")] = False,
    out: Annotated[Path | None, typer.Option()] = None,
) -> None:
    """Backtracking beside all graphs there are."""
    prices = api.cost_model("simulator", device)
    for model in models:
        tell(of_exhaustive(loaded(model), prices, seconds, every), out)


if __name__ == "__main__":
    app()
