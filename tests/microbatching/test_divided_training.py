"""Networks and training graphs in micro-batches compute what they do undivided, in plans that are proved; and what a limit makes of them."""

from pathlib import Path

import numpy as np
import pytest
from checked_execution import execute
from divided import divided
from graph_builders import builder_with
from random_networks import random_inputs
from seeded_weights import LIGHT_MODELS, write_seeded

import iossim
from iossim import api, related
from iossim.backends.numpy_reference.backend import evaluate_graph, numpy_outputs
from iossim.base.errors import GraphError
from iossim.execution.backend import create_backend
from iossim.execution.lower import lower_schedule
from iossim.execution.measured_run import largest_difference, output_difference, plan_for
from iossim.execution.memory import check_happens_before, plan_memory
from iossim.execution.plan import Plan
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.conv_transpose import ConvBackwardFilter
from iossim.ir.ops.matmul import Gemm
from iossim.ir.ops.pool import GlobalAveragePool
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.reshape import Reshape
from iossim.microbatching.convolutions_in_micro_batches import runnable_schedule
from iossim.microbatching.divided_blocks import divide_blocks, divide_units
from iossim.microbatching.divisible import divisible, unit_part
from iossim.microbatching.division import BenchmarkRow
from iossim.microbatching.kernels_under_limits import Benchmarks
from iossim.microbatching.network_kernels import BACKWARD_DATA, BACKWARD_FILTER, FORWARD, convolution_kernels
from iossim.microbatching.training_pass import training_network
from iossim.schedule.schedule import Schedule
from iossim.tasks.measured_schedules import for_backend
from iossim.transforms.replay import network_of


def trained(batch: int = 4) -> Network:
    """Two convolutions, pooling and a classifier, with their gradients. As many channels as images: shapes alone tell nothing."""
    b, x = builder_with("trained", x=(batch, 3, 9, 9))
    with b.block("maps"):
        y = b.conv(x, batch, 3, padding=1, name="first")
        y = b.conv(y, batch, 3, stride=2, name="second")
    with b.block("head"):
        flat = b.add(Reshape((batch, batch)), b.add(GlobalAveragePool(), y))
        b.add(Gemm(), flat, b.constant("weight", (batch, 5)), b.constant("bias", (5,)), name="classes")
    return training_network(b.network(["classes"]))


def planned(network: Network) -> Plan:
    found = api.optimize(network, "v100-sxm2", scheduler="ios-parallel")
    return plan_memory(lower_schedule(found, network, in_place=True))


@pytest.mark.parametrize("count", [2, 4])
def test_gradients_are_those_of_the_whole_batch(count: int) -> None:
    network = trained()
    assert all(divisible(network, block, count) for block in network.blocks)
    divided = divide_blocks(network, {block.name: count for block in network.blocks})
    assert divided.graph.outputs == network.graph.outputs
    forward = {unit.name for unit in network.units if "backward" not in unit.name}
    ordered = {names[0].split(".1of")[0] for names in divided.interchangeable}
    assert ordered <= forward, "sums order the copies where there are any"
    plan = planned(divided)
    check_happens_before(plan)
    inputs = random_inputs(network)
    found = execute(plan, divided, inputs)
    for name, expected in evaluate_graph(network.graph, inputs).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max(), err_msg=name)


def test_what_is_no_sum_of_images_is_not_divided() -> None:
    b, x, y, start = builder_with("sums", x=(4, 6, 5, 5), y=(4, 4, 3, 3), start=(4, 6, 3, 3))
    for function in ("sum", "max"):
        b.add(Reduce(function, (0,), keepdims=True), x, name=function)
    rows = b.add(Reshape((4, 150)), x, name="rows")
    b.add(Gemm(alpha=2.0, trans_a=True), rows, rows, name="squares")
    b.add(Gemm(beta=2.0, trans_a=True), rows, rows, name="weighed")
    b.add(ConvBackwardFilter(kernel_size=(3, 3)), x, y, start, name="goes on")
    network = b.network(["sum", "max", "squares", "weighed", "goes on"])
    parts = {unit.name: unit_part(network, unit, 4, 2) for unit in network.units}
    assert {name for name, part in parts.items() if part is not None and part.sums} == {"sum", "squares"}
    assert {name for name, part in parts.items() if part is None} == {"max", "weighed", "goes on"}


def test_under_a_limit_gradients_in_micro_batches_are_faster() -> None:
    b, y = builder_with("wide", x=(64, 64, 28, 28))
    with b.block("only"):
        y = b.conv(y, 96, 5, padding=2, name="conv")
    network = training_network(b.network([y]))
    options = api.search_options(workspace_limit="64MiB")
    before = api.optimize(network, "p100-sxm2", options=options)
    found = divided(network, "p100-sxm2", options=options)
    assert found.after_us is not None
    assert found.after_us < before.latency_us
    assert "only.backward" in found.parts


SMALL = (4, 3, 64, 64)


def error_of(schedule: Schedule, divided: Network, whole: Network, backend: str) -> float:
    """Error of a divided network's schedule against the outputs of the whole one, with a backend's own kernels."""
    runner = create_backend(backend)
    plain, _ = for_backend(schedule, divided, runner)
    inputs = random_inputs(whole)
    outputs = runner.execute(divided, plan_for(plain, divided, runner), inputs)
    return largest_difference(outputs, evaluate_graph(whole.graph, inputs)).relative


