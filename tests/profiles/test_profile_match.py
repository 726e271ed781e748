"""Layers of a profile and the units that they are: by name, by value and by order."""

import itertools
import json
from pathlib import Path

import pytest
from command_line import printed_json
from graph_builders import builder_with
from hypothesis import given
from hypothesis import strategies as st

import iossim
from iossim.cost.measured.stage_plans import step_operators
from iossim.hardware.lowering.unit import unit_steps
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Block, Network, make_unit
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Add
from iossim.measurements.operator_kinds import read_record
from iossim.measurements.profilers.layer_times import TimedLayer
from iossim.profiles.profile_match import LEFT_OUT, aligned, by_order, gains, layer_class, matched, op_class

NETWORK = iossim.load("squeezenet")
#: A kernel of a library for each class.
KERNELS = {
    "product": "sm80_xmma_fprop_implicit_gemm_f32",
    "window": "cudnn::max_pooling_fw_4d_kernel",
    "norm": "softmax_warp_forward",
    "move": "CatArrayBatchedCopy",
    "elementwise": "vectorized_elementwise_kernel",
}


def test_names_of_values_nodes_and_fused_layers() -> None:
    graph = NETWORK.graph
    convolution = next(unit for unit in NETWORK.units if unit.kind == "Conv-Relu")
    number = NETWORK.unit_index[convolution.name]
    first, last = (graph.nodes[convolution.nodes[place]] for place in (0, -1))
    names = [last.outputs[0], f"{last.outputs[0]}_nchwc", first.name]
    names += [f"{first.name} + {last.name}", f"{first.name}_token_7"]
    assert matched(NETWORK, [TimedLayer(name, "", 1.0) for name in names]) == [number] * len(names)
    layers = [
        TimedLayer("ReorderInput", "ReorderInput", 1.0),
        TimedLayer(first.name, "", 5.0),
        TimedLayer("other", "", 1.0),
    ]
    assert matched(NETWORK, layers) == [number, number, None]
    ranged = TimedLayer("some_kernel", "", 1.0, ranges=(first.name,))
    assert matched(NETWORK, [ranged]) == [number]


def kernels_of(classes: list[str]) -> list[TimedLayer]:
    return [TimedLayer(KERNELS[one], "", 1.0) for one in classes]


def classes_of(network: Network, unit: int) -> list[str]:
    """Classes of the ops of a unit for which a library has kernels; ``elementwise`` without any."""
    found = [op_class(network.graph, node) for node in network.unit_nodes(network.units[unit])]
    return [one for one in found if one not in ("view", "elementwise")] or ["elementwise"]


@given(st.lists(st.integers(0, 2), min_size=len(NETWORK.units), max_size=len(NETWORK.units)))
def test_in_order_each_unit_finds_its_kernels(joined: list[int]) -> None:
    """Each unit has a kernel of its class, and up to two element-wise ones after it."""
    layers: list[TimedLayer] = []
    expected: list[int] = []
    for unit, more in enumerate(joined):
        own = classes_of(NETWORK, unit)
        made = kernels_of([*own, *["elementwise"] * (0 if own == ["elementwise"] else more)])
        layers += made
        expected += [unit] * len(made)
    found = by_order(NETWORK, layers, range(len(NETWORK.units)))
    products = [place for place, layer in enumerate(layers) if layer.name == KERNELS["product"]]
    assert [found[place] for place in products] == [expected[place] for place in products]
    told = [unit for unit in found if unit is not None]
    assert told == sorted(told)
    assert len(told) == len(layers)


CLASSES = st.sampled_from(["product", "window", "norm", "move", "elementwise", "batch norm"])


def score(layers: list[str], ops: list[str], places: list[int | None]) -> float:
    """Score of an alignment; minus infinity for one that is not in order."""
    total, last = 0.0, -1
    for layer, place in zip(layers, places, strict=True):
        if place is None:
            continue
        first, more = gains(layer, ops)
        total += float("-inf") if place < last else float((more if place == last else first)[place])
        last = place
    return total - LEFT_OUT * sum(op == "product" and place not in places for place, op in enumerate(ops))


@given(st.lists(CLASSES, max_size=4), st.lists(CLASSES, max_size=4))
def test_the_alignment_is_the_best_there_is(layers: list[str], ops: list[str]) -> None:
    places: list[int | None] = [None, *range(len(ops))]
    best = max(score(layers, ops, list(each)) for each in itertools.product(places, repeat=len(layers)))
    assert score(layers, ops, aligned(layers, ops)) == pytest.approx(best)


