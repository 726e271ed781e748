"""Files of the published IOS engine: read, undone, priced, and written again with the same content."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_builders import builder_with
from hypothesis import given
from hypothesis import strategies as st
from random_networks import make_schedule, make_stage, random_inputs, random_schedule

from iossim import api
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import IossimError, OptionError, ScheduleError
from iossim.ir.builder import GraphBuilder
from iossim.ir.constants import ArrayConstant
from iossim.ir.graph import Graph
from iossim.ir.merging import merged_convolution
from iossim.ir.network import Network
from iossim.ir.op import Op
from iossim.ir.ops.nary import Add
from iossim.ir.ops.pool import AveragePool
from iossim.ir.ops.slice import Split
from iossim.ir.ops.unary import Clip, Sigmoid
from iossim.models.ios_engine.export import ios_file
from iossim.models.ios_engine.file import file_name, network_and_scheduler, read_ios_file
from iossim.models.layers import (
    average_pool,
    conv,
    conv_relu,
    global_average_pool,
    join,
    max_pool,
    relu,
    relu_conv,
    relu_sepconv,
)
from iossim.models.load import load
from iossim.models.options import LoadOptions
from iossim.models.sources.ios_file import network_of_file, schedule_of_file
from iossim.schedule.fit import fit
from iossim.schedule.schedule import BlockSchedule, Schedule

PUBLISHED = {1: "inception_v3.v100.batch1.json", 32: "inception_v3.v100.batch32.json"}
SEEDS = st.integers(0, 2**20)
NOWHERE = Path("some.json")


@pytest.fixture
def published(shared: Path) -> Path:
    folder = shared / "data" / "ios_schedules"
    if not folder.is_dir():
        pytest.skip(f"no schedules of the IOS engine at {folder}")
    return folder


@pytest.mark.parametrize("batch", PUBLISHED)
def test_a_published_file_is_the_networks_of_the_zoo_and_written_again(published: Path, batch: int) -> None:
    path = published / PUBLISHED[batch]
    network = load(path, batch=batch)
    assert network.graph.hash == load("inception_v3", batch=batch).graph.hash
    assert load(path).graph.hash == load("inception_v3").graph.hash
    assert (len(network.units), len(network.blocks), network.notes) == (119, 13, ())
    schedule = schedule_of_file(read_ios_file(path), path, network)
    fit(schedule, network)
    assert schedule.scheduler == "ios-both"
    assert sum(stage.strategy == "merge" for stage in schedule.stages) == {1: 9, 32: 4}[batch]
    assert sorted(name for stage in schedule.stages for name in stage.units) == sorted(network.unit_index)
    assert ios_file(schedule, network).text() == path.read_text()


def test_without_the_original_slices_and_kernels_are_as_the_file_has_them(published: Path) -> None:
    """Of batch 1 the slices tell all; of batch 32 two merged convolutions are read as one, and stand in zeros."""
    path = published / PUBLISHED[1]
    zoo = load("inception_v3")
    file = read_ios_file(path)
    alone = network_of_file(file, path, LoadOptions())
    assert alone.graph.hash == zoo.graph.hash
    assert alone.remarks == ()

    path = published / PUBLISHED[32]
    file = read_ios_file(path)
    alone = network_of_file(file, path, LoadOptions(batch=32))
    assert alone.graph.hash != load(path, batch=32).graph.hash
    assert [note.partition("; ")[2] for note in alone.remarks] == [
        "those read as one are halved", "taken as '103' has", "those read as one are halved", "taken as '114' has"
    ]  # fmt: skip
    assert ios_file(schedule_of_file(file, path, alone), alone) == file


def random_unit(
    b: GraphBuilder, name: str, source: str, values: list[str], generator: random.Random
) -> tuple[str, set[str]]:
    """One unit of ``source``, of any sort that the format has words for, and what it reads."""
    kernel = generator.choice([(1, 1), (3, 3), (1, 3), (3, 1)])
    padding = (kernel[0] // 2, kernel[1] // 2)
    other = generator.choice([value for value in values if b.types[value].shape == b.types[source].shape])
    match generator.choice(["conv"] * 6 + ["plain", "sum", "max", "average", "relu", "sep", "relu-conv"]):
        case "conv":
            y = conv_relu(b, name, source, generator.choice([2, 4]), kernel, padding=padding)
        case "plain":
            y = conv(b, name, source, 4, kernel, padding=padding)
        case "sum":
            return join(b, name, [[source, other]]), {source, other}
        case "max":
            y = max_pool(b, name, source, 3, 1, 1)
        case "average":
            y = average_pool(b, name, source, 3, 1, 1, count_include_pad=True)
        case "relu":
            y = relu(b, name, source)
        case "sep":
            y = relu_sepconv(b, name, [source, source], 4, 3)
        case _:
            y = relu_conv(b, name, source, 4)
    return y, {source}


def random_exportable(seed: int) -> Network:
    """Two blocks of one input and one output each."""
    generator = random.Random(seed)
    b, x = builder_with(f"random{seed}", image=(1, 4, 8, 8))
    for block in range(2):
        with b.block(f"b{block}"):
            values, read = [x], set[str]()
            for index in range(generator.randint(2, 7)):
                y, used = random_unit(b, f"b{block}.u{index}", generator.choice([x, *values]), values, generator)
                values.append(y)
                read |= used
            x = join(b, f"b{block}.out", [value for value in values[1:] if value not in read])
    with b.block("tail"):
        x = global_average_pool(b, "tail.pool", x)
    return b.network([x])


@given(SEEDS, SEEDS)
def test_what_is_written_is_read_as_the_same_network_and_schedule(seed: int, order: int) -> None:
    network = random_exportable(seed)
    schedule = random_schedule(network, order)
    file = ios_file(schedule, network)
    back = network_of_file(file, NOWHERE, LoadOptions(), network)
    assert back.graph.hash == network.graph.hash
    read = schedule_of_file(file, NOWHERE, back)
    assert [(s.strategy, s.groups) for s in read.stages] == [(s.strategy, s.groups) for s in schedule.stages]
    assert ios_file(read, back).text() == file.text()
    # And without the original, as one that is merged differently but computes the same.
    alone = network_of_file(file, NOWHERE, LoadOptions())
    assert ios_file(schedule_of_file(file, NOWHERE, alone), alone).text() == file.text()


@pytest.mark.parametrize("seed", range(8))
def test_undone_without_the_original_it_computes_the_same(seed: int) -> None:
    """With the merged convolution's weights cut into its parts, kernels as large as the merged one and all."""
    network = random_exportable(seed)
    schedule = random_schedule(network, seed)
    file = ios_file(schedule, network)
    alone = network_of_file(file, NOWHERE, LoadOptions())
    weights = {name: constant.load() for name, constant in network.graph.constants.items()}
    for stage in schedule.stages:
        if stage.strategy == "merge":
            merged = merged_convolution(network, [network.unit_index[name] for name in stage.units])
            parts = [(weights[f"{name}.conv.weight"], weights[f"{name}.conv.bias"]) for name in stage.units]
            whole, bias = merged.stack(parts)
            assert bias is not None
            begin = 0
            for name in stage.units:
                end = begin + alone.graph.types[f"{name}.conv.weight"].shape[0]
                weights[f"{name}.conv.weight"] = whole[begin:end]
                weights[f"{name}.conv.bias"] = bias[begin:end]
                begin = end
    graph = alone.graph
    constants = {name: ArrayConstant(weights[name]) for name in graph.constants}
    same = Graph.create({name: graph.types[name] for name in graph.inputs}, graph.outputs, graph.nodes, constants)
    image = random_inputs(network, seed)["image"]
    (expected,) = evaluate_graph(network.graph, {"image": image}).values()
    (found,) = evaluate_graph(same, {"image": image}).values()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_names_of_files() -> None:
    assert network_and_scheduler("inception_v3_dp_parallel_merge") == ("inception_v3", "ios-both")
    assert network_and_scheduler("mine") == ("mine", "ios-file")
    for scheduler in ("ios-both", "ios-parallel", "ios-merge", "sequential", "greedy", "ios-file"):
        assert network_and_scheduler(file_name("net", scheduler)) == ("net", scheduler)