def unequal(network: Network, training: bool) -> Schedule:
    """A schedule of the network's convolutions of four images in micro-batches of three and one."""
    batches = {name: kernel.batch for name, kernel in convolution_kernels(network, training).items()}
    rows = [BenchmarkRow(size, "any", time_us, 0) for size, time_us in ((1, 2.0), (3, 5.0), (4, 90.0))]
    found = Benchmarks(batches, dict.fromkeys(batches, tuple(rows))).divided()
    assert {one.configuration.sizes for one in found.kernels} == {(3, 1)}
    made, plain = (
        runnable_schedule(found, network, api.cost_model(*by)) for by in (("simulator", "p100-sxm2"), ["random:1"])
    )
    assert [stage.units for stage in plain.stages] == [stage.units for stage in made.stages]  # which knows no variants
    return made


@pytest.mark.parametrize(
    ("model", "training", "backend"),
    [
        ("squeezenet", False, "numpy_reference"),
        ("squeezenet", False, "onnxruntime_cpu"),
        ("squeezenet", True, "numpy_reference"),
        ("resnet18", False, "numpy_reference"),
        ("resnet18", False, "onnxruntime_cpu"),
    ],
)
def test_a_network_of_the_zoo_in_unequal_micro_batches(model: str, training: bool, backend: str) -> None:
    whole = iossim.load(model, shapes={"image": SMALL}, training=training)
    schedule = unequal(whole, training)
    divided = network_of(schedule)
    kernels = convolution_kernels(whole, training)
    convolutions = [unit for unit in divided.units if ".1of1x3-1x1" in unit.name and unit.kind.startswith("Conv")]
    assert len(convolutions) == len(kernels)
    assert {name.direction for name in kernels} == {FORWARD, *((BACKWARD_DATA, BACKWARD_FILTER) if training else ())}
    assert error_of(schedule, divided, whole, backend) < 2e-5


@pytest.mark.parametrize("model", ["light_squeezenet", "light_shufflenet"])
def test_a_model_of_onnx_in_equal_micro_batches(tmp_path: Path, model: str) -> None:
    """Blocks in two, as ``optimize --micro-batch 2`` has them, under a limit for which the schedule names variants."""
    file = write_seeded(LIGHT_MODELS / f"{model}.onnx", tmp_path / f"{model}.onnx")
    whole = iossim.load(file, batch=2)
    options = api.search_options(workspace_limit="64KiB")
    schedule = api.optimize(whole, "v100-sxm2", scheduler="sequential", options=options, micro_batch=2)
    divided = network_of(schedule)
    assert len(divided.units) > len(whole.units)
    assert error_of(schedule, divided, whole, "onnxruntime_cpu") < 1e-4


def test_variants_of_another_device_are_left_to_the_backends_own_kernels() -> None:
    network = iossim.load("resnet18", shapes={"image": SMALL})
    options = api.search_options(workspace_limit="100KiB")
    schedule = api.optimize(network, "v100-sxm2", scheduler="sequential", options=options)
    variants = {unit: variant for stage in schedule.stages for unit, variant in stage.variants.items()}
    assert variants
    for backend in ("numpy_reference", "onnxruntime_cpu"):
        runner = create_backend(backend)
        plain, remark = for_backend(schedule, network, runner)
        assert not any(stage.variants for stage in plain.stages)
        assert f"{backend} runs {len(variants)} units with its own kernels" in remark
        assert all(variant in remark for variant in variants.values())
        assert output_difference(network, plain, runner, numpy_outputs).relative < 2e-5
    simulator = create_backend("simulator", options={"device": "v100-sxm2"})
    assert for_backend(schedule, network, simulator) == (schedule, "")


def test_micro_batches_run_in_the_workspace_of_their_kernel() -> None:
    network = iossim.load("alexnet", batch=256)
    found = related.microbatch(network, "p100-sxm2", policy="power-of-two", total_workspace="60MiB")
    assert any(one.configuration.micro_batches > 1 for one in found.kernels)
    schedule = runnable_schedule(found, network, api.cost_model("simulator", "p100-sxm2"))
    simulator = create_backend("simulator", options={"device": "p100-sxm2"})
    plan = plan_for(schedule, network_of(schedule), simulator)
    room = {one.name.layer: one.configuration.workspace_bytes for one in found.kernels}
    most = dict.fromkeys(room, 0)
    for launch in plan.launches:
        layer = next((name for name in room if launch.units[0].startswith(name.removesuffix(".conv"))), None)
        if layer is not None and launch.workspace is not None:
            most[layer] = max(most[layer], plan.buffers[launch.workspace].bytes)
    assert most == room
    assert schedule.latency_us == pytest.approx(sum(stage.latency_us + stage.boundary_us for stage in schedule.stages))


def test_more_micro_batches_than_a_block_has_units() -> None:
    b = GraphBuilder("wide")
    b.input("x", (70, 2, 5, 5))
    whole = b.network([b.conv("x", 3, 3, name="conv")])
    divided = divide_units(whole, {"conv": (1,) * 70})
    assert sum(unit.name.endswith("of70") for unit in divided.units) == 70
    assert max(len(block.units) for block in divided.blocks) == 64
    inputs = random_inputs(whole)
    (expected,), (found,) = (evaluate_graph(each.graph, inputs).values() for each in (whole, divided))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    with pytest.raises(GraphError, match="unit 'conv' cannot be divided into micro-batches of 69"):
        divide_units(whole, {"conv": (69,)})
