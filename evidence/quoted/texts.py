"""Wording of quoted figures: tables and sentences of Markdown, each from the stored results alone."""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from evidence.quoted.sections import BOARDS, KINDS, SEARCHED
from iossim.base.shipped_yaml import shipped
from iossim.search.scheduler import scheduler_names

Results = Mapping[str, Any]
#: Tables of the pages of results, as the programs that these pages name print them: a CSV file each.
TABLES = Path(__file__).parent / "tables"
#: Width that sentences are wrapped to.
_WIDTH = 118


def example(results: Results) -> str:
    return "\n".join(f"    {line}".rstrip() for line in results["first-example"])


def accuracy_table(results: Results) -> str:
    found = results["operators"]
    others = found["short_convolutions"], found["roofline"]
    rows = [
        [chip, *map(_tenths, (*errors.values(), *(each[chip] for each in others)))]
        for chip, errors in found["errors"].items()
    ]
    return _table(["", *KINDS, "conv under 0.2 ms", "conv, roofline"], rows)


def trust_table(results: Results) -> str:
    """The errors that a reader asks for first, one row each."""
    left_out = results["networks"]["judged"]["left_out"]
    kernels = results["graph-kernels"]
    from_batch_8 = [error for batch, each in kernels["networks"].items() if int(batch) >= 8 for error in each]
    in_graphs = [
        100 * (times_us[1] / times_us[0] - 1)
        for row in results["gpu-networks"]
        if row["model"] != "resnet50"  # which determined a parameter
        for times_us in row.values()
        if len(times_us) == 2 and not isinstance(times_us, str)
    ]
    rows = [
        [
            f"{left_out['figures']} published latencies of networks, each by a fit without its network",
            "V100, IOS engine",
            f"{100 * left_out['mean_error']:.1f}% (worst {100 * abs(left_out['worst_error']):.1f}%)",
        ],
        *([f"{what}, shapes held out", "five boards", _range(results, kind)] for kind, what in _TRUSTED.items()),
        [
            "convolutions of a chip left out of every fit",
            "the same five",
            f"{fmean(each['conv']['zero_shot'] for each in results['transfer']['errors'].values()):.1f}%",
        ],
        [
            "bf16 matrix products in CUDA graphs, shapes held out",
            "A100, H100, H200",
            f"{', '.join(f'{error:.1f}' for error in kernels['products'].values())}%",
        ],
        [
            "convolutions by TensorRT, nothing fitted",
            "A100 (TF32), RTX 3090 (fp16)",
            f"{', '.join(f'{error:.0f}' for error in kernels['layers'].values())}%",
        ],
        [
            "ResNet-50 by TensorRT at batch 8 to 128, nothing fitted",
            "A30 (TF32, fp16, int8)",
            f"{min(from_batch_8):+.0f} to {max(from_batch_8):+.0f}%",
        ],
        [
            f"{len({row['model'] for row in results['gpu-networks']} - {'resnet50'})} networks in one CUDA graph, "
            "no network fitted",
            "H200 (bf16, fp16, TF32, fp32)",
            f"{min(in_graphs):+.0f} to {max(in_graphs):+.0f}%",
        ],
    ]
    return _table(["predicted", "measured on", "mean error"], rows)


_TRUSTED = {"conv": "convolutions", "linear": "dense layers", "element-wise": "element-wise operators"}


def _range(results: Results, kind: str) -> str:
    errors = [each[kind] for each in results["operators"]["errors"].values()]
    return f"{min(errors):.1f} to {max(errors):.1f}%"


def network_table(results: Results) -> str:
    rows = [[title, *map(_latency, found.values())] for title, found in results["networks"]["latencies_us"].items()]
    return _table(["", *scheduler_names()], rows)


def _latency(found: Mapping[str, Any]) -> str:
    """Simulated milliseconds, and the errors in % against the published figure if there is one."""
    simulated_us = found["simulated"]
    errors = [
        f"{100 * (us / found['published'] - 1):+.1f}"
        for us in (simulated_us, found["left_out"])
        if us is not None and found["published"] is not None
    ]
    ms = f"{simulated_us / 1e3:.3f}" if simulated_us < 1e4 else f"{simulated_us / 1e3:.2f}"
    return f"{ms} ({', '.join(errors)})" if errors else ms


