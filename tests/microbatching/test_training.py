"""Training graphs: gradients against finite differences in float64, op kind by op kind and network by network."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from command_line import printed_json, refused

import iossim
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import GraphError, ModelError
from iossim.ir.builder import GraphBuilder
from iossim.ir.constants import ArrayConstant
from iossim.ir.graph import Graph
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.functions import UNARY, Nary, Unary
from iossim.ir.ops.gather import Gather, GatherBackward
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.nary import Add, Mul, Where
from iossim.ir.ops.normalization import BatchNorm, LayerNorm
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, MaxPool
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.reshape import Expand, Flatten, Reshape, Transpose
from iossim.ir.ops.slice import Concat, Slice, Split
from iossim.ir.ops.softmax import LogSoftmax, Softmax
from iossim.ir.ops.unary import Clip, Relu, Sigmoid
from iossim.ir.types import DType, Precision
from iossim.microbatching.elementwise_gradients import SLOPES
from iossim.microbatching.training_pass import PREFIX, training_network, with_batch_statistics
from iossim.models.partition import network_of


def builder() -> GraphBuilder:
    """Builder of graphs in float64."""
    b = GraphBuilder("net")
    b.dtype = DType.FLOAT64
    return b


def drawn(graph: Graph, seed: int = 0) -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs and weights; variances positive."""
    generator = np.random.default_rng(seed)
    inputs = {name: generator.standard_normal(graph.types[name].shape) for name in graph.inputs}
    weights = {
        name: np.abs(array) + 0.5 if "variance" in name else array
        for name, each in graph.constants.items()
        if "backward" not in name and name != "number"
        for array in [generator.standard_normal(each.type.shape)]
    }
    return inputs, weights


def evaluated(graph: Graph, inputs: Mapping[str, Array], weights: Mapping[str, Array]) -> dict[str, Array]:
    constants = {name: ArrayConstant(array) for name, array in weights.items()}
    return evaluate_graph(replace(graph, constants={**graph.constants, **constants}), inputs)


def holds(network: Network, step: float = 1e-6, tolerance: float = 1e-5) -> set[str]:
    """Check every gradient against finite differences along two random directions; returns the weights that have one."""
    trained = training_network(network)
    graph = trained.graph
    inputs, weights = drawn(graph)
    found = evaluated(graph, inputs, weights)
    outputs = network.graph.outputs
    plain = evaluated(network.graph, {name: inputs[name] for name in network.graph.inputs}, weights)
    for name in outputs:
        np.testing.assert_array_equal(found[name], plain[name])

    def loss(changed: Mapping[str, Array]) -> float:
        made = evaluated(network.graph, {name: inputs[name] for name in network.graph.inputs}, weights | changed)
        return float(sum(np.sum(made[name] * inputs[f"{PREFIX}{name}"]) for name in outputs))

    generator = np.random.default_rng(1)
    learnt = {name.removeprefix(PREFIX) for name in graph.outputs if name.startswith(PREFIX)}
    for name in learnt:
        gradient = found[f"{PREFIX}{name}"]
        assert gradient.shape == weights[name].shape
        for _ in range(2):
            direction = generator.standard_normal(weights[name].shape)
            ahead, back = (loss({name: weights[name] + side * step * direction}) for side in (1, -1))
            assert np.sum(gradient * direction) == pytest.approx((ahead - back) / (2 * step), rel=tolerance, abs=1e-6)
    return learnt


def after_a_product(add: Callable[[GraphBuilder, str], str], *shape: int) -> Network:
    """The op after a product with a weight, to which its gradient goes on."""
    b = builder()
    x = b.add(Mul(), b.input("x", shape), b.constant("scale", shape))
    network = b.network([add(b, x)])
    return replace(network, weights=frozenset(network.graph.constants) - {"number"})


def whole(b: GraphBuilder, value: int, *shape: int) -> str:
    return b.constant("number", shape, DType.INT64, value)


def number(b: GraphBuilder, value: float) -> str:
    return b.constant("number", (), value=value)


