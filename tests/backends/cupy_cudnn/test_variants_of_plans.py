"""Kernels beside the fastest: which plans are offered as variants, that their names hold, and that schedules run by them."""

import ctypes
import json
from pathlib import Path

import pytest
from host_backend import HostBackend
from random_networks import sequential_schedule
from small_networks import OPS, UNITS, branches, of_op

from iossim import api
from iossim.backends.cupy_cudnn import driver_api
from iossim.backends.cupy_cudnn.algorithms import MOST_LIGHTER
from iossim.backends.cupy_cudnn.cudnn_graphs import EnginePlan
from iossim.backends.numpy_reference.backend import numpy_outputs
from iossim.base.errors import OptionError, PlanError
from iossim.cost.capabilities import VariantCostModel
from iossim.cost.measured.cost_model import MeasuredCostModel
from iossim.cost.measured.record import measurement_set
from iossim.cost.measured.store import MeasurementStore
from iossim.cost.model import problems_of
from iossim.cost.replay import replay
from iossim.execution.backend import OffersVariants, Timing, create_backend
from iossim.execution.engine import Engine
from iossim.execution.measured_run import output_difference, plan_for
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.conv import Conv
from iossim.ir.types import Precision
from iossim.schedule.batch import FASTEST, Strategy
from iossim.schedule.fit import with_variants
from iossim.schedule.schedule import Schedule
from iossim.search.assemble import reprice
from iossim.search.measured import Budget
from iossim.tasks.measured_schedules import for_backend

#: Times of plans, us, and what they hold: the fastest most of an SM, one of them fewer SMs.
PLANS = {"eng41_k2=5": 10.0, "eng11": 12.0, "eng0": 18.0, "eng7": 19.0, "eng8": 90.0, "eng41_k2=5@16": 25.0}
HELD = {
    "eng41_k2=5": (264, 1.0), "eng11": (264, 1.0), "eng0": (300, 0.5), "eng7": (300, 0.5), "eng8": (300, 0.1),
    "eng41_k2=5@16": (16, 1.0),
}  # fmt: skip


def backend(
    path: Path | None = None,
    engine: Engine = Engine.GRAPH,
    precision: Precision = Precision.FP32,
    plans: dict[str, float] = PLANS,
    held: dict[str, tuple[int, float]] = HELD,
) -> HostBackend:
    offered = {EnginePlan(name, 0): time_us for name, time_us in plans.items()}
    made = HostBackend(precision, engine, plans_of=lambda _: offered, choices=path, plans=8)
    made.library.held = held
    return made


def convolution() -> Network:
    return of_op(Conv(), (1, 4, 5, 5), weights=((3, 4, 1, 1),))


def test_variants_are_what_holds_less_of_an_sm_or_of_the_device() -> None:
    made = backend()
    assert isinstance(made, OffersVariants)
    network = convolution()
    found = made.variants(network, network.units[0].name)
    assert [(one.name, one.alone_us, one.blocks, one.sm_share) for one in found] == [
        (FASTEST, 10.0, 264, 1.0),
        ("fused:eng0", 18.0, 300, 0.5),  # eng7 takes longer and holds no less, and eng8 takes too long
        ("fused:eng41_k2=5@16", 25.0, 16, 1.0),
    ]
    assert len(found) <= 1 + MOST_LIGHTER


def test_names_are_the_same_in_another_process_and_nothing_is_timed_again(tmp_path: Path) -> None:
    path = tmp_path / "choices.json"
    first = backend(path)
    network = UNITS["separable conv of a sum"]()
    (unit,) = network.units
    expected = first.variants(network, unit.name)
    assert [one.name for one in expected][1:] == ["own1x1 fused:eng0", "own1x1 fused:eng41_k2=5@16"]
    second = backend(path, Engine.PAPER)
    assert second.variants(network, unit.name) == expected
    assert second.planning.candidates_timed == 0
    (place,) = json.loads(path.read_text())["places"]
    assert all(kept["lighter"][0]["algorithm"] == kept["algorithm"] for kept in place["choices"].values())


@pytest.mark.parametrize("engine", [Engine.GRAPH, Engine.PAPER])
def test_a_schedule_runs_by_the_variants_that_it_names(engine: Engine) -> None:
    network, made = convolution(), backend(engine=engine)
    schedule = sequential_schedule(network)
    varied = with_variants(schedule, {network.units[0].name: "fused:eng41_k2=5@16"})
    read = Schedule.model_validate_json(varied.model_dump_json())
    assert read == varied
    plan = plan_for(read, network, made)
    made.driver.calls.clear()
    made.agree(network, plan)
    assert set(made.heard) == {"eng41_k2=5@16"}


