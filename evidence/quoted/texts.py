"""Wording of quoted figures: tables and sentences of Markdown, each from the stored results alone."""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from evidence.quoted.sections import BOARDS, DIRECT, KINDS, SEARCHED
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
    rows = [
        [
            chip,
            *map(_tenths, errors.values()),
            _tenths(found["short_convolutions"][chip]),
            _tenths(found["roofline"][chip]),
        ]
        for chip, errors in found["errors"].items()
    ]
    return _table(["", *KINDS, "conv under 0.2 ms", "conv, roofline"], rows)


def accuracy(results: Results) -> str:
    found = results["operators"]
    v100_conv, v100_gemm, t4_conv, t4_gemm = (found["direct"][name] for name in DIRECT)
    (least_tau, most_tau), (least, most) = found["rank_correlation"], found["inside_intervals"]
    return _sentences(
        "Called directly, without a framework (few rows: 17 and 34 held out): V100 convolutions "
        f"{v100_conv:.1f}, matrix products {v100_gemm:.1f}; T4 {t4_conv:.1f} and {t4_gemm:.1f}.",
        f"Rank correlation with measured convolutions {least_tau:.2f} to {most_tau:.2f}.",
        "Nine in ten measurements should be within the interval of their prediction; "
        f"{least:.0f} to {most:.0f}% of the held-out ones do, but only {found['inside_intervals_conv2d_t4']:.0f}% of "
        "T4's direct convolutions.",
        f"{found['hidden_rows']:.0f}% of all rows are hidden by the host's floor, and left out.",
    )


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


def network_errors(results: Results) -> str:
    found = results["networks"]["judged"]
    fitted, unseen, left_out = found["in_sample"], found["unseen"], found["left_out"]
    stages = found["sample_stages"]
    pairs = [each for each in stages if "," in each["stage"]]
    units = [each for each in stages if each not in pairs and each["stage"] != "concat"]
    (concat,) = (each for each in stages if each["stage"] == "concat")
    ranked = unseen["orders_right"] == left_out["orders_right"] == found["orders"]
    (warps,) = found["active_warps"]
    by_scheduler = ", ".join(
        f"{name} {100 * error:.1f}" for name, error in unseen["mean_error_by_scheduler"].items() if name != "sequential"
    )
    return _sentences(
        f"The {fitted['figures']} figures that took part are within {100 * abs(fitted['worst_error']):.1f}%, "
        "in-sample.",
        f"The {unseen['figures']} that took part in no fit have a mean error of {100 * unseen['mean_error']:.1f}%, and "
        f"{100 * unseen['worst_error']:+.1f}% at worst (by scheduler {by_scheduler}); with the whole network left out, "
        f"all {left_out['figures']} have {100 * left_out['mean_error']:.1f}% and "
        f"{100 * left_out['worst_error']:+.1f}%, and {round(left_out['interval_coverage'] * left_out['figures'])} are "
        "within their intervals.",
        f"{'All' if ranked else 'Not all'} {found['orders']} pairs of schedulers that differ by more than 3% are "
        "ranked correctly, also with the network left out.",
        f"The two stages of the sample network with two groups are within {_worst(pairs)}, its convolutions within "
        f"{_worst(units)}. Its concat is {100 * abs(concat['error']):.1f}% off in-sample, and "
        f"{100 * concat['left_out_error']:.1f}% with the network left out: three short copies, "
        f"{concat['predicted_us']:.0f} us, nearly all of it launch overhead, which a fit without this network "
        "overestimates.",
        f"Its active warps rise by {100 * (warps['predicted'] - 1):.0f}% under IOS (published: "
        f"{100 * (warps['published'] - 1):.0f}%).",
    )


def _worst(stages: Sequence[Mapping[str, Any]]) -> str:
    own, without = (100 * max(abs(each[key]) for each in stages) for key in ("error", "left_out_error"))
    return f"{own:.1f}% ({without:.1f}% left out)"


def engine_agreement(results: Results) -> str:
    v100, a100, t4 = (results["engines"][name] for name in ("v100-sxm2", "a100-sxm-40gb", "t4"))
    worst = [max(each["analytic_optimum_by_events"], each["events_optimum_by_analytic"]) for each in (v100, a100, t4)]
    others = [f"{each['median_difference']:.1f} and {each['percentile_95_difference']:.1f}" for each in (a100, t4)]
    return _sentences(
        f"The analytic prices of all {v100['stages']:,} stages of Inception differ from the event-driven engine's by "
        f"{v100['median_difference']:.1f}% in the median and {v100['percentile_95_difference']:.1f}% at the 95th "
        f"percentile on the V100 (A100 {others[0]}, T4 {others[1]}); the best schedule by one is within "
        f"{max(worst[:2]):.1f}% of the best by the other, on the T4 within {worst[2]:.1f}%."
    )


