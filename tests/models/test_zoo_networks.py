"""The zoo beyond the reference data: published sizes, batch, determinism, listing."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iossim.base.errors import ModelError, OptionError
from iossim.ir.network import Network
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.matmul import MatMul
from iossim.ir.types import DType
from iossim.models.catalogue import zoo_models
from iossim.models.load import load
from iossim.models.random_graphs import RandomGraph, read_edge_list, watts_strogatz
from iossim.schedule.problem import ScheduleProblem

NAMES = [model.name for model in zoo_models()]


def macs(network: Network, op: type) -> int:
    """Multiply-adds of the ops of one kind, bias left out."""
    return sum(network.graph.multiply_adds(node) for node in network.graph.nodes if isinstance(node.op, op))


#: Parameters, and multiply-adds of convolutions and matrix products, in millions.
SIZES = {
    "resnet18": (11_689_512, 1_814),
    "resnet34": (21_797_672, 3_664),
    "resnet50": (25_557_032, 4_089),
    "resnet152": (60_192_808, 11_514),
    "resnext50": (25_028_904, 4_230),
    "mobilenet_v1": (4_231_976, 569),
    "alexnet": (61_100_840, 714),
    "vgg16": (138_357_544, 15_470),
    "vgg19": (143_667_240, 19_632),
    "ssd300": (26_285_486 - 512, 31_374),  # without the 512 scales of conv4_3's norm
    "squeezenet_1_0": (1_248_424, 836),
    # These are as their descriptions count them (a layer of BERT, of an LSTM).
    "shufflenet_v1": (1_852_528, 134),
    "centernet": (14_213_396, 13_086),
    "lstm": (2 * (8 * 512**2 + 4 * 512), 417),
    "bert_s": (4 * (12 * 512**2 + 13 * 512 + 1), 1_678),
    "bert_l": (24 * (12 * 1024**2 + 13 * 1024 + 1), 39_460),
    "moe_layer": (8 * (4 * 512**2 + 3 * 512) + 8 * 512, 1_074),
}
#: Units and blocks of networks whose batch norm is folded, which leaves a bias for each channel's scale and shift.
FOLDED = {
    "resnet18": (2 + 8 * 3 + 3 + 3, 10),
    "resnet34": (2 + 16 * 3 + 3 + 3, 18),
    "resnet50": (2 + 16 * 4 + 4 + 3, 18),
    "resnet152": (2 + 50 * 4 + 4 + 3, 52),
    "resnext50": (2 + 16 * 4 + 4 + 3, 18),
    "mobilenet_v1": (1 + 13 * 2 + 3, 15),
}


@pytest.mark.parametrize("name", SIZES)
def test_networks_have_their_published_size(name: str) -> None:
    network = load(name)
    graph, statistics = network.graph, network.statistics()
    norms = 0
    if name in FOLDED:
        norms = sum(graph.types[node.inputs[1]].shape[0] for node in graph.of_kind["conv"])
        assert (len(network.units), len(network.blocks)) == FOLDED[name]
        assert graph.types[graph.outputs[0]].shape == (1, 1000)
    assert (statistics["parameters"] + norms, round(statistics["macs"] / 1e6)) == SIZES[name]


@pytest.mark.parametrize(("name", "giga"), [("inception_v3", 5.71), ("nasnet_a", 22.18), ("squeezenet", 1.19)])
def test_multiply_adds_of_convolutions_are_as_published(name: str, giga: float) -> None:
    """Without bias, sums and pooling, whose weights in the published code are not stated."""
    network = load(name)
    assert macs(network, Conv) == network.statistics()["macs"]
    assert round(macs(network, Conv) / 1e9, 2) == giga


def test_ssd_predicts_its_boxes_and_spellings_of_one_network_are_the_same() -> None:
    """AlexNet in two columns has half the products where they do not meet; ResNeXt in branches is the grouped one."""
    graph = load("ssd300").graph
    shapes = [graph.types[value].shape for value in graph.outputs]
    assert sum(channels // 4 * height * width for _, channels, height, width in shapes[::2]) == 8732
    one, two = load("alexnet_two_columns").graph, load("alexnet").graph
    shapes_of = {node.name: one.types[node.inputs[1]].shape for node in one.of_kind["conv"]}
    assert shapes_of["conv2a.conv"] == shapes_of["conv2b.conv"] == (128, 48, 5, 5)
    assert shapes_of["conv3a.conv"] == (192, 256, 3, 3)
    assert one.types[one.outputs[0]] == two.types[two.outputs[0]]
    grouped, branches = load("resnext50"), load("resnext50_branches")
    for key in ("macs", "parameters"):
        assert branches.statistics()[key] == grouped.statistics()[key]
    assert len(branches.units) == len(grouped.units) + 16 * (2 * 31 + 1)
    assert branches.graph.types["layer4.2.add.relu"] == grouped.graph.types["layer4.2.add.relu"]


def test_bert_layer_is_that_of_bert_base() -> None:
    """An encoder layer has 7,087,872 parameters; the attention of each length is two products of it with itself."""
    for length in (128, 384):
        network = load("bert_layer", shapes={"tokens": (1, length, 768)})
        assert network.statistics()["parameters"] == 7_087_872 + 1  # the factor of the scores
        assert macs(network, MatMul) == length * 12 * 768**2 + 2 * length**2 * 768
    assert [len(block.units) for block in network.blocks] == [12, 3]
    with pytest.raises(OptionError, match="multiple of 64"):
        load("bert_layer", shapes={"tokens": (1, 128, 100)})
    with pytest.raises(OptionError, match="batch x length x width"):
        load("bert_layer", shapes={"tokens": (1, 3, 128, 128)})


def test_sample_network_is_that_of_the_thesis() -> None:
    network = load("ios_sample")
    assert [unit.name for unit in network.units] == ["a", "b", "c", "d", "concat"]
    assert network.predecessors == ((), (), (), (0,), (1, 2, 3))
    concat = network.unit_nodes(network.units[4])[0]
    assert [network.units[network.unit_of_value[value]].name for value in concat.inputs] == ["d", "b", "c"]
    assert network.graph.types[network.graph.outputs[0]].shape == (1, 1875, 15, 15)
    pixels = 15 * 15 * 9
    assert macs(network, Conv) == pixels * 375 * (375 + 750 + 375 + 750)


@pytest.mark.parametrize("name", NAMES)
def test_batch_scales_all_activations_and_no_weights_and_every_block_is_a_problem(name: str) -> None:
    one, many = load(name), load(name, batch=5)
    assert one.notes == ()
    assert all(len(ScheduleProblem.of_block(one, block)) == len(block.units) for block in one.blocks)
    assert [unit.name for unit in one.units] == [unit.name for unit in many.units]
    assert one.blocks == many.blocks
    for value, kind in one.graph.types.items():
        expected = kind.shape if value in one.graph.constants else (5, *kind.shape[1:])
        assert many.graph.types[value].shape == expected
    assert macs(many, Conv) == 5 * macs(one, Conv)


def test_dtype_is_that_of_all_tensors_and_images_may_have_other_sizes() -> None:
    for dtype in ("tf32", "fp16", "bf16", "int8"):
        network = load("squeezenet", dtype=dtype)
        storage = DType.FLOAT32 if dtype == "tf32" else DType(dtype)
        assert network.precision == dtype
        assert {kind.dtype for kind in network.graph.types.values()} == {storage}
    graph = load("resnet18", shapes={"image": (2, 3, 96, 64)}).graph
    assert graph.types["layer4.1.add.relu"].shape == (2, 512, 3, 2)


def identity(name: str) -> list[str]:
    """Hash of a network, and keys of its last unit and its last block."""
    network = load(name)
    return [network.graph.hash, network.signatures[-1], ScheduleProblem.of_block(network, network.blocks[-1]).key]


def test_hash_is_the_same_when_built_again_and_in_another_process() -> None:
    known = {name: identity(name) for name in NAMES}
    assert len({graph_hash for graph_hash, *_ in known.values()}) == len(NAMES)
    script = f"""
