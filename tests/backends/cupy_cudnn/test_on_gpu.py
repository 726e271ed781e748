"""On a GPU: outputs equal NumPy's, both engines, the same bits from run to run; and times that make sense."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from precisions import stored_in
from quantised_networks import QUANTISED
from random_networks import random_inputs, random_network, random_schedule, sequential_schedule
from small_networks import OPS, UNITS
from spelt_attentions import attention

from iossim.backends.cupy_cudnn import candidate_timing
from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend
from iossim.backends.cupy_cudnn.cublas import WithCublas
from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.execution.backend import Backend, BackendError, Choice, Choices, Timing
from iossim.execution.backends import create_backend, missing_for
from iossim.execution.engine import UNDIVIDED, Engine
from iossim.execution.lower import lower_schedule, lower_stage
from iossim.execution.made_inputs import made_arrays
from iossim.execution.measured_run import plan_for
from iossim.execution.plan import repeat
from iossim.execution.tolerance import largest_difference, tolerance
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.ops.matmul import MatMul
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import Schedule

pytestmark = pytest.mark.gpu

ENGINES = UNDIVIDED


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> dict[Engine, Backend]:
    """Few plans, and choices that both share: building cuDNN's plans is most of what these tests take."""
    reason = missing_for("cupy_cudnn")
    if reason:
        pytest.skip(reason)
    options = {"plans": "2", "choices": str(tmp_path_factory.mktemp("choices") / "choices.json")}
    return {engine: create_backend("cupy_cudnn", Precision.FP32, engine, options) for engine in ENGINES}


def run(
    backend: Backend, network: Network, schedule: Schedule, engine: Engine, chosen: bool = True
) -> dict[str, Array]:
    choices = backend.choices(network) if chosen else None
    plan = lower_schedule(schedule, network, engine, in_place=True, choices=choices)
    return backend.execute(network, plan, random_inputs(network))


@lru_cache(maxsize=1)
def expected(network: Network) -> dict[str, Array]:
    """NumPy's outputs, which take it 20 s for NasNet: once for all that is held to them."""
    return evaluate_graph(network.graph, random_inputs(network))


def agree(found: dict[str, Array], network: Network, tolerance: float = 1e-4) -> None:
    for name, array in expected(network).items():
        scale = max(1e-6, float(np.abs(array).max()))
        assert float(np.abs(found[name] - array).max()) / scale < tolerance, name


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(12))
def test_random_networks(seed: int, engine: Engine, backends: dict[Engine, Backend]) -> None:
    network = random_network(seed, movers=seed % 2 == 0)
    for schedule in (random_schedule(network, seed), sequential_schedule(network)):
        agree(run(backends[engine], network, schedule, engine, chosen=seed % 3 > 0), network)


@pytest.mark.parametrize("name", [*OPS, *UNITS])
def test_every_op_and_every_way_ops_meet(name: str, backends: dict[Engine, Backend]) -> None:
    network = {**OPS, **UNITS}[name]()
    agree(run(backends[Engine.GRAPH], network, sequential_schedule(network), Engine.GRAPH), network)


@pytest.mark.parametrize("name", QUANTISED)
def test_whole_numbers_with_scales(name: str, backends: dict[Engine, Backend]) -> None:
    """Sums of int32 are exact; where scales multiply in fp32 a whole number may be a step off."""
    network = QUANTISED[name]()
    found = run(backends[Engine.GRAPH], network, sequential_schedule(network), Engine.GRAPH)
    for value, array in expected(network).items():
        off = np.abs(found[value].astype(np.float64) - array.astype(np.float64))
        assert off.max() <= (1 if array.dtype.kind in "iu" else tolerance(network) * np.abs(array).max()), value
        assert (off > 1e-5 * np.abs(array.astype(np.float64)).max()).mean() <= 0.01, value


@pytest.mark.parametrize("model", ["ios_sample", "squeezenet", "resnet18", "inception_v3", "randwire", "nasnet_a"])
def test_networks_of_the_zoo_on_both_engines(model: str, backends: dict[Engine, Backend]) -> None:
    network = load(model)
    schedule = random_schedule(network, seed=1)
    found = {engine: run(backends[engine], network, schedule, engine) for engine in ENGINES}
    agree(found[Engine.GRAPH], network)
    agree(found[Engine.PAPER], network)


