"""Edge devices of any size, and plans for them that are run, for tests."""

from typing import Any

import numpy as np
from random_networks import random_inputs

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.edge.capacity import check
from iossim.edge.plan import EdgePlan
from iossim.edge.simulator.execute import run
from iossim.hardware.edge import EdgeDevice, edge_device


def made(name: str = "c6678", **values: Any) -> EdgeDevice:
    """A device that ships with facts of other values: ``units=3``, ``shared__bytes=4096``."""
    return edge_device(name).changed({path.replace("__", "."): value for path, value in values.items()})


def outputs_equal(found: EdgePlan) -> None:
    """Check a plan, run it in its own memories, and compare its outputs with the network's."""
    check(found)
    inputs = random_inputs(found.network)
    outputs = run(found, inputs)
    for name, array in evaluate_graph(found.network.graph, inputs).items():
        np.testing.assert_allclose(outputs[name], array, rtol=1e-4, atol=1e-5)
