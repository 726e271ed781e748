"""Tables of docs/results that a command writes: what they quote is computed here, not copied.

    python benchmarks/result_tables.py [TABLE]...      # all of them: some two minutes of CPU
    python -m evidence figures                         # then writes them into the documents

Each function returns the rows of ``evidence/quoted/tables/TABLE.csv``, the header first.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import iossim
from iossim.related import dataflow

TABLES = Path(__file__).resolve().parents[1] / "evidence" / "quoted" / "tables"
Rows = list[list[str]]
#: The savings by splitting and by linking that Xenos published, over seven models.
PUBLISHED = {"c6678": ("17.9 to 43.9%", "30.3 to 84.9%"), "zcu102": ("80.4 to 96.2%", "21.2 to 83.3%")}
EDGE_MODELS = ("mobilenet_v1", "squeezenet_1_0", "shufflenet_v1", "resnet18", "centernet", "bert_s", "lstm")
GPU_MODELS = {
    "squeezenet": ("v100-sxm2", "a100-sxm-40gb"),
    "shufflenet_v1": ("v100-sxm2",),
    "inception_v3": ("v100-sxm2", "a100-sxm-40gb"),
}


def edge_device(device: str) -> Rows:
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


def concurrency_of_gpus() -> Rows:
    """Microseconds of ios-parallel in one CUDA graph, all groups on all SMs or each on its own."""
    rows = [["", "sequential", "graph", "partition"]]
    for model, devices in GPU_MODELS.items():
        network = iossim.load(model)
        for device in devices:
            wanted = (("sequential", "graph"), ("ios-parallel", "graph"), ("ios-parallel", "partition"))
            found = [iossim.optimize(network, device, scheduler=name, engine=engine) for name, engine in wanted]
            rows.append([f"{model} on {device}", *(f"{each.latency_us:,.0f}" for each in found)])
    return rows


def studies_specialised() -> Rows:
    """The two matrices of table 4.2, side by side: milliseconds, a row where it runs, a column what it was made for."""
    batches = matrix("batch_specialisation", lambda row: str(row["batch"]))
    devices = matrix("device_specialisation", lambda row: str(row["device"]).partition("-")[0].upper())
    batches = [*batches, *([""] * len(batches[0]) for _ in range(len(devices) - len(batches)))]
    batches[0][0], devices[0][0] = "batch", "device"
    return [[*left, "", *right] for left, right in zip(batches, devices, strict=True)]


def matrix(scenario: str, name: Callable[[dict[str, Any]], str]) -> Rows:
    with TemporaryDirectory() as folder:
        iossim.run_study(scenario, folder)
        results = json.loads((Path(folder) / "results.json").read_text(encoding="utf-8"))
    own = {row["point"]: row for row in results["rows"] if row["scheduler"] == "ios-both"}
    cross = [one for one in results["cross"] if one["scheduler"] == "ios-both"]
    cells = {(one["run_at"], one["made_for"]): f"{shown(one['latency_ms'])}{' ≈' * one['tie']}" for one in cross}
    cells |= {(point, point): f"**{shown(row['latency_ms'])}**" for point, row in own.items()}
    names = {point: name(row) for point, row in own.items()}
    rows = [[f"**{names[at]}**", *(cells[at, made] for made in names)] for at in names]
    return [["", *names.values()], *rows]


def shown(ms: float) -> str:
    return f"{ms:.2f}" if ms < 10 else f"{ms:.1f}"


WRITTEN: dict[str, Callable[[], Rows]] = {
    "dataflow-c6678": lambda: edge_device("c6678"),
    "dataflow-zcu102": lambda: edge_device("zcu102"),
    "concurrency-of-gpus": concurrency_of_gpus,
    "studies-specialised": studies_specialised,
}


def main(names: list[str]) -> None:
    for name in names or WRITTEN:
        with (TABLES / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(WRITTEN[name]())
        print(f"wrote {name}.csv")


if __name__ == "__main__":
    main(sys.argv[1:])