@pytest.mark.parametrize("engine", ENGINES)
def test_runs_give_the_same_bits(engine: Engine, backends: dict[Engine, Backend]) -> None:
    network = load("squeezenet")
    backend = backends[engine]
    plan = lower_schedule(
        random_schedule(network, seed=2), network, engine, in_place=True, choices=backend.choices(network)
    )
    inputs = random_inputs(network)
    first = backend.execute(network, plan, inputs)
    for _ in range(5):
        again = backend.execute(network, plan, inputs)
        for name, array in first.items():
            np.testing.assert_array_equal(again[name], array)


def test_tf32_multiplies_with_fewer_bits() -> None:
    if reason := missing_for("cupy_cudnn"):
        pytest.skip(reason)
    backend = create_backend("cupy_cudnn", Precision.TF32, Engine.GRAPH)
    network = load("squeezenet")
    found = run(backend, network, sequential_schedule(network), Engine.GRAPH)
    agree(found, network, tolerance=5e-2)


SIXTEEN = [Precision.FP16, Precision.BF16]


@pytest.fixture(scope="module")
def in_16_bits(tmp_path_factory: pytest.TempPathFactory) -> dict[Precision, Backend]:
    if reason := missing_for("cupy_cudnn"):
        pytest.skip(reason)
    options = {"plans": "2", "choices": str(tmp_path_factory.mktemp("choices") / "choices.json")}
    return {each: create_backend("cupy_cudnn", each, Engine.GRAPH, options) for each in SIXTEEN}


def agrees(backend: Backend, network: Network, choices: Choices) -> None:
    inputs = made_arrays(network.graph.inputs, network.graph.types)
    plan = lower_schedule(sequential_schedule(network), network, Engine.GRAPH, in_place=True, choices=choices)
    found = largest_difference(backend.execute(network, plan, inputs), evaluate_graph(network.graph, inputs))
    assert found.relative <= tolerance(network), found


@pytest.mark.parametrize("precision", SIXTEEN)
@pytest.mark.parametrize("mask", [None, (1, 1, 1, 6), (2, 2, 6, 6)], ids=["bare", "row", "full"])
@pytest.mark.parametrize("scaled", ["", "scores", "operands"])
def test_an_attention_in_one_call_and_apart(
    scaled: str, mask: tuple[int, ...] | None, precision: Precision, in_16_bits: dict[Precision, Backend]
) -> None:
    """By every plan of cuDNN that runs; without a mask one at least, since networks rely on it."""
    network = attention(precision, scaled=scaled, mask=mask, features=64)
    backend = in_16_bits[precision]
    assert isinstance(backend, CupyCudnnBackend)
    ways = [way.name for way in backend.algorithms(network, "attention")]
    assert {way.partition(":")[0] for way in ways} >= ({"apart"} if mask else {"apart", "fused"})
    for way in ways:
        agrees(backend, network, lambda units, strategy, variant="", way=way: Choice(way))


@pytest.mark.parametrize("precision", SIXTEEN)
@pytest.mark.parametrize("name", [name for name in OPS if name.startswith("attention op")])
def test_attention_ops_as_they_are_chosen(
    name: str, precision: Precision, in_16_bits: dict[Precision, Backend]
) -> None:
    """Causal, with keys that heads share, behind a past: of what is one call of cuDNN, the fastest way."""
    network = stored_in(OPS[name](), precision)
    agrees(in_16_bits[precision], network, in_16_bits[precision].choices(network))


@pytest.mark.parametrize("seed", range(4))
def test_stages_on_parts_of_the_device(seed: int) -> None:
    """In one graph of several green contexts, where the driver has them."""
    if reason := missing_for("cupy_cudnn"):
        pytest.skip(reason)
    try:
        backend = create_backend("cupy_cudnn", Precision.FP32, Engine.PARTITION, {"plans": "2"})
    except BackendError as error:
        pytest.skip(str(error))
    network = random_network(seed)
    found = backend.execute(network, plan_for(random_schedule(network, seed), network, backend), random_inputs(network))
    agree(found, network)


@pytest.mark.parametrize("precision", [Precision.FP32, *SIXTEEN])
@pytest.mark.parametrize("kind", ["stack", "layer"])
def test_products_by_cublas_and_by_cudnn(
    kind: str, precision: Precision, backends: dict[Engine, Backend], in_16_bits: dict[Precision, Backend]
) -> None:
    """A stack of products, and a linear layer, in each way that there is; cuBLAS is one of them."""
    b = GraphBuilder(kind, precision)
    x = b.input("x", (3, 40, 64))
    w = b.input("w", (1, 64, 24)) if kind == "stack" else b.constant("w", (64, 24))
    with b.block("only"), b.unit("product", "Matmul"):
        y = b.add(MatMul(), x, w)
    network = b.network([y])
    backend = {Precision.FP32: backends[Engine.GRAPH], **in_16_bits}[precision]
    assert isinstance(backend, CupyCudnnBackend)
    ways = [way.name for way in backend.algorithms(network, "product")]
    assert any(way.endswith(":cublas") for way in ways) or not isinstance(backend.machine.library, WithCublas), ways
    for way in ways:
        agrees(backend, network, lambda units, strategy, variant="", way=way: Choice(way))


