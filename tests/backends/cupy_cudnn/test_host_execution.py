"""Plans run on the host's device compute what the network does, whatever order the device takes; so do units of transformers alone."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from checked_execution import execute
from graph_builders import builder_with
from host_backend import HostBackend, programs
from host_device import HostDriver
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, save
from op_cases import CASES
from precisions import stored_in
from random_networks import random_inputs, random_network, random_schedule, random_streams, sequential_schedule
from small_networks import OPS, UNITS, of_op

from iossim.backends.cupy_cudnn.backend import fallbacks
from iossim.backends.cupy_cudnn.convolution import FusedAttention
from iossim.backends.cupy_cudnn.cudnn_graphs import EnginePlan
from iossim.base.errors import say_once
from iossim.execution.backend import Timing
from iossim.execution.engine import UNDIVIDED, Engine
from iossim.execution.lower import lower_schedule, lower_stage
from iossim.execution.made_inputs import made_arrays
from iossim.execution.measured_run import largest_difference, tolerance
from iossim.execution.memory import plan_memory
from iossim.execution.plan import repeat
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.op import OPS as KINDS
from iossim.ir.op import Array, Op
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.matmul import Gemm
from iossim.ir.ops.nary import Add
from iossim.ir.ops.pool import AveragePool, MaxPool
from iossim.ir.ops.reshape import Transpose
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.softmax import Hardmax
from iossim.ir.ops.unary import Relu
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import AnySchedule


def agree(network: Network, schedule: AnySchedule, engine: Engine = Engine.GRAPH, seed: int = 0) -> None:
    backend = HostBackend(engine=engine, driver=HostDriver(seed))
    backend.agree(network, backend.lowered(network, schedule))


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    engine=st.sampled_from(UNDIVIDED),
    precision=st.sampled_from([Precision.FP32, Precision.FP16, Precision.BF16]),
    layout=st.sampled_from(["", "nhwc", "nchw"]),
    streams=st.booleans(),
    chosen=st.booleans(),
    in_place=st.booleans(),
)
def test_random_stages_and_streams_of_random_networks(
    seed: int, engine: Engine, precision: Precision, layout: str, streams: bool, chosen: bool, in_place: bool
) -> None:
    """In every precision and layout, whatever algorithms are chosen, and wherever values lie."""
    network = stored_in(random_network(seed, movers=seed % 2 == 0), precision)
    schedule = (random_streams if streams else random_schedule)(network, seed)
    backend = HostBackend(precision, engine, HostDriver(seed), layout=layout)
    choices = backend.choices(network) if chosen else None
    backend.agree(network, backend.lowered(network, schedule, choices, in_place=in_place))
    assert all(asked.last == (layout == "nhwc") for asked in backend.library.asked if layout)


@pytest.mark.parametrize("name", [*OPS, *UNITS])
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.BF16])
def test_every_op_and_every_way_ops_meet(name: str, precision: Precision) -> None:
    network = stored_in({**OPS, **UNITS}[name](), precision)
    assert not fallbacks(network)
    backend = HostBackend(precision)
    backend.agree(network)
    assert all(asked.dtype is precision.storage for asked in backend.library.asked)


@given(data=st.data(), average=st.booleans())
def test_pooling_windows(data: st.DataObject, average: bool) -> None:
    numbers = st.integers(1, 3)
    kernel, strides, dilations = (tuple(data.draw(st.tuples(numbers, numbers))) for _ in range(3))
    reach = [dilation * (size - 1) for size, dilation in zip(kernel, dilations, strict=True)]
    pads = tuple(data.draw(st.integers(0, most)) for most in (*reach, *reach))
    ceil_mode, include = data.draw(st.booleans()), data.draw(st.booleans())
    op = (
        AveragePool(kernel, strides, pads, ceil_mode, include, dilations)
        if average
        else MaxPool(kernel, strides, pads, dilations, ceil_mode)
    )
    network = of_op(op, (2, 3, data.draw(st.integers(7, 9)), data.draw(st.integers(7, 9))))
    agree(network, sequential_schedule(network), Engine.PAPER)


@pytest.mark.parametrize("engine", UNDIVIDED)
@pytest.mark.parametrize("synchronise", [True, False])
def test_a_repeated_stage_computes_what_one_does(engine: Engine, synchronise: bool) -> None:
    network = UNITS["channels that cuDNN cannot be pointed at"]()
    backend, inputs = HostBackend(engine=engine), random_inputs(network)
    groups = [[0], [1], [2]]
    plan = lower_stage(network, groups, Strategy.CONCURRENT, engine, in_place=True, choices=backend.choices(network))
    once = backend.execute(network, plan, inputs)
    often = backend.execute(network, repeat(plan, 3, synchronise), inputs)
    assert set(once) == set(often)
    for name, array in once.items():
        np.testing.assert_array_equal(often[name], array)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["ios_sample", "randwire"])
def test_networks_of_the_zoo(model: str) -> None:
    network = load(model)
    backend = HostBackend(plans_of=lambda _: {EnginePlan("eng0", 0): 1.0})
    backend.agree(network, backend.lowered(network, random_schedule(network, seed=1)))


@pytest.mark.parametrize("model", ["ios_sample", "squeezenet", "inception_v3", "resnet18", "nasnet_a", "randwire"])
def test_every_unit_of_the_zoo_has_a_program(model: str) -> None:
    network = load(model)
    found = programs(network).values()
    convolutions = sum(isinstance(node.op, Conv | Gemm) for node in network.graph.nodes)
    assert sum(len(program.convolutions) for program in found) == convolutions
    assert all(program.calls for program in found)


#: Kinds that are computed on the host alone: recurrent layers, gradients, and what inference hardly has.
ON_HOST = {
    *("gru", "lstm", "rnn", "average_pool_backward", "conv_backward_filter", "gather_backward", "max_pool_backward"),
    *("hardmax", "foreign"),
}


def of_case(op: Op, arrays: Sequence[Array]) -> Network:
    """The first operand is the input if it is of numbers in fp32; all else is constant."""
    b = GraphBuilder("case")
    given = [
        b.input("x", each.shape) if each.dtype == np.float32 and not place else b.numbers(f"c{place}", each)
        for place, each in enumerate(arrays)
    ]
    return b.network(list(b.add_all(op, *given)))


def test_no_kind_of_op_is_refused(tmp_path: Path) -> None:
    """Each is computed on the device, or on the host inside the run, as ``iossim doctor MODEL`` lists it."""
    cases = [of_case(op, arrays) for op, arrays in CASES]
    device: set[str] = set()
    host: dict[str, Network] = {}
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, *shape])
        for name, shape in (("x", [2, 2]), ("y", []))
    )
    of_onnx = helper.make_graph([helper.make_node("Det", ["x"], ["y"])], "determinants", [x], [y])
    save(helper.make_model(of_onnx, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "det.onnx")
    for network in (*(build() for build in OPS.values()), *cases, load(tmp_path / "det.onnx")):
        fallen = {each.op for each in fallbacks(network)}
        device |= {node.op.kind for node in network.graph.nodes if node.name not in fallen}
        host |= {node.op.kind: network for node in network.graph.nodes if node.name in fallen}
    assert device | host.keys() == set(KINDS.own())
    assert host.keys() - device == ON_HOST
    for kind in ON_HOST:
        agree(host[kind], sequential_schedule(host[kind]))


def with_fallbacks() -> Network:
    """No kernel computes its pooling and its hard choices: at the root, inside a unit, and from and to boxes."""
    b, x = builder_with("fallbacks", x=(2, 3, 4, 4, 4))
    pooled = b.add(MaxPool((2,) * 3, (2,) * 3, (0,) * 6, (1,) * 3), b.add(Transpose((0, 1, 3, 2, 4)), x), name="pooled")
    with b.unit("u", "Relu-Hardmax-Concat"):
        hard = b.add(Hardmax(1), b.add(Relu(), pooled), name="hard")
        y = b.add(Concat(1), b.add(Add(), hard, pooled), b.add(Hardmax(2), hard, name="harder"))
    return b.network([y, b.add(Relu(), pooled)])


@pytest.mark.parametrize("engine", UNDIVIDED)
def test_what_no_kernel_computes_runs_on_the_host_with_a_remark(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the schedule; graphs end before it and begin again behind it, and the runs are timed as a whole."""
    say_once.cache_clear()
    network = with_fallbacks()
    for seed in range(3):
        agree(network, random_schedule(network, seed), engine, seed)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "warning: max_pool of 'fallbacks' (op 'pooled') runs on the host, by NumPy, and the device waits: "
        "no kernel pools over 3 dimensions; only over one or two",
        "warning: hardmax of 'fallbacks' (op 'hard', 'harder') runs on the host, by NumPy, and the device waits: "
        "no kernel computes hardmax",
    ]
    plan = lower_schedule(sequential_schedule(network), network, engine, in_place=True)
    (samples,) = HostBackend(engine=engine).measure(network, [plan], Timing(rounds=2, warm_up=0))
    assert len(samples.times_us) == 2


