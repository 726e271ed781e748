"""Tables of docs/results that a command writes: what they quote is computed here, not copied.

    python -m benchmarks.result_tables [TABLE]... [--keep FOLDER]      # all of them: two hours of CPU; --list names them
    python -m evidence figures                                        # then writes them into the documents

Each function returns the rows of ``evidence/quoted/tables/TABLE.csv``, the header first. With ``--keep`` outputs of
programs and studies are kept in a folder, and what is there already is not run again.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import iossim
from benchmarks.kept_runs import ROOT, Rows, Runs
from benchmarks.micro_batch_tables import MICRO_BATCHES
from benchmarks.search_tables import SEARCHES
from benchmarks.study_tables import STUDIES
from evidence.data.data_sets import shared_data
from evidence.rule_generation.generate import STAGES
from iossim.related import dataflow, distribute

TABLES = ROOT / "evidence" / "quoted" / "tables"
#: The savings by splitting and by linking that Xenos published, over seven models.
PUBLISHED = {"c6678": ("17.9 to 43.9%", "30.3 to 84.9%"), "zcu102": ("80.4 to 96.2%", "21.2 to 83.3%")}
EDGE_MODELS = ("mobilenet_v1", "squeezenet_1_0", "shufflenet_v1", "resnet18", "centernet", "bert_s", "lstm")
IN_PARTS = (
    *((model, device) for model in ("squeezenet", "shufflenet_v1", "inception_v3") for device in ("c6678", "zcu102")),
    ("nasnet_a", "c6678"),
)
GPU_MODELS = {
    "squeezenet": ("v100-sxm2", "a100-sxm-40gb"),
    "shufflenet_v1": ("v100-sxm2",),
    "inception_v3": ("v100-sxm2", "a100-sxm-40gb"),
}
#: Random schedules by network for which fluid and events are compared: those of the last two take seconds each.
PRICED = {"squeezenet": 400, "inception_v3": 150, "randwire": 60, "nasnet_a": 20}
#: Networks that are trained, with their batch.
TRAINED = {"alexnet": 64, "resnet18": 32, "squeezenet": 32, "vgg16": 32}


def edge_device(device: str, _: Runs) -> Rows:
    """Milliseconds of the three plans of each network, and what each saves over the one before."""
    rows = [
        ["", f"{device.upper()} vanilla", "horizontal", "full", "saved by splitting", "further by linking"],
        ["published", "", "", "", *PUBLISHED[device]],
    ]
    for model in EDGE_MODELS:
        runs = dataflow(iossim.load(model), device).runs
        vanilla, split, full = (runs[name][1].total_us for name in ("vanilla", "horizontal", "full"))
        saved = (f"{1 - split / vanilla:.1%}", f"{1 - full / split:.1%}")
        rows.append([model, *(f"{each / 1e3:,.2f}" for each in (vanilla, split, full)), *saved])
    return rows


def edge_parts(_: Runs) -> Rows:
    """Branches on parts of the units beside one operator after another on all."""
    rows = [["", "all units, ms", "parts, ms", "gain", "stages side by side, of those found"]]
    for model, device in IN_PARTS:
        found = dataflow(iossim.load(model), device, parts=True).parts
        assert found is not None
        kept = f"{len(found.rows)} of {found.proposed}"
        times = [f"{us / 1e3:,.2f}" for us in (found.whole_us, found.total_us)]
        rows.append([f"{model} on {device}", *times, f"{found.whole_us / found.total_us:.2f}", kept])
    return rows


def edge_devices(_: Runs) -> Rows:
    """Speed of four C6678 against one, by a ring and by a server."""
    rows = [["", "mix", "all outC", "all inH", "all inW", "server: mix", "server: all outC"]]
    for model in (*EDGE_MODELS, "resnet101", "bert_l"):
        ring, server = (distribute(iossim.load(model), "c6678", 4, "srio", sync) for sync in ("ring", "server"))
        speeds = [ring.speedup, *(ring.one_us / ring.by_mode_us[mode] for mode in ("outC", "inH", "inW"))]
        speeds += [server.speedup, server.one_us / server.by_mode_us["outC"]]
        rows.append([model, *(f"{speed:.2f}" for speed in speeds)])
    return rows


def edge_sensitivity(table: int, runs: Runs) -> Rows:
    """Samples in which conclusions hold, of one device (table 0) or of several (1): half an hour of CPU."""
    samples = str(runs.folder / "dataflow-sensitivity.jsonl")
    return runs.printed("benchmarks/dataflow_sensitivity.py", samples, table=table)


def concurrency_of_gpus(_: Runs) -> Rows:
    """Microseconds of ios-parallel in one CUDA graph, all groups on all SMs or each on its own."""
    rows = [["", "sequential", "graph", "partition"]]
    for model, devices in GPU_MODELS.items():
        network = iossim.load(model)
        for device in devices:
            wanted = (("sequential", "graph"), ("ios-parallel", "graph"), ("ios-parallel", "partition"))
            found = [iossim.optimize(network, device, scheduler=name, engine=engine) for name, engine in wanted]
            rows.append([f"{model} on {device}", *(f"{each.latency_us:,.0f}" for each in found)])
    return rows


def training(_: Runs) -> Rows:
    """Milliseconds of a network with its gradients on a V100."""
    names = ("sequential", "greedy", "ios-both")
    rows = [["", *names, "gain"]]
    for model, batch in TRAINED.items():
        network = iossim.load(model, batch=batch, training=True)
        times_us = [iossim.optimize(network, "v100-sxm2", scheduler=name).latency_us for name in names]
        gain = f"{times_us[0] / times_us[-1]:.2f}"
        rows.append([f"{model}, batch {batch}", *(f"{us / 1e3:.2f}" for us in times_us), gain])
    return rows


def company(runs: Runs) -> Rows:
    """Two runs, one below the other."""
    of_8 = ("--batches", "8", "--devices", "v100-sxm2,t4", "--networks", "squeezenet,inception_v3")
    return [*runs.printed("benchmarks/company.py"), *runs.printed("benchmarks/company.py", *of_8)[1:]]


def stream_prices(runs: Runs) -> Rows:
    """Rows of as many schedules of each network as can be run event by event, without the columns of device and batch."""
    found = []
    for network, schedules in PRICED.items():
        where = ("--devices", "v100-sxm2", "--networks", network, "--batches", "1")
        found.append(runs.printed("benchmarks/streams.py", "agreement", *where, "--schedules", str(schedules)))
    rows = [found[0][0], *(row for each in found for row in each[1:])]
    return [[network, engine, *rest] for network, _, engine, _, *rest in rows]


def generated_rules(runs: Runs) -> Rows:
    """Rules of two and of three ops that each pruning leaves, and which of TASO's are among them."""
    taso = str(shared_data() / "substitutions" / "taso_graph_subst.pb")
    made = [json.loads(runs.output("-m", "evidence", "rules", "--size", str(size), "--against", taso, "--json"))
            for size in (2, 3)]  # fmt: skip
    rows = [["left after", *(f"{each['size']} ops" for each in made)]]
    rows += [[title, *(f"{each['counts'][name]:,}" for each in made)] for name, title in STAGES.items()]
    rows.append(["CPU seconds, GB", *(f"{each['cpu_seconds']:.1f}, {each['memory_gb']:.2f}" for each in made)])
    counts = [Counter(each["against"].values()) for each in made]
    states = ["found", "identity", "derived", "missing"]
    against = [", ".join(str(each[state]) for state in states) for each in counts]
    return [*rows, [f"published rules: {', '.join(states)}", *against]]


