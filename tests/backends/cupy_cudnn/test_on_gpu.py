"""On a GPU: outputs equal NumPy's, both engines, the same bits from run to run; and times that make sense."""

from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import pytest
from precisions import stored_in
from quantised_networks import QUANTISED
from random_networks import random_network, random_schedule, sequential_schedule
from small_networks import OPS, UNITS
from spelt_attentions import attention

from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend
from iossim.backends.cupy_cudnn.cublas import WithCublas
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.execution.backend import BackendError, Choice, Choices, Timing, create_backend, missing_for
from iossim.execution.engine import UNDIVIDED, Engine
from iossim.execution.lower import lower_schedule, lower_stage
from iossim.execution.made_inputs import made_arrays
from iossim.execution.measured_run import largest_difference, plan_for, tolerance
from iossim.execution.plan import Plan, repeat
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.ops.matmul import MatMul
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.schedule.batch import Strategy

pytestmark = pytest.mark.gpu

SIXTEEN = [Precision.FP16, Precision.BF16]
#: Largest difference of fp32 from NumPy's, over the largest value.
OF_FP32 = 1e-4
MakeBackend = Callable[..., CupyCudnnBackend]


@pytest.fixture(autouse=True)
def _has_gpu() -> None:
    if reason := missing_for("cupy_cudnn"):
        pytest.skip(reason)


@pytest.fixture(scope="module")
def backend_of(tmp_path_factory: pytest.TempPathFactory) -> MakeBackend:
    """Few plans, and choices that all share: building cuDNN's plans is most of what these tests take."""
    options = {"plans": "2", "choices": str(tmp_path_factory.mktemp("choices") / "choices.json")}

    @cache
    def backend(precision: Precision = Precision.FP32, engine: Engine = Engine.GRAPH) -> CupyCudnnBackend:
        made = create_backend("cupy_cudnn", precision, engine, options)
        assert isinstance(made, CupyCudnnBackend)
        return made

    return backend


def made(network: Network) -> dict[str, Array]:
    return made_arrays(network.graph.inputs, network.graph.types)


@lru_cache(maxsize=1)
def expected(network: Network) -> dict[str, Array]:
    """NumPy's outputs, which take it 20 s for NasNet: once for all that is held to them."""
    return evaluate_graph(network.graph, made(network))


def agrees(backend: CupyCudnnBackend, network: Network, plan: Plan | None = None) -> None:
    """A plan, by default that of one unit after another as is fastest, gives NumPy's outputs."""
    plan = lowered(backend, network) if plan is None else plan
    found = largest_difference(backend.execute(network, plan, made(network)), expected(network))
    assert found.relative <= (OF_FP32 if backend.context.precision == "fp32" else tolerance(network)), found


def lowered(backend: CupyCudnnBackend, network: Network, choices: Choices | None = None) -> Plan:
    choices = choices or backend.choices(network)
    return lower_schedule(sequential_schedule(network), network, Engine.GRAPH, in_place=True, choices=choices)


def agrees_in_every_way(backend: CupyCudnnBackend, network: Network, unit: str) -> list[str]:
    """The ways to run a unit, each of which gives NumPy's outputs."""
    ways = [way.name for way in backend.algorithms(network, unit)]
    for way in ways:
        agrees(backend, network, lowered(backend, network, lambda *_, way=way: Choice(way)))
    return ways


@pytest.mark.parametrize("engine", UNDIVIDED)
@pytest.mark.parametrize("seed", range(12))
def test_random_networks(seed: int, engine: Engine, backend_of: MakeBackend) -> None:
    network, backend = random_network(seed, movers=seed % 2 == 0), backend_of(engine=engine)
    choices = backend.choices(network) if seed % 3 else None
    for schedule in (random_schedule(network, seed), sequential_schedule(network)):
        agrees(backend, network, lower_schedule(schedule, network, engine, in_place=True, choices=choices))


@pytest.mark.parametrize("precision", [Precision.FP32, *SIXTEEN])
@pytest.mark.parametrize("name", [*OPS, *UNITS])
def test_every_op_and_every_way_ops_meet(name: str, precision: Precision, backend_of: MakeBackend) -> None:
    agrees(backend_of(precision), stored_in({**OPS, **UNITS}[name](), precision))


@pytest.mark.parametrize("name", QUANTISED)
def test_whole_numbers_with_scales(name: str, backend_of: MakeBackend) -> None:
    """Sums of int32 are exact; where scales multiply in fp32 a whole number may be a step off."""
    network, backend = QUANTISED[name](), backend_of()
    found = backend.execute(network, lowered(backend, network), made(network))
    for value, array in expected(network).items():
        off = np.abs(found[value].astype(np.float64) - array.astype(np.float64))
        assert off.max() <= (1 if array.dtype.kind in "iu" else tolerance(network) * np.abs(array).max()), value
        assert (off > 1e-5 * np.abs(array.astype(np.float64)).max()).mean() <= 0.01, value


@pytest.mark.parametrize("model", ["ios_sample", "squeezenet", "resnet18", "inception_v3", "randwire", "nasnet_a"])
def test_networks_of_the_zoo_on_both_engines(model: str, backend_of: MakeBackend) -> None:
    network = load(model)
    for engine in UNDIVIDED:
        backend = backend_of(engine=engine)
        agrees(backend, network, plan_for(random_schedule(network, seed=1), network, backend))