@pytest.mark.parametrize("precision", SIXTEEN)
@pytest.mark.parametrize("name", [*OPS, *UNITS])
def test_every_op_in_16_bits(name: str, precision: Precision, in_16_bits: dict[Precision, Backend]) -> None:
    network = stored_in({**OPS, **UNITS}[name](), precision)
    backend = in_16_bits[precision]
    agrees(backend, network, backend.choices(network))


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_times_grow_with_the_work(engine: Engine, cold: bool, backends: dict[Engine, Backend]) -> None:
    network = load("squeezenet")
    backend = backends[engine]
    choices = backend.choices(network)
    stage = lower_stage(network, [[2]], Strategy.CONCURRENT, engine, in_place=True, choices=choices)
    plans = [repeat(stage, copies, synchronise=False) for copies in (1, 20, 400)]
    told: list[tuple[int, int]] = []
    found = backend.measure(network, plans, Timing(rounds=10, warm_up=2, cold=cold), lambda *done: told.append(done))
    one, some, many = (samples.median_us for samples in found)
    assert 0 < one < some < many
    # Rounds in which the clock changed are left out, all plans' alike.
    assert len({len(samples.times_us) for samples in found}) == 1
    assert 1 <= len(found[0].times_us) <= 10
    assert told[-1] == (36, 36)
    assert all(float(samples.conditions["sentinel_least_us"]) > 0 for samples in found)


def test_branches_of_a_graph_run_side_by_side(backends: dict[Engine, Backend]) -> None:
    """Small kernels leave most of the device idle: two streams take less than one after the other."""
    network = load("ios_sample")
    backend = backends[Engine.GRAPH]
    choices = backend.choices(network)
    first = [index for index, unit in enumerate(network.units) if unit.inputs == network.graph.inputs][:2]
    assert len(first) == 2
    apart, together = (
        repeat(
            lower_stage(network, groups, Strategy.CONCURRENT, Engine.GRAPH, in_place=True, choices=choices), 20, False
        )
        for groups in ([first], [[first[0]], [first[1]]])
    )
    found = backend.measure(network, [apart, together], Timing(rounds=15))
    assert found[1].median_us < found[0].median_us


def test_these_tests_choose_by_one_copy_and_one_round() -> None:
    """A GPU is left the time for what is measured on it; the next test alone tunes as it is done for users."""
    assert (candidate_timing.COPIES, candidate_timing.ROUNDS, candidate_timing.FINAL_ROUNDS) == (1, 1, 1)


@pytest.mark.usefixtures("_as_shipped")
def test_choices_are_kept_and_recalled(tmp_path: Path) -> None:
    if reason := missing_for("cupy_cudnn"):
        pytest.skip(reason)
    network = load("ios_sample")
    options = {"choices": str(tmp_path / "choices.json")}
    counts = []
    for engine in ENGINES:
        backend = create_backend("cupy_cudnn", Precision.FP32, engine, options)
        assert isinstance(backend, CupyCudnnBackend)
        choices = backend.choices(network)
        for unit in network.units:
            choices((unit.name,), Strategy.CONCURRENT)
        counts.append(backend.planning)
    first, second = counts
    assert first.convolutions == second.convolutions > 0
    assert (second.candidates_timed, second.recalled) == (0, second.convolutions)
    assert second.plans_built <= first.plans_built


def test_the_clock_is_up_when_something_is_timed(backends: dict[Engine, Backend]) -> None:
    """The first rounds are no slower than the last."""
    network = load("squeezenet")
    backend = backends[Engine.GRAPH]
    stage = lower_stage(
        network, [[2]], Strategy.CONCURRENT, Engine.GRAPH, in_place=True, choices=backend.choices(network)
    )
    (samples,) = backend.measure(network, [repeat(stage, 20, synchronise=False)], Timing(rounds=20, warm_up=0))
    conditions = samples.conditions
    assert float(conditions["sentinel_first_us"]) < 1.1 * float(conditions["sentinel_least_us"])
    assert conditions["host_was_behind"] == 0
