"""Tables of rewriting and of the joint search, beside the optimum and each other: for :mod:`benchmarks.result_tables`."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

from benchmarks.kept_runs import ROOT, Rows, Runs

#: Networks whose rewritings are searched, and of these the ones that take half an hour: without a kept output their rows stay.
REWRITTEN = (
    *("alexnet", "squeezenet", "vgg19", "resnet50", "mobilenet_v1", "bert_layer", "resnext50", "resnext50_branches"),
    *("inception_v3", "randwire", "nasnet_a"),
)
SLOW = ("resnext50_branches", "randwire", "nasnet_a")
#: Networks whose graphs are all made, and the seconds that end each backtracking.
SATURATED = ("alexnet", "vgg16", "inception_v3:12", "resnet18")
SECONDS = 30
#: Places of the joint search: a device, and options.
PLACES = (
    ("v100-sxm2", "--engine", "paper"),
    *(
        (name, "--engine", "graph", "--dtype", dtype)
        for name, dtype in (("a100-sxm-40gb", "tf32"), ("h100-sxm", "bf16"))
    ),
)
#: Options of the joint search of each network; with a limit of time its rows stay where no output is kept.
JOINT: dict[str, tuple[str, ...]] = {
    "squeezenet": (),
    **dict.fromkeys(("inception_v3", "randwire", "nasnet_a"), ("--seconds", "200")),
    "resnet50": (),
    "hrnet_w18": ("--seconds", "400"),
    **dict.fromkeys(("bert_layer", "moe_layer"), ()),
    **dict.fromkeys(("alexnet", "resnet18"), ("--batch", "256", "--limit", "64MiB")),
}


def standing(table: str) -> Iterator[list[str]]:
    """The rows that a table has now, the header first."""
    with (ROOT / "evidence" / "quoted" / "tables" / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        yield from csv.reader(file)


def rewriting_searches(runs: Runs) -> Rows:
    """Three searches side by side: milliseconds by ios-both, CPU seconds, and the rules of the joint one."""
    header, *before = standing("rewriting-searches")
    stands = {row[0]: row for row in before}
    rows = [header]
    for name in REWRITTEN:
        command = ("benchmarks/substitutions.py", "searches", name, "--check")
        rows.append(stands[name] if name in SLOW and not runs.has(*command) else searched(runs.json_lines(*command)))
    return rows


def searched(found: Sequence[dict[str, Any]]) -> list[str]:
    ms = [found[0]["schedule_before_us"] / 1e3, *(row["schedule_after_us"] / 1e3 for row in found)]
    cpu_s = [f"{row['cpu_s']:.1f}" if row["cpu_s"] < 20 else f"{row['cpu_s']:,.0f}" for row in found]
    used = sorted(found[-1]["rules"].items(), key=lambda item: -item[1])[:3]
    rules = ", ".join(f"{rule} ({times})" if times > 1 else rule for rule, times in used)
    return [found[0]["network"], *(f"{each:.3f}" for each in ms), ", ".join(cpu_s), rules or "none"]


def rewriting_optimum(runs: Runs) -> Rows:
    """Backtracking beside the least of all graphs, microseconds by the sum of operators."""
    header = ["", "as given, us", "least, us", "e-nodes, CPU s", "backtracking, us", "graphs seen, CPU s"]
    rows = [[*header, "with all 22 rules"]]
    for name in SATURATED:
        (found,) = runs.json_lines("benchmarks/substitutions.py", "exhaustive", name, "--seconds", str(SECONDS))
        bound = found["bound"]
        least = f"{'' if bound['complete'] else 'at least '}{bound['us']:,.1f}"
        seen = [
            f"{each['seen']:,}, {each['cpu_s']:.1f}{'' if each['complete'] else f', ended by {SECONDS} s'}"
            for each in (found["backtracking"], found["backtracking, all rules"])
        ]
        own = "the same" if found["same"]["bound"] else f"{found['backtracking']['us']:,.1f}"
        nodes = f"{bound['e_nodes']:,}, {bound['cpu_s']:.1f}"
        rows.append([found["network"], f"{found['before_us']:,.1f}", least, nodes, own, *seen])
    return rows


def joint_search(runs: Runs) -> Rows:
    """Each network on each board: the joint search beside each ingredient alone and two in turn, milliseconds."""
    header, *stands = standing("joint-search")
    rows = [header]
    for (name, options), (device, *place) in product(JOINT.items(), PLACES):
        command = ("benchmarks/joint_search.py", device, name, "--graphs", "5", *place, *options)
        stays = "--seconds" in options and not runs.has(*command)
        rows.append(stands[len(rows) - 1] if stays else runs.printed(*command)[1])
    return rows


SEARCHES: dict[str, Callable[[Runs], Rows]] = {
    "rewriting-searches": rewriting_searches,
    "rewriting-optimum": rewriting_optimum,
    "joint-search": joint_search,
}
