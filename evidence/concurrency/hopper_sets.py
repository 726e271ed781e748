"""Convolutions and products of an H100 in bf16, alone and concurrently in one CUDA graph, beside their simulation.

``python -m evidence.concurrency.hopper_sets`` prints all tables from the recordings (``h100_bf16``). Alone, the error
is the distance from the interval between warm and cold filters. Sets of convolutions, and of products with weights of
their own, are judged by their speed-up over running sequentially, from the first start to the last end; measured is
the geometric mean of warm and cold.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from evidence.data.data_sets import shared_data
from evidence.data.formats import recorded_operators
from iossim.api import cost_model, optimize
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.cost.model import CostModel
from iossim.hardware.load import device as load_device
from iossim.hardware.lowering.gpu.matrix_product import Product
from iossim.hardware.lowering.gpu.tensor_core_families import NVJET
from iossim.hardware.lowering.gpu.tensor_core_product import SPLITS, UNSPLIT, tensor_products
from iossim.hardware.lowering.kernel import Issue, Libraries, ceil_div
from iossim.hardware.lowering.target import step_candidates
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.conv import Conv
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.models.transformer_layers import linear
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import Schedule

DEVICE = "h100-sxm"
FOLDER = "h100_bf16"


class Alone(NamedTuple):
    """A convolution: its kind, and microseconds predicted, with warm and with cold filters, each with its gap."""

    kind: str
    batch: int
    predicted_us: float
    warm_us: float
    cold_us: float

    @property
    def error(self) -> float:
        """Relative distance outside the interval, over its nearer end; 0 inside."""
        return max(0.0, self.warm_us / self.predicted_us - 1.0, self.predicted_us / self.cold_us - 1.0)


class SideBySide(NamedTuple):
    """A set: speed-ups over sequential runs, predicted and measured with warm and with cold filters."""

    kernels: int
    predicted: float
    warm: float
    cold: float

    @property
    def error(self) -> float:
        return abs(self.predicted / math.sqrt(self.warm * self.cold) - 1.0)


def prices(device: str = DEVICE) -> CostModel:
    """Simulator of one CUDA graph, values in place, as the recordings run."""
    return cost_model("simulator:in-place", device, Precision.BF16, "graph")


def alone(simulated: CostModel) -> list[Alone]:
    """Every recorded convolution."""
    found = []
    for row in (row for row in csv.DictReader(_lines("operators.csv")) if row["op"] == "conv"):
        warm_us, gap_us = float(row["warm_step_us"]), float(row["warm_step_us"]) - float(row["warm_us"])
        cold_us = max(warm_us, float(row["cold_filters_us"]) + gap_us)
        ((predicted_us,), _) = _predicted(_network([row]), simulated)
        found.append(Alone(_kind(row), int(float(row["batch"])), predicted_us, warm_us, cold_us))
    return found


def side_by_side(simulated: CostModel) -> list[SideBySide]:
    """Every recorded set of convolutions."""
    return [
        _side_by_side(row, _network(row["convolutions"]), simulated)
        for row in map(json.loads, _lines("side_by_side.jsonl"))
    ]


def products_side_by_side(simulated: CostModel) -> list[SideBySide]:
    """Every recorded set of products, as of a mixture's experts."""
    return [_side_by_side(row, _experts(row), simulated) for row in map(json.loads, _lines("experts.jsonl"))]


def _lines(name: str) -> list[str]:
    return (shared_data() / FOLDER / name).read_text(encoding="utf-8").splitlines()


def _side_by_side(row: Mapping[str, Any], network: Network, simulated: CostModel) -> SideBySide:
    each_us, together_us = _predicted(network, simulated)
    measured = [row[f"{state}_serial_us"] / row[f"{state}_side_us"] for state in ("warm", "cold")]
    return SideBySide(len(each_us), sum(each_us) / together_us, *measured)


def _predicted(network: Network, simulated: CostModel) -> tuple[list[float], float]:
    """Predicted microseconds of each unit alone, and of all as one stage."""
    problem = ScheduleProblem.of_block(network, network.blocks[0])
    masks = np.array([*(1 << unit for unit in range(len(problem))), problem.full], dtype=np.uint64)
    *each_us, together_us = simulated.price_stages(StageBatch.concurrent(problem, masks)).tolist()
    return each_us, together_us


