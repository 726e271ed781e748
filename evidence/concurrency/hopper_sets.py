"""Convolutions and products of an H100 in bf16 in one CUDA graph: sets of them, and networks, beside their simulation.

Sets of convolutions, and of products with weights of their own (``h100_bf16``), are judged by their speed-up over
running sequentially, from the first start to the last end; measured is the geometric mean of warm and cold.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from evidence.concurrency.hopper_operators import DEVICE, FOLDER, lines, percents
from evidence.data.data_sets import shared_data
from iossim.api import cost_model, optimize
from iossim.backends.simulator.raw_kernels import Pipe, RawKernel
from iossim.cost.model import CostModel
from iossim.hardware.load import device as load_device
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.conv import Conv
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.models.transformer_layers import linear
from iossim.profiles.corun import corun_kernels
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import Schedule


class SideBySide(NamedTuple):
    """A set: speed-ups over sequential runs, predicted and measured with warm and with cold filters."""

    network: str
    kernels: int
    predicted: float
    warm: float
    cold: float

    @property
    def error(self) -> float:
        return abs(self.predicted / math.sqrt(self.warm * self.cold) - 1.0)


def prices(precision: Precision = Precision.BF16) -> CostModel:
    """Simulator of one CUDA graph, values in place, as the recordings run."""
    return cost_model("simulator:in-place", DEVICE, precision, "graph")


def side_by_side(simulated: CostModel) -> list[SideBySide]:
    """Every recorded set of convolutions."""
    rows = map(json.loads, lines("side_by_side.jsonl"))
    return [_side_by_side(row, _network(row["convolutions"]), simulated) for row in rows]


def products_side_by_side(simulated: CostModel) -> list[SideBySide]:
    """Every recorded set of products, as of a mixture's experts."""
    return [_side_by_side(row, _experts(row), simulated) for row in map(json.loads, lines("experts.jsonl"))]


def _side_by_side(row: Mapping[str, Any], network: Network, simulated: CostModel) -> SideBySide:
    each_us, together_us = _predicted(network, simulated)
    measured = [row[f"{state}_serial_us"] / row[f"{state}_side_us"] for state in ("warm", "cold")]
    return SideBySide(row.get("network", ""), len(each_us), sum(each_us) / together_us, *measured)


def _predicted(network: Network, simulated: CostModel) -> tuple[list[float], float]:
    """Predicted microseconds of each unit alone, and of all as one stage."""
    problem = ScheduleProblem.of_block(network, network.blocks[0])
    masks = np.array([*(1 << unit for unit in range(len(problem))), problem.full], dtype=np.uint64)
    *each_us, together_us = simulated.price_stages(StageBatch.concurrent(problem, masks)).tolist()
    return each_us, together_us