def graph_kernels(results: Results) -> str:
    found = results["graph-kernels"]
    layers, profiled, by_batch = found["layers"], found["profiled"], found["networks"]
    products = ", ".join(f"{name.split('-')[0].upper()} {error:.1f}" for name, error in found["products"].items())
    steady, every = (
        ", ".join(f"{name.split('-')[0].upper()} {each[kind]:.1f}" for name, each in found["attention"].items())
        for kind in ("steady", "all")
    )
    layer, large = (
        " and ".join(f"{us / 1e3:.3f} ms in {count} units" for count, us in found["transformers"][name].values())
        for name in ("bert_layer", "bert_l")
    )
    batches = ", ".join(f"{min(each):+.0f} to {max(each):+.0f}% at batch {batch}" for batch, each in by_batch.items())
    return _sentences(
        f"bf16 products in CUDA graphs, shapes held out: {products}.",
        f"Fused attention there, shapes of up to 17 GFLOP held out: {steady}; for all sizes {every}, since long rows "
        "take two to three times the time expected from short ones, and one shape differs by as much between boards of "
        "equal arithmetic.",
        f"Layers of TensorRT, nothing fitted to them: A100 in TF32 {layers['a100-pcie-80gb']:.0f}, RTX 3090 in fp16 "
        f"{layers['rtx-3090']:.0f}.",
        "Kernels of ResNet-50 and MobileNet-v2 by Nsight Compute on a V100, with one fitted constant, the time to "
        f"start and end a kernel: ReLU {profiled['relu']:.0f}, additions {profiled['add']:.0f}, depthwise "
        f"convolutions {profiled['depthwise']:.0f}, other convolutions {profiled['conv']:.0f}.",
        "PyTorch's convolutions of ResNet-50 in TF32 on an RTX A5000, one constant fitted to those at batch 1: "
        + " and ".join(f"{error:.0f} at batch {batch}" for batch, error in found["trace"].items())
        + ".",
        f"ResNet-50 by TensorRT on an A30 in TF32, fp16 and int8, nothing fitted, with `--units fused`: {batches}; "
        "the measurements include up to some 0.3 ms of a framework's host.",
        f"With attention fused, by prices, one encoder layer of BERT-base in fp16 on an H100 takes {layer}, BERT-large "
        f"{large}, as units of the model and with `--units fused`.",
    )


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


def hopper_sets(results: Results) -> str:
    rows = [
        [
            f"{count} {kernels}",
            str(each["rows"]),
            f"{each['predicted']:.2f}",
            f"{each['warm']:.2f}, {each['cold']:.2f}",
            *(f"{each[name]:.0f}" for name in ("median", "mean", "worst")),
        ]
        for kernels, key in (("convolutions", "side_by_side"), ("products", "products_side_by_side"))
        for count, each in results["hopper-sets"][key].items()
    ]
    head = [
        "concurrent",
        "sets",
        "speed-up predicted",
        "measured, warm and cold",
        "median error, %",
        "mean",
        "worst tenth",
    ]
    return _table(head, rows)


def transfer_table(results: Results) -> str:
    rows = [
        [chip, *(f"{each['zero_shot']:.1f} / {each['refined']:.1f}" for each in errors.values())]
        for chip, errors in results["transfer"]["errors"].items()
    ]
    return _table(["", *KINDS], rows)


def transfer_means(results: Results) -> str:
    errors = results["transfer"]["errors"]
    means = {kind: fmean(errors[chip][kind]["zero_shot"] for chip in BOARDS) for kind in KINDS}
    return _sentences(
        "Fits are repeated: rounding on another processor moves them by up to a point.",
        f"On average {', '.join(f'{kind} {mean:.1f}' for kind, mean in means.items())} from datasheet facts alone.",
    )


def measured_search_table(results: Results) -> str:
    rows = []
    for model, title in SEARCHED.items():
        low, high = (results["measured-search"]["networks"][model][error] for error in ("0.1", "0.2"))
        cells = [cell for each in (low, high) for cell in (f"{each['regret']:.2f}", f"{each['measured']:,}")]
        trusting = f"{low['trusting']:.1f}, {high['trusting']:.1f}"
        rows.append([title, f"{low['stages']:,}", *cells, trusting])
    header = ["", "stages", "error 10%", "measured", "error 20%", "measured", "trusting the simulator"]
    return _table(header, rows)


def measured_search_errors(results: Results) -> str:
    found = [results["measured-search"]["networks"][model] for model in SEARCHED]
    regrets = [f"{each['structured']['regret']:.2f}" for each in found]
    (measured,) = {each["structured"]["measured"] for each in found}
    return _sentences(
        f"With an error by operator and by resource instead, {_listed(regrets)} after {measured:,} measurements.",
        "The search was tuned on these seeds, with an earlier fit of the V100.",
        f"Planning takes at most {results['measured-search']['planning_cpu_s']:.1f} s of CPU time per network.",
    )


