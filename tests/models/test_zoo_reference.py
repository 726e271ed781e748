"""The zoo's benchmark networks equal the reference data op for op; its transformers have published sizes and shapes bound by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.ir.builder import GraphBuilder
from iossim.ir.constants import ArrayConstant
from iossim.ir.graph import Graph
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.ops.pool import AveragePool
from iossim.models import transformer_layers as nn
from iossim.models.ios_engine.export import ios_file
from iossim.models.ios_engine.file import IosFile
from iossim.models.load import load
from iossim.models.passes.blocks import one_block
from iossim.schedule.problem import ScheduleProblem
from iossim.tasks.measured_schedules import plain_schedule

REFERENCES = {
    "inception_v3": "inception_v3",
    "squeezenet": "squeezenet",
    "nasnet_a": "nasnet_a_large",
    "randwire": "randwire_large",
}


def reference(shared: Path, name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((shared / "data" / "networks" / f"{REFERENCES[name]}.json").read_text())
    return data


def build(shared: Path, name: str) -> Network:
    return load(name, graphs=shared / "data" / "randwire" if name == "randwire" else None)


def bare(node: dict[str, Any], position: Mapping[str, int], channels: Mapping[str, int]) -> dict[str, Any]:
    """A node without names, its producers as positions (-1: the image); what it reads must be whole."""
    kept = {key: value for key, value in node.items() if key not in ("name", "hint_name", "inputs", "nodes")}
    for producer, begin, end in (read for term in node["inputs"] for read in term):
        assert (begin, end) == (0, channels[producer])
    kept["inputs"] = [[position[producer] for producer, _, _ in term] for term in node["inputs"]]
    inner = node.get("nodes", [])
    for before, after in pairwise(inner):
        assert after["inputs"] == [[[before["name"], 0, before["output_shape"][0]]]]
    return kept | {"nodes": [bare({**each, "inputs": []}, position, channels) for each in inner]}


def all_bare(nodes: list[dict[str, Any]], image: str, shape: list[int]) -> list[dict[str, Any]]:
    position = {image: -1} | {node["name"]: index for index, node in enumerate(nodes)}
    channels = {image: shape[0]} | {node["name"]: node["output_shape"][0] for node in nodes}
    return [bare(node, position, channels) for node in nodes]


def written(network: Network) -> IosFile:
    """The network as the published engine writes it, where each average counts its padding."""
    nodes = [
        replace(node, op=replace(node.op, count_include_pad=True)) if isinstance(node.op, AveragePool) else node
        for node in network.graph.nodes
    ]
    inputs = {name: network.graph.types[name] for name in network.graph.inputs}
    graph = Graph.create(inputs, network.graph.outputs, nodes, network.graph.constants)
    whole = replace(network, graph=graph)
    return ios_file(plain_schedule(whole, "sequential"), whole)


@pytest.mark.parametrize("name", REFERENCES)
def test_units_and_blocks_equal_the_reference(shared: Path, name: str) -> None:
    data = reference(shared, name)
    network = build(shared, name)
    # Blocks of ops that are scheduled together; NasNet's single block is given in parts.
    parts = [part for block in data["blocks"] for part in block["parts"] or [[op["name"] for op in block["ops"]]]]
    by_name = {op["name"]: op for block in data["blocks"] for op in block["ops"]}
    file = written(one_block(network, network.units))
    nodes = [node.model_dump(mode="json") for node in file.nodes()]
    assert [node["name"] for node in nodes] == [unit.name for unit in network.units]
    assert file.input.output_shape == tuple(data["input"]["shape"])
    expected = all_bare([by_name[op] for part in parts for op in part], data["input"]["name"], data["input"]["shape"])
    for node, own, other in zip(nodes, all_bare(nodes, file.input.name, data["input"]["shape"]), expected, strict=True):
        assert own == other, node["name"]
    assert [len(block.units) for block in network.blocks] == [len(part) for part in parts]


@pytest.mark.parametrize("name", ["inception_v3", "squeezenet", "randwire"])
def test_blocks_enter_and_exit_as_the_reference_says(shared: Path, name: str) -> None:
    data = reference(shared, name)
    network = build(shared, name)
    file = written(network)
    names = [op["name"] for block in data["blocks"] for op in block["ops"]]
    own = {file.input.name: data["input"]["name"]} | {
        unit.name: other for unit, other in zip(network.units, names, strict=True)
    }
    for block, expected in zip(file.blocks, data["blocks"], strict=True):
        assert (own[block.enter_name], own[block.exit_node.name]) == (expected["enter"], expected["exit"])


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
    attention = nn.SelfAttention(heads, kv_heads, past, bias=False, rotates=True, low_rank=2)
    for layer in range(2):
        y, own = attention.add(b, f"{layer}", nn.rms_norm(b, f"{layer}.norm", x))
        x = nn.linear(b, f"{layer}.out", y, 8 * heads, added=x, activation="swish")
        kept += own
    return b.network([nn.last_token(b, "last", x), *kept])


def run(network: Network, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Every value of a network, its weights included."""
    values = {name: one.load() for name, one in network.graph.constants.items()}
    return values | evaluate_graph(replace(network.graph, outputs=tuple(network.graph.producer)), inputs)


@given(st.integers(1, 6), st.integers(1, 4), st.sampled_from([(2, 1), (4, 2), (4, 4)]), st.integers(0, 99))
@settings(max_examples=25)
def test_a_prefill_and_steps_after_it_are_the_whole(past: int, tokens: int, heads: tuple[int, int], seed: int) -> None:
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
    towers = [
        {index for index, unit in enumerate(network.units) if unit.name.startswith(side)} for side in ("image", "text")
    ]
    for tower in towers:
        assert all(set(network.predecessors[unit]) <= tower for unit in tower)
