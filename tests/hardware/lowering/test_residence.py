"""Where kernels find what they read: by what was touched since, and by what all weights take."""

from __future__ import annotations

from itertools import pairwise

import pytest

from iossim.hardware.load import device
from iossim.hardware.lowering.residence import Residence, Weights, lower_in_network, residences
from iossim.hardware.lowering.unit import lower_unit
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.nary import Add

#: 3 MiB of L2 keep operands.
V100 = with_values(device("v100-sxm2"), {"l2_resident_fraction": 0.5})


def skipping(between: int, channels: int = 256) -> Network:
    """Pointwise convolutions in a row, values of 64 KiB and filters of 256 if there are 256 channels; the sum of the
    first and the last ends it.
    """
    b = GraphBuilder("skip")
    x = b.input("x", (1, channels, 8, 8))
    first = made = b.conv(x, channels, 1, name="first")
    for index in range(between):
        made = b.conv(made, channels, 1, name=f"between{index}")
    return b.network([b.add(Add(), made, first, name="sum")])


def read_from_dram(network: Network, unit: int, profile: DeviceProfile, weights: Weights = Weights.AUTO) -> int:
    ((candidate, *_),) = lower_in_network(network, unit, profile, weights)
    return sum(kernel.weight_bytes for kernel in candidate.kernels)


def test_a_value_is_lost_to_what_was_touched_since() -> None:
    lost = [read_from_dram(network := skipping(n), len(network.units) - 1, V100) for n in range(2, 20)]
    # Activations take turns in 192 KiB; with filters of up to 8 convolutions between they fit.
    assert lost[:7] == [0] * 7
    assert all(less <= more for less, more in pairwise(lost))
    assert lost[-1] == 64 << 10, "all of the first, nothing of the last"


def test_weights_are_found_where_a_whole_run_fits() -> None:
    small, large = skipping(6), skipping(30)
    assert {one.weights for one in residences(small, V100)} == {Weights.WARM}
    assert {one.weights for one in residences(large, V100)} == {Weights.COLD}
    # What fits a larger cache is warm there.
    assert {one.weights for one in residences(large, device("rtx-5090"))} == {Weights.WARM}
    assert read_from_dram(small, 1, V100) == 0
    assert read_from_dram(large, 1, V100) >= 256 << 10


@pytest.mark.parametrize("weights", [Weights.WARM, Weights.COLD])
def test_weights_are_where_they_are_said_to_be(weights: Weights) -> None:
    network = skipping(30)
    (plain,) = lower_unit(network, network.units[1], V100)
    (found,) = lower_in_network(network, 1, V100, weights)
    for one, other in zip(plain, found, strict=True):
        for kernel, moved in zip(one.kernels, other.kernels, strict=True):
            # Only where bytes come from changes.
            assert kernel.weight_bytes + kernel.activation_bytes == moved.weight_bytes + moved.activation_bytes
            assert moved.weight_bytes == (0 if weights is Weights.WARM else kernel.weight_bytes)
            assert (kernel.waits_for_dram, moved.waits_for_dram) == (False, moved.weight_bytes > 0)


def test_equal_units_in_equal_places_have_equal_keys() -> None:
    found = residences(skipping(30), V100)
    assert {one.key for one in found[1:-1]} == {""}
    assert found[-1].key == "cold 4"
    assert Residence().key == ""
