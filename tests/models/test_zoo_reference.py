"""The zoo's benchmark networks equal the reference data op for op; its transformers have published sizes and shapes bound by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iossim.ir.builder import GraphBuilder
from iossim.ir.constants import ArrayConstant
from iossim.ir.graph import Node
from iossim.ir.network import Network, Unit
from iossim.ir.op import Array
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.nary import Add
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, MaxPool
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Identity, Relu
from iossim.models import transformer_layers as nn
from iossim.models.catalogue import BuildOptions, zoo_model
from iossim.models.load import load
from iossim.schedule.problem import ScheduleProblem

REFERENCES = {
    "inception_v3": "inception_v3",
    "squeezenet": "squeezenet",
    "nasnet_a": "nasnet_a_large",
    "randwire": "randwire_large",
}


def reference(shared: Path, name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((shared / "data" / "networks" / f"{REFERENCES[name]}.json").read_text())
    return data


def build(shared: Path, name: str, batch: int = 1) -> Network:
    model = zoo_model(name)
    graphs = shared / "data" / "randwire" if name == "randwire" else None
    return model.build(BuildOptions((batch, *model.input_shape), graphs=graphs))


def reference_blocks(data: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Lists of ops that are scheduled together; NasNet's single block is given in parts."""
    blocks = []
    for block in data["blocks"]:
        ops = {op["name"]: op for op in block["ops"]}
        blocks += [[ops[name] for name in part] for part in block["parts"] or [list(ops)]]
    return blocks


def reference_op(op: dict[str, Any], position: dict[str, int], channels: dict[str, int]) -> dict[str, Any]:
    """An op of the reference, its producers as positions (-1: the image); slices must be whole."""

    def terms(inputs: list[Any]) -> list[list[int]]:
        for term in inputs:
            for producer, begin, end in term:
                assert (begin, end) == (0, channels[producer])
        return [[position[producer] for producer, _, _ in term] for term in inputs]

    result = {key: value for key, value in op.items() if key not in ("name", "nodes")} | {"inputs": terms(op["inputs"])}
    if op["type"] == "sequential":
        parts = [{k: v for k, v in node.items() if k not in ("name", "inputs")} for node in op["nodes"]]
        assert op["nodes"][0]["inputs"] == op["inputs"]
        for before, after in pairwise(op["nodes"]):
            assert after["inputs"] == [[[before["name"], 0, before["output_shape"][0]]]]
        result["nodes"] = parts
    return result


def conv_as_reference(network: Network, node: Node, activation: str) -> dict[str, Any]:
    assert isinstance(node.op, Conv)
    assert node.op.dilations == (1, 1)
    assert node.op.pads[:2] == node.op.pads[2:]
    assert len(node.inputs) == 3, "a convolution of the zoo has a bias"
    weight = network.graph.types[node.inputs[1]].shape
    return {
        "type": "conv",
        "out_channels": weight[0],
        "kernel": list(weight[2:]),
        "stride": list(node.op.strides),
        "padding": list(node.op.pads[:2]),
        "groups": node.op.groups,
        "act": activation,
        "output_shape": shape(network, node),
    }


def shape(network: Network, node: Node) -> list[int]:
    return list(network.graph.types[node.outputs[0]].shape[1:])


def unit_as_reference(network: Network, unit: Unit) -> dict[str, Any]:
    """A unit in the terms of the reference data, its producers as unit positions (-1: the image)."""
    nodes = network.unit_nodes(unit)
    inside = {value: node for node in nodes for value in node.outputs}

    def producer(value: str) -> int:
        return -1 if value in network.graph.inputs else network.unit_of_value[value]

    def summed(value: str) -> list[int]:
        if value not in inside:
            return [producer(value)]
        assert isinstance(inside[value].op, Add)
        return [producer(term) for term in inside[value].inputs]

    main = [node for node in nodes if not isinstance(node.op, Add)]
    kinds = [type(node.op) for node in main]
    last = nodes[-1]
    result: dict[str, Any] = {"output_shape": shape(network, last)}
    if unit.kind == "Concat":
        assert kinds in ([Concat], [Identity], [])
        values = last.inputs if kinds else last.outputs
        terms = [summed(value) for value in values]
        return result | {"type": "identity", "inputs": terms}
    result["inputs"] = [summed(main[0].inputs[0])]
    for before, after in pairwise(main):
        assert after.inputs[0] == before.outputs[0]
    if unit.kind in ("Conv", "Conv-Relu"):
        assert kinds == [Conv, Relu][: len(unit.kind.split("-"))]
        return result | conv_as_reference(network, main[0], "relu" if len(main) == 2 else "identity")
    if unit.kind == "Relu":
        assert kinds == [Relu]
        return result | {"type": "relu"}
    if unit.kind in ("Relu-SepConv", "Relu-Conv"):
        assert kinds == [Relu, Conv, Conv][: 2 + (unit.kind == "Relu-SepConv")]
        parts = [{"type": "relu", "output_shape": shape(network, main[0])}]
        parts += [conv_as_reference(network, node, "identity") for node in main[1:]]
        return result | {"type": "sequential", "nodes": parts}
    assert unit.kind == "Pool"
    (op,) = (node.op for node in main)
    if isinstance(op, GlobalAveragePool):
        window = list(network.graph.types[last.inputs[0]].shape[2:])
        return result | {
            "type": "pool",
            "pool_type": "global_avg",
            "kernel": window,
            "stride": [1, 1],
            "padding": [0, 0],
        }
    assert isinstance(op, MaxPool | AveragePool)
    assert op.pads[:2] == op.pads[2:]
    assert not op.ceil_mode
    return result | {
        "type": "pool",
        "pool_type": "max" if isinstance(op, MaxPool) else "avg",
        "kernel": list(op.kernel),
        "stride": list(op.strides),
        "padding": list(op.pads[:2]),
    }