def _network(convolutions: Sequence[Mapping[str, Any]]) -> Network:
    b, made = GraphBuilder("convolutions", Precision.BF16), []
    with b.block("side by side"):
        for index, row in enumerate(convolutions):
            size = _size(row)
            x = b.input(f"x{index}", (size["batch"], size["in_channels"], size["height"], size["width"]))
            window = size["kernel_h"], size["kernel_w"]
            weight = b.constant(f"w{index}", (size["out_channels"], size["in_channels"] // size["groups"], *window))
            strides, padding = (size["stride"],) * 2, (size["pad_h"], size["pad_w"])
            made.append(b.add(Conv(strides, (*padding, *padding), (1, 1), size["groups"]), x, weight, name=f"c{index}"))
    return b.network(made)


def _experts(row: Mapping[str, Any]) -> Network:
    b, made = GraphBuilder("products", Precision.BF16), []
    with b.block("side by side"):
        for index in range(row["n"]):
            x = b.input(f"x{index}", (row["tokens"], row["width"]))
            made.append(linear(b, f"expert{index}", x, row["inner"], bias=False))
    return b.network(made)


def _size(row: Mapping[str, Any]) -> dict[str, int]:
    names = ("batch", "in_channels", "out_channels", "height", "width", "kernel_h", "kernel_w", "pad_h", "pad_w")
    return {name: int(float(row.get(name, 1))) for name in (*names, "stride", "groups")}


def _kind(row: Mapping[str, Any]) -> str:
    size = _size(row)
    channels, filters, groups = size["in_channels"], size["out_channels"], size["groups"]
    if groups > 1:
        return "depthwise" if groups == channels else "grouped"
    if channels < 8:
        return "first layer"
    is_pointwise = size["kernel_h"] * size["kernel_w"] == 1
    return ("odd " if channels % 8 or filters % 8 else "") + ("pointwise" if is_pointwise else "window")


#: Families of tensor-core kernels, by the first letters of recorded kernels' names.
_RECORDED = {"nvjet": "nvjet", "sm90_xmma": "xmma_sm90", **dict.fromkeys(("sm80", "void cutlass"), "mma_sm80")}


def families(device: str = DEVICE) -> dict[str, dict[str, int]]:
    """Convolutions on tensor cores by the family that ran: their numbers by the predicted family."""
    measured = recorded_operators.FORMAT.read(shared_data() / FOLDER / "operators.csv", None)
    model = KernelModel(profile := load_device(device), Issue.GRAPH, Libraries.COMPILED)
    found: dict[str, Counter[str]] = {}
    for one in measured.measurements:
        ran = next((family for name, family in _RECORDED.items() if one.kernels[0].startswith(name)), "")
        if not ran or not isinstance(one.operator.op, Conv):
            continue
        known = model.available(step_candidates(one.operator.step(), profile))
        found.setdefault(ran, Counter())[_family(model.fastest(known)[0].algorithm)] += 1
    return {name: dict(sorted(counts.items())) for name, counts in sorted(found.items())}


def grids(device: str = DEVICE) -> dict[str, dict[str, float]]:
    """Products and 1x1 convolutions that ran as ``nvjet``, and those whose predicted grid is within 15% of that."""
    found: dict[str, dict[str, float]] = {}
    for row in (row for row in csv.DictReader(_lines("operators.csv")) if row["kernel"].startswith("nvjet")):
        if row["op"] == "product":
            pixels, filters, channels = (int(float(row[name])) for name in ("m", "n", "k"))
        else:
            size = _size(row)
            pixels = size["batch"] * math.prod(ceil_div(size[side], size["stride"]) for side in ("height", "width"))
            filters, channels = size["out_channels"], size["in_channels"]
        sides = (filters, pixels) if row["op"] == "product" else (pixels, filters)
        product = Product(*sides, channels, 0, 0, 0, Precision.BF16.storage.bytes, Precision.BF16)
        splits = SPLITS if row["op"] == "product" else UNSPLIT
        kernel, *_ = next(tensor_products(product, NVJET, splits=splits))
        sms = load_device(device).sm_count
        ran = min(sms, math.prod(map(int, row["grid"].split(" + ")[0].split("x"))))
        own = found.setdefault(row["op"], {"rows": 0, "within 15%": 0})
        own["rows"] += 1
        own["within 15%"] += abs(min(sms, kernel.blocks) / ran - 1.0) <= 0.15
    return found


def _family(algorithm: str) -> str:
    return next((family for family in sorted(set(_RECORDED.values())) if family in algorithm), algorithm)


def judged(device: str = DEVICE) -> dict[str, Any]:
    """Errors of convolutions by kind and batch, of sets by their number, and of networks' units, in %; and families."""
    simulated = prices(device)
    singles = alone(simulated)
    kinds = sorted({(one.kind, one.batch) for one in singles})
    return {
        "families": families(device),
        "alone": {
            f"{kind}, batch {batch}": _errors([one.error for one in singles if (one.kind, one.batch) == (kind, batch)])
            for kind, batch in kinds
        },
        "side_by_side": _by_number(side_by_side(simulated)),
        "products_side_by_side": _by_number(products_side_by_side(simulated)),
        "units": units(device),
    }


def _by_number(sets: Sequence[SideBySide]) -> dict[str, dict[str, float]]:
    """Medians of speed-ups, and errors, of sets by their number of kernels."""
    found = {}
    for count in sorted({one.kernels for one in sets}):
        own = [one for one in sets if one.kernels == count]
        medians = {
            name: float(np.median([getattr(one, name) for one in own])) for name in ("predicted", "warm", "cold")
        }
        found[str(count)] = medians | _errors([one.error for one in own])
    return found


def _errors(errors: Sequence[float]) -> dict[str, float]:
    median, mean, worst = np.median(errors), np.mean(errors), np.quantile(errors, 0.9)
    return {"rows": len(errors), "median": 100 * float(median), "mean": 100 * float(mean), "worst": 100 * float(worst)}


def networks(device: str = DEVICE) -> dict[str, dict[str, float]]:
    """Predicted over measured latency, less 1, of the recorded networks whose schedules follow from the network alone.

    They ran by an earlier backend: where it needed several kernels for a unit, predictions are far too low.
    """
    found: dict[str, dict[str, float]] = {}
    for row in (row for row in csv.DictReader(_lines("networks.csv")) if row["schedule"] in ("sequential", "greedy")):
        error = _scheduled(row["job"], row["schedule"], device).latency_us / float(row["measured_us"]) - 1.0
        found.setdefault(row["job"], {})[row["schedule"]] = 100 * error
    return found


#: First letters of the kernels of cuDNN and cuBLAS, and the fewest of a network's units that tell something.
_OF_LIBRARIES, _FEWEST = ("nvjet", "sm80", "sm90", "void cutlass", "void convolve_common"), 5


def units(device: str = DEVICE) -> dict[str, dict[str, float]]:
    """Units of the recorded networks in bf16 that are one kernel of a library: number, mean error and bias in %.

    A unit takes the time from its kernel's start to the next start in a replay of the sequential schedule. No rule was
    chosen by these. Kernels of this project ran besides, which were replaced since.
    """
    with gzip.open(shared_data() / FOLDER / "timelines.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if row.get("schedule", "sequential") == "sequential"]
    found = {}
    for replay, launched in zip(rows[::2], rows[1::2], strict=True):
        kernels = [(launch, kernel[0]) for launch in launched["launches"] or () for kernel in launch["kernels"]]
        steps = list(pairwise(kernel[0] for kernel in replay["kernels"]))
        if not replay["job"].endswith(":bf16") or len(kernels) != len(steps) + 1:
            continue
        blocks = _scheduled(replay["job"], "sequential", device).blocks
        predicted_us = {name: stage.latency_us for each in blocks for stage in each.stages for (name,) in stage.groups}
        errors = [
            predicted_us[launch["units"][0]] / (after_us - start_us) - 1.0
            for (launch, name), (start_us, after_us) in zip(kernels, steps, strict=False)
            if launch["units"] and len(launch["kernels"]) == 1 and name.startswith(_OF_LIBRARIES)
        ]
        if len(errors) >= _FEWEST:
            found[replay["job"]] = _errors([abs(error) for error in errors]) | {"bias": 100 * float(np.mean(errors))}
    return found


def _scheduled(job: str, scheduler: str, device: str) -> Schedule:
    model, _, dtype = job.partition(":")
    prices_of = cost_model("simulator:in-place", device, Precision(dtype), "graph")
    return optimize(load(model, dtype=dtype), device, cost_model=prices_of, scheduler=scheduler)


def main() -> None:
    """Print all tables; errors are %."""
    for name, rows in (judged() | {"grids": grids(), "networks": networks()}).items():
        print(name.replace("_", " "))
        for key, figures in rows.items():
            print(f"  {key:24}", *(f"{figure} {value:.4g}" for figure, value in figures.items()))


if __name__ == "__main__":
    main()