@pytest.mark.parametrize("engine", UNDIVIDED)
def test_runs_give_the_same_bits(engine: Engine, backend_of: MakeBackend) -> None:
    network, backend = load("squeezenet"), backend_of(engine=engine)
    plan = plan_for(random_schedule(network, seed=2), network, backend)
    first = backend.execute(network, plan, made(network))
    for _ in range(5):
        again = backend.execute(network, plan, made(network))
        for name, array in first.items():
            np.testing.assert_array_equal(again[name], array)


def test_tf32_multiplies_with_fewer_bits(backend_of: MakeBackend) -> None:
    agrees(backend_of(Precision.TF32), load("squeezenet", dtype="tf32"))


@pytest.mark.parametrize("precision", SIXTEEN)
@pytest.mark.parametrize("mask", [None, (1, 1, 1, 6), (2, 2, 6, 6)], ids=["bare", "row", "full"])
@pytest.mark.parametrize("scaled", ["", "scores", "operands"])
def test_an_attention_in_one_call_and_apart(
    scaled: str, mask: tuple[int, ...] | None, precision: Precision, backend_of: MakeBackend
) -> None:
    """By every plan of cuDNN that runs; without a mask one at least, since networks rely on it."""
    network = attention(precision, scaled=scaled, mask=mask, features=64)
    ways = agrees_in_every_way(backend_of(precision), network, "attention")
    assert {way.partition(":")[0] for way in ways} >= ({"apart"} if mask else {"apart", "fused"})


def test_a_query_that_sees_no_key(backend_of: MakeBackend) -> None:
    """Zeros, whatever cuDNN makes of a row that is wholly masked."""
    network = attention(Precision.BF16, checked=True, features=64)
    assert agrees_in_every_way(backend_of(Precision.BF16), network, "attention")


@pytest.mark.parametrize("seed", range(4))
def test_stages_on_parts_of_the_device(seed: int, backend_of: MakeBackend) -> None:
    """In one graph of several green contexts, where the driver has them."""
    try:
        backend = backend_of(engine=Engine.PARTITION)
    except BackendError as error:
        pytest.skip(str(error))
    network = random_network(seed)
    agrees(backend, network, plan_for(random_schedule(network, seed), network, backend))


@pytest.mark.parametrize("precision", [Precision.FP32, *SIXTEEN])
@pytest.mark.parametrize("kind", ["stack", "layer"])
def test_products_by_cublas_and_by_cudnn(kind: str, precision: Precision, backend_of: MakeBackend) -> None:
    """A stack of products, and a linear layer, in each way that there is; cuBLAS is one of them."""
    b = GraphBuilder(kind, precision)
    x = b.input("x", (3, 40, 64))
    w = b.input("w", (1, 64, 24)) if kind == "stack" else b.constant("w", (64, 24))
    with b.block("only"), b.unit("product", "Matmul"):
        y = b.add(MatMul(), x, w)
    backend = backend_of(precision)
    ways = agrees_in_every_way(backend, b.network([y]), "product")
    assert any(way.endswith(":cublas") for way in ways) or not isinstance(backend.library, WithCublas), ways


def third_unit(backend: CupyCudnnBackend, network: Network, engine: Engine = Engine.GRAPH) -> Plan:
    choices = backend.choices(network)
    return lower_stage(network, [[2]], Strategy.CONCURRENT, engine, in_place=True, choices=choices)


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("engine", UNDIVIDED)
def test_times_grow_with_the_work(engine: Engine, cold: bool, backend_of: MakeBackend) -> None:
    network, backend = load("squeezenet"), backend_of(engine=engine)
    stage = third_unit(backend, network, engine)
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


def test_branches_of_a_graph_run_side_by_side(backend_of: MakeBackend) -> None:
    """Small kernels leave most of the device idle: two streams take less than one after the other."""
    network, backend = load("ios_sample"), backend_of()
    choices = backend.choices(network)
    first = [index for index, unit in enumerate(network.units) if unit.inputs == network.graph.inputs][:2]
    assert len(first) == 2
    stages = [
        lower_stage(network, groups, Strategy.CONCURRENT, Engine.GRAPH, in_place=True, choices=choices)
        for groups in ([first], [[first[0]], [first[1]]])
    ]
    found = backend.measure(network, [repeat(stage, 20, False) for stage in stages], Timing(rounds=15))
    assert found[1].median_us < found[0].median_us


@pytest.mark.usefixtures("_as_shipped")
def test_choices_are_kept_and_recalled(tmp_path: Path) -> None:
    """The one test here that tunes as it is done for users."""
    network = load("ios_sample")
    counts = []
    for engine in UNDIVIDED:
        backend = create_backend("cupy_cudnn", Precision.FP32, engine, {"choices": str(tmp_path / "choices.json")})
        assert isinstance(backend, CupyCudnnBackend)
        choices = backend.choices(network)
        for unit in network.units:
            choices((unit.name,), Strategy.CONCURRENT)
        counts.append(backend.chooser)
    first, second = counts
    assert len(first.known) == len(second.known) == second.recalled > 0
    assert second.timing.timed == 0


def test_the_clock_is_up_when_something_is_timed(backend_of: MakeBackend) -> None:
    """The first rounds are no slower than the last."""
    network, backend = load("squeezenet"), backend_of()
    plan = repeat(third_unit(backend, network), 20, synchronise=False)
    (samples,) = backend.measure(network, [plan], Timing(rounds=20, warm_up=0))
    conditions = samples.conditions
    assert float(conditions["sentinel_first_us"]) < 1.1 * float(conditions["sentinel_least_us"])
    assert conditions["host_was_behind"] == 0