def hopper_kinds(results: Results) -> str:
    found = results["hopper-sets"]["alone"]
    by_kind: dict[str, dict[str, str]] = {}
    for key, each in found.items():
        kind, _, batch = key.partition(", batch ")
        by_kind.setdefault(kind, {})[batch] = f"{each['mean']:.0f} ({each['rows']})"
    batches = ("1", "8", "32")
    rows = [[kind, *(own.get(batch, "") for batch in batches)] for kind, own in by_kind.items()]
    return _table(["convolution", *(f"batch {batch}" for batch in batches)], rows)


def hopper_families(results: Results) -> str:
    ran = results["hopper-sets"]["families"]
    rows = [[f"`{name}`", *(str(own.get(predicted, 0)) for predicted in ran)] for name, own in ran.items()]
    return _table(["ran", *(f"`{name}` predicted" for name in ran)], rows)


def hopper_units(results: Results) -> str:
    cells = "{rows} {mean:.0f} {bias:+.0f}"
    return _by_name(["network", "units", "mean error, %", "bias, %"], results["hopper-sets"]["units"], cells)


def hopper_left_out(results: Results) -> str:
    header = ["mean error, %", "rows", "as it ships, in-sample", "chosen without the network"]
    return _by_name(header, results["hopper-sets"]["left_out"], "{rows} {in_sample:.1f} {left_out:.1f}")


def _by_name(header: Sequence[str], found: Results, cells: str) -> str:
    return _table(header, [[name.replace(":", ", "), *cells.format_map(own).split()] for name, own in found.items()])


def hopper_followers(results: Results) -> str:
    every, whole = (results["hopper-sets"]["followers"][name] for name in ("all", "whole"))
    return (
        f"A kernel that follows another in its branch took {every['longer']:.1f} us longer while other branches ran\n"
        f"than in the sequential graph (median of {every['rows']} in recorded timelines), and {whole['longer']:.1f}\n"
        f"us if it needs SMs of its own ({whole['rows']})."
    )


def hopper_sets(results: Results) -> str:
    known = results["hopper-sets"]["makespans"]
    rows = [
        [
            f"{count} {kernels}",
            str(each["rows"]),
            f"{each['predicted']:.2f}",
            f"{each['warm']:.2f}, {each['cold']:.2f}",
            *(f"{each[name]:.0f}" for name in ("median", "mean", "p90")),
            f"{known[count]['mean']:.0f}" if kernels == "convolutions" else "",
        ]
        for kernels, key in (("convolutions", "side_by_side"), ("products", "products_side_by_side"))
        for count, each in results["hopper-sets"][key].items()
    ]
    head = ["concurrent", "sets", "speed-up predicted", "measured, warm and cold", "median error, %", "mean"]
    return _table([*head, "worst tenth", "mean, kernels known"], rows)


def intervals(results: Results) -> str:
    """Parts inside and widths, with their range over boards, kinds or networks where there are several."""

    def among(names: str, one: Mapping[str, float], digits: int) -> str:
        mean, least, most = (f"{one[name]:.{digits}f}" for name in names.split())
        return mean if least == most else f"{mean} ({least} to {most})"

    parts, widths = partial(among, "inside least most"), partial(among, "width narrowest widest")
    rows = [
        [*name.split(" | "), f"{one['rows']:,}", parts(one, 0), widths(one, 2)]
        for name, one in results["intervals"]["inside"].items()
    ]
    return _table(["interval of", "left out", "measurements", "inside, %", "width"], rows)


def transfer_table(results: Results) -> str:
    rows = [
        [chip, *(f"{each['zero_shot']:.1f} / {each['refined']:.1f}" for each in errors.values())]
        for chip, errors in results["transfer"]["errors"].items()
    ]
    return _table(["", *KINDS], rows)


