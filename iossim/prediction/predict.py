"""Predictions that need no measurement: operators alone, units of a network, and concurrent groups of operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum

import numpy as np

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.execution.engine import Engine
from iossim.hardware.lowering.kernel import Candidate, Issue, Libraries, WorkClass
from iossim.hardware.lowering.residence import Residence, Weights
from iossim.hardware.lowering.step import Step
from iossim.hardware.lowering.target import step_candidates, target_of
from iossim.hardware.parameters import EngineOverheads
from iossim.hardware.profile import DeviceProfile
from iossim.ir.builder import GraphBuilder
from iossim.ir.types import Precision
from iossim.measurements.measurement import Operator, StageMeasurement
from iossim.prediction.bands import kind_of, measured_over_predicted
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import MAX_UNITS, ScheduleProblem

#: An op that runs no kernel: the same bytes under another shape.
VIEW = "view"
_AS_FITTED = Residence(Weights.AUTO)
_DIGITS = 6  # significant digits in tables of predictions


@dataclass(frozen=True, slots=True)
class Prediction:
    """Steady device time of one call among many, or of nodes of a CUDA graph.

    ``gpu_time_us`` includes kernels and gaps between them (on a CPU: the time of its thread), for calls also the
    dispatch floor, but not the host's overhead; ``low_us`` to ``high_us`` is the interval of nine in ten measurements.
    """

    gpu_time_us: float
    low_us: float
    high_us: float
    #: For a unit of several steps, those of all, each once, separated by ``;``.
    algorithm: str
    #: Names of the kernels of the algorithm, in order.
    kernels: tuple[str, ...]
    #: Residence of weights: ``warm`` in L2, if the kernel's operands fit there, ``cold`` in DRAM, ``auto`` as fitted.
    weights: str


def predict(
    operators: Sequence[Operator],
    profile: DeviceProfile,
    libraries: Libraries = Libraries.CURRENT,
    issue: Issue = Issue.CALLS,
    weights: Weights = Weights.AUTO,
) -> list[Prediction]:
    """A prediction for each operator, in order; equal ones are lowered once. ``libraries`` are the called ones.

    It is not known what runs between two calls: ``AUTO`` is as the profiles were fitted, with the traffic of ``COLD``,
    but no kernel waits for DRAM before it begins.
    """
    model, residence = KernelModel(profile, issue, libraries), Residence(weights)
    known: dict[Operator, Prediction] = {}
    for operator in operators:
        if operator not in known:
            known[operator] = predict_steps([operator.step()], model, operator.kind, residence)
    return [known[operator] for operator in operators]


def predict_steps(
    steps: Sequence[Step], model: KernelModel, kind: str = "", residence: Residence = _AS_FITTED
) -> Prediction:
    """Prediction for consecutive steps, such as those of a schedule unit; without any it is 0, and called a view.

    Times are summed, and so are the ends of the intervals: the errors within one unit are correlated. ``kind`` is a
    table's name for the one step, if its band is found by that; ``residence`` is where the steps find their operands.
    """
    profile = model.profile
    step_us, low_us, high_us = [], [], []
    algorithms: dict[str, None] = {}
    kernels: list[str] = []
    lowered = residence.of(tuple(step_candidates(step, profile) for step in steps))
    for step, candidates in zip(steps, lowered, strict=True):
        chosen, prices = model.fastest(candidates)
        own_us = fsum(price.alone_us for price in prices)
        if model.issue is Issue.CALLS:
            own_us += dispatch_us(chosen, profile.engine)
        band = measured_over_predicted(kind_of(step.op, kind), step.precision, own_us, profile)
        step_us.append(own_us)
        low_us.append(own_us * band.low)
        high_us.append(own_us * band.high)
        algorithms[chosen.algorithm] = None
        kernels += [kernel.name for kernel in chosen.kernels]
    times_us = fsum(step_us), fsum(low_us), fsum(high_us)
    return Prediction(*times_us, ";".join(algorithms) or VIEW, tuple(kernels), str(residence.weights))


def dispatch_us(candidate: Candidate, engine: EngineOverheads) -> float:
    """Device time of a call beyond its kernels and gaps, where calls are issued one after another."""
    is_tensor_product = candidate.kernels[0].work_class is WorkClass.TENSOR
    call_us = engine.tensor_dispatch_us if is_tensor_product else engine.dispatch_us
    return call_us + engine.dispatch_kernel_us * (len(candidate.kernels) - 1)


def rounded(value: float) -> float:
    """A time or a share as tables of predictions hold it: six significant digits."""
    return float(f"{value:.{_DIGITS}g}")


def stage_us(groups: Sequence[Sequence[Operator]], model: SimulatorCostModel) -> float:
    """Price of groups of operators, each group in order on its own stream, including fork and join."""
    builder = GraphBuilder("stage", model.precision)
    outputs: list[str] = []
    after: list[int] = []
    with builder.block("stage"):
        for group in groups:
            for position, operator in enumerate(group):
                name = f"operator_{len(outputs)}"
                read = [
                    (builder.constant if index in operator.weights else builder.input)(f"{name}.{index}", value.shape)
                    for index, value in enumerate(operator.inputs)
                ]
                # Operators of a group follow one another, whether or not one reads another's output.
                after.append(1 << (len(outputs) - 1) if position else 0)
                outputs.append(builder.add(operator.op, *read, name=name))
    network = builder.network(outputs)
    problem = ScheduleProblem.of_block(network, network.blocks[0])
    order = [outputs.index(name) for name in problem.unit_names]
    assert order == sorted(order), "operators without edges keep their order"
    chained = replace(problem, predecessors=np.array(after, dtype=np.uint64))
    batch = StageBatch.concurrent(chained, np.array([chained.full], dtype=np.uint64))
    several = len(groups) > 1
    around_us = model.price_boundary(False, several) + model.price_boundary(several, False)
    return float(model.price_stages(batch)[0]) + around_us


def recorded_stages_us(stages: Sequence[Sequence[Sequence[Operator]]], profile: DeviceProfile) -> list[float]:
    """Prices of stages, each groups of operators of one precision, as recordings run them.

    GPUs replay graphs of a framework's calls, whose concats and splits copy; a CPU hands work to threads and waits for
    them.
    """
    engine = Engine.GRAPH if target_of(profile).records_graphs else Engine.PAPER
    models: dict[Precision, SimulatorCostModel] = {}
    prices = []
    for groups in stages:
        precision = groups[0][0].precision
        if precision not in models:
            models[precision] = SimulatorCostModel(profile, precision, engine, in_place=False)
        prices.append(stage_us(groups, models[precision]))
    return prices


def can_be_priced(stage: StageMeasurement) -> bool:
    """True where a stage is small enough for a problem, and of one precision."""
    operators = [operator for group in stage.groups for operator in group]
    return len(operators) <= MAX_UNITS and len({operator.precision for operator in operators}) == 1
