"""Whole networks under random schedules compute what their graphs do, under both engines."""

from __future__ import annotations

import numpy as np
import pytest
from random_networks import merged_stages, random_inputs, random_schedule

from iossim.backends.numpy_reference.execute import evaluate_graph, execute
from iossim.execution.happens_before import check_happens_before
from iossim.execution.lower import lower_schedule
from iossim.models.load import load


@pytest.mark.parametrize(
    ("model", "merges"),
    [
        ("squeezenet", True),
        ("inception_v3", True),
        ("resnet18", False),
        pytest.param("nasnet_a", False, marks=pytest.mark.slow),
        pytest.param("randwire", False, marks=pytest.mark.slow),
    ],
)
def test_a_network_under_a_random_schedule(model: str, merges: bool) -> None:
    network = load(model, batch=1)
    schedule = random_schedule(network, seed=1)
    assert bool(merged_stages(schedule)) == merges
    inputs = random_inputs(network)
    expected = evaluate_graph(network.graph, inputs)
    for engine in ("paper", "graph"):
        plan = lower_schedule(schedule, network, engine)
        check_happens_before(plan)
        outputs = execute(plan, network, inputs, seed=2)
        for name, array in expected.items():
            assert np.abs(array).max() > 0
            np.testing.assert_allclose(outputs[name], array, rtol=1e-4, atol=1e-5 * np.abs(array).max())