def measured_search_table(results: Results) -> str:
    rows = []
    for model, title in SEARCHED.items():
        low, high = (results["measured-search"]["networks"][model][error] for error in ("0.1", "0.2"))
        cells = [cell for each in (low, high) for cell in (f"{each['regret']:.2f}", f"{each['measured']:,}")]
        trusting = f"{low['trusting']:.1f}, {high['trusting']:.1f}"
        rows.append([title, f"{low['stages']:,}", *cells, trusting])
    header = ["", "stages", "error 10%", "measured", "error 20%", "measured", "trusting the simulator"]
    return _table(header, rows)


def transformer_blocks(results: Results) -> str:
    """Sequential time in us in a graph by block and device, and the part of it that stages save, by engine."""
    found = results["transformers"]["transformer_blocks"]
    rows = []
    for model, places in found.items():
        cells = []
        for device in _DEVICES:
            graph, paper = places[f"{device} graph 1"], places[f"{device} paper 1"]
            cells += [f"{graph['sequential']:.0f}", _saved(graph), _saved(paper)]
        rows.append([model, *cells])
    header = [f"{name}, {what}" for name in _DEVICES.values() for what in ("us", "graph", "paper")]
    return _table(["block", *header], rows)


def transformers_served(results: Results) -> str:
    """Tokens (or samples) per second in the best stages of a CUDA graph, and the deficit of running sequentially."""
    rows = []
    for model, places in results["transformers"]["transformers_served"].items():
        tokens = 512 if "prefill" in model else 1
        cells = []
        for device in _DEVICES:
            for batch in (1, 8):
                us = places[f"{device} graph {batch}"]
                cells.append(f"{tokens * batch * 1e6 / us['ios-both']:,.0f} ({_saved(us)})")
        rows.append([model, *cells])
    return _table(["", *(f"{name}, batch {batch}" for name in _DEVICES.values() for batch in (1, 8))], rows)


def shared_experts(results: Results) -> str:
    ways = [(device, engine) for device in _DEVICES for engine in ("graph", "paper")]
    rows = []
    for model, places in results["transformers"]["shared_experts"].items():
        found = [places[f"{device} {engine} 1"] for device, engine in ways]
        rows.append([model, *(f"{us['sequential']:,.0f}: {_saved(us)}" for us in found)])
    return _table(["", *(f"{_DEVICES[device]}, {engine}" for device, engine in ways)], rows)


def projections(results: Results) -> str:
    """Queries, keys and values: three products sequentially, concurrently, and as one stacked product."""
    rows = [
        [what, *(f"{us['sequential']:.1f}, {us['ios-both']:.1f}, {us['stacked']:.1f}" for us in by_device.values())]
        for what, by_device in results["transformers"]["projections"].items()
    ]
    return _table(["sequential, concurrent, stacked", *(f"{name}, us" for name in _DEVICES.values())], rows)


_DEVICES = {"v100-sxm2": "V100", "a100-sxm-40gb": "A100", "h100-sxm": "H100"}


def _saved(us: Mapping[str, float]) -> str:
    """Part of the sequential time that the best stages save."""
    percent = 100 * (1 - us["ios-both"] / us["sequential"])
    return f"{percent:.0f}%" if percent >= 0.5 else "0"


def gpu_networks(results: Results) -> str:
    """Milliseconds: measured, and predicted in brackets."""
    rows = []
    for row in results["gpu-networks"]:
        cells = [f"{row['model']}, {row['dtype']}"]
        for name in _GPU_RUNS:
            measured_us, *predicted_us = row.get(name, [0.0])
            told = f"{measured_us / 1e3:.3f}" + "".join(f" ({us / 1e3:.3f})" for us in predicted_us)
            cells.append(told if measured_us else "")
        rows.append(cells)
    return _table(["", *_GPU_RUNS.values()], rows)


_GPU_RUNS = {
    "sequential": "sequential",
    "greedy": "greedy",
    "ios-both": "IOS, measured search",
    "torch-compile-cuda-graph": "torch.compile, CUDA graph",
    "torch-cuda-graph": "PyTorch, CUDA graph",
    "torch-eager": "PyTorch, eager",
}


