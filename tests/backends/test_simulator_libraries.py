"""Which library's kernels an engine is priced with, where the age of the libraries decides."""

from __future__ import annotations

import pytest

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.execution.engine import UNDIVIDED, Engine
from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Libraries
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.schedule.problem import ScheduleProblem


def network(groups: int) -> Network:
    b = GraphBuilder("one", Precision.FP32)
    with b.block("block"):
        y = b.conv(b.input("x", (1, 64, 42, 42)), 64, 3, padding=1, groups=groups)
    return b.network([y])


def kernels(engine: Engine, groups: int) -> tuple[str, ...]:
    model = SimulatorCostModel(device("v100-sxm2"), Precision.FP32, engine)
    one = network(groups)
    (unit,) = model.stages.prepare(ScheduleProblem.of_block(one, one.blocks[0])).units
    return unit.names


@pytest.mark.parametrize(("engine", "name"), [(Engine.PAPER, "grouped_convolve_32x32"), (Engine.GRAPH, "depthwise")])
def test_a_depthwise_convolution_is_that_of_the_engines_library(engine: Engine, name: str) -> None:
    assert kernels(engine, groups=64) == (name,)


def test_dense_convolutions_are_the_same_in_all_libraries() -> None:
    assert kernels(Engine.PAPER, groups=1) == kernels(Engine.GRAPH, groups=1)


def test_the_published_engine_calls_cudnn_7() -> None:
    assert [engine.libraries_on("volta") for engine in UNDIVIDED] == [Libraries.CUDNN_7, Libraries.COMPILED]
    assert [engine.libraries_on("ampere") for engine in UNDIVIDED] == [Libraries.CUDNN_8, Libraries.COMPILED]
