"""Every section of the figures that documents quote, computed from data; names distinguish ratios and percentages."""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import iossim
from evidence import measured_search
from evidence.concurrency import hopper_left_out
from evidence.data.data_sets import own_measurements, shared_data
from evidence.validation import graph_kernels as kernels
from evidence.validation import intervals
from evidence.validation.report import ValidationReport, validate
from iossim.api import search_options
from iossim.base.errors import StartProgress, silent
from iossim.calibration.evaluated_networks import BASE, evaluate_measured_networks
from iossim.cli.main import main
from iossim.hardware.load import device
from iossim.ir.builder import GraphBuilder
from iossim.ir.types import Precision
from iossim.measurements.measured_networks import read_measured_networks
from iossim.models.load import load
from iossim.models.transformer_layers import linear
from iossim.study.scenario_file import read_scenario, scenario_names
from iossim.study.sweep import run_study

DEVICE = "v100-sxm2"
#: Board of each chip with the recording of convolutions, and the board with all others.
BOARDS = {
    "V100": ("v100-pcie-32gb", "v100-pcie-32gb"),
    "A100": ("a100-pcie-80gb", "a100-pcie-40gb"),
    "T4": ("t4", "t4"),
    "P100": ("p100-pcie-16gb", "p100-pcie-16gb"),
    "P4": ("p4", "p4"),
}
#: Columns of the tables of operators, and the recordings of each.
KINDS = {
    "conv": ("conv",),
    "linear": ("linear",),
    "bmm": ("bmm",),
    "softmax": ("softmax",),
    "layer norm": ("ln",),
    "element-wise": ("add", "relu", "mul", "gelu", "tanh"),
}
#: Recordings of kernels that were called directly, without a framework: V100 and T4, convolutions and matrix products.
DIRECT = ("conv2d.v100-dgx1", "gemm.v100-dgx1", "conv2d.t4", "gemm.t4")
FOLDERS = ("kernels", "kernels_direct", "framework_operators")
NETWORKS = (
    ("Inception V3", "inception_v3", 1),
    ("Inception V3, batch 32", "inception_v3", 32),
    ("SqueezeNet", "squeezenet", 1),
    ("sample network", "ios_sample", 1),
    ("NasNet-A", "nasnet_a", 1),
)
#: Networks whose search is measured, in the order of the table.
SEARCHED = {"squeezenet": "SqueezeNet", "inception_v3": "Inception V3", "randwire": "RandWire", "nasnet_a": "NasNet-A"}
SEEDS = range(5)


def first_example(_: StartProgress) -> list[str]:
    """Output of the README's first command on 80 columns."""
    with patch.dict(os.environ, COLUMNS="80"), redirect_stdout(io.StringIO()) as printed:
        main(["compare", "inception_v3", "--device", DEVICE])
    return printed.getvalue().splitlines()


def operators(progress: StartProgress) -> dict[str, Any]:
    """Errors of the GPU time of operators on held-out shapes, in %."""
    judged = _validated(progress, "operators", "hash").operators
    by_set = {each.data_set: each.to_json() for each in judged}
    conv = {chip: by_set[name] for chip in BOARDS for name in _data_sets(chip, "conv")}
    convolutions = [each["gpu_time"]["kendall_tau"] for name, each in by_set.items() if name.startswith("conv")]
    inside = [100 * each["interval_coverage"] for name, each in by_set.items() if name != "conv2d.t4"]
    hidden = sum(each["hidden_rows_left_out"] for each in by_set.values())
    return {
        "errors": {
            chip: {
                kind: 100 * fmean(by_set[name]["gpu_time"]["mape"] for name in _data_sets(chip, kind)) for kind in KINDS
            }
            for chip in BOARDS
        },
        "short_convolutions": {
            chip: 100 * next(iter(each["gpu_time_by_bucket"].values()))["mape"] for chip, each in conv.items()
        },
        "roofline": {chip: 100 * each["baseline"]["mape"] for chip, each in conv.items()},
        "direct": {name: 100 * by_set[name]["gpu_time"]["mape"] for name in DIRECT},
        "rank_correlation": [min(convolutions), max(convolutions)],
        "inside_intervals": [min(inside), max(inside)],
        "inside_intervals_conv2d_t4": 100 * by_set["conv2d.t4"]["interval_coverage"],
        "hidden_rows": 100 * hidden / (hidden + sum(each["rows"] for each in by_set.values())),
    }


def networks(progress: StartProgress) -> dict[str, Any]:
    """Simulated latencies of networks with the published ones, and the total errors."""
    latencies_us: dict[str, dict[str, Any]] = {}
    told = progress("networks")
    for done, (title, model, batch) in enumerate(NETWORKS):
        told(done, len(NETWORKS))
        found = iossim.compare(load(model, batch=batch), DEVICE)
        latencies_us[title] = {
            each.scheduler: {
                "simulated": each.latency_us,
                "published": found.published_us(each.scheduler),
                "left_out": found.left_out_us.get(each.scheduler),
            }
            for each in found.schedules
        }
    told(len(NETWORKS), len(NETWORKS))
    (judged,) = _validated(progress, "networks").networks
    kept = judged.to_json()
    kept.pop("networks")
    return {"latencies_us": latencies_us, "judged": kept}


