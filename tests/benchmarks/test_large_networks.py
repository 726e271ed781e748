"""The networks of wide blocks that a benchmark makes: as large as it says, and wider than one problem."""

from __future__ import annotations

import pytest

from benchmarks import large_networks

#: Units, and whether a block of them is wider than compiled code takes.
SIZES = {
    "pnasnet_5_large": (269, True),
    "hrnet_w18": (470, True),
    "inception_resnet_v2": (333, False),
    "clip": (267, True),
    "moe_64": (138, True),
    "nasnet_a_large": (374, True),
}


def test_every_network_has_a_size() -> None:
    assert SIZES.keys() == {*large_networks.BUILDS, "nasnet_a_large"}


@pytest.mark.parametrize("name", SIZES)
def test_networks_are_as_large_as_they_are_said_to_be(name: str) -> None:
    network = large_networks.network(name)
    units, is_wide = SIZES[name]
    assert len(network.units) == units
    assert not network.notes, "nothing is split"
    assert (max(len(block.units) for block in network.blocks) > 64) == is_wide
