"""Published layers of experts in bf16 beside the two grouped products that they are made of.

Inference engines run the products of all experts as one launch (Triton's kernels of SGLang and vLLM): a batched product
of as many rows for each expert, since the tokens of this table (``hopper``'s ``moe_experts_bf16.csv``) are spread
evenly. Nothing was fitted to it. Measured are routing, activation and the sum over experts besides, which take 15 to
45 us; layers whose activation has no gate, and other kernels, are left out.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np

from evidence.concurrency.hopper_operators import model_of, percents
from evidence.data.data_sets import shared_data
from iossim.hardware.lowering.target import step_candidates
from iossim.ir.types import Precision
from iossim.measurements.operator_kinds import read_record

DEVICES = {"NVIDIA A100-SXM4-80GB": "a100-sxm-80gb", "NVIDIA H100 80GB HBM3": "h100-sxm", "NVIDIA H200": "h200-sxm"}
#: Hidden sizes and experts a token of the models whose experts have no gate: two matrices rather than three.
_WITHOUT_GATE = {(2688, 6), (2048, 22), (8192, 22)}
#: Upper ends of the classes of predicted times, us.
_CLASSES_US = (30.0, 100.0, 300.0, math.inf)


def judged() -> dict[str, dict[str, float]]:
    """Errors of layers in %, and the median ``ratio`` to measurements, by device and class of predicted times."""
    found: dict[tuple[str, float], list[float]] = defaultdict(list)
    for row in _rows():
        name = DEVICES[row["device"]]
        predicted_us = _layer_us(name, row)
        end_us = next(end for end in _CLASSES_US if predicted_us < end)
        found[name, end_us].append(predicted_us / float(row["latency_us"]))
    return {
        f"{name} up to {end_us:.0f} us": {"ratio": float(np.median(own)), **percents(np.array(own) - 1.0)}
        for (name, end_us), own in sorted(found.items())
    }


def _rows() -> Iterator[Mapping[str, str]]:
    with (shared_data() / "hopper" / "moe_experts_bf16.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            is_gated = (int(row["hidden_size"]), int(row["topk"])) not in _WITHOUT_GATE
            if row["device"] in DEVICES and "triton" in row["kernel_source"] and is_gated:
                yield row


def _layer_us(name: str, row: Mapping[str, str]) -> float:
    """Both products of a layer on one of its devices: up with gate, and down, of each expert that has tokens."""
    tokens, hidden, inner = (int(row[key]) for key in ("num_tokens", "hidden_size", "inter_size"))
    inner //= int(row["moe_tp_size"])
    devices = int(row["moe_ep_size"])
    assigned = max(1, tokens * int(row["topk"]) // devices)
    experts = min(assigned, int(row["num_experts"]) // devices)
    rows = math.ceil(assigned / experts)
    return _product_us(name, experts, rows, 2 * inner, hidden) + _product_us(name, experts, rows, hidden, inner)


@cache
def _product_us(name: str, experts: int, m: int, n: int, k: int) -> float:
    """A product of each expert, us, as one launch."""
    model = model_of(name)
    step = read_record({"op": "bmm", "batch": experts, "m": m, "n": n, "k": k}, Precision.BF16).step()
    return math.fsum(price.alone_us for price in model.fastest(step_candidates(step, model.profile))[1])
