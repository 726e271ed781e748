"""Which plan of cuDNN a convolution runs by: the fastest alone, as the virtual times of the host's device say."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from host_device import KERNEL_US, HostDriver
from host_library import HostLibrary
from random_networks import random_inputs, random_network, sequential_schedule
from small_networks import UNITS, of_op

from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend
from iossim.backends.cupy_cudnn.convolution import Convolution
from iossim.backends.cupy_cudnn.driver import EnginePlan
from iossim.backends.cupy_cudnn.options import CudnnOptions
from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.execution.backend import BackendError, Choice
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule
from iossim.execution.plan import Launch
from iossim.ir.network import Network
from iossim.ir.ops.conv import Conv
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.schedule.batch import Strategy

PlansOf = Callable[[Convolution], Mapping[EnginePlan, float]]


def backend_with(plans_of: PlansOf, options: CudnnOptions | None = None) -> tuple[CupyCudnnBackend, HostLibrary]:
    driver = HostDriver()
    library = HostLibrary(driver, plans_of)
    return CupyCudnnBackend(Precision.FP32, Engine.GRAPH, options or CudnnOptions(), driver, library), library


def only_choice(network: Network, plans_of: PlansOf, options: CudnnOptions | None = None) -> Choice:
    backend, _ = backend_with(plans_of, options)
    (unit,) = network.units
    return backend.choices(network)((unit.name,), Strategy.CONCURRENT)


def plans(fused: float, apart: float) -> PlansOf:
    """A plan of each kind; the plain convolution is the one that is run apart from its epilogue."""

    def plans_of(convolution: Convolution) -> dict[EnginePlan, float]:
        if convolution.bias or convolution.activation:
            return {EnginePlan("eng1", 512): fused, EnginePlan("slow", 0): fused + 1}
        return {EnginePlan("eng2", 256): apart, EnginePlan("slow", 0): apart + 1}

    return plans_of


@pytest.mark.parametrize(
    ("apart", "algorithm"), [(10.0 - KERNEL_US - 0.5, "apart:eng2"), (10.0 - KERNEL_US + 0.5, "fused:eng1")]
)
def test_the_kernel_behind_a_plain_convolution_counts(apart: float, algorithm: str) -> None:
    choice = only_choice(UNITS["conv and relu without bias"](), plans(10.0, apart))
    assert choice == Choice(algorithm, 512 if algorithm.startswith("fused") else 256)


def test_plans_over_the_limit_are_not_taken() -> None:
    network = UNITS["conv and relu without bias"]()
    assert only_choice(network, plans(5.0, 50.0), CudnnOptions(workspace_limit_bytes=511)).algorithm == "fused:slow"


@pytest.mark.parametrize("offered", [{}, {EnginePlan("refused", 0): 1.0}, {EnginePlan("eng0", 2**40): 1.0}])
def test_a_convolution_that_nothing_runs_is_refused_in_one_line(offered: dict[EnginePlan, float]) -> None:
    network = of_op(Conv(), (1, 4, 5, 5), weights=((3, 4, 1, 1),))
    with pytest.raises(BackendError, match=r"1x4x5x5 by 3x4x1x1 .* raise workspace_limit_bytes") as error:
        only_choice(network, lambda _: offered)
    assert "\n" not in str(error.value)


def test_an_activation_that_cudnn_does_not_know_runs_apart() -> None:
    choice = only_choice(UNITS["conv and clip without bias"](), plans(1.0, 50.0))
    assert choice.algorithm == "apart:eng2"


def test_scratch_of_a_unit_holds_what_it_passes_on_and_the_workspace() -> None:
    network = UNITS["separable conv of a sum"]()
    choice = only_choice(network, plans(5.0, 50.0))
    between = 2 * 6 * 9 * 7 * 4  # the sum, then what the depthwise convolution makes
    assert choice.algorithm == "own1x1 fused:eng1"
    assert choice.workspace_bytes == 2 * (-(-between // 256) * 256) + 512


def test_launches_run_by_the_algorithms_that_the_plan_names() -> None:
    network = UNITS["conv and relu without bias"]()
    backend, _ = backend_with(plans(5.0, 50.0))
    inputs = random_inputs(network)
    expected = evaluate_graph(network.graph, inputs)
    for algorithm, heard in (
        ("apart:slow", ["slow"]),
        ("fused:slow", ["slow"]),
        ("fused:unheard of", ["eng1"]),
        ("", ["eng1"]),
    ):
        driver = HostDriver()
        library = HostLibrary(driver, plans(5.0, 50.0))
        backend = CupyCudnnBackend(Precision.FP32, Engine.PAPER, CudnnOptions(), driver, library)
        backend.choices(network)((network.units[0].name,), Strategy.CONCURRENT)
        driver.calls.clear()
        plan = lower_schedule(
            sequential_schedule(network), network, in_place=True, choices=lambda *_, a=algorithm: Choice(a, 0)
        )
        outputs = backend.execute(network, plan, inputs)
        assert [call.about for call in driver.calls if call.verb == "convolution"] == heard
        for name, array in expected.items():
            np.testing.assert_allclose(outputs[name], array, rtol=1e-4, atol=1e-5)


def test_choices_of_merged_stages_name_the_stacked_convolution() -> None:
    network = load("squeezenet")
    backend, library = backend_with(plans(5.0, 50.0))
    fire = next(
        (first, second)
        for first in network.units
        for second in network.units
        if first is not second and first.inputs == second.inputs and first.kind == second.kind == "Conv-Relu"
    )
    choice = backend.choices(network)(tuple(unit.name for unit in fire), Strategy.MERGE)
    assert choice.algorithm == "fused:eng1"
    filters = sum(network.graph.types[unit.outputs[0]].shape[1] for unit in fire)
    assert library.asked[0].y.shape[1] == filters


def test_the_plan_reserves_what_the_choice_says() -> None:
    network = random_network(1)
    backend, _ = backend_with(plans(5.0, 50.0))
    choices = backend.choices(network)
    plan = lower_schedule(sequential_schedule(network), network, Engine.GRAPH, in_place=True, choices=choices)
    for launch in plan.launches:
        assert isinstance(launch, Launch)
        needed = choices(launch.units, launch.strategy).workspace_bytes
        given = 0 if launch.workspace is None else plan.buffers[launch.workspace].bytes
        assert given >= needed
