"""Plans of dataflow: run in their own memories and layouts they give the reference's outputs, and no memory holds too much."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from edge_devices import made, outputs_equal
from graph_builders import builder_with
from random_networks import random_inputs

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import DeviceError, PlanError
from iossim.edge import capacity
from iossim.edge.capacity import check
from iossim.edge.linking import MemoryKind
from iossim.edge.optimize import POLICIES, plan
from iossim.edge.plan import EdgePlan, OperatorStep, OutputSlice, Variant, Work, unit_work
from iossim.edge.simulator import execute
from iossim.edge.simulator.events import simulate
from iossim.edge.simulator.execute import run
from iossim.edge.splitting import Even
from iossim.hardware.edge import EdgeDevice
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.conv_transpose import ConvTranspose
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Add
from iossim.ir.ops.normalization import LayerNorm
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, MaxPool
from iossim.ir.ops.reduce import CumSum
from iossim.ir.ops.reshape import Reshape, Transpose
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.softmax import Softmax
from iossim.ir.ops.unary import Relu
from iossim.models.load import load

#: Units, private, shared and cache bytes: what must be sliced, cut and sent outside is, and on some nothing.
SIZES = ((8, 2048, 9000, 256), (5, 512, 3000, 0), (3, 100_000, 100_000, 1024), (9, 1000, 1800, 64))


def image_network(seed: int) -> Network:
    """A few random operators on an image, two of them side by side."""
    random_ = random.Random(seed)
    b = GraphBuilder(f"net{seed}")
    groups = random_.choice((1, 1, 3))
    x = b.input("x", (1, random_.choice((3, 6)), random_.randint(5, 13), random_.randint(5, 11)))
    first = b.add(Relu(), _conv(b, random_, x, 6, 1))
    left = _conv(b, random_, first, 9, groups)
    right = b.add(random_.choice((MaxPool, AveragePool))((3, 3), (1, 1), (1, 1, 1, 1)), first)
    if b.types[left].shape[2:] == b.types[right].shape[2:]:
        left = b.add(Concat(1), left, right)
    y = _conv(b, random_, left, b.types[left].shape[1], b.types[left].shape[1])
    y = b.add(Add(), y, y)
    y = b.add(ConvTranspose((2, 2), (1, 1, 1, 1)), y, b.constant("up", (b.types[y].shape[1], 4, 4, 4)))
    return b.network([b.add(GlobalAveragePool(), y), right])


def _conv(b: GraphBuilder, random_: random.Random, x: str, channels: int, groups: int) -> str:
    kernel = random_.choice((1, 3, 3, 5)) if min(b.types[x].shape[2:]) > 4 else 1
    return b.conv(x, channels, kernel, random_.choice((1, 1, 2)), kernel // 2, groups)


def sequence_network(seed: int) -> Network:
    """Attention in small, and an op whose access nobody knows."""
    random_ = random.Random(seed)
    b = GraphBuilder(f"net{seed}")
    length, width = random_.randint(3, 9), 4 * random_.randint(1, 5)
    x = b.input("x", (1, length, width))
    heads = (1, length, 4, width // 4)
    with b.unit("query", "Query"):
        q = b.add(Transpose((0, 2, 1, 3)), b.add(Reshape(heads), b.add(MatMul(), x, b.constant("q", (width, width)))))
    with b.unit("key", "Key"):
        k = b.add(Transpose((0, 2, 3, 1)), b.add(Reshape(heads), x))
    scores = b.add(Softmax(), b.add(MatMul(), q, k))
    y = b.add(Reshape((1, 4 * length, length)), scores)
    y = b.add(CumSum(axis=1), y) if random_.random() < 0.3 else y
    y = b.add(LayerNorm(), y, b.constant("s", (length,), value=1.0), b.constant("t", (length,)))
    return b.network([y])


FEW = [(seed, [Variant.FULL]) for seed in range(6)]
MANY = [pytest.param(seed, Variant, marks=pytest.mark.slow) for seed in range(6, 42)]


@pytest.mark.parametrize(("seed", "variants"), [*FEW, *MANY])
def test_random_networks_run_as_planned(seed: int, variants: Iterable[Variant]) -> None:
    network = (image_network if seed % 3 else sequence_network)(seed)
    units, private, shared, cache = SIZES[seed % 4]
    device = made(units=units, private_bytes=private, shared__bytes=shared, cache_bytes=cache)
    policy = sorted(POLICIES)[seed % 2]
    for variant in variants:
        outputs_equal(plan(network, device, variant, policy))


def one_conv(channels: int = 16, size: int = 16, kernel: int = 1) -> Network:
    b, x = builder_with("conv", x=(1, channels, size, size))
    with b.unit("conv", "Conv"):
        y = b.conv(x, 16, kernel, padding=kernel // 2)
    return b.network([y])


def test_a_lone_unit_takes_what_its_work_takes() -> None:
    """Compute hides what streams, and nothing hides what is waited for."""
    device = made(unpartitioned_units=1, cache_bytes=0)
    found = plan(one_conv(), device, Variant.VANILLA)
    read = 16 * 16 * 16 * 64 / 20.0 / 1e3
    compute = (16 * 16 * 256 + 16 * 256) / (8 * 1.25e3)
    assert simulate(found).total_us == pytest.approx(read + compute, rel=1e-6)


def test_what_units_share_is_shared() -> None:
    """Eight units that each wait for the whole map take as long as the shared memory takes for eight."""
    device = made(cache_bytes=0)
    found = plan(one_conv(), device, Variant.HORIZONTAL)
    (step,) = found.steps
    # One unit alone would be done sooner, and that is what is planned; here all eight are asked for.
    assert not step.is_cut
    space = step.slices[0].partition.space
    found = replace(found, steps=(OperatorStep(step.operator, (OutputSlice(Even(space, 8, step.operator.axes)),)),))
    timed = simulate(found)
    moved = 8 * 16 * 256 * 64
    first, *_ = unit_work(found, found.steps[0], found.steps[0].slices[0], 0)
    assert [each.size for each in first.reads] == [16 * 256 * 4]
    assert timed.moved_bytes[0][MemoryKind.SHARED] == moved + 16 * 256 * 4
    assert timed.total_us > moved / 80.0 / 1e3
    faster = simulate(replace(found, device=made(cache_bytes=0, shared__bandwidth_gbps=1e6)))
    assert faster.total_us < timed.total_us


def test_linking_moves_less_and_takes_less() -> None:
    b, x = builder_with("two", x=(1, 16, 32, 32))
    with b.unit("first", "Conv-Relu"):
        x = b.add(Relu(), b.conv(x, 32, 1))
    with b.unit("second", "Conv"):
        x = b.conv(x, 32, 3, padding=1)
    network = b.network([x])
    horizontal, full = (plan(network, made(), variant) for variant in (Variant.HORIZONTAL, Variant.FULL))
    (link,) = full.links
    assert link.readers == ("second",)
    assert link.bytes < link.unlinked_bytes
    assert simulate(full).total_us < simulate(horizontal).total_us
    assert full.buffers[link.value].bytes > horizontal.buffers[link.value].bytes  # halos
    outputs_equal(full)


def test_a_map_larger_than_the_shared_memory_goes_by_slices() -> None:
    network = one_conv(size=32, kernel=3)
    device = made(shared__bytes=40_000)
    found = plan(network, device, Variant.FULL)
    (step,) = found.steps
    assert len(step.slices) > 1
    assert all(part.inputs and part.output for part in step.slices)
    outputs_equal(found)


def test_an_unknown_operator_runs_whole_and_is_named() -> None:
    b, x = builder_with("odd", x=(4, 6))
    with b.unit("sums", "CumSum"):
        y = b.add(CumSum(axis=1), x)
    network = b.network([y])
    found = plan(network, made(), Variant.FULL)
    assert found.steps[0].operator.unknown == "no known access pattern of cumsum"
    outputs_equal(found)


def rows_on_units(network: Network, device: EdgeDevice, units: int = 2) -> EdgePlan:
    """A plan of one operator whose rows are split over units, so that all of them use the same parameters."""
    found = plan(network, device, Variant.HORIZONTAL)
    (step,) = found.steps
    space = step.slices[0].partition.space
    return replace(found, steps=(OperatorStep(step.operator, (OutputSlice(Even(space, units, (2,))),)),))


def test_a_unit_that_reads_what_another_loaded_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both units use equal parameters at equal addresses: in one array for all, the second would find those of the first."""
    found = rows_on_units(one_conv(), made(units=2))
    outputs_equal(found)
    load_parameters, loaded = execute._load, []

    def only_the_first_loads(memories: object, private: object, work: Work) -> None:
        if not loaded:
            load_parameters(memories, private, work)  # type: ignore[arg-type]
        loaded.append(work)

    monkeypatch.setattr(execute, "_load", only_the_first_loads)
    (array,) = run(found, random_inputs(found.network)).values()
    assert len(loaded) == 2
    assert np.isfinite(array[:, :, :8]).all()
    assert np.isnan(array[:, :, 8:]).all()


