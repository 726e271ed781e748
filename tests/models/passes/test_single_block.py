"""A block as a network of its own: the same units, computing what they compute within the whole."""

from __future__ import annotations

import numpy as np
import pytest

import iossim
from iossim.backends.numpy_reference.execute import evaluate_graph as evaluate
from iossim.base.errors import OptionError
from iossim.models.load import load, load_source
from iossim.models.passes.blocks import single_block
from iossim.models.random_graphs import seeded_network


@pytest.mark.parametrize("seed", range(4))
def test_a_block_computes_what_it_does_within_the_network(seed: int) -> None:
    network = seeded_network(seed, units=7, blocks=3)
    rng = np.random.default_rng(seed)
    image = {
        name: rng.standard_normal(network.graph.types[name].shape).astype(np.float32) for name in network.graph.inputs
    }
    values = dict(image)
    for number, block in enumerate(network.blocks, 1):
        alone = single_block(network, number)
        assert [unit.name for unit in alone.units] == [network.units[index].name for index in block.units]
        assert [alone.signatures[i] for i in range(len(alone.units))] == [network.signatures[i] for i in block.units]
        values |= evaluate(alone.graph, {name: values[name] for name in alone.graph.inputs})
    whole = evaluate(network.graph, image)
    for name, value in whole.items():
        np.testing.assert_array_equal(values[name], value)


def test_blocks_are_found_by_name_and_by_number_from_either_end() -> None:
    network = load("squeezenet")
    names = [block.name for block in network.blocks]
    assert single_block(network, 1).blocks[0].name == names[0]
    assert single_block(network, -1).blocks[0].name == names[-1]
    assert single_block(network, "-2").blocks[0].name == names[-2]
    fire = single_block(network, "fire3")
    assert (fire.name, len(fire.units), fire.blocks[0].name) == ("squeezenet.fire3", 5, "fire3")
    assert fire.graph.types[fire.graph.inputs[0]].shape[1] == 128
    for wrong, words in (
        ("fire33", "did you mean 'fire3'?"),
        (0, "none has the number 0; give 1 to"),
        (99, "-1 for the last"),
    ):
        with pytest.raises(OptionError, match="squeezenet") as caught:
            single_block(network, wrong)
        assert words in str(caught.value)


def test_a_block_is_loaded_again_from_its_source() -> None:
    network = load("squeezenet", batch=4, block="fire3")
    assert load_source(network.source).graph.hash == network.graph.hash
    assert load_source(load("squeezenet", block=-2).source).blocks[0].name == "fire9"


def test_a_block_takes_what_it_takes_in_the_network() -> None:
    whole = iossim.optimize("squeezenet", "v100-sxm2")
    alone = iossim.optimize(load("squeezenet", block="fire3"), "v100-sxm2")
    (block,) = [block for block in whole.blocks if block.name == "fire3"]
    assert [stage.groups for stage in alone.blocks[0].stages] == [stage.groups for stage in block.stages]
    assert alone.latency_us <= sum(stage.latency_us + stage.boundary_us for stage in block.stages) * (1 + 1e-9)
