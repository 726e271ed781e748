"""Kept reference outputs: found again by whoever asks for the same, and only then."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from random_networks import random_inputs, random_network, random_schedule

from benchmarks.gpu_report_references import kept_outputs
from iossim.backends.numpy_reference.execute import numpy_outputs
from iossim.execution.backends import create_backend
from iossim.execution.measured_run import output_error
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.op import Array


class Counted:
    """NumPy's outputs, and for how many networks they were asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, network: Network, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        self.asked += 1
        return numpy_outputs(network, inputs)


def test_equal_work_is_computed_once_for_all_processes(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "references"
    first, second = Counted(), Counted()
    found = kept_outputs(first, folder)(random_network(3), random_inputs(random_network(3)))
    again = kept_outputs(second, folder)(random_network(3), random_inputs(random_network(3)))
    assert (first.asked, second.asked) == (1, 0)
    assert found.keys() == again.keys() != set()
    for name, array in found.items():
        np.testing.assert_array_equal(again[name], array)


def test_other_inputs_networks_and_weights_are_other_work(tmp_path: Path) -> None:
    def named(name: str) -> Network:
        builder = GraphBuilder("one")
        x = builder.input("x", (1, 3, 8, 8))
        return builder.network([builder.conv(x, 4, kernel=3, padding=1, name=name)])

    counted = Counted()
    outputs = kept_outputs(counted, tmp_path)
    for network, seed in ((named("a"), 0), (named("a"), 1), (named("b"), 0), (random_network(3), 0)):
        outputs(network, random_inputs(network, seed))
    outputs(named("b"), random_inputs(named("b"), 0))
    assert counted.asked == 4


def test_what_cannot_be_read_is_computed_anew(tmp_path: Path) -> None:
    counted = Counted()
    network = random_network(3)
    outputs = kept_outputs(counted, tmp_path)
    found = outputs(network, random_inputs(network))
    (path,) = tmp_path.iterdir()
    for broken in (b"", b"no archive", path.read_bytes()[:100]):
        path.write_bytes(broken)
        again = outputs(network, random_inputs(network))
        np.testing.assert_array_equal(again[network.graph.outputs[0]], found[network.graph.outputs[0]])
    assert counted.asked == 4


def test_schedules_are_held_to_the_reference_that_is_given(tmp_path: Path) -> None:
    network = random_network(5)
    backend = create_backend("numpy_reference")
    counted = Counted()
    reference = kept_outputs(counted, tmp_path)
    errors = [output_error(network, random_schedule(network, seed), backend, reference) for seed in range(3)]
    assert max(errors) < 1e-5
    assert counted.asked == 1

    def off(network: Network, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return {name: array * 1.5 for name, array in reference(network, inputs).items()}

    assert output_error(network, random_schedule(network, 0), backend, off) == pytest.approx(1 / 3, rel=1e-3)