def engines(progress: StartProgress) -> dict[str, Any]:
    """Differences between the prices of the analytic simulator and of the event-driven one, in %."""
    return {
        each.device: {
            "stages": each.to_json()["stages"],
            "median_difference": 100 * each.median,
            "percentile_95_difference": 100 * each.percentile_95,
            "analytic_optimum_by_events": 100 * each.to_json()["analytic_optimum_by_events"],
            "events_optimum_by_analytic": 100 * each.to_json()["events_optimum_by_analytic"],
        }
        for each in _validated(progress, "engines").engines
    }


_GRAPH_KERNELS = (
    *(kernels.products, kernels.attention, kernels.layers, kernels.profiled),
    *(kernels.trace, kernels.networks, kernels.transformers),
)


def graph_kernels(_: StartProgress) -> dict[str, Any]:
    """Errors of kernels measured by profilers and CUDA graphs, and of networks of them, in %."""
    return {each.__name__: each() for each in _GRAPH_KERNELS}


def transfer(progress: StartProgress) -> dict[str, Any]:
    """Errors on each chip that is left out of everything, in %: from datasheet facts alone, and with 20 samples."""
    found = _validated(progress, "operators", "device").to_json()["transfer"]["left_out"]
    by_set = {row["data_set"]: row for row in found}
    ways = ("zero_shot", "refined")
    return {
        "errors": {
            chip: {
                kind: {way: 100 * fmean(by_set[name][way]["mape"] for name in _data_sets(chip, kind)) for way in ways}
                for kind in KINDS
            }
            for chip in BOARDS
        },
        "all_convolutions": {way: _of_all_convolutions(found, way) for way in ways},
    }


def _of_all_convolutions(found: list[dict[str, Any]], way: str) -> dict[str, float]:
    """Mean error of convolutions over all boards and data sets, by compute capability."""
    by_chip: dict[str, list[tuple[float, int]]] = {}
    for row in found:
        if row["kind"] == "conv" and row[way] is not None:
            chip = by_chip.setdefault(device(row["device"]).compute_capability, [])
            chip.append((100 * row[way]["mape"], row[way]["rows"]))
    return {
        chip: sum(error * rows for error, rows in each) / sum(rows for _, rows in each)
        for chip, each in by_chip.items()
    }


def measured_searches(progress: StartProgress) -> dict[str, Any]:
    """Regret by budget of measurements: takes a quarter of an hour on a quiet machine."""
    told = progress("measured searches")
    found, planning_cpu_s = {}, 0.0
    for done, model in enumerate(SEARCHED):
        told(done, len(SEARCHED))
        found[model] = measured_search_of(model)
        planning_cpu_s = max(planning_cpu_s, *(each.pop("planning_cpu_s") for each in found[model].values()))
    told(len(SEARCHED), len(SEARCHED))
    return {"networks": found, "planning_cpu_s": planning_cpu_s}


def measured_search_of(model: str) -> dict[str, Any]:
    """Mean regret over the seeds, and that of trusting the simulator, in %, by the error of the stand-in for
    hardware.
    """
    problems, prices = measured_search.problems_of(model), iossim.cost_model("simulator", DEVICE)
    found: dict[str, Any] = {}
    for error, budget in measured_search.BUDGETS[model].items():
        trials = [measured_search.run(problems, prices, error, seed, budget) for seed in SEEDS]
        found[error] = {
            "stages": trials[0].stages,
            "measured": budget,
            "regret": fmean(trial.regret for trial in trials),
            "trusting": fmean(trial.trusting for trial in trials),
            "planning_cpu_s": fmean(trial.planner_cpu_s for trial in trials),
        }
    return found


def studies(progress: StartProgress) -> dict[str, Any]:
    """Number of studies that ship, and the gain of IOS by batch in that of throughput."""
    scenario = read_scenario("throughput_and_batch")
    options = search_options(max_group_size=3, max_groups=8)
    told, gains = progress("studies"), {}
    for done, batch in enumerate(scenario.batch_sizes):
        told(done, len(scenario.batch_sizes))
        found = iossim.compare(
            load("inception_v3", batch=batch), DEVICE, schedulers=("sequential", "ios-both"), options=options
        )
        gains[str(batch)] = found["sequential"].latency_us / found["ios-both"].latency_us
    told(len(gains), len(gains))
    return {"shipped": len(scenario_names()), "gain_by_batch": gains}


#: Studies of transformers whose rows the documents quote.
TRANSFORMERS = ("transformer_blocks", "transformers_served", "shared_experts")


