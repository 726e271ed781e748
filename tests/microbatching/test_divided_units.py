"""A kernel in micro-batches computes what it does undivided, bit for bit; and what a plan of them may not do is caught."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from checked_execution import execute
from hypothesis import given, settings
from hypothesis import strategies as st
from other_plans import plan_from_json
from plan_races import Races, accepted
from random_networks import make_stage, one_block, random_inputs

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import ScheduleError
from iossim.execution.backend import Choice, Choices, create_backend
from iossim.execution.lower import lower_schedule, lower_stage
from iossim.execution.memory import check_happens_before, plan_memory
from iossim.execution.plan import Command, Copy, Launch, Plan, plan_to_json
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import BATCH_VIEW, Network
from iossim.ir.op import Array
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvBackwardData, ConvBackwardFilter
from iossim.ir.ops.slice import Concat, Split
from iossim.ir.types import TensorType
from iossim.microbatching.divided_blocks import divide_units
from iossim.microbatching.network_kernels import ConvKernel
from iossim.schedule.batch import Strategy

SEEDS = st.integers(0, 2**20)
DIRECTIONS = ("forward", "data", "filter")


def random_kernel(generator: random.Random, direction: str, batch: int) -> ConvKernel:
    """A convolution of some sort in one of its directions."""
    rank = generator.choice((1, 2))
    groups = generator.choice((1, 1, 2))
    strides, dilations = (tuple(generator.randint(1, 2) for _ in range(rank)) for _ in range(2))
    pads = tuple(generator.randint(0, 1) for _ in range(2 * rank))
    kernel = tuple(generator.randint(1, 3) for _ in range(rank))
    conv = Conv(strides, pads, dilations, groups)
    x = TensorType((batch, generator.randint(1, 3) * groups, *(generator.randint(6, 8) for _ in range(rank))))
    weight = TensorType((generator.randint(1, 3) * groups, x.shape[1] // groups, *kernel))
    (y,) = conv.infer((x, weight))
    own = strides, pads, dilations, groups
    match direction:
        case "forward":
            bias = [TensorType(weight.shape[:1])] * generator.randint(0, 1)
            return ConvKernel(conv, (x, weight, *bias))
        case "data":
            return ConvKernel(ConvBackwardData(*own, input_size=x.shape[2:]), (y, weight))
        case _:
            return ConvKernel(ConvBackwardFilter(*own, kernel_size=kernel), (x, y))


#: A network of a kernel's micro-batches, and the plan that runs them.
Divided = tuple[Network, Plan]


def whole_network(kernel: ConvKernel) -> Network:
    """The kernel alone."""
    b = GraphBuilder("kernel", kernel.precision)
    with b.block("kernel"):
        inputs = [b.input(f"input{place}", kernel.inputs[place].shape) for place in range(kernel.with_images)]
        for place, of_type in enumerate(kernel.inputs[kernel.with_images :]):
            inputs.append(b.constant(f"constant{place}", of_type.shape))
        result = b.add(kernel.op, *inputs, name="kernel")
    return b.network([result])


def divided(
    kernel: ConvKernel, sizes: Sequence[int], choices: Choices, engine: str = "graph", queues: int = 1
) -> Divided:
    """The kernel's micro-batches in turn over so many queues, with the views before and after; a sum has one queue."""
    network = divide_units(whole_network(kernel), {"kernel": sizes})
    runs = [index for index, unit in enumerate(network.units) if unit.kind != BATCH_VIEW]
    beside = 1 if isinstance(kernel.op, ConvBackwardFilter) else min(queues, len(runs))
    groups = [runs[queue::beside] for queue in range(beside)]
    views = [index for index in range(len(network.units)) if index not in runs]
    before = [index for index in views if network.units[index].outputs != network.graph.outputs]
    groups[0] = [*before, *groups[0], *(index for index in views if index not in before)]
    plan = plan_memory(lower_stage(network, groups, Strategy.CONCURRENT, engine, in_place=True, choices=choices))
    check_happens_before(plan)
    return network, plan