def throughput(results: Results) -> str:
    found = results["studies"]
    gains: list[float] = list(found["gain_by_batch"].values())
    return _sentences(
        "The three claims that the paper makes about batch sizes hold here (`throughput_and_batch`): throughput rises "
        "with the batch, saturates at 128, and IOS is ahead at every batch size, "
        f"{gains[0]:.2f} times as fast at batch 1 and {min(gains):.2f} at the least.",
        f"{found['shipped']} studies ship: figures and tables of the IOS thesis and of other papers, with published "
        "results beside those found here, and questions such as which GPU a model needs, how many streams pay off, and "
        "what twice the SMs would gain.",
    )


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
    rows = [
        [
            model,
            *(
                f"{places[f'{device} {engine} 1']['sequential']:,.0f}: {_saved(places[f'{device} {engine} 1'])}"
                for device in _DEVICES
                for engine in ("graph", "paper")
            ),
        ]
        for model, places in results["transformers"]["shared_experts"].items()
    ]
    return _table(["", *(f"{name}, {engine}" for name in _DEVICES.values() for engine in ("graph", "paper"))], rows)


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


def gpu_example(results: Results) -> str:
    """The measured network that the README names."""
    row = _measured_ms(results, "inception_v3", "bf16")
    return _sentences(
        f"One GPU has run it, an H200: Inception V3 in bf16 takes {row['ios-both']:.2f} ms by its measured schedule, "
        f"{row['sequential']:.2f} ms sequentially, {row['torch-compile-cuda-graph']:.2f} ms by torch.compile in a "
        f"CUDA graph, {row['torch-cuda-graph']:.2f} ms without compiling "
        "([measured on an H200](docs/results/hardware.md#measured-on-an-h200))."
    )


def gpu_gains(results: Results) -> str:
    """Gains of measured schedules, over the networks for which one was searched."""
    names = [(row["model"], row["dtype"]) for row in results["gpu-networks"] if "ios-both" in row]
    rows = [_measured_ms(results, *name) for name in names]
    over = {
        base: [row[base] / row["ios-both"] for row in rows if base in row]
        for base in ("sequential", "torch-compile-cuda-graph", "torch-cuda-graph")
    }
    units, compiled, torch = (f"{min(found):.1f} to {max(found):.1f}" for found in over.values())
    return _sentences(
        "IOS with a measured search, within seconds per network, is "
        f"{units} times as fast as sequential execution, {torch} times as fast as PyTorch's CUDA graph, and "
        f"{compiled} times as fast as that of torch.compile, in the two networks for which that was measured."
    )


def _measured_ms(results: Results, model: str, dtype: str) -> dict[str, float]:
    (row,) = (row for row in results["gpu-networks"] if (row["model"], row["dtype"]) == (model, dtype))
    return {name: row[name][0] / 1e3 for name in _GPU_RUNS if name in row}


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


def startup(results: Results) -> str:
    found = results["first-command"]
    return _sentences(
        "A wheel contains compiled loops for the platform that built it. In a checkout, the first command compiles "
        "them by the machine's C compiler or, without one, by numba, which takes a quarter of a minute. With a "
        f"compiler the README's first command takes {found['first_cpu_s']:.1f} s of CPU time there, and "
        f"{found['again_cpu_s']:.1f} s when it is repeated, or from a wheel."
    )


def stored_table(path: Path, _: Results) -> str:
    """A CSV file as a table."""
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return _table(header, rows)


#: Function that writes each block, by the name in a document's marker.
TEXTS: dict[str, Callable[[Results], str]] = {
    "example": example,
    "trust-table": trust_table,
    "accuracy-table": accuracy_table,
    "accuracy": accuracy,
    "network-table": network_table,
    "network-errors": network_errors,
    "engine-agreement": engine_agreement,
    "graph-kernels": graph_kernels,
    "hopper-kinds": hopper_kinds,
    "hopper-families": hopper_families,
    "hopper-sets": hopper_sets,
    "transfer-table": transfer_table,
    "transfer-means": transfer_means,
    "measured-search-table": measured_search_table,
    "measured-search-errors": measured_search_errors,
    "throughput": throughput,
    "startup": startup,
    "transformer-blocks": transformer_blocks,
    "transformers-served": transformers_served,
    "shared-experts": shared_experts,
    "projections": projections,
    "gpu-networks": gpu_networks,
    "gpu-example": gpu_example,
    "gpu-gains": gpu_gains,
    "gpu-streams": gpu_streams,
    **{path.stem: partial(stored_table, path) for path in sorted(TABLES.glob("*.csv"))},
}


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines).replace("| --- ", "|---").replace("|  |", "| |")


def _sentences(*sentences: str) -> str:
    return textwrap.fill(" ".join(sentences), _WIDTH, break_on_hyphens=False, break_long_words=False)


def _tenths(value: float) -> str:
    return f"{value:.1f}"


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"