def _network(convolutions: Sequence[Mapping[str, Any]]) -> Network:
    b, made = GraphBuilder("convolutions", Precision.BF16), []
    with b.block("side by side"):
        for index, size in enumerate(convolutions):
            x = b.input(f"x{index}", (1, size["in_channels"], size["height"], size["width"]))
            window = size["kernel_h"], size["kernel_w"]
            weight = b.constant(f"w{index}", (size["out_channels"], size["in_channels"] // size["groups"], *window))
            conv = Conv((size["stride"],) * 2, (size["pad_h"], size["pad_w"]) * 2, (1, 1), size["groups"])
            made.append(b.add(conv, x, weight, name=f"c{index}"))
    return b.network(made)


def _experts(row: Mapping[str, Any]) -> Network:
    b, made = GraphBuilder("products", Precision.BF16), []
    with b.block("side by side"):
        for index in range(row["n"]):
            x = b.input(f"x{index}", (row["tokens"], row["width"]))
            made.append(linear(b, f"expert{index}", x, row["inner"], bias=False))
    return b.network(made)


def sets_and_units() -> dict[str, Any]:
    """Errors of sets by their number of kernels, and of networks' units, in %."""
    simulated = prices()
    return {
        "side_by_side": _by_number(side_by_side(simulated)),
        "products_side_by_side": _by_number(products_side_by_side(simulated)),
        "makespans": makespans(),
        "units": units(),
        "followers": followers(),
    }


#: Part of its time in which a recorded block keeps the tensor cores of its SM busy.
_BUSY = 0.7


def makespans() -> dict[str, dict[str, float]]:
    """Errors in % of the makespans of warm sets by ``corun``, from the kernels that ran: grids, resources, times alone.

    They show what is left of the errors if kernels are known. Makespans are from the first start to the last end.
    """
    profile, found = load_device(DEVICE), dict[int, list[float]]()
    rate, tflops = profile.engine.graph_gap_factor, profile.reduced_precision_tflops(Precision.BF16) or 0.0
    for row in map(json.loads, lines("side_by_side.jsonl")):
        kernels = []
        for stream, (kernel, (_, us, *_)) in enumerate(zip(row["kernels"], row["warm_serial"], strict=True)):
            blocks, threads = math.prod(kernel["grid"]), math.prod(kernel["block"])
            flops = _BUSY * us * tflops * 1e6 * blocks / (math.ceil(blocks / profile.sm_count) * profile.sm_count)
            needs = threads, kernel["registers"], kernel["shared_bytes"]
            kernels.append(RawKernel("", stream, blocks, *needs, us, flops=flops, pipe=Pipe.TENSOR))
        us = corun_kernels(kernels, profile).makespan_us - profile.parameters.kernel_gap_us * rate
        found.setdefault(len(kernels), []).append(us / row["warm_side_us"] - 1.0)
    return {str(count): percents(np.array(errors)) for count, errors in sorted(found.items())}


def _by_number(sets: Sequence[SideBySide]) -> dict[str, dict[str, float]]:
    """Medians of speed-ups, and errors, of sets by their number of kernels."""
    found = {}
    for count in sorted({one.kernels for one in sets}):
        own = [one for one in sets if one.kernels == count]
        medians = {
            name: float(np.median([getattr(one, name) for one in own])) for name in ("predicted", "warm", "cold")
        }
        found[str(count)] = medians | percents(np.array([one.error for one in own]))
    return found


def networks() -> dict[str, dict[str, float]]:
    """Predicted over measured latency, less 1, of the recorded networks whose schedules follow from the network alone.

    They ran by an earlier backend: where it needed several kernels for a unit, predictions are far too low.
    """
    found: dict[str, dict[str, float]] = {}
    for row in (row for row in csv.DictReader(lines("networks.csv")) if row["schedule"] in ("sequential", "greedy")):
        error = _scheduled(row["job"], row["schedule"]).latency_us / float(row["measured_us"]) - 1.0
        found.setdefault(row["job"], {})[row["schedule"]] = 100 * error
    return found


#: SMs of the board; shared memory of a block with an SM to itself, bytes; most of the times of kernels that are alike.
_SMS, _WHOLE, _ALIKE = 132, 100_000, 1.35


class _Recorded(NamedTuple):
    """A kernel of a replay; ``code`` is its name, grid, block, registers and shared memory."""

    start_us: float
    us: float
    stream: int
    code: tuple[Any, ...]

    @property
    def end_us(self) -> float:
        return self.start_us + self.us

    @property
    def sms(self) -> float:
        """SMs that it occupies."""
        _, grid, block, _, shared = self.code
        return float(math.prod(grid)) * (1.0 if shared > _WHOLE else math.prod(block) / 2048)


def _named(row: Mapping[str, Any]) -> list[_Recorded]:
    """Kernels of a replay in the order of their starts; those whose launch was not recorded are left out."""
    kernels = (
        _Recorded(start, us, stream, (row["names"][name], tuple(grid), tuple(block), registers, shared))
        for start, us, name, grid, block, registers, shared, stream in row["kernels"] or ()
        if grid
    )
    return sorted(kernels)


#: First letters of the kernels of cuDNN and cuBLAS, and the fewest of a network's units that tell something.
_OF_LIBRARIES, _FEWEST = ("nvjet", "sm80", "sm90", "void cutlass", "void convolve_common"), 5


def _recorded() -> list[dict[str, Any]]:
    """Replays of networks, kernel by kernel, and which launches of the sequential ones issue what."""
    with gzip.open(shared_data() / FOLDER / "timelines.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def followers() -> dict[str, dict[str, float]]:
    """What kernels that follow another in their branch lose while other branches run: medians, us, by who counts.

    ``longer`` than the same kernel of the sequential replay, ``gap`` after the predecessor there. Counted are those for
    which the running ones leave SMs enough: ``whole`` needs SMs of its own, ``all`` are also kernels that share.
    """
    replays = [row for row in _recorded() if row["kind"] == "timeline"]
    found: dict[str, list[tuple[float, float]]] = {"all": [], "whole": []}
    for row in replays:
        if row["schedule"] == "sequential":
            alone = _named(row)
            continue
        branches: list[_Recorded] = []
        for kernel in _named(row):
            branches = branches if any(kernel.start_us < one.end_us for one in branches) else []
            running = [one for one in branches if one.end_us > kernel.start_us]
            before = [one.end_us for one in branches if one.stream == kernel.stream]
            branches.append(kernel)
            same = [one.us for one in alone if one.code == kernel.code]
            if (
                before
                and running
                and same
                and max(same) < _ALIKE * min(same)
                and sum(one.sms for one in (*running, kernel)) <= _SMS
            ):
                lost = kernel.us - float(np.median(same)), kernel.start_us - max(before)
                found["all"].append(lost)
                if kernel.code[-1] > _WHOLE:
                    found["whole"].append(lost)
    return {
        name: {"rows": len(lost)} | dict(zip(("longer", "gap"), np.median(lost, axis=0).tolist(), strict=True))
        for name, lost in found.items()
    }


def units() -> dict[str, dict[str, float]]:
    """Units of the recorded networks that are one kernel of a library: number, mean error and bias in %.

    A unit takes the time from its kernel's start to the next start in a replay of the sequential schedule. No rule was
    chosen by these. Kernels of this project ran besides, which were replaced since.
    """
    rows = [row for row in _recorded() if row.get("schedule", "sequential") == "sequential"]
    found = {}
    for replay, launched in zip(rows[::2], rows[1::2], strict=True):
        kernels = [(launch, kernel[0]) for launch in launched["launches"] or () for kernel in launch["kernels"]]
        steps = list(pairwise(kernel[0] for kernel in replay["kernels"]))
        if len(kernels) != len(steps) + 1:
            continue
        blocks = _scheduled(replay["job"], "sequential").blocks
        predicted_us = {name: stage.latency_us for each in blocks for stage in each.stages for (name,) in stage.groups}
        errors = [
            predicted_us[launch["units"][0]] / (after_us - start_us) - 1.0
            for (launch, name), (start_us, after_us) in zip(kernels, steps, strict=False)
            if launch["units"] and len(launch["kernels"]) == 1 and name.startswith(_OF_LIBRARIES)
        ]
        if len(errors) >= _FEWEST:
            found[replay["job"]] = percents(np.array(errors)) | {"bias": 100 * float(np.mean(errors))}
    return found


def _scheduled(job: str, scheduler: str) -> Schedule:
    model, _, dtype = job.partition(":")
    return optimize(load(model, dtype=dtype), DEVICE, cost_model=prices(Precision(dtype)), scheduler=scheduler)