def gpu_streams(results: Results) -> str:
    """Measured milliseconds, and the gain of streams over stages, measured and predicted."""
    rows = []
    for row in results["gpu-streams"]:
        gains = [row[of]["ios-both"] / row[of]["ios-streams"] - 1 for of in ("median_us", "predicted_us")]
        measured = [f"{us / 1e3:.3f}" for us in row["median_us"].values()]
        rows.append([f"{row['model']}, {row['dtype']}", *measured, *(f"{gain:+.0%}" for gain in gains)])
    names = results["gpu-streams"][0]["median_us"]
    return _table(["", *names, "streams over stages, measured", "predicted"], rows)


def stored_table(path: Path, _: Results) -> str:
    """A CSV file as a table."""
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return _table(header, rows)


def _network_errors(results: Results) -> Results:
    found = results["networks"]["judged"]
    unseen, left_out, stages = found["unseen"], found["left_out"], found["sample_stages"]
    pairs = [each for each in stages if "," in each["stage"]]
    units = [each for each in stages if each not in pairs and each["stage"] != "concat"]
    (concat,) = (each for each in stages if each["stage"] == "concat")
    (warps,) = found["active_warps"]
    by_scheduler = unseen["mean_error_by_scheduler"].items()
    return {
        "fitted_worst": abs(found["in_sample"]["worst_error"]),
        "by_scheduler": ", ".join(f"{name} {100 * error:.1f}" for name, error in by_scheduler if name != "sequential"),
        "covered": round(left_out["interval_coverage"] * left_out["figures"]),
        "ranked": "All" if unseen["orders_right"] == left_out["orders_right"] == found["orders"] else "Not all",
        "pairs": _worst(pairs),
        "units": _worst(units),
        "concat": concat,
        "concat_error": abs(concat["error"]),
        "warps": warps["predicted"] - 1,
        "published_warps": warps["published"] - 1,
    }


def _worst(stages: Sequence[Mapping[str, Any]]) -> str:
    own, without = (100 * max(abs(each[key]) for each in stages) for key in ("error", "left_out_error"))
    return f"{own:.1f}% ({without:.1f}% left out)"


def _engine_agreement(results: Results) -> Results:
    v100, a100, t4 = (
        max(each["analytic_optimum_by_events"], each["events_optimum_by_analytic"])
        for each in (results["engines"][name] for name in ("v100-sxm2", "a100-sxm-40gb", "t4"))
    )
    return {"worst_of_two": max(v100, a100), "worst_of_t4": t4}


def _graph_kernels(results: Results) -> Results:
    found = results["graph-kernels"]
    attention = found["attention"].items()
    return {
        "products": _by_board(found["products"]),
        "steady": _by_board({name: each["steady"] for name, each in attention}),
        "every": _by_board({name: each["all"] for name, each in attention}),
        "trace": " and ".join(f"{error:.0f} at batch {batch}" for batch, error in found["trace"].items()),
        "batches": ", ".join(
            f"{min(each):+.0f} to {max(each):+.0f}% at batch {batch}" for batch, each in found["networks"].items()
        ),
        **{
            name: " and ".join(f"{us / 1e3:.3f} ms in {count} units" for count, us in by_units.values())
            for name, by_units in found["transformers"].items()
        },
    }


def _by_board(errors: Mapping[str, float]) -> str:
    return ", ".join(f"{name.split('-')[0].upper()} {error:.1f}" for name, error in errors.items())


def _transfer_means(results: Results) -> Results:
    errors = results["transfer"]["errors"]
    means = {kind: fmean(errors[chip][kind]["zero_shot"] for chip in BOARDS) for kind in KINDS}
    return {"means": ", ".join(f"{kind} {mean:.1f}" for kind, mean in means.items())}


def _measured_search_errors(results: Results) -> Results:
    found = [results["measured-search"]["networks"][model]["structured"] for model in SEARCHED]
    *regrets, last = (f"{each['regret']:.2f}" for each in found)
    (measured,) = {each["measured"] for each in found}
    return {"regrets": f"{', '.join(regrets)} and {last}", "measured": measured}