@pytest.fixture
def small() -> tuple[Network, Schedule]:
    """a, b (merged) and c of the input; d of a; e = concat(d, b + c); tail."""
    b, x = builder_with("small", image=(1, 3, 6, 6))
    with b.block("main"):
        left, middle = conv_relu(b, "a", x, 2), conv_relu(b, "b", x, 4)
        right = max_pool(b, "c p", conv_relu(b, "c", x, 4), 3, 1, 1)
        join(b, "e", [conv_relu(b, "d", left, 2), [middle, right]])
    with b.block("tail"):
        y = conv_relu(b, "f", "e.concat", 3, 3, stride=2)
    network = b.network([y])
    main = [make_stage([["a", "b"]], "merge"), make_stage([["c", "c p"], ["d"]]), make_stage([["e"]])]
    tail = BlockSchedule(name="tail", stages=[make_stage([["f"]])])
    return network, make_schedule(network, [BlockSchedule(name="main", stages=main), tail])


@pytest.fixture
def document(small: tuple[Network, Schedule]) -> Any:
    return json.loads(ios_file(small[1], small[0]).text())


def test_what_a_small_schedule_is_written_as(document: Any) -> None:
    main, tail = document["blocks"]
    assert main["stages"] == [[["a"]], [["c", "c_p"], ["d"]], [["e"]]]
    merged, *_, d = main["inner_nodes"]
    assert (merged["name"], merged["hint_name"], merged["out_channels"]) == ("a", "a b", 6)
    assert d["inputs"] == [[["a", 0, 2]]]
    assert main["exit_node"]["inputs"] == [[["d", 0, 2]], [["a", 2, 6], ["c_p", 0, 4]]]
    assert tail["enter_node"] == main["exit_node"]
    assert tail["exit_node"]["output_shape"] == [3, 2, 2]