def test_parameters_that_come_meanwhile_do_not_overwrite_those_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    found = rows_on_units(one_conv(64), made(units=2, private_bytes=2048, dma__channels=1))
    outputs_equal(found)
    fast = made(units=2, private_bytes=2048, dma__channels=1, external__bandwidth_gbps=1e6)
    timed, gbps, setup_us = simulate(replace(found, device=fast)), fast.dma.channel_gbps.value, fast.dma.setup_us.value
    moved_us = sum(span.end_us - span.start_us - setup_us for span in timed.spans if span.lane == "dma")
    assert moved_us == pytest.approx(timed.moved_bytes[0][MemoryKind.EXTERNAL] / gbps / 1e3, rel=1e-3)

    def all_at_the_beginning(*about: Any) -> tuple[Work, ...]:
        return tuple(replace(work, private_address=0) for work in unit_work(*about))

    for module in (execute, capacity):
        monkeypatch.setattr(module, "unit_work", all_at_the_beginning)
    inputs = random_inputs(found.network)
    ((name, expected),) = evaluate_graph(found.network.graph, inputs).items()
    assert not np.allclose(run(found, inputs)[name], expected)
    with pytest.raises(PlanError, match="chunk 1 and chunk 2 overlap in the private memory"):
        check(found)


@pytest.mark.parametrize("variant", Variant)
def test_every_plan_is_checked_for_what_units_hold(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    found = plan(one_conv(), made(), variant)
    check(found)
    monkeypatch.setattr(
        capacity, "unit_work", lambda *about: [replace(work, private_bytes=1 << 20) for work in unit_work(*about)]
    )
    with pytest.raises(PlanError, match="chunk 1 ends at 1,048,576 of 524,288 bytes of private memory"):
        check(found)


def test_what_a_device_lacks_is_said() -> None:
    network = one_conv()
    with pytest.raises(DeviceError, match=r"needs .* bytes of external memory; c6678.* has 1,024"):
        plan(network, made(external__bytes=1024), Variant.FULL)
    with pytest.raises(DeviceError, match=r"operator 'conv' needs .* bytes of parameters at once"):
        plan(network, made(private_bytes=8), Variant.FULL)


def test_the_search_is_never_worse_than_the_priority() -> None:
    device: EdgeDevice = made(units=6)
    for seed in (1, 4):
        network = image_network(seed)
        by_priority, searched = (
            simulate(plan(network, device, Variant.HORIZONTAL, policy)).total_us
            for policy in ("priority", "exhaustive")
        )
        assert searched < 1.05 * by_priority


def test_splitting_is_never_slower_than_leaving_an_operator_as_it_is() -> None:
    """Nor where the shared memory holds next to nothing, so that split maps come and go in a thousand pieces.

    The closed form that decides does not see units wait for each other, so that an operator may take 5% longer.
    """
    for network, device in ((load("squeezenet"), made(shared__bytes=1000)), (load("resnet18"), made("zcu102"))):
        times = [simulate(plan(network, device, variant)) for variant in (Variant.VANILLA, Variant.HORIZONTAL)]
        vanilla, horizontal = ([end - start for start, end in each.steps] for each in times)
        slower = [
            unit.name
            for unit, before_us, us in zip(network.units, vanilla, horizontal, strict=True)
            if us > 1.05 * before_us
        ]
        assert slower == []
        assert times[1].total_us <= times[0].total_us