def transformers(progress: StartProgress) -> dict[str, Any]:
    """Times in the studies of transformers in us, sequential and in the best stages; and queries, keys and values as
    one product beside three.
    """
    told, found = progress("transformers"), dict[str, Any]()
    for done, name in enumerate(TRANSFORMERS):
        told(done, len(TRANSFORMERS))
        with tempfile.TemporaryDirectory() as folder:
            rows = run_study(read_scenario(name), Path(folder) / name, workers=1).results.rows
        by_model = found.setdefault(name, {})
        for row in (row for row in rows if row.scheduler in ("sequential", "ios-both")):
            assert row.latency_ms is not None, row.reason
            place = f"{row.device} {row.engine} {row.batch}"
            by_model.setdefault(row.model, {}).setdefault(place, {})[row.scheduler] = 1e3 * row.latency_ms
    told(len(TRANSFORMERS), len(TRANSFORMERS))
    devices = [each.device for each in read_scenario(TRANSFORMERS[0]).devices]
    found["projections"] = {
        f"{title}, {tokens} token{'s' * (tokens > 1)}": {
            name: _projections_us(name, tokens, *widths) for name in devices
        }
        for title, widths in {"GPT-2": (768, 768), "Llama 3.2 1B": (2048, 512)}.items()
        for tokens in (1, 512)
    }
    return found


def _projections_us(name: str, tokens: int, queries: int, keys: int) -> dict[str, float]:
    """Queries, keys and values as one product, and as three: sequentially, and in the best stages of a CUDA graph."""

    def compared(widths: dict[str, int]) -> dict[str, float]:
        b = GraphBuilder("projections", Precision.FP16)
        x = b.input("tokens", (1, tokens, queries))
        with b.block("projections"):
            made = [linear(b, which, x, width, bias=False) for which, width in widths.items()]
        schedules = iossim.compare(
            b.network(made), name, engine="graph", schedulers=("sequential", "ios-both")
        ).schedules
        return {each.scheduler: each.latency_us for each in schedules}

    apart = compared({"query": queries, "key": keys, "value": keys})
    return {**apart, "stacked": compared({"stacked": queries + 2 * keys})["sequential"]}


def gpu_networks(_: StartProgress) -> list[dict[str, Any]]:
    """Times of networks on the measured GPU, in us: by schedules in one CUDA graph, predicted and measured, and by
    PyTorch.
    """
    runs = read_measured_networks(own_measurements() / "h200" / "report" / "networks.jsonl")
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for each in evaluate_measured_networks(runs, device(runs.header.device)).latencies:
        run = each.run
        if run.engine in ("graph", ""):
            row = found.setdefault((run.model, run.dtype), {"model": run.model, "dtype": run.dtype})
            row[run.name] = [run.median_us] if each.predicted_us is None else [run.median_us, each.predicted_us]
    return [row for row in found.values() if BASE in row]


def gpu_streams(_: StartProgress) -> list[dict[str, Any]]:
    """Stages and streams that the simulator of the H200 found, measured on its GPU and predicted, us."""
    path = own_measurements() / "h200" / "streams.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def first_command(_: StartProgress) -> dict[str, float]:
    """CPU seconds of the README's first command with an empty cache, and of the same command again."""
    command = [sys.executable, "-m", "iossim", "compare", "inception_v3", "--device", DEVICE]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "IOSSIM_CACHE_DIR": folder}
        first, again = (_cpu_s(command, environment) for _ in range(2))
    return {"first_cpu_s": first, "again_cpu_s": again}


def _cpu_s(command: list[str], environment: dict[str, str]) -> float:
    def spent_s() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime

    before_s = spent_s()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return spent_s() - before_s


def _validated(progress: StartProgress, part: str, split: str | None = None) -> ValidationReport:
    places: list[Path] = [shared_data() / name for name in FOLDERS]
    return validate(None, places, [part], progress=progress, splits=None if split is None else [split])


def _data_sets(chip: str, kind: str) -> list[str]:
    own, others = BOARDS[chip]
    return [f"{name}.{own if name == 'conv' else others}" for name in KINDS[kind]]


#: Every section by name, the cheap ones first.
SECTIONS: dict[str, Callable[[StartProgress], Any]] = {
    "first-example": first_example,
    "first-command": first_command,
    "gpu-networks": gpu_networks,
    "gpu-streams": gpu_streams,
    "studies": studies,
    "transformers": transformers,
    "networks": networks,
    "graph-kernels": graph_kernels,
    "hopper-sets": lambda _: hopper_left_out.judged(),
    "operators": operators,
    "engines": engines,
    "transfer": transfer,
    "intervals": lambda _: intervals.intervals(),
    "measured-search": measured_searches,
}


def compute(section: str, progress: StartProgress = silent) -> Any:
    """One section's figures, with six significant digits, so that a file of them is the same on every machine."""
    return _rounded(SECTIONS[section](progress))


def _rounded(value: Any) -> Any:
    match value:
        case dict():
            return {key: _rounded(each) for key, each in value.items()}
        case list():
            return [_rounded(each) for each in value]
        case float():
            return float(f"{round(value, 9) + 0.0:.6g}")  # values that are zero up to rounding become zero
    return value
