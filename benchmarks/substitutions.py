"""Substitutions of networks: three searches side by side, and backtracking against the optimum over all graphs.

    python benchmarks/substitutions.py searches alexnet squeezenet --check
    python benchmarks/substitutions.py exhaustive alexnet inception_v3:12

``searches`` prices each network as given, rewritten for the least sum of operators by backtracking and by saturation and scheduled then, and
jointly. Each network and search is a line of JSON: latencies in us by the sum of operators and by ``ios-both``, CPU seconds, and the hash of the
graph, which is the same in every process. ``--check`` computes the jointly rewritten network by ONNX Runtime from the written files, and as its
schedule's plan by NumPy: the largest difference from the network as given, relative to its largest output. A network that is not
rewritten is checked with each rule that matches applied once.

``exhaustive`` compares backtracking at alpha 1.05 with the least of all graphs under the sum of operators. ``bound``
puts all graphs that MetaFlow's rules make in one saturated e-graph, whose integer program proves that none is cheaper,
without identities beside sums and concats, which have no end; ``enumerated`` visits graph after graph by a few rules.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Annotated, Any

import numpy as np
import typer

import iossim
from iossim import api
from iossim.backends.numpy_reference.backend import execute
from iossim.cost.model import CostModel
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import plan_memory
from iossim.ir.graph import Graph
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.models.onnx.export import write_onnx
from iossim.search.options import SearchOptions
from iossim.transforms.rewriting.application import apply
from iossim.transforms.rewriting.backtracking import ALPHA, RELATIVE_TOLERANCE, Found, RewriteBudget
from iossim.transforms.rewriting.graph_costs import SumOfOperators
from iossim.transforms.rewriting.matching import find_matches
from iossim.transforms.rewriting.parts import search_in_parts
from iossim.transforms.rewriting.rewritten import rewritten_network
from iossim.transforms.rewriting.rule import Rule
from iossim.transforms.rewriting.rule_sets import rules_named
from iossim.transforms.rewriting.saturation import SaturationLimits, saturate
from iossim.transforms.rewriting.scheduled import Rewrite
from iossim.transforms.rewriting.verdict import trusted
from iossim.transforms.transform import Setting

#: Each of these makes a convolution of another's input beside it, and of that again.
ENDLESS = ("identity-beside-sum", "identity-beside-concat")
#: MetaFlow's rules that match these networks, except those that double the graphs at each convolution, sum or relu: the
#: enlargement of 3x3 to 5x5, identities beside sums, and the merging of relus.
FEW = ("merge-convolutions", "enlarge-1x1-to-3x3", "enlarge-1xk-to-3xk", "enlarge-kx1-to-kx3", "relu-behind-max-pool")
SEARCHES = ("backtracking", "saturation", "joint")
#: Limits of e-nodes, rounds and branches that suffice for all graphs of a small network.
ALL_GRAPHS = SaturationLimits(nodes=10_000, rounds=100, branches=100_000)
#: Relative tolerance of the integer program that the bound comes from.
OF_BOUND = 1e-6
#: Difference of float32 sums in another order, relative to the largest output.
TOLERANCE = 1e-4

app = typer.Typer(add_completion=False)
Models = Annotated[list[str], typer.Argument(help="Of the zoo; NAME:BLOCK for one block.")]
Device = Annotated[str, typer.Option()]


def loaded(model: str) -> Network:
    name, _, block = model.partition(":")
    return iossim.load(name, block=int(block)) if block else iossim.load(name)


def of_searches(
    network: Network, rules: Sequence[Rule], prices: CostModel, budget: str, device: str, check: bool
) -> Iterator[dict[str, Any]]:
    operators = SumOfOperators(prices)
    for name in SEARCHES:
        started = process_time()
        transform = Rewrite(tuple(rules), name, budget=RewriteBudget.parse(budget))  # type: ignore[arg-type]
        found = transform.apply(network, Setting(prices, "ios-both", SearchOptions()))
        row = {
            "network": network.name,
            "search": name,
            "sum_before_us": operators.us(network),
            "sum_after_us": operators.us(found.network),
            "schedule_before_us": found.found.before_us,
            "schedule_after_us": found.found.best.cost_us,
            "gain_percent": 100 * (found.found.before_us / found.found.best.cost_us - 1),
            "rules": dict(Counter(step.rule for step in found.found.best.steps)),
            "seen": found.found.seen,
            "complete": found.found.complete,
            "cpu_s": process_time() - started,
            "graph": found.network.graph.hash,
        }
        if check and name == "joint":
            applied, other = [step.rule for step in found.found.best.steps], found.network
            if not applied:
                applied, other = once_each(network, trusted(rules)[0])
            row["check"] = {"rules": dict(Counter(applied)), **differences(network, other, device)}
        yield row


def once_each(network: Network, rules: Sequence[Rule]) -> tuple[list[str], Network]:
    """The network after each matching rule was applied at its first place, whatever that costs."""
    graph, applied = network.graph, []
    for rule in rules:
        made = next((one for match in find_matches(graph, rule) if (one := apply(graph, match))), None)
        if made is not None:
            graph, applied = made.graph, [*applied, rule.name]
    return applied, rewritten_network(network, graph)


def differences(network: Network, other: Network, device: str) -> dict[str, float]:
    """Deviation of ONNX Runtime and NumPy from the network as given, relative to its largest output."""
    random = np.random.default_rng(0)
    graph = network.graph
    given = {name: random.standard_normal(graph.types[name].shape, np.float32) for name in graph.inputs}
    expected = by_onnx_runtime(graph, given)
    plan = plan_memory(lower_schedule(iossim.optimize(other, device, engine="paper"), other, in_place=True))
    ran = {"onnx": by_onnx_runtime(other.graph, given), "plan": execute(plan, other, given)}
    return {
        name: max(float(np.abs(found[each] - value).max() / np.abs(value).max()) for each, value in expected.items())
        for name, found in ran.items()
    }


def by_onnx_runtime(graph: Graph, given: dict[str, Array]) -> dict[str, Array]:
    import onnxruntime

    with TemporaryDirectory() as folder:
        write_onnx(graph, Path(folder) / "model.onnx")
        session = onnxruntime.InferenceSession(Path(folder) / "model.onnx", providers=["CPUExecutionProvider"])
        return dict(zip(graph.outputs, session.run(list(graph.outputs), given), strict=True))


def of_exhaustive(network: Network, prices: CostModel, seconds: float) -> dict[str, Any]:
    cost = SumOfOperators(prices)
    every = trusted(rules_named("metaflow"))[0]
    few = [rule for rule in every if rule.name in FEW]
    ending = [rule for rule in every if rule.name not in ENDLESS]
    budget = RewriteBudget(seconds=seconds)

    def searched(rules: Sequence[Rule], alpha: float) -> tuple[float, dict[str, Any]]:
        started = process_time()
        found: Found = search_in_parts(network, rules, cost, alpha=alpha, budget=budget)
        said = {"seen": found.seen, "complete": found.complete, "cpu_s": process_time() - started}
        return found.best.cost_us, {"rules": len(rules), "us": found.best.cost_us, **said}

    started = process_time()
    bound = saturate(network, ending, cost, ALL_GRAPHS)
    bound_us = bound.extraction.at_least_us if bound.saturated else 0.0
    row: dict[str, Any] = {
        "network": network.name,
        "before_us": cost.us(network),
        "bound": {
            "rules": len(ending),
            "us": bound_us,
            "e_nodes": bound.nodes,
            "complete": bound.saturated,
            "cpu_s": process_time() - started,
        },
    }
    least_us, row["enumerated"] = searched(few, inf)
    few_us, row["backtracking, few rules"] = searched(few, ALPHA)
    ending_us, row["backtracking"] = searched(ending, ALPHA)
    every_us, row["backtracking, all rules"] = searched(every, ALPHA)
    return {
        **row,
        "same": {
            "few": few_us <= least_us * (1 + RELATIVE_TOLERANCE),
            "bound": max(ending_us, every_us) <= bound_us * (1 + OF_BOUND),
        },
    }


@app.command()
def searches(
    models: Models,
    device: Device = "v100-sxm2",
    budget: str = "200",
    check: bool = False,
    without: Annotated[list[str], typer.Option(help="A rule that is left out.")] = [],  # noqa: B006
) -> None:
    """The three searches on each network."""
    prices = api.cost_model("simulator", device, engine="paper")
    rules = [rule for rule in rules_named("default") if rule.name not in without]
    wrong = []
    for model in models:
        rows = []
        for row in of_searches(loaded(model), rules, prices, budget, device, check):
            print(json.dumps(row), flush=True)
            rows.append(row)
        *first, joint = (row["schedule_after_us"] for row in rows)
        if joint > min(*first, rows[0]["schedule_before_us"]) * (1 + RELATIVE_TOLERANCE):
            wrong.append(f"jointly {model} is worse")
        checked = rows[-1].get("check", {"onnx": 0.0, "plan": 0.0})
        wrong += [f"{model} computes something else ({name})" for name in ("onnx", "plan") if checked[name] > TOLERANCE]
    if wrong:
        sys.exit("; ".join(wrong))


@app.command()
def exhaustive(models: Models, device: Device = "v100-sxm2", seconds: float = 60.0) -> None:
    """Backtracking against the optimum over all graphs."""
    prices = api.cost_model("simulator", device, engine="paper")
    for model in models:
        print(json.dumps(of_exhaustive(loaded(model), prices, seconds)), flush=True)


if __name__ == "__main__":
    app()