def test_a_unit_is_where_its_product_is_not_where_it_ends() -> None:
    """A branch's convolution runs before that of the shortcut, though the sum that it is fused with runs later."""
    build, x = builder_with("g", x=(1, 8, 4, 4))
    branch, shortcut = build.conv(x, 8, 3, padding=1), build.conv(x, 8)
    y = build.add(Add(), branch, shortcut)
    graph = build.graph([y])
    units = (make_unit(graph, "shortcut", "Conv", [1]), make_unit(graph, "branch", "Conv-Add", [0, 2]))
    network = Network("g", graph, units, (Block("all", (0, 1)),))
    assert by_order(network, kernels_of(["product", "product", "elementwise"]), range(2)) == [1, 0, 1]


def test_a_fused_layer_belongs_to_the_unit_that_no_name_matched() -> None:
    first, *others = range(len(NETWORK.units))
    names = [TimedLayer(NETWORK.units[unit].name, "", 5.0) for unit in others]
    for layer, unit in ((TimedLayer("fused_1", "FusedConv", 1.0), first), (TimedLayer("odd", "Reshape", 1.0), None)):
        assert matched(NETWORK, [layer, *names]) == [unit, *others]


@pytest.mark.parametrize("added", ["/MatMulAddFusion", "/MatMulScaleFusion//MatmulTransposeFusion/"])
def test_nodes_that_a_network_renames_are_found_by_their_values(added: str) -> None:
    layers = [TimedLayer(f"node_MatMul_9{added}", "Gemm", 1.0)]
    assert matched(NETWORK, layers, {"node_MatMul_9": ("gone", NETWORK.units[3].outputs[0])}) == [3]


def test_no_layers_and_no_likeness() -> None:
    assert by_order(NETWORK, [], range(len(NETWORK.units))) == []
    sample = iossim.load("ios_sample")
    assert by_order(sample, kernels_of(["norm"]), range(len(sample.units))) == [None]


def test_batch_norms_are_of_the_convolution_before() -> None:
    """Its weights have them here; PyTorch runs them."""
    network = iossim.load("ios_sample")
    products = [unit for unit in range(len(network.units)) if "product" in classes_of(network, unit)]
    layers = [
        TimedLayer(name, "", 1.0) for _ in products for name in ("aten::conv2d", "aten::batch_norm", "aten::relu_")
    ]
    assert by_order(network, layers, range(len(network.units))) == [unit for unit in products for _ in range(3)]


def test_a_product_with_a_weight_and_its_bias_is_one_of_two_matrices() -> None:
    build = GraphBuilder("g")
    x, weight, bias = build.input("x", (2, 4, 8)), build.constant("w", (8, 16)), build.constant("b", (16,))
    with build.unit("linear", "Matmul-Bias"):
        y = build.add(Add(), build.add(MatMul(), x, weight), bias)
    network = build.network([y])
    (record,) = step_operators(unit_steps(network, network.units[0])) or []
    operator = read_record(record, network.precision)
    assert operator.kind == "gemm"
    assert sorted(value.shape for value in operator.inputs[:2]) == [(8, 8), (8, 16)]


@pytest.mark.parametrize("term", ["weight of its shape", "value of another shape"])
def test_a_sum_with_what_measured_sums_have_not_has_no_record(term: str) -> None:
    build, x, row = builder_with("g", x=(2, 4, 8), row=(1, 1, 8))
    y = build.add(Add(), x, build.constant("w", (2, 4, 8)) if "weight" in term else row)
    network = build.network([y])
    assert step_operators(unit_steps(network, network.units[0])) is None


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>", "product"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "product"),
        ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>", "product"),
        ("triton_poi_fused_convolution_relu_2", "elementwise"),
        ("triton_per_fused_native_layer_norm_0", "norm"),
        ("void at::native::reduce_kernel<512, 1>", "norm"),
    ],
)
def test_what_a_kernel_does_by_its_name(name: str, told: str) -> None:
    assert layer_class(TimedLayer(name, "", 1.0)) == told


def test_a_network_on_a_gpu_is_matched_whole(tmp_path: Path) -> None:
    """Each op is a kernel, as in eager PyTorch, except for the ops that launch nothing."""
    kernels = [KERNELS[one] for one in (op_class(NETWORK.graph, node) for node in NETWORK.graph.nodes) if one != "view"]
    events = [
        {
            "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 9000 * run + 10 * place, "dur": 5 + run,
            "args": {"device": 0, "context": 1, "stream": 7, "grid": [8, 1, 1], "block": [128, 1, 1]},
        }
        for run in range(2)
        for place, name in enumerate(kernels)
    ]  # fmt: skip
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"deviceProperties": [], "traceEvents": events}))
    found = printed_json(f"profile-report squeezenet {path} --device h100-sxm --runs 2 --json")
    assert found["source"] == "PyTorch (kernels)"
    assert found["matched_share"] == pytest.approx(1.0)
    units = {row["unit"]: row["layers"] for row in found["units"]}
    for unit in NETWORK.units:
        own = [op_class(NETWORK.graph, node) for node in NETWORK.unit_nodes(unit)]
        assert units[unit.name] == [KERNELS[one] for one in own if one != "view"]