@pytest.mark.parametrize("name", REFERENCES)
def test_units_and_blocks_equal_the_reference(shared: Path, name: str) -> None:
    data = reference(shared, name)
    network = build(shared, name)
    blocks = reference_blocks(data)
    ops = [op for block in blocks for op in block]
    image = data["input"]["name"]
    position = {image: -1} | {op["name"]: index for index, op in enumerate(ops)}
    channels = {image: data["input"]["shape"][0]} | {op["name"]: op["output_shape"][0] for op in ops}
    assert [network.graph.types[value].shape for value in network.graph.inputs] == [(1, *data["input"]["shape"])]
    assert len(network.units) == len(ops)
    for unit, op in zip(network.units, ops, strict=True):
        assert unit_as_reference(network, unit) == reference_op(op, position, channels), unit.name
    assert [list(block.units) for block in network.blocks] == [[position[op["name"]] for op in b] for b in blocks]
    assert [network.unit_of_value[value] for value in network.graph.outputs] == [position[data["blocks"][-1]["exit"]]]


@pytest.mark.parametrize("name", ["inception_v3", "squeezenet", "randwire"])
def test_blocks_enter_and_exit_as_the_reference_says(shared: Path, name: str) -> None:
    data = reference(shared, name)
    network = build(shared, name)
    names = [op["name"] for block in data["blocks"] for op in block["ops"]]
    for block, expected in zip(network.blocks, data["blocks"], strict=True):
        inside = set(block.units)
        read = {value for unit in block.units for value in network.units[unit].inputs}
        entering = {value for value in read if network.unit_of_value.get(value, -1) not in inside}
        (enter,) = {network.unit_of_value.get(value, -1) for value in entering}
        leaving = {
            unit
            for unit in block.units
            for value in network.units[unit].outputs
            if value in network.graph.outputs
            or any(value in other.inputs for i, other in enumerate(network.units) if i not in inside)
        }
        assert (data["input"]["name"] if enter < 0 else names[enter]) == expected["enter"]
        assert [names[unit] for unit in leaving] == [expected["exit"]]


def test_load_takes_the_folder_of_graphs(shared: Path) -> None:
    graphs = shared / "data" / "randwire"
    assert load("randwire", graphs=graphs).graph.hash == build(shared, "randwire").graph.hash
    assert load("randwire").graph.hash != build(shared, "randwire").graph.hash


def weights(network: Network) -> int:
    """Elements of the constants that are no tables of numbers."""
    return sum(one.type.elements for one in network.graph.constants.values() if not isinstance(one, ArrayConstant))


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("gpt2", 124_439_808 - 1024 * 768),  # tied words, without the table of positions
        ("llama_1b", 1_235_814_400),
        ("llama_1b_lora", 1_235_814_400 + 16 * 16 * (2 * 2048 + 2048 + 512)),
    ],
)
def test_decoders_have_their_published_size(name: str, published: int) -> None:
    for dimensions in ({}, {"tokens": 7, "past": 0}, {"tokens": 3, "past": 9}):
        assert weights(load(name, dtype="fp16", dimensions=dimensions)) == published


@pytest.mark.parametrize("name", ["gpt2", "llama_1b", "whisper_decoder"])
def test_a_cache_is_as_long_as_it_is_bound(name: str) -> None:
    step, prefill = load(name, dimensions={"past": 37}), load(name, dimensions={"tokens": 5, "past": 0})
    layers = 16 if name == "llama_1b" else 12
    pasts = [step.graph.types[value].shape for value in step.graph.inputs if value.endswith(".past")]
    assert len(pasts) == 2 * layers
    assert {shape[:2] for shape in pasts} == {(1, 37)}
    kept = [step.graph.types[value].shape for value in step.graph.outputs if value.endswith(".present")]
    assert {shape[:2] for shape in kept} == {(1, 38)}
    assert not [value for value in prefill.graph.inputs if value.endswith(".past")]
    assert prefill.graph.types[prefill.graph.outputs[0]].shape[:2] == (1, 1)
    assert step.source.options == (("dimension.past", "37"),)


