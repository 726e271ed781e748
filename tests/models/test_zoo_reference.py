"""The zoo's benchmark networks equal the reference data op for op: types, attributes, terms, shapes, order, blocks."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from iossim.ir.graph import Node
from iossim.ir.network import Network, Unit
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.nary import Add
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, MaxPool
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Identity, Relu
from iossim.models.catalogue import BuildOptions, zoo_model
from iossim.models.load import load

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
