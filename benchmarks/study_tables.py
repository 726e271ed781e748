"""Tables of docs/results from studies that ship, and of published rules: for :mod:`benchmarks.result_tables`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from benchmarks.kept_runs import Rows, Runs
from evidence.data.data_sets import shared_data

#: Tables of studies: the scenarios of each.
SCENARIOS = {
    "studies-thesis": (
        *("schedules_compared", "active_warps", "another_device", "pruning", "batch_specialisation"),
        *("device_specialisation", "last_inception_block", "block_by_block", "throughput_and_batch", "resnet"),
    ),
    "studies-questions": (
        *("which_gpu", "which_gpu_bf16", "streams_worth_having", "batching_or_concurrency", "twice_the_sms"),
        "edge_or_server",
    ),
    "studies-transformers": ("transformer_blocks", "transformers_served", "shared_experts"),
    "studies-substitutions": (
        *("substitutions", "substitutions_and_schedules", "substitutions_alpha", "substitutions_searches"),
        "substitutions_elsewhere",
    ),
    "studies-micro-batches": ("micro_batches_conv2", "micro_batches_training"),
    "studies-dataflow": ("dataflow_devices", "dataflow_partitions", "dataflow_scaling"),
}
#: MetaFlow's table 2, TensorRT -> MetaFlow: ms, GB, kernels and GFLOP.
METAFLOW = {
    "inception_v3": ("Inception-v3", (5.51, 5.00), "95.4 -> 62.2", "138 -> 115", "5.68 -> 5.69"),
    "squeezenet": ("SqueezeNet", (0.94, 0.75), "62.1 -> 46.1", "50 -> 40", "0.64 -> 1.00"),
    "resnet50": ("ResNet-50", (1.97, 1.86), "37.2 -> 35.8", "70 -> 67", "0.52 -> 0.54"),
}
ALPHAS = ("1", "1.02", "1.05", "1.1")
#: Longer answers, with a case for each model and device, are in the reports alone.
MOST_LETTERS = 450
Row = Mapping[str, Any]


def answers(name: str, runs: Runs) -> Rows:
    """A row for each claim of a publication, or for each question where a scenario has no claims, as reports print them."""
    rows = [["scenario", "points", "published, or asked", "found"]]
    for scenario in SCENARIOS[name]:
        found = runs.study(scenario)
        points = len({row["point"] for row in found["rows"]})
        claims = [each for each in found["answers"] if each["source"]]
        asked = claims or [each for each in found["answers"] if len(each["answer"]) <= MOST_LETTERS]
        for number, each in enumerate(asked):
            first = [f"`{scenario}`", str(points)] if number == 0 else ["", ""]
            source = f" ({each['source']})" if claims else ""
            rows.append([*first, each["question"] + source, each["answer"]])
    return rows


def metaflow_table_2(runs: Runs) -> Rows:
    """Ours beside the published figures, on the V100."""
    by_model = defaultdict[str, list[Row]](list)
    for row in runs.study("substitutions")["rows"]:
        if row["device"] == "v100-sxm2":
            by_model[row["model"]].append(row)
    header = ["", "ms here", "published", "MiB here", "published, GB", "kernels here", "published", "GMAC here"]
    rows = [[*header, "published, GFLOP"]]
    for model, (title, published_ms, *published) in METAFLOW.items():
        given, rewritten = by_model[model]
        both = {name: (given[name], rewritten[name]) for name in ("latency_ms", "traffic_mib", "kernels", "gmacs")}
        digits = 2 if given["latency_ms"] > 5 else 3
        ours = [arrow(both["traffic_mib"], 1), arrow(both["kernels"], 0), arrow(both["gmacs"], 2)]
        beside = [cell for pair in zip(ours, published, strict=True) for cell in pair]
        rows.append([title, saved(both["latency_ms"], digits), saved(published_ms, 2), *beside])
    return rows


def arrow(pair: Iterable[float], digits: int) -> str:
    return " -> ".join(f"{value:.{digits}f}" for value in pair)


def saved(pair: tuple[float, float], digits: int) -> str:
    before, after = pair
    change = 100 * (after / before - 1)
    return f"{arrow(pair, digits)} ({change:.{0 if abs(change) >= 1 else 1}f}%)"


def metaflow_figure_10(runs: Runs) -> Rows:
    """Cost by backtracking in percent of the network as given."""
    ms = {(row["model"], row["rewrite"]): row["latency_ms"] for row in runs.study("substitutions_alpha")["rows"]}
    rows = [["alpha", *ALPHAS]]
    for model, (title, *_) in METAFLOW.items():
        costs = [100 * ms[model, f"alpha {alpha}"] / ms[model, "as given"] for alpha in ALPHAS]
        rows.append([title, *(f"{cost:.1f}" for cost in costs)])
    return rows


def dataflow_scaling(runs: Runs) -> Rows:
    """Speed of several C6678 against one, by SRIO and by Ethernet."""
    speeds = {(row["model"], row["dataflow"]): row["speedup"] for row in runs.study("dataflow_scaling")["rows"]}
    labels = list(dict.fromkeys(label for _, label in speeds if label != "1"))
    rows = [["speed against one C6678", *labels]]
    rows += [[model, *(f"{speeds[model, label]:.2f}" for label in labels)] for model in dict(speeds.keys())]
    return rows


def specialised(runs: Runs) -> Rows:
    """The two matrices of table 4.2, side by side: milliseconds, a row where it runs, a column what it was made for."""
    batches = matrix(runs.study("batch_specialisation"), lambda row: str(row["batch"]))
    devices = matrix(runs.study("device_specialisation"), lambda row: str(row["device"]).partition("-")[0].upper())
    batches = [*batches, *([""] * len(batches[0]) for _ in range(len(devices) - len(batches)))]
    batches[0][0], devices[0][0] = "batch", "device"
    return [[*left, "", *right] for left, right in zip(batches, devices, strict=True)]


def matrix(results: Row, name: Callable[[Row], str]) -> Rows:
    own = {row["point"]: row for row in results["rows"] if row["scheduler"] == "ios-both"}
    cross = [one for one in results["cross"] if one["scheduler"] == "ios-both"]
    cells = {(one["run_at"], one["made_for"]): f"{shown(one['latency_ms'])}{' ≈' * one['tie']}" for one in cross}
    cells |= {(point, point): f"**{shown(row['latency_ms'])}**" for point, row in own.items()}
    names = {point: name(row) for point, row in own.items()}
    rows = [[f"**{names[at]}**", *(cells[at, made] for made in names)] for at in names]
    return [["", *names.values()], *rows]


def shown(ms: float) -> str:
    return f"{ms:.2f}" if ms < 10 else f"{ms:.1f}"


def published_rules(runs: Runs) -> Rows:
    """Verdicts on TASO's rules, the most frequent first; where a rule is refuted, the part of the reason that holds for several."""
    taso = str(shared_data() / "substitutions" / "taso_graph_subst.pb")
    names = defaultdict[str, list[str]](list)
    for rule in json.loads(runs.output("-m", "iossim", "rules", "verify", taso, "--json", "--anew")):
        where = f" where `{' and '.join(rule['conditions'])}`" if rule["conditions"] else " as it is"
        reason = f"; {rule['reason'].partition('; ')[2].partition(', but')[0]}" if rule["reason"] else ""
        names[f"{rule['verdict']}{where}{reason}"].append(str(int(rule["name"].removeprefix("taso-"))))
    counted = sorted(names.items(), key=lambda item: -len(item[1]))
    return [
        ["verdict", "rules", "which"],
        *([verdict, str(len(of)), ", ".join(of) if len(of) <= 10 else "the others"] for verdict, of in counted),
    ]


STUDIES: dict[str, Callable[[Runs], Rows]] = {
    **{name: partial(answers, name) for name in SCENARIOS},
    "studies-specialised": specialised,
    "metaflow-table-2": metaflow_table_2,
    "metaflow-figure-10": metaflow_figure_10,
    "dataflow-scaling": dataflow_scaling,
    "rules-published": published_rules,
}