def drawn(seed: int, direction: str, queues: int = 1, engine: str = "graph") -> tuple[ConvKernel, Divided]:
    """A kernel in two micro-batches or more, each with some workspace."""
    generator = random.Random(seed)
    batch = generator.randint(2, 7)
    sizes: list[int] = []
    while sum(sizes) < batch:
        sizes.append(generator.randint(1, min(batch - sum(sizes), batch - 1)))
    kernel = random_kernel(generator, direction, batch)
    workspaces = {size: 100 * size * generator.randint(0, 9) for size in range(1, batch)}

    def choices(units: tuple[str, ...], strategy: Strategy, variant: str = "") -> Choice:
        index = int(units[0].removeprefix("kernel.").partition("of")[0]) - 1
        return Choice(workspace_bytes=workspaces[sizes[index]])

    return kernel, divided(kernel, sizes, choices, engine, queues)


def only(arrays: Mapping[str, Array]) -> Array:
    (array,) = arrays.values()
    return array


def whole(kernel: ConvKernel, inputs: Mapping[str, Array]) -> Array:
    return only(evaluate_graph(whole_network(kernel).graph, inputs))


@settings(max_examples=60)
@given(SEEDS, st.sampled_from(DIRECTIONS), st.integers(1, 3), st.sampled_from(["paper", "graph"]))
def test_micro_batches_make_what_the_whole_does_bit_for_bit(
    seed: int, direction: str, queues: int, engine: str
) -> None:
    kernel, (network, plan) = drawn(seed, direction, queues, engine)
    inputs = random_inputs(network, seed)
    made = only(execute(plan, network, inputs, seed))
    np.testing.assert_array_equal(made, whole(kernel, inputs), strict=True)
    assert plan_from_json(plan_to_json(plan)).commands == plan.commands