import json
from iossim.models.load import load
from iossim.schedule.problem import ScheduleProblem
{inspect.getsource(identity)}
print(json.dumps({{name: identity(name) for name in {NAMES}}}))
"""
    for hash_seed in ("1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True)
        assert json.loads(result.stdout) == known


def test_seed_draws_other_graphs_and_other_weights() -> None:
    assert load("randwire", seed=1).graph.hash != load("randwire").graph.hash
    one, other = load("ios_sample"), load("ios_sample", seed=1)
    assert one.graph.hash == other.graph.hash
    assert (one.graph.constants["a.conv.bias"].load() != other.graph.constants["a.conv.bias"].load()).any()


def test_listing_builds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iossim.ir.builder.GraphBuilder.__init__", lambda *_, **__: pytest.fail("the zoo was built"))
    models = zoo_models()
    assert [model.name for model in models] == sorted(model.name for model in models)
    assert {"inception_v3", "squeezenet", "nasnet_a", "randwire", "resnet50", "ios_sample"} <= set(NAMES)
    for model in models:
        assert model.description
        assert "\n" not in model.description
        assert len(model.input_shape) == model.axes.count(" x ")


def components(graph: RandomGraph) -> int:
    groups = [{node} for node in range(graph.count)]
    for edge in graph.edges:
        touched = [group for group in groups if group & set(edge)]
        groups = [group for group in groups if group not in touched] + [set().union(*touched)]
    return len(groups)


@given(st.integers(5, 40), st.floats(0, 1), st.integers(0, 1000))
def test_watts_strogatz_graphs_are_connected_and_keep_their_edges(count: int, probability: float, seed: int) -> None:
    graph = watts_strogatz(count, 4, probability, str(seed))
    assert len(graph.edges) == 2 * count
    assert len(set(graph.edges)) == len(graph.edges)
    assert all(0 <= low < high < count for low, high in graph.edges)
    assert components(graph) == 1
    assert graph == watts_strogatz(count, 4, probability, str(seed))


def test_without_rewiring_it_is_the_ring_and_rewiring_moves_about_the_share_of_edges_that_it_should() -> None:
    ring = {(min(node, far % 9), max(node, far % 9)) for node in range(9) for far in (node + 1, node + 2)}
    assert watts_strogatz(9, 4, 0.0, "any").edges == tuple(sorted(ring))
    ring = set(watts_strogatz(400, 4, 0.0, "").edges)
    kept = len(ring & set(watts_strogatz(400, 4, 0.75, "0").edges)) / len(ring)
    assert kept == pytest.approx(0.25, abs=0.06)  # three standard deviations of 800 draws
    # A saved schedule names the default graphs by their seed alone: they do not change.
    graph = watts_strogatz(16, 4, 0.75, "0:2")
    assert graph.edges[:8] == ((0, 1), (0, 3), (0, 5), (0, 12), (0, 14), (1, 2), (1, 3), (1, 8))
    for count, neighbours, probability in ((4, 4, 0.5), (9, 3, 0.5), (9, 4, 1.5), (9, 0, 0.5)):
        with pytest.raises(OptionError, match="no Watts-Strogatz graph"):
            watts_strogatz(count, neighbours, probability, "0")


@given(st.integers(1, 12), st.data())
def test_depth_first_order_is_topological(count: int, data: st.DataObject) -> None:
    pairs = [(low, high) for high in range(count) for low in range(high)]
    edges = data.draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    graph = RandomGraph(count, tuple(sorted(edges)))
    order = graph.depth_first_order()
    place = {node: index for index, node in enumerate(order)}
    assert sorted(order) == list(range(count))
    assert all(place[low] < place[high] for low, high in edges)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("4\n1\n0 x\n", 3, "not 2 whole numbers"),
        ("4\n1\n0 1 2\n", 3, "not 2 whole numbers"),
        ("four\n1\n0 1\n", 1, "not a whole number"),
        ("4\n1\n\n0 4\n", 4, "numbered 0 to 3"),
        ("4\n1\n-1 2\n", 3, "numbered 0 to 3"),
        ("0\n0\n", 1, "at least one"),
        ("4\n1\n3 3\n", 3, "itself"),
        ("4\n2\n2 3\n3 2\n", 4, "twice"),
        ("4\n2\n2 3\n", 2, "2 edges are announced, 1 follow"),
    ],
)
def test_a_malformed_edge_list_is_named_with_its_line(tmp_path: Path, text: str, line: int, reason: str) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(text)
    with pytest.raises(ModelError, match=reason) as caught:
        read_edge_list(path)
    assert f"{path}, line {line}:" in str(caught.value)


def test_edge_lists_are_read_with_edges_from_low_to_high(tmp_path: Path) -> None:
    path = tmp_path / "graph.txt"
    path.write_text("4\n3\n2 0\n\n0 1\n1 3\n")
    assert read_edge_list(path) == RandomGraph(4, ((0, 1), (0, 2), (1, 3)))
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelError, match="is not text"):
        read_edge_list(path)
    path.write_text("4\n")
    with pytest.raises(ModelError, match="has no header"):
        read_edge_list(path)
    with pytest.raises(ModelError, match="cannot read edge list"):
        read_edge_list(tmp_path / "missing.txt")