def inner(place: int, **fields: Any) -> Callable[[Any], object]:
    """Other fields in one of the first block's inner nodes."""
    return lambda d: d["blocks"][0]["inner_nodes"][place].update(fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("blocks"), "field 'blocks': Field required"),
        (lambda d: d["blocks"].clear(), "field 'blocks'"),
        (inner(0, colour=1), "colour"),
        (inner(0, kernel=[1, -1]), "kernel"),
        (inner(0, out_channels=10**30), "out_channels"),
        (inner(0, type="lstm"), "'conv', 'pool', 'identity'"),
        (inner(0, act="gelu"), "act"),
        (inner(0, inputs=[]), "inputs"),
        (inner(0, inputs=[[["zero", 0, 3]]]), "reads 'zero', which no node"),
        (inner(0, inputs=[[["image", 0, 2]]]), "channels 0 to 2 of 'image'"),
        (inner(0, hint_name="a b z"), "merges 3 convolutions"),
        (inner(0, hint_name="a a"), "two convolutions are named 'a'"),
        (inner(0, groups=3), "is merged and has 3 groups"),
        (inner(1, groups=2), "2 groups do not divide its 3 input"),
        (inner(1, output_shape=[4, 5, 6]), "its output_shape is 4x5x6"),
        (inner(1, kernel=[9, 9]), "node 'c'"),
        (inner(1, name="a"), "two nodes are named 'a'"),
        (lambda d: d["blocks"][0]["inner_nodes"].reverse(), "which no node before it makes"),
        (lambda d: d["blocks"][1].update(enter_name="a"), "block 1 starts from 'a'"),
        (lambda d: d["blocks"][0]["stages"].pop(0), "unit 'a' (and 1 more) is in no stage"),
        (lambda d: d["blocks"][0]["stages"].reverse(), "which runs in a later stage"),
        (lambda d: d["blocks"][0]["stages"][0].append(["c"]), "merged convolution 'a' shares it with others"),
        (lambda d: d["blocks"][0]["stages"][1].append(["nobody"]), "'nobody' is no unit"),
        (lambda d: d["blocks"][0]["stages"][1].append([]), "a group without units"),
    ],
)
def test_a_malformed_file_is_one_line(
    document: Any, tmp_path: Path, change: Callable[[Any], object], message: str
) -> None:
    change(document)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ScheduleError) as caught:
        schedule_of_file(read_ios_file(path), path, load(path))
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def places(value: Any, *at: Any) -> list[tuple[Any, ...]]:
    """The way to every key and element of a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in items for place in ((*at, key), *places(inner, *at, key))]


HOSTILE = (None, True, -1, 0, 1, 7, 2**31 - 1, 2**63, 1e308, "", "a", "\x00 b", [], {}, [[]], [["a", 0, 2]])


@pytest.mark.parametrize("replaces", [False, True])
def test_whatever_is_missing_or_replaced_is_one_line_or_prices(replaces: bool, document: Any, tmp_path: Path) -> None:
    """Every value taken out, or replaced by a hostile one: an error of one line, or a network that has a price."""
    path, outcomes = tmp_path / "bad.json", Counter[str]()
    prices = api.cost_model("simulator", "t4")
    for number, (*parents, key) in enumerate(places(document)):
        changed = deepcopy(document)
        holder = changed
        for parent in parents:
            holder = holder[parent]
        if replaces:
            holder[key] = HOSTILE[number % len(HOSTILE)]
        else:
            del holder[key]
        path.write_text(json.dumps(changed))
        try:
            read = load(path)
            api.simulate(schedule_of_file(read_ios_file(path), path, read), network=read, cost_model=prices)
            outcomes["priced"] += 1
        except IossimError as error:
            outcomes["several lines" if "\n" in str(error) else "refused"] += 1
    assert outcomes["refused"] > 200
    assert not outcomes["several lines"]
    assert outcomes["priced"] > 0 if replaces else outcomes["priced"] == 1, "but for a network that ends sooner"


def test_sizes_beyond_all_memory_are_refused(tmp_path: Path) -> None:
    """Sizes that agree with one another, of values of 2^93 bytes."""
    most = [2**31 - 1] * 3
    image = {"type": "placeholder", "name": "x", "hint_name": "x", "output_shape": most}
    relu = {"type": "relu", "name": "y", "hint_name": "y", "inputs": [[["x", 0, most[0]]]], "output_shape": most}
    block = {"enter_name": "x", "enter_node": image, "inner_nodes": [], "exit_node": relu, "stages": [[["y"]]]}
    path = tmp_path / "huge.json"
    path.write_text(json.dumps({"name": "huge", "input": image, "blocks": [block]}))
    with pytest.raises(ScheduleError, match="no tensor has more than 1 TiB"):
        load(path)


def test_a_file_takes_no_shapes(document: Any, tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(document))
    assert load(path, batch=4).graph.types["image"].shape == (4, 3, 6, 6)
    with pytest.raises(OptionError, match="holds all of its shapes"):
        load(path, shapes={"image": (1, 3, 9, 9)})


def one_conv(
    op: Op | None = None, second_input: bool = False, second_output: bool = False, parts: bool = False
) -> tuple[Network, Schedule]:
    b, x = builder_with("one", x=(1, 2, 6, 6))
    if second_input:
        x = join(b, "s", [[x, b.input("z", (1, 2, 6, 6))]])
    with b.block("all"):
        y = conv(b, "a", x, 2)
        if op is not None:
            y = b.add(op, y, name="o")
        if parts:
            y = b.add(Add(), *b.add_all(Split(1, (1, 1)), y, name="split"))
        outputs = [y, conv(b, "c", x, 2)] if second_output else [y]
    network = b.network(outputs)
    return network, random_schedule(network, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"second_input": True}, "it has 2 inputs"),
        ({"second_output": True}, "makes 2 values for others"),
        ({"parts": True}, "unit 'split' makes 2 values, a node makes one"),
        ({"op": Sigmoid()}, "has no node for sigmoid"),
        ({"op": Clip(0.0, 6.0)}, "has no node for clip"),
        ({"op": AveragePool((3, 3), (1, 1), (1, 1, 1, 1))}, "counts its padding"),
        ({"op": AveragePool((3, 3), (2, 2), (0, 0, 0, 0), ceil_mode=True)}, "no window hangs over the end"),
        ({"op": AveragePool((3, 3), (1, 1), (0, 0, 1, 1), count_include_pad=True)}, "same on both sides"),
    ],
)
def test_what_the_format_cannot_say_is_one_line(changes: dict[str, Any], message: str) -> None:
    network, schedule = one_conv(**changes)
    with pytest.raises(ScheduleError, match="'one' cannot be written as an IOS schedule") as caught:
        ios_file(schedule, network)
    assert message in str(caught.value)