def unary(function: str, b: GraphBuilder, x: str) -> str:
    """The function, of positive numbers if it needs them."""
    if function in ("log", "sqrt"):
        x = b.add(Add(), b.add(Mul(), x, x), number(b, 1.0))
    return b.add(Unary(function, tuple(usual for _, usual in UNARY[function].parameters)), x)


def reduced(function: str, keepdims: bool, b: GraphBuilder, x: str) -> str:
    return b.add(Reduce(function, (0, -1), keepdims), x)


OPS: dict[str, tuple[Callable[[GraphBuilder, str], str], tuple[int, ...]]] = {
    "relu": (lambda b, x: b.add(Relu(), x), (2, 3)),
    "sigmoid": (lambda b, x: b.add(Sigmoid(), x), (2, 3)),
    "softmax": (lambda b, x: b.add(Softmax(-1), x), (2, 5)),
    "softmax of channels": (lambda b, x: b.add(Softmax(1), x), (2, 5, 3)),
    "max pool": (lambda b, x: b.add(MaxPool((3, 3), (2, 2), (1, 1, 1, 1)), x), (2, 3, 7, 6)),
    "max pool, dilated": (lambda b, x: b.add(MaxPool((2, 2), (1, 1), (0, 1, 1, 0), (2, 1)), x), (1, 2, 7, 6)),
    "max pool, ceil": (lambda b, x: b.add(MaxPool((3, 3), (2, 2), (0, 0, 0, 0), ceil_mode=True), x), (1, 2, 8, 6)),
    "average pool": (lambda b, x: b.add(AveragePool((3, 3), (1, 1), (1, 1, 1, 1)), x), (2, 3, 5, 6)),
    "average pool, padding": (
        lambda b, x: b.add(AveragePool((3, 2), (2, 1), (1, 1, 0, 1), count_include_pad=True), x),
        (1, 2, 7, 6),
    ),
    "global average pool": (lambda b, x: b.add(GlobalAveragePool(), x), (2, 3, 4, 5)),
    "batch norm": (
        lambda b, x: b.add(BatchNorm(), x, *(b.constant(name, (3,)) for name in ("gamma", "beta", "mean", "variance"))),
        (2, 3, 4, 5),
    ),
    "concat": (lambda b, x: b.add(Concat(1), x, b.add(Relu(), x), x), (2, 3, 2, 2)),
    "sum that broadcasts": (lambda b, x: b.add(Add(), x, b.constant("shift", (3, 1))), (2, 3, 4)),
    "product that broadcasts": (lambda b, x: b.add(Mul(), x, b.constant("gain", (1, 4))), (2, 3, 4)),
    "flatten": (lambda b, x: b.add(Flatten(), x), (2, 3, 4)),
    "reshape": (lambda b, x: b.add(Reshape((6, 4)), x), (2, 3, 4)),
    "transpose": (lambda b, x: b.add(Transpose((2, 0, 1)), x), (2, 3, 4)),
    "gemm": (lambda b, x: b.add(Gemm(2.0, 0.5), x, b.constant("w", (3, 4)), b.constant("c", (4,))), (2, 3)),
    "gemm, transposed": (lambda b, x: b.add(Gemm(trans_a=True, trans_b=True), x, b.constant("w", (4, 2))), (2, 3)),
    "gemm, first transposed": (lambda b, x: b.add(Gemm(trans_a=True), x, b.constant("w", (2, 4))), (2, 3)),
    "matmul with a weight": (lambda b, x: b.add(MatMul(), x, b.constant("w", (4, 5))), (2, 3, 4)),
    "matmul of two": (lambda b, x: b.add(MatMul(), x, b.add(Transpose((0, 2, 1)), x)), (2, 3, 4)),
    "matmul that broadcasts": (lambda b, x: b.add(MatMul(), x, b.constant("w", (3, 4, 5))), (2, 1, 2, 4)),
    "log softmax": (lambda b, x: b.add(LogSoftmax(1), x), (2, 5, 3)),
    "layer norm": (lambda b, x: b.add(LayerNorm(), x, b.constant("gain", (5,)), b.constant("shift", (5,))), (2, 3, 5)),
    "layer norm of two axes": (lambda b, x: b.add(LayerNorm(1), x, b.constant("gain", (3, 5))), (2, 3, 5)),
    "expand": (lambda b, x: b.add(Expand((2, 3, 4)), x), (3, 1)),
    "slice": (lambda b, x: b.add(Slice((1, -3), (9, -1), (0, 2), (1, 1)), x), (3, 2, 5)),
    "split": (lambda b, x: b.add(Mul(), *b.add_all(Split(1, (2, 1, 2)), x)[::2]), (3, 5)),
    "gather": (lambda b, x: b.add(Gather(1), x, whole(b, -2, 2, 2)), (2, 3, 2)),
    "gather one": (lambda b, x: b.add(Gather(1), x, whole(b, 1)), (2, 3, 2)),
    "where": (lambda b, x: b.add(Where(), b.add(Nary("less"), x, b.constant("other", (3,))), x, x), (2, 3)),
    "clip": (lambda b, x: b.add(Clip(-0.5, 0.7), x), (4, 5)),
    "clip from below": (lambda b, x: b.add(Clip(0.0), x), (4, 5)),
    "relu6": (lambda b, x: b.add(Clip(0.0, 6.0), x), (4, 5)),
    "clip without bounds": (lambda b, x: b.add(Clip(), x), (4, 5)),
    "difference": (lambda b, x: b.add(Nary("sub"), b.constant("other", (3,)), x), (2, 3)),
    "quotient": (lambda b, x: b.add(Nary("div"), b.constant("other", (3,)), x), (2, 3)),
    "power": (lambda b, x: b.add(Nary("pow"), x, number(b, 3.0)), (2, 3)),
    "power, whole": (lambda b, x: b.add(Nary("pow"), x, whole(b, 2)), (2, 3)),
    "silu": (lambda b, x: b.add(Mul(), x, b.add(Sigmoid(), x)), (2, 3)),
    **{function: (partial(unary, function), (3, 4)) for function in SLOPES if function in UNARY},
    **{
        f"reduce, {function}{', keepdims' * keepdims}": (partial(reduced, function, keepdims), (2, 3, 4))
        for function in ("sum", "mean", "max", "min", "l1", "l2", "sum_square", "log_sum_exp")
        for keepdims in (False, True)
    },
    "conv": (lambda b, x: b.conv(x, 4, 3, stride=2, padding=1), (2, 3, 7, 6)),
    "grouped conv": (lambda b, x: b.conv(x, 6, 3, padding=1, groups=3), (2, 3, 5, 5)),
}