def program(*command: str) -> Callable[[Runs], Rows]:
    """The table that a program of this folder prints."""
    return lambda runs: runs.printed(*command)


WRITTEN: dict[str, Callable[[Runs], Rows]] = {
    "dataflow-c6678": partial(edge_device, "c6678"),
    "dataflow-zcu102": partial(edge_device, "zcu102"),
    "dataflow-parts": edge_parts,
    "dataflow-devices": edge_devices,
    "dataflow-sensitivity": partial(edge_sensitivity, 0),
    "dataflow-sensitivity-devices": partial(edge_sensitivity, 1),
    "dataflow-operators": program("benchmarks/dataflow_operators.py"),
    "dataflow-splits": program("benchmarks/dataflow_heuristic.py"),
    "concurrency-of-gpus": concurrency_of_gpus,
    "company": company,
    "coschedules": program("benchmarks/coschedules.py"),
    "cudnn-plans": program("benchmarks/cudnn_plans.py"),
    "own-kernels": program("benchmarks/own_kernels.py"),
    "rules-generated": generated_rules,
    "streams-networks": program("benchmarks/streams.py", "table"),
    "streams-prices": stream_prices,
    "training": training,
    "wide-networks": program("benchmarks/large_networks.py"),
    **MICRO_BATCHES,
    **SEARCHES,
    **STUDIES,
}


def main(
    tables: Annotated[list[str] | None, typer.Argument(metavar="[TABLE]...")] = None,
    keep: Annotated[Path | None, typer.Option(help="Folder of outputs.")] = None,
    names: Annotated[bool, typer.Option("--list", help="Print the names of the tables.")] = False,
) -> None:
    """Write these tables, or all."""
    if names:
        print(*WRITTEN, sep="\n")
        return
    if keep is not None:
        keep.mkdir(exist_ok=True)
    runs = Runs(keep)
    for name in tables or WRITTEN:
        rows = WRITTEN[name](runs)
        with (TABLES / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
        print(f"wrote {name}.csv", flush=True)


if __name__ == "__main__":
    typer.run(main)
