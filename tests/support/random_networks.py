"""Small random networks, and valid random schedules of them, of stages and of streams, from a seed."""

import random
from collections.abc import Sequence
from typing import Literal

import numpy as np
from graph_builders import builder_with

from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.op import Array, Op
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.nary import Add
from iossim.ir.ops.slice import Concat, Slice, Split
from iossim.ir.ops.unary import Clip, Relu, Sigmoid
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.schedule.schedule import BlockSchedule, ModelReference, Schedule, Stage, StreamLaunch, StreamSchedule
from iossim.schedule.streams import StreamBatch, StreamProblem, as_streams, in_streams, with_barriers


def random_network(seed: int, blocks: int = 2, units: int = 6, movers: bool = False) -> Network:
    """Convolutions of all sorts (many of one input), sums and concats, with or without activation.

    With ``movers`` there are many concats (of concats, of inputs, of one value twice), splits and slices of channels.
    """
    generator = random.Random(seed)
    b, x = builder_with(
        f"random{seed}", x=(generator.choice([1, 2]), 3, generator.choice([7, 8]), generator.choice([7, 8]))
    )
    for block in range(blocks):
        with b.block(f"block{block}"):
            values = [x]
            # Most convolutions of a block share what must be shared for them to merge.
            style = random_style(generator)
            for index in range(generator.randint(2, units)):
                name = f"b{block}u{index}"
                source = generator.choice([values[0], values[0], *values])
                same_shape = [v for v in values if b.types[v].shape == b.types[source].shape]
                same_size = [v for v in values if b.types[v].shape[2:] == b.types[source].shape[2:]]
                kinds = ["conv"] * 5 + ["add", "concat"]
                if movers:
                    kinds += ["concat"] * 3 + (["split", "slice"] if b.types[source].shape[1] > 1 else [])
                kind = generator.choice(kinds)
                with b.unit(name, kind):
                    if kind == "conv":
                        y = random_convolution(b, generator, source, name, style if generator.random() < 0.8 else None)
                    elif kind == "add":
                        y = b.add(Add(), source, generator.choice(same_shape), name=name)
                    elif kind == "concat":
                        terms = [generator.choice(same_size) for _ in range(generator.randint(1, 3) if movers else 1)]
                        y = b.add(Concat(), source, *terms, name=name)
                    else:
                        y = random_part(b, generator, source, name, kind)
                values.append(y)
            x = values[-1]
    readers = {value for node in b._nodes for value in node.inputs}
    unread = [value for node in b._nodes for value in node.outputs if value not in readers and value != x]
    return b.network([x, *unread])


def random_part(b: GraphBuilder, generator: random.Random, source: str, name: str, kind: str) -> str:
    """Some of the channels of a value, by a slice; or the last part of a split."""
    channels = b.types[source].shape[1]
    cut = generator.randint(1, channels - 1)
    if kind == "slice":
        return b.add(Slice((cut,), (channels,), (1,), (1,)), source, name=name)
    parts = b.add_all(Split(1, (cut, channels - cut)), source, name=name)
    return parts[-1]


Style = tuple[int, int, Op | None]


def random_style(generator: random.Random) -> Style:
    """Stride, dilation and activation."""
    activation = generator.choice([None, Relu(), Relu(), Sigmoid(), Clip(0.0, 6.0)])
    return generator.choice([1, 1, 2]), generator.choice([1, 1, 2]), activation