#: More takes long in NumPy's 16 bits. Left out are wide products, which are like the others.
MOST_MULTIPLY_ADDS = 6_000_000


def unlike_units(network: Network) -> list[int]:
    """A unit of each signature that is small enough, and all that are no products."""
    seen: set[object] = set()
    found = []
    for index, unit in enumerate(network.units):
        if network.multiply_adds(unit) <= MOST_MULTIPLY_ADDS and network.signatures[index] not in seen:
            seen.add(network.signatures[index])
            found.append(index)
    return found


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("gpt2", {"dimensions": {"tokens": 1, "past": 9}}),
        ("gpt2", {"dimensions": {"tokens": 5, "past": 0}}),
        ("gpt2", {"dimensions": {"tokens": 5, "past": 4}}),
        ("llama_1b", {"dimensions": {"tokens": 1, "past": 9}}),
        ("llama_1b", {"dimensions": {"tokens": 5, "past": 4}}),
        ("whisper_encoder", {"shapes": {"frames": (1, 5, 768)}}),
        ("whisper_decoder", {"dimensions": {"tokens": 1, "past": 9, "frames": 11}}),
        ("clip", {"dimensions": {"patches": 3, "tokens": 4}}),
        ("moe_shared", {"shapes": {"tokens": (1, 8, 64)}}),
    ],
)
@pytest.mark.parametrize("precision", [Precision.BF16, pytest.param(Precision.FP16, marks=pytest.mark.slow)])
def test_units_of_transformers(model: str, options: dict[str, object], precision: Precision) -> None:
    network = load(model, dtype=str(precision), **options)
    backend = HostBackend(precision, driver=HostDriver(seed=1))
    tried = unlike_units(network)
    assert {"Attention", "Gather-Mul"} & {network.units[index].kind for index in tried}
    for index in tried:
        plan = plan_memory(lower_stage(network, [[index]], Strategy.CONCURRENT, Engine.GRAPH, in_place=True))
        inputs = made_arrays(plan.inputs, network.graph.types)
        expected = execute(plan, network, inputs)
        found = largest_difference(backend.execute(network, plan, inputs), expected)
        assert found.relative <= tolerance(network), (network.units[index].name, found)
    assert any(isinstance(asked, FusedAttention) for asked in backend.library.asked) == (model != "moe_shared")