@pytest.mark.parametrize("name", OPS)
def test_an_op_has_the_gradient_of_finite_differences(name: str) -> None:
    add, shape = OPS[name]
    assert "scale" in holds(after_a_product(add, *shape))


def test_a_value_that_is_read_twice_has_the_sum() -> None:
    b = builder()
    x = b.input("x", (1, 2, 5, 5))
    weight = b.constant("shared", (2, 2, 3, 3))
    y = b.add(Conv(pads=(1, 1, 1, 1)), x, weight)
    z = b.add(Conv(pads=(1, 1, 1, 1)), b.add(Relu(), y), weight)
    assert holds(b.network([b.add(Add(), y, z), y])) == {"shared"}


def test_blocks_come_again_from_the_last_to_the_first() -> None:
    network = iossim.load("squeezenet")
    trained = training_network(network)
    names = [block.name for block in trained.blocks]
    forward = [block.name for block in network.blocks]
    assert names[: len(forward)] == forward
    assert [name.removesuffix(".backward") for name in names[len(forward) :]] == forward[::-1]
    weights = {name for name in trained.graph.outputs if name.startswith(PREFIX)}
    assert weights == {f"{PREFIX}{name}" for name in network.graph.constants}
    macs = trained.statistics()["macs"] / network.statistics()["macs"]
    assert 2.5 < macs < 3  # three products a layer, but that of the first layer's input


def test_ios_runs_the_two_gradients_of_a_layer_side_by_side() -> None:
    found = iossim.optimize(iossim.load("ios_sample", batch=8, training=True), "v100-sxm2", scheduler="ios-parallel")
    beside = [
        {name.split(".")[-1].rstrip("0123456789") for group in stage.groups for name in group}
        for stage in found.stages
        if len(stage.groups) > 1
    ]
    assert any({"conv_backward_data", "conv_backward_filter"} <= kinds for kinds in beside)