def random_convolution(b: GraphBuilder, generator: random.Random, source: str, name: str, style: Style | None) -> str:
    """A convolution that keeps the size (up to its stride); a pointwise one where its kernel would not fit."""
    channels, height, width = b.types[source].shape[1:]
    stride, dilation, activation = style or random_style(generator)
    kernel = (generator.randint(1, 4), generator.randint(1, 4))
    span = [dilation * (k - 1) for k in kernel]
    before = [generator.randint(0, s) for s in span]
    after = [max(0, s - p) for s, p in zip(span, before, strict=True)]
    fits = all(size + s >= reach + 1 for size, s, reach in zip((height, width), span, span, strict=True))
    if not fits:
        kernel, before, after = (1, 1), [0, 0], [0, 0]
    groups = channels if generator.random() < 0.1 else 1
    filters = groups * generator.randint(1, 3)
    weight = b.constant(f"{name}.weight", (filters, channels // groups, *kernel))
    operands = [source, weight]
    if generator.random() < 0.7:
        operands.append(b.constant(f"{name}.bias", (filters,)))
    y = b.add(Conv((stride,) * 2, (*before, *after), (dilation,) * 2, groups), *operands, name=name)
    return y if activation is None else b.add(activation, y, name=f"{name}.act")


def random_schedule(network: Network, seed: int, merge: bool = True) -> Schedule:
    """A valid schedule: random stages in random order, merged ones wherever a coin says so and units merge."""
    generator = random.Random(seed)
    blocks = []
    for block in network.blocks:
        problem = ScheduleProblem.of_block(network, block)
        predecessors = problem.predecessors.tolist()
        classes = problem.merge_class.tolist()
        rest, stages = problem.full, []
        while rest:
            ready = [u for u in bits(rest) if not predecessors[u] & rest]
            mergeable = [u for u in ready if classes[u] >= 0 and classes[u] == classes[generator.choice(ready)]]
            if merge and len(mergeable) > 1 and len({classes[u] for u in mergeable}) == 1 and generator.random() < 0.7:
                generator.shuffle(mergeable)
                mask = sum(1 << u for u in mergeable)
                stages.append(make_stage([[problem.unit_names[u] for u in mergeable]], "merge"))
            else:
                mask = 1 << generator.choice(ready)
                for unit in bits(rest):
                    if not predecessors[unit] & rest & ~mask and generator.random() < 0.6:
                        mask |= 1 << unit
                groups = [[problem.unit_names[u] for u in bits(group)] for group in problem.groups(mask)]
                generator.shuffle(groups)
                stages.append(make_stage(groups))
            rest &= ~mask
        blocks.append(BlockSchedule(name=block.name, stages=stages))
    return make_schedule(network, blocks)


def random_streams(network: Network, seed: int) -> StreamSchedule:
    """Units in topological order, each on any of three streams, waiting for what it reads of the others."""
    generator = random.Random(seed)
    streams: list[list[StreamLaunch]] = [[], [], []]
    place: dict[int, int] = {}
    for block in network.blocks:
        for unit in block.units:
            place[unit] = generator.randrange(3)
            after = [network.units[u].name for u in network.predecessors[unit] if place[u] != place[unit]]
            streams[place[unit]].append(StreamLaunch(units=[network.units[unit].name], after=after))
    return with_barriers(sequential_schedule(network)).model_copy(update={"streams": streams})


def make_stage(
    groups: Sequence[Sequence[str]], strategy: Literal["concurrent", "merge"] = "concurrent", latency_us: float = 1.0
) -> Stage:
    return Stage(strategy=strategy, groups=[list(group) for group in groups], latency_us=latency_us)


def make_schedule(network: Network, blocks: Sequence[BlockSchedule]) -> Schedule:
    return Schedule(
        network=network.name,
        source=ModelReference(model=network.name, batch=1),
        graph_hash=network.graph.hash,
        device="test-device",
        precision=str(network.precision),
        engine="paper",
        cost_model={"name": "test"},
        scheduler="random",
        latency_us=sum(stage.latency_us for block in blocks for stage in block.stages),
        blocks=list(blocks),
    )


def one_block(network: Network, *stages: Stage) -> Schedule:
    """A schedule of a network with a single block."""
    return make_schedule(network, [BlockSchedule(name=network.blocks[0].name, stages=list(stages))])


def sequential_schedule(network: Network) -> Schedule:
    """Each unit a stage of its own."""
    return make_schedule(
        network,
        [
            BlockSchedule(name=block.name, stages=[make_stage([[network.units[unit].name]]) for unit in block.units])
            for block in network.blocks
        ],
    )


def random_inputs(network: Network, seed: int = 0) -> dict[str, Array]:
    generator = np.random.default_rng(seed)
    graph = network.graph
    return {name: generator.standard_normal(graph.types[name].shape).astype(np.float32) for name in graph.inputs}


def merged_stages(schedule: Schedule) -> int:
    return sum(stage.strategy == "merge" for stage in schedule.stages)


def random_order(problem: StreamProblem, generator: random.Random) -> list[int]:
    """Launches in a random order, each after all that it reads."""
    order: list[int] = []
    done: set[int] = set()
    while len(order) < len(problem):
        ready = [one for one in range(len(problem)) if one not in done and done.issuperset(problem.reads[one])]
        order.append(generator.choice(ready))
        done.add(order[-1])
    return order


def random_stream_batch(network: Network, seed: int, count: int = 4, most: int = 5) -> StreamBatch:
    """Schedules of all units of a network, each launched alone, in at most so many streams."""
    generator = random.Random(seed)
    problem = StreamProblem.of(network, [[unit] for unit in range(len(network.units))])
    orders = np.array([random_order(problem, generator) for _ in range(count)], dtype=np.int64)
    streams = np.array([[generator.randrange(most) for _ in range(len(problem))] for _ in range(count)], dtype=np.int64)
    return StreamBatch(problem, orders, streams)


def issued_streams(network: Network, batch: StreamBatch) -> StreamSchedule:
    """The first schedule of a batch, with the fewest waits."""
    issued = batch.problem.issued(batch.orders[0].tolist(), batch.streams[0].tolist())
    return as_streams(sequential_schedule(network), network).model_copy(update=in_streams(network, issued))