@pytest.mark.parametrize(("precision", "channels", "kernel"), [(Precision.BF16, 64, 3), (Precision.TF32, 512, 1)])
def test_kernels_that_the_simulator_named_run_as_the_most_alike_of_the_device(
    precision: Precision, channels: int, kernel: int
) -> None:
    """A schedule made without a device, once its units are named as there; a name that nobody knows is refused. In TF32
    the kernels of images channels first are those of ``simulator:backend`` alone, at whose prices it was made.
    """
    b = GraphBuilder("two", precision)
    x = b.input("x", (1, channels, 14, 14))
    for name in ("light", "usual"):
        with b.unit(name, "Conv"):
            x = b.conv(x, channels, kernel=kernel, padding=kernel // 2, name=name)
    network = b.network([x])
    prices, plain = (api.cost_model(f"simulator{of}", "h100-sxm", precision, "graph") for of in (":backend", ""))
    assert isinstance(plain, VariantCostModel)
    known = {one.name for one in plain.variants(problems_of(network, plain)[0])[0]} if kernel == 1 else set()
    schedule = api.optimize(network, None, cost_model=prices, scheduler="sequential")
    assert isinstance(prices, VariantCostModel)
    fastest, *others = prices.variants(problems_of(network, prices)[0])[0]
    usual = next(one for one in others if one[1:] == fastest[1:])
    alike = [one for one in others if one.alone_us < 2 * fastest.alone_us and one.name not in known]
    light = min(alike, key=lambda one: one.blocks)
    assert not 0.8 < light.blocks / fastest.blocks < 1.25
    plans = {"eng41": 2 * fastest.alone_us, "eng0": 2 * light.alone_us}
    made = backend(None, Engine.GRAPH, precision, plans, {"eng41": fastest[3:], "eng0": light[3:]})
    named = with_variants(schedule, {"light": light.name, "usual": usual.name})
    assert schedule.device == made.context.device
    found, remark = for_backend(named, network, made)
    assert [stage.variants for stage in found.stages] == [{"light": "fused:eng0"}, {}]
    assert "runs 2 units with its own kernels, 1 of them not with the fastest but with the most alike" in remark
    assert light.name in remark
    assert for_backend(found, network, made) == (found, "")
    made.driver.calls.clear()
    assert output_difference(network, found, made, numpy_outputs).relative < 2e-2
    assert set(made.heard) == {"eng0", "eng41"}
    unheard = with_variants(schedule, {"light": "unheard", "usual": usual.name})
    left, _ = for_backend(unheard, network, made)
    with pytest.raises(PlanError, match="'unheard', which no plans of cuDNN are called here"):
        plan_for(left, network, made)


@pytest.mark.parametrize("variant", ["fused:eng99", "gemm 64x64", "fused:eng0 fused:eng0"])
def test_a_variant_that_is_no_plan_here_is_refused_in_one_line(variant: str) -> None:
    made = backend()
    network = convolution()
    with pytest.raises(PlanError, match="search again on this device, or leave the variant out") as error:
        made.choices(network)((network.units[0].name,), Strategy.CONCURRENT, variant)
    assert variant in str(error.value)


def test_a_unit_without_convolutions_runs_as_the_fastest_alone() -> None:
    made = backend()
    network = OPS["sigmoid"]()
    assert [one.name for one in made.variants(network, network.units[0].name)] == [FASTEST]


def test_a_measured_search_runs_what_the_simulator_likes_side_by_side_by_what_the_device_has(tmp_path: Path) -> None:
    """The fastest kernels fill the device and run one after another; slower ones of fewer blocks run at once."""
    network = branches(Precision.BF16)
    plans = {"eng41": 100.0, "eng0": 130.0}
    made = backend(None, Engine.GRAPH, Precision.BF16, plans, {"eng41": (200, 1.0), "eng0": (48, 0.53)})
    with MeasurementStore(tmp_path / "store.sqlite") as store:
        truth = MeasuredCostModel(made, store, Timing(rounds=1, warm_up=0), target_us=1.0)
        everything = Budget(everything=True)
        plain, chosen = (
            api.optimize(
                network, None, cost_model=truth, options=api.search_options(company=company), budget=everything
            )
            for company in (False, True)
        )
        assert [stage.variants for stage in plain.stages if stage.variants] == []
        (stage,) = (stage for stage in chosen.stages if stage.concurrent)
        assert set(stage.variants.values()) == {"fused:eng0"}
        assert plain.latency_us > 1.5 * chosen.latency_us
        assert chosen.options["company"]
        # Each stage with its kernels is measured once, and no fact about an operator.
        assert plain.options["measurements"] < chosen.options["measurements"] <= 2 * plain.options["measurements"]
        assert truth.measured == chosen.options["measurements"]
        left_out = measurement_set(list(store.records())).notes
        assert any("Conv-Relu by fused:eng0" in note for note in left_out)
        again = MeasuredCostModel(made, store, Timing(rounds=1, warm_up=0))
        assert reprice(chosen, network, again).latency_us == chosen.latency_us
        assert again.measured == 0
        (context,) = (one for one in store.contexts() if one.context.engine == "graph")
        assert reprice(chosen, network, replay(store, context.number)).latency_us == chosen.latency_us
        numpy = MeasuredCostModel(create_backend("numpy_reference", Precision.BF16, Engine.PAPER), store)
        options = api.search_options(company=True)
        with pytest.raises(OptionError, match="`company`: backend numpy_reference knows one kernel of each unit"):
            api.optimize(network, "h100-sxm", cost_model=numpy, options=options, budget="9")
    made.driver.calls.clear()
    made.measure(network, [plan_for(chosen, network, made)], Timing(rounds=1, warm_up=0))
    assert "eng0" in made.heard


class _Driver:
    """A driver's library, as it answers about a graph of a copy, a kernel, and a kernel of a library."""

    def __init__(self, resident: dict[int, int]) -> None:
        self.resident = resident

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
    assert ctypes.sizeof(driver_api.KernelNode) == 72
    assert driver_api.held(_Driver({70: 4, 80: 2}), 1) == (30, 0.5)
    assert driver_api.held(_Driver({70: 4, 80: 0}), 1) == (20, 0.25)
    calls = [name for name in vars(_Driver) if name.startswith("cu")]
    assert len(calls) == 5
    for call in calls:
        failing = _Driver({70: 4, 80: 2})
        setattr(failing, call, lambda *_: 1)
        assert driver_api.held(failing, 1) in ((0, 0.0), (20, 0.25))