def test_from_the_command_line() -> None:
    found = printed_json("compare ios_sample -d v100-sxm2 -b 8 --training --json")
    latency = {one["scheduler"]: one["latency_us"] for one in found["schedules"]}
    assert latency["ios-both"] < latency["sequential"]
    forward = printed_json("compare ios_sample -d v100-sxm2 -b 8 --json")
    assert latency["sequential"] > 2 * forward["schedules"][0]["latency_us"]


def test_a_batch_norm_of_a_batch_has_the_gradient_of_finite_differences() -> None:
    network = after_a_product(OPS["batch norm"][0], 2, 3, 4, 5)
    given = network.graph.types.keys()
    graph = with_batch_statistics(network.graph)
    assert {"mean", "variance"} <= given - graph.types.keys()
    trained = replace(network_of(graph, "net", Precision.FP32), weights=frozenset({"scale", "gamma", "beta"}))
    assert holds(trained) == {"scale", "gamma", "beta"}
    made = evaluated(graph, *drawn(graph))[graph.outputs[0]]
    gamma, beta = (drawn(graph)[1][name] for name in ("gamma", "beta"))
    np.testing.assert_allclose(made.mean(axis=(0, 2, 3)), beta, atol=1e-9)
    np.testing.assert_allclose(made.std(axis=(0, 2, 3)), np.abs(gamma), rtol=1e-3)


def test_statistics_that_are_computed_otherwise_are_named() -> None:
    def add(b: GraphBuilder, x: str) -> str:
        computed = b.add(Relu(), b.constant("m", (3,)))
        return b.add(BatchNorm(), x, b.constant("g", (3,)), b.constant("b", (3,)), computed, computed)

    network = after_a_product(add, 2, 3, 4)
    with pytest.raises(ModelError, match="reads statistics that are computed, and has no gradient here"):
        training_network(network)


def test_the_gradient_of_a_table_is_the_sum_of_what_was_picked() -> None:
    found = GatherBackward(1, 3).evaluate([np.arange(8.0).reshape(2, 2, 2), np.array([2, -1])])[0]
    np.testing.assert_array_equal(found, [[[0, 0], [0, 0], [2, 4]], [[0, 0], [0, 0], [10, 12]]])
    with pytest.raises(GraphError, match="was gathered outside its data"):
        GatherBackward(0, 3).evaluate([np.zeros((1, 2)), np.array([3])])


def test_a_single_number_is_no_weight_and_what_nothing_reads_is_not_computed() -> None:
    graph = training_network(iossim.load("bert_layer")).graph
    learnt = {name.removeprefix(PREFIX) for name in graph.outputs if name.startswith(PREFIX)}
    assert learnt == set(iossim.load("bert_layer").graph.constants) - {"scores.scale"}
    assert all(graph.consumers[value] for value in graph.producer.keys() - set(graph.outputs))


def test_weights_whose_gradients_are_one_value_have_one_each() -> None:
    """The gradient of two weights that are added is that of the output, which is an input."""
    b = builder()
    x = b.add(Add(), b.input("x", (2, 3)), b.constant("first", (2, 3)))
    assert holds(b.network([b.add(Add(), x, b.constant("second", (2, 3)))])) == {"first", "second"}
    b = builder()
    x = b.add(Add(), b.input("x", (2, 3)), b.constant("first", (2, 3)))
    x = b.add(Add(), x, b.constant("second", (2, 3)))
    assert holds(b.network([b.add(Unary("tanh"), x)])) == {"first", "second"}


def test_what_has_no_gradient_is_named() -> None:
    assert "op 'up2.deconv.conv' (conv_transpose) has no gradient here; leave out --training" in refused(
        "optimize centernet -d t4 --training"
    )
    with pytest.raises(ModelError, match=r"'\w+' \(Acos\) has no gradient here"):
        training_network(after_a_product(lambda b, x: b.add(Unary("acos"), x), 2, 3))
    b = builder()
    with pytest.raises(ModelError, match="has no weight that its outputs depend on"):
        training_network(b.network([b.add(Relu(), b.input("x", (2, 3)))]))
