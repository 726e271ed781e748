"""A divided network over real processes: the outputs of one, and the bytes that were planned."""

from __future__ import annotations

import numpy as np
import pytest
from command_line import printed_json
from random_networks import random_inputs

import iossim
from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.edge.distributed import distributed
from iossim.hardware.edge import edge_device

pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")
pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("devices", "sync"), [(2, "ring"), (4, "ring"), (3, "server")])
def test_processes_compute_and_send_what_was_planned(devices: int, sync: str) -> None:
    from iossim.edge.runs import run_in_processes

    network = iossim.load("squeezenet")
    found = distributed(network, edge_device("c6678"), devices, sync=sync).distribution
    inputs = random_inputs(network)
    made, sent_bytes = run_in_processes(found, inputs)
    expected = evaluate_graph(network.graph, inputs)
    assert sum(sent_bytes) == found.sent_bytes > 0
    for outputs in made:
        for name, array in expected.items():
            np.testing.assert_allclose(outputs[name], array, rtol=1e-4, atol=1e-5 * np.abs(array).max())


def test_from_the_command_line() -> None:
    done = printed_json("dataflow run ios_sample -d c6678 --processes 2 --json")
    assert (done["holds"], done["in_processes"], done["devices"]) == (True, True, 2)
    assert sum(done["sent_bytes"]) == done["planned_bytes"] > 0
