"""The price of groups of operators that run at the same time, outside any network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.execution.engine import Engine
from iossim.hardware.lowering.target import target_of
from iossim.hardware.profile import DeviceProfile
from iossim.ir.builder import GraphBuilder
from iossim.measurements.measurement import StageMeasurement
from iossim.measurements.operator import Operator
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import MAX_UNITS, ScheduleProblem


def stage_us(groups: Sequence[Sequence[Operator]], model: SimulatorCostModel) -> float:
    """The price of groups of operators, each group in order on a stream of its own, with what stands around them."""
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


def recorded_engine(profile: DeviceProfile) -> Engine:
    """How recorded stages were run: GPUs replay graphs, a CPU hands work to threads and waits for them."""
    return Engine.GRAPH if target_of(profile).records_graphs else Engine.PAPER


def can_be_priced(stage: StageMeasurement) -> bool:
    """Whether a stage is small enough for a problem, and of one precision."""
    operators = [operator for group in stage.groups for operator in group]
    return len(operators) <= MAX_UNITS and len({operator.precision for operator in operators}) == 1
