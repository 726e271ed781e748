"""Kernels beside the fastest: which plans are offered as variants, that their names hold, and that schedules run by them."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from host_device import HostDriver
from host_library import HostLibrary
from random_networks import random_inputs, sequential_schedule
from small_networks import OPS, UNITS, of_op

from iossim.backends.cupy_cudnn import kernel_nodes
from iossim.backends.cupy_cudnn.algorithms import MOST_LIGHTER
from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend
from iossim.backends.cupy_cudnn.driver import EnginePlan
from iossim.backends.cupy_cudnn.options import CudnnOptions
from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.base.errors import PlanError
from iossim.execution.backend import OffersVariants
from iossim.execution.engine import Engine
from iossim.execution.measured_run import plan_for
from iossim.ir.network import Network
from iossim.ir.ops.conv import Conv
from iossim.ir.types import Precision
from iossim.schedule.batch import FASTEST, Strategy
from iossim.schedule.schedule import Schedule

#: Times of plans, us, and what they hold: the fastest most of an SM, one of them fewer SMs.
PLANS = {"eng41_k2=5": 10.0, "eng11": 12.0, "eng0": 18.0, "eng7": 19.0, "eng8": 90.0, "eng41_k2=5@16": 25.0}
HELD = {
    "eng41_k2=5": (264, 1.0), "eng11": (264, 1.0), "eng0": (300, 0.5), "eng7": (300, 0.5), "eng8": (300, 0.1),
    "eng41_k2=5@16": (16, 1.0),
}  # fmt: skip


def backend(path: Path | None = None, engine: Engine = Engine.GRAPH) -> tuple[CupyCudnnBackend, HostDriver]:
    driver = HostDriver()
    library = HostLibrary(driver, lambda _: {EnginePlan(name, 0): time_us for name, time_us in PLANS.items()})
    library.held = HELD
    return CupyCudnnBackend(Precision.FP32, engine, CudnnOptions(choices=path, plans=8), driver, library), driver


def convolution() -> Network:
    return of_op(Conv(), (1, 4, 5, 5), weights=((3, 4, 1, 1),))


def test_variants_are_what_holds_less_of_an_sm_or_of_the_device() -> None:
    made, _ = backend()
    assert isinstance(made, OffersVariants)
    network = convolution()
    found = made.variants(network, network.units[0].name)
    assert [(one.algorithm, one.time_us, one.blocks, one.sm_share) for one in found] == [
        (FASTEST, 10.0, 264, 1.0),
        ("fused:eng0", 18.0, 300, 0.5),  # eng7 takes longer and holds no less, and eng8 takes too long
        ("fused:eng41_k2=5@16", 25.0, 16, 1.0),
    ]
    assert len(found) <= 1 + MOST_LIGHTER


def test_names_are_the_same_in_another_process_and_nothing_is_timed_again(tmp_path: Path) -> None:
    path = tmp_path / "choices.json"
    first, _ = backend(path)
    network = UNITS["separable conv of a sum"]()
    (unit,) = network.units
    expected = first.variants(network, unit.name)
    assert [one.algorithm for one in expected][1:] == ["own1x1 fused:eng0", "own1x1 fused:eng41_k2=5@16"]
    second, _ = backend(path, Engine.PAPER)
    assert second.variants(network, unit.name) == expected
    assert second.planning.candidates_timed == 0
    (place,) = json.loads(path.read_text())["places"]
    assert all(kept["lighter"][0]["algorithm"] == kept["algorithm"] for kept in place["choices"].values())


@pytest.mark.parametrize("engine", [Engine.GRAPH, Engine.PAPER])
def test_a_schedule_runs_by_the_variants_that_it_names(engine: Engine) -> None:
    network, (made, driver) = convolution(), backend(engine=engine)
    schedule = sequential_schedule(network)
    (block,) = schedule.blocks
    (stage,) = block.stages
    named = stage.model_copy(update={"variants": {network.units[0].name: "fused:eng41_k2=5@16"}})
    varied = schedule.model_copy(update={"blocks": [block.model_copy(update={"stages": [named]})]})
    read = Schedule.model_validate_json(varied.model_dump_json())
    assert read == varied
    inputs = random_inputs(network)
    plan = plan_for(read, network, made)
    driver.calls.clear()
    outputs = made.execute(network, plan, inputs)
    assert {call.about for call in driver.calls if call.verb == "convolution"} == {"eng41_k2=5@16"}
    for name, array in evaluate_graph(network.graph, inputs).items():
        np.testing.assert_allclose(outputs[name], array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", ["fused:eng99", "gemm 64x64", "fused:eng0 fused:eng0"])
def test_a_variant_that_is_no_plan_here_is_refused_in_one_line(variant: str) -> None:
    made, _ = backend()
    network = convolution()
    with pytest.raises(PlanError, match="search again on this device, or leave the variant out") as error:
        made.choices(network)((network.units[0].name,), Strategy.CONCURRENT, variant)
    assert variant in str(error.value)
    assert "\n" not in str(error.value)


def test_a_unit_without_convolutions_runs_as_the_fastest_alone() -> None:
    made, _ = backend()
    network = OPS["sigmoid"]()
    assert [one.algorithm for one in made.variants(network, network.units[0].name)] == [FASTEST]


class _Driver(SimpleNamespace):
    """What the driver's library says of a graph of a copy, a kernel, and a kernel of a library."""

    def __init__(self, resident: dict[int, int], failing: str = "") -> None:
        super().__init__()
        self.resident, self.failing = resident, failing

    def __getattribute__(self, name: str):  # type: ignore[no-untyped-def]
        if name.startswith("cu") and name == object.__getattribute__(self, "failing"):
            return lambda *_: 1
        return object.__getattribute__(self, name)

    def cuGraphGetNodes(self, graph, nodes, count):  # type: ignore[no-untyped-def]  # noqa: N802
        count._obj.value = 3
        if nodes is not None:
            nodes[:] = [1, 2, 3]
        return 0

    def cuGraphNodeGetType(self, node, kind):  # type: ignore[no-untyped-def]  # noqa: N802
        kind._obj.value = 1 if node.value == 1 else 0
        return 0

    def cuGraphKernelNodeGetParams_v2(self, node, made):  # type: ignore[no-untyped-def]  # noqa: N802
        made._obj.grid[:], made._obj.block[:] = (node.value, 5, 2), (128, 2, 1)
        made._obj.function, made._obj.kernel = (70, None) if node.value == 2 else (None, 8)
        made._obj.shared_bytes = 4096
        return 0

    def cuKernelGetFunction(self, function, kernel):  # type: ignore[no-untyped-def]  # noqa: N802
        function._obj.value = 10 * kernel.value
        return 0

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, count, function, threads, shared):  # type: ignore[no-untyped-def]  # noqa: N802
        assert (threads, shared.value) == (256, 4096)
        count._obj.value = self.resident[function.value]
        return 0


def test_what_a_graph_holds_is_asked_of_the_driver() -> None:
    assert ctypes.sizeof(kernel_nodes.KernelNode) == 72
    assert kernel_nodes.held(_Driver({70: 4, 80: 2}), 1) == (30, 0.5)
    assert kernel_nodes.held(_Driver({70: 4, 80: 0}), 1) == (20, 0.25)
    calls = [name for name in vars(_Driver) if name.startswith("cu")]
    assert len(calls) == 5
    for call in calls:
        assert kernel_nodes.held(_Driver({70: 4, 80: 2}, call), 1) in ((0, 0.0), (20, 0.25))
