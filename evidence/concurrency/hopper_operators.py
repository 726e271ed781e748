"""Convolutions and products as they ran alone on an H100 in bf16 (``h100_bf16``), beside their simulation.

A convolution was measured with filters in L2 and in DRAM: the error of a prediction is its distance from the interval
between. What else was recorded tells which family of kernels ran, and with how many blocks.
"""

from __future__ import annotations

import csv
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from evidence.data.data_sets import shared_data
from evidence.data.formats.recorded_operators import interval_us, record
from evidence.validation.concurrency import RatioErrors
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.base.compiled import Floats
from iossim.hardware.load import device as load_device
from iossim.hardware.lowering.gpu.tensor_core_convolution import tensor_core_convolution
from iossim.hardware.lowering.gpu.tensor_core_families import MMA_SM80, NVJET
from iossim.hardware.lowering.kernel import Candidate, Issue, Libraries
from iossim.hardware.lowering.step import ConvolutionShape
from iossim.hardware.lowering.target import step_candidates
from iossim.hardware.profile import DeviceProfile
from iossim.ir.types import Precision
from iossim.measurements.measurement import Operator
from iossim.measurements.operator_kinds import read_record

DEVICE, FOLDER = "h100-sxm", "h100_bf16"
#: Families of tensor-core kernels, by the first letters of recorded kernels' names.
_RECORDED = {"nvjet": "nvjet", "sm90_xmma": "xmma_sm90", **dict.fromkeys(("sm80", "void cutlass"), "mma_sm80")}


class Recorded(NamedTuple):
    """An operator of a network: the name and grid of its first kernel, microseconds with warm and with cold filters."""

    operator: Operator
    network: str
    kernel: str
    blocks: int
    warm_us: float
    cold_us: float

    @property
    def is_convolution(self) -> bool:
        return self.operator.kind == "conv"

    @property
    def shape(self) -> ConvolutionShape:
        """Dimensions of a convolution."""
        return ConvolutionShape.of(self.operator.step())

    @property
    def family(self) -> str:
        """The family that ran; "" for kernels that use no tensor cores."""
        return next((family for name, family in _RECORDED.items() if self.kernel.startswith(name)), "")

    @property
    def kind(self) -> str:
        """Kind of a convolution, as the table of errors has it."""
        shape = self.shape
        if shape.groups > 1:
            return "depthwise" if shape.is_depthwise else "grouped"
        if shape.channels < 8:
            return "first layer"
        is_odd = shape.channels % 8 or shape.filters % 8
        return "odd " * bool(is_odd) + ("pointwise" if math.prod(shape.kernel) == 1 else "window")


def lines(name: str) -> list[str]:
    """Lines of one of the tables."""
    return (shared_data() / FOLDER / name).read_text(encoding="utf-8").splitlines()


def recorded() -> list[Recorded]:
    """Every recorded convolution and product."""
    rows = [row for row in csv.DictReader(lines("operators.csv")) if row["op"] in ("conv", "product")]
    return [
        Recorded(
            read_record(record(row), Precision.BF16),
            row["network"],
            row["kernel"],
            math.prod(map(int, row["grid"].split(" + ")[0].split("x"))),
            *interval_us(row),
        )
        for row in rows
    ]


def outside(predicted_us: Floats, rows: Sequence[Recorded]) -> Floats:
    """Relative distance of predictions from their rows' intervals, over the nearer end; 0 inside; shape ``[rows]``."""
    warm_us, cold_us = (np.array([getattr(one, name) for one in rows]) for name in ("warm_us", "cold_us"))
    found: Floats = np.maximum(0.0, np.maximum(warm_us / predicted_us - 1.0, predicted_us / cold_us - 1.0))
    return found


def family_of(algorithm: str) -> str:
    """Family of a candidate; its own name where it is of none."""
    return next((family for family in sorted(set(_RECORDED.values())) if family in algorithm), algorithm)


@cache
def model_of(device: str) -> KernelModel:
    """Model of a device's kernels as nodes of a graph."""
    return KernelModel(load_device(device), Issue.GRAPH, Libraries.COMPILED)


def convolutions() -> dict[str, Any]:
    """Errors of convolutions by kind and batch in %; and their numbers by the family that ran and the one predicted."""
    model, rows = model_of(DEVICE), [one for one in recorded() if one.is_convolution]
    chosen = [model.fastest(step_candidates(one.operator.step(), model.profile)) for one in rows]
    errors = outside(np.array([math.fsum(price.alone_us for price in prices) for _, prices in chosen]), rows)
    by_kind: dict[tuple[str, int], list[float]] = defaultdict(list)
    families: dict[str, Counter[str]] = defaultdict(Counter)
    for one, (candidate, _), error in zip(rows, chosen, errors.tolist(), strict=True):
        by_kind[one.kind, one.shape.batch].append(error)
        if one.family:
            families[one.family][family_of(candidate.algorithm)] += 1
    return {
        "families": {name: dict(sorted(counts.items())) for name, counts in sorted(families.items())},
        "alone": {f"{kind}, batch {batch}": percents(np.array(own)) for (kind, batch), own in sorted(by_kind.items())},
    }


def percents(errors: Floats) -> dict[str, float]:
    """Number of errors; median, mean and 90th percentile of their sizes in %."""
    return {"rows": len(errors), **RatioErrors.of(errors).percents()}


def of_all_families(one: Recorded, profile: DeviceProfile) -> list[Candidate]:
    """Kernels of all families for an operator; those that heuristics return, as products those for one with a bias."""
    if one.is_convolution:
        biased = tensor_core_convolution(replace(one.shape, epilogue_flops=1))
        products = (each for each in biased if family_of(each.algorithm) == NVJET.name)
        known = chain(
            (each for each in tensor_core_convolution(one.shape) if NVJET.name not in each.algorithm), products
        )
    else:
        known = chain(step_candidates(one.operator.step(), profile))
    return [each for each in known if each.runs_on(profile.architecture)]


def grids() -> dict[str, dict[str, float]]:
    """Dense operators by the family that ran, and those whose grid is within 15% of that of its fastest kernel."""
    model, found = model_of(DEVICE), dict[str, dict[str, float]]()
    most = model.profile.sm_count
    for one in recorded():
        if one.family and not (one.is_convolution and one.kind in ("grouped", "first layer")):
            known = [each for each in of_all_families(one, model.profile) if family_of(each.algorithm) == one.family]
            blocks = [model.fastest(known)[0].kernels[0].blocks, one.blocks]
            ours, theirs = blocks if one.family == MMA_SM80.name else (min(most, each) for each in blocks)
            own = found.setdefault(f"{one.operator.kind}, {one.family}", {"rows": 0, "within 15%": 0})
            own["rows"] += 1
            own["within 15%"] += abs(ours / theirs - 1.0) <= 0.15
    return found