def _throughput(results: Results) -> Results:
    gains = results["studies"]["gain_by_batch"]
    return {"gain_at_1": gains["1"], "least_gain": min(gains.values())}


def _gpu_gains(results: Results) -> Results:
    """Gains of measured schedules, over the networks for which one was searched."""
    searched = [row for row in results["gpu-networks"] if "ios-both" in row]
    gains = {
        base: [row[base][0] / row["ios-both"][0] for row in searched if base in row]
        for base in ("sequential", "torch-compile-cuda-graph", "torch-cuda-graph")
    }
    return {base.replace("-", "_"): f"{min(found):.1f} to {max(found):.1f}" for base, found in gains.items()}


def _gpu_errors(results: Results) -> Results:
    """Mean errors of schedules by precision, each in TF32, and how much longer than predicted schedules took, in %."""
    errors: dict[str, list[float]] = {}
    for row in results["gpu-networks"]:
        told = [row[name] for name in _GPU_RUNS if len(row.get(name, ())) == 2]
        errors.setdefault(row["dtype"], []).extend(100 * (us / measured_us - 1) for measured_us, us in told)
    each = ", ".join(f"{error:+.0f}" for error in errors["tf32"])
    late = {}
    for name in ("sequential", "ios-both"):
        pairs = (row[name] for row in results["gpu-networks"] if len(row.get(name, ())) == 2)
        own = [100 * (measured_us / us - 1) for measured_us, us in pairs]
        late[name] = f"{min(own):.0f} to {max(own):.0f}"
    return {dtype: fmean(map(abs, own)) for dtype, own in errors.items()} | {"each": each} | late


def _gpu_example(results: Results) -> Results:
    """Milliseconds of the measured network that the README names."""
    name = ("inception_v3", "bf16")
    (row,) = (row for row in results["gpu-networks"] if (row["model"], row["dtype"]) == name)
    return {"ms": {run: row[run][0] / 1e3 for run in _GPU_RUNS if run in row}}


#: Figures of each text of ``sentences.yaml`` beside the results, if it has any.
FIGURES: dict[str, Callable[[Results], Results]] = {
    "network-errors": _network_errors,
    "engine-agreement": _engine_agreement,
    "graph-kernels": _graph_kernels,
    "transfer-means": _transfer_means,
    "measured-search-errors": _measured_search_errors,
    "throughput": _throughput,
    "gpu-example": _gpu_example,
    "gpu-gains": _gpu_gains,
    "gpu-errors": _gpu_errors,
}


def sentences(name: str, template: str, results: Results) -> str:
    """A text of ``sentences.yaml`` with its figures, wrapped."""
    derived = FIGURES[name](results) if name in FIGURES else {}
    filled = template.format_map({**results, **derived})
    return textwrap.fill(filled, _WIDTH, break_on_hyphens=False, break_long_words=False)


#: Function that writes each block, by the name in a document's marker.
TEXTS: dict[str, Callable[[Results], str]] = {
    "example": example,
    "trust-table": trust_table,
    "accuracy-table": accuracy_table,
    "network-table": network_table,
    "hopper-kinds": hopper_kinds,
    "hopper-families": hopper_families,
    "hopper-sets": hopper_sets,
    "hopper-followers": hopper_followers,
    "hopper-units": hopper_units,
    "hopper-left-out": hopper_left_out,
    "intervals": intervals,
    "transfer-table": transfer_table,
    "measured-search-table": measured_search_table,
    "transformer-blocks": transformer_blocks,
    "transformers-served": transformers_served,
    "shared-experts": shared_experts,
    "projections": projections,
    "gpu-networks": gpu_networks,
    "gpu-streams": gpu_streams,
    **{name: partial(sentences, name, text) for name, text in shipped(__package__, "sentences.yaml").items()},
    **{path.stem: partial(stored_table, path) for path in sorted(TABLES.glob("*.csv"))},
}


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines).replace("| --- ", "|---").replace("|  |", "| |")


def _tenths(value: float) -> str:
    return f"{value:.1f}"