def test_a_named_dimension_of_the_input_is_its_shape() -> None:
    by_name = load("gpt2", dimensions={"tokens": 6, "past": 4})
    by_shape = load("gpt2", shapes={"tokens": (1, 6, 768)}, dimensions={"past": 4})
    assert by_name.graph.hash == by_shape.graph.hash


def network_of(tokens: int, past: int, heads: int, kv_heads: int) -> Network:
    b = GraphBuilder("decoder")
    x = b.input("tokens", (2, tokens, 8 * heads))
    kept = []
    for layer in range(2):
        normed = nn.rms_norm(b, f"{layer}.norm", x)
        y, own = nn.self_attention(
            b, f"{layer}", normed, heads, kv_heads, past=past, bias=False, rotates=True, low_rank=nn.LowRank(2)
        )
        x = nn.linear(b, f"{layer}.out", y, 8 * heads, added=x, activation="swish")
        kept += own
    return b.network([nn.last_token(b, "last", x), *kept])


def run(network: Network, inputs: Mapping[str, Array]) -> dict[str, Array]:
    values = {**{name: one.load() for name, one in network.graph.constants.items()}, **inputs}
    for node in network.graph.nodes:
        made = node.op.evaluate([values[name] for name in node.inputs])
        values.update(zip(node.outputs, made, strict=True))
    return values


@given(
    past=st.integers(1, 6),
    tokens=st.integers(1, 4),
    heads=st.sampled_from([(2, 1), (4, 2), (4, 4)]),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_a_prefill_and_steps_behind_it_are_the_whole(past: int, tokens: int, heads: tuple[int, int], seed: int) -> None:
    """Positions, mask and cache of any split of a text give what the whole text at a time gives."""
    x = np.random.default_rng(seed).standard_normal((2, past + tokens, 8 * heads[0])).astype(np.float32)
    whole = network_of(past + tokens, 0, *heads)
    expected = run(whole, {"tokens": x})
    first, then = network_of(past, 0, *heads), network_of(tokens, past, *heads)
    begun = run(first, {"tokens": x[:, :past]})
    names = [value for value in then.graph.inputs if value.endswith(".past")]
    cache = {name: begun[value] for name, value in zip(names, first.graph.outputs[1:], strict=True)}
    made = run(then, {"tokens": x[:, past:], **cache})
    for own, other in zip(then.graph.outputs, whole.graph.outputs, strict=True):
        assert np.abs(made[own] - expected[other]).max() <= 1e-4 * np.abs(expected[other]).max()


@pytest.mark.parametrize(("tokens", "working", "rows"), [(1, 6, 1), (4, 21, 2), (64, 64, 6), (256, 64, 24)])
def test_tokens_are_spread_evenly_over_the_experts_that_they_draw(tokens: int, working: int, rows: int) -> None:
    network = load("moe_shared", dimensions={"tokens": tokens})
    assert network.graph.types["dispatch.rows"].shape == (1, working, rows, 2048)
    (block,) = network.blocks
    problem = ScheduleProblem.of_block(network, block)
    shared, routed = (problem.unit_names.index(f"{which}.inner") for which in ("shared", "routed"))
    assert not int(problem.predecessors[shared])
    assert int(problem.predecessors[routed])


def test_a_mixture_with_shared_experts_sums_what_its_experts_make() -> None:
    """One token: six experts, each of the token times its share, and the shared ones beside them."""
    network = load("moe_shared", dimensions={"tokens": 1})
    x = np.random.default_rng(0).standard_normal((1, 1, 2048)).astype(np.float32)
    values = run(network, {"tokens": x})
    scores = x[0, 0] @ values["gate.weight"]
    shares = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()

    def expert(y: Array, *weights: Array) -> Array:
        gate, up, down = weights
        inner: Array = (y @ gate) / (1 + np.exp(-(y @ gate))) * (y @ up)
        return inner @ down

    names = ("gate", "up", "down")
    expected = x[0, 0] + expert(x[0, 0], *(values[f"shared.{name}.weight"] for name in names))
    for index in range(6):
        expected = expected + expert(
            x[0, 0] * shares[index], *(values[f"routed.{name}.weight"][index] for name in names)
        )
    made = values[network.graph.outputs[0]][0, 0]
    assert np.abs(made - expected).max() <= 1e-4 * np.abs(expected).max()


def test_towers_meet_only_at_their_end() -> None:
    network = load("clip")
    image, text = (
        {index for index, unit in enumerate(network.units) if unit.name.startswith(side)} for side in ("image", "text")
    )
    for unit in image | text:
        own = image if unit in image else text
        assert set(network.predecessors[unit]) <= own