@settings(max_examples=60)
@given(SEEDS, st.sampled_from(DIRECTIONS), st.integers(1, 3))
def test_nothing_is_copied_and_workspaces_are_within_the_limit(seed: int, direction: str, queues: int) -> None:
    _, (_, plan) = drawn(seed, direction, queues)
    assert not any(isinstance(command, Copy) for command in plan.commands)
    values = {*plan.inputs, *plan.outputs}
    workspaces = {launch.workspace for launch in plan.launches if launch.workspace}
    assert {storage.name for storage in plan.storages} == values | workspaces, "one result, updated or written in place"
    # What runs in one queue shares: the largest workspace of each queue, whatever the queue count.
    most = dict.fromkeys(plan.queues, 0)
    for launch in plan.launches:
        if launch.workspace:
            most[launch.queue] = max(most[launch.queue], plan.buffers[launch.workspace].bytes)
    room = sum(-(-size // 256) * 256 + 256 for size in most.values())
    assert plan.arena_bytes <= sum(-(-plan.buffers[name].bytes // 256) * 256 for name in values) + room


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("backend", ["onnxruntime_cpu", pytest.param("torch_cuda:device=cpu", marks=pytest.mark.torch)])
def test_other_backends_run_them(backend: str, direction: str) -> None:
    name, _, option = backend.partition(":")
    if name == "torch_cuda":
        pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")
    runs = create_backend(name, options=dict([option.split("=")]) if option else {})
    for seed in (2, 3):
        kernel, (network, plan) = drawn(seed, direction, queues=2)
        inputs = random_inputs(network, seed)
        made = only(runs.execute(network, plan, inputs))
        np.testing.assert_allclose(made, whole(kernel, inputs), rtol=1e-4, atol=1e-5)


def relaunched(plan: Plan, units: str, **fields: object) -> Plan:
    """The plan with a field of a launch changed."""
    commands: list[Command] = [
        replace(command, **fields) if isinstance(command, Launch) and command.units == (units,) else command  # type: ignore[arg-type]
        for command in plan.commands
    ]
    return replace(plan, commands=tuple(commands))


@settings(max_examples=40)
@given(SEEDS, st.sampled_from(DIRECTIONS[:2]), st.integers(2, 3))
def test_a_workspace_of_two_that_run_at_once_is_caught(seed: int, direction: str, queues: int) -> None:
    _, (_, plan) = drawn(seed, direction, queues)
    assert plan.offsets is not None
    for one, other in permutations([launch for launch in plan.launches if launch.workspace], 2):
        shared = relaunched(plan, one.units[0], workspace=other.workspace)
        offsets = {**plan.offsets, one.workspace: plan.offsets[other.workspace or ""]}
        at_one_place = replace(plan, offsets=offsets)
        beside = one.queue != other.queue
        assert accepted(shared) != beside
        assert not (beside and accepted(at_one_place))


@settings(max_examples=40)
@given(SEEDS, st.sampled_from(DIRECTIONS), st.integers(1, 3), st.sampled_from(["paper", "graph"]))
def test_an_order_that_is_dropped_is_caught(seed: int, direction: str, queues: int, engine: str) -> None:
    _, (_, plan) = drawn(seed, direction, queues, engine)
    races = Races(plan)
    assert not races.exist()
    for mutilated, is_race in races.mutations():
        assert accepted(mutilated) == (not is_race)
    assert not accepted(replace(plan, commands=plan.commands[:-1]))


@settings(max_examples=40)
@given(SEEDS)
def test_a_wrong_beta_is_caught(seed: int) -> None:
    _, (_, plan) = drawn(seed, "filter")
    first, *others = plan.launches
    for launch in others:
        assert launch.adds_to == launch.reads[2], "beta is 1"
    assert first.adds_to is None, "what the caller gives stays"
    if others:
        empty = relaunched(plan, first.units[0], reads=(*first.reads, others[0].adds_to), adds_to=others[0].adds_to)
        with pytest.raises(ScheduleError, match="which nothing has written before"):
            check_happens_before(empty)


def nested() -> Network:
    """Two micro-batches, each of them two convolutions whose channels are joined; their join; two convolutions of that."""
    b = GraphBuilder("nested")
    b.input("x", (5, 3, 6, 6))
    with b.block("only"):
        joined = []
        for index, part in enumerate(b.add_all(Split(0, (2, 3)), "x", name="split")):
            for name, channels in (("left", 2), ("right", 3)):
                b.add(Conv(), part, b.constant(f"{name}.weight", (channels, 3, 1, 1)), name=f"{name}{index}")
            joined.append(b.add(Concat(1), f"left{index}", f"right{index}", name=f"channels{index}"))
        b.add(Concat(0), *joined, name="join")
        after = [b.conv("join", channels, name=f"after{channels}") for channels in (2, 4)]
    return b.network(after)


def test_channels_of_images_and_a_merged_convolution_after_their_join() -> None:
    network = nested()
    stages = [
        make_stage([["split"]]),
        make_stage([["left0"], ["right0"], ["left1"], ["right1"]]),
        make_stage([["channels0"], ["channels1"]]),
        make_stage([["join"]]),
        make_stage([["after2", "after4"]], Strategy.MERGE),
    ]
    inputs = random_inputs(network)
    schedule = one_block(network, *stages)
    plan = plan_memory(lower_schedule(schedule, network, "graph", in_place=True))
    check_happens_before(plan)
    assert plan.buffers["right1"].view_of == "join"
    assert plan.buffers["right1"].starts == (2, 2, 0, 0)
    assert [launch.units for launch in plan.launches][-1] == ("after2", "after4")
    assert len(plan.launches) == 5, "all moves are views"
    apart = lower_schedule(schedule, network)
    expected = execute(apart, network, inputs)
    for seed in range(5):
        for name, array in execute(plan, network, inputs, seed).items():
            np.testing.assert_array_equal(array, expected[name], strict=True)
