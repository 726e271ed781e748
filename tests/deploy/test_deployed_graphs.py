"""The graph that a schedule computes has the outputs of the network's own."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from random_networks import merged_stages, random_inputs, random_network, random_schedule, unscheduled

from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.deploy.graphs import deployed_graph
from iossim.schedule.streams import as_streams


@given(st.integers(0, 10_000))
def test_merged_convolutions_are_stacked(seed: int) -> None:
    network = random_network(seed)
    saved = random_schedule(network, seed)
    streams = as_streams(saved, network, 2)
    deployed = deployed_graph(network, streams)
    inputs = random_inputs(network, seed)
    found = evaluate_graph(deployed.graph, inputs)
    for name, expected in unscheduled(network, inputs).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-4)
    splits = [node for node in deployed.graph.nodes if node.name.endswith(".split")]
    assert len(splits) == merged_stages(saved)
    stream_of_unit = {unit: number for number, own in enumerate(streams.streams) for one in own for unit in one.units}
    for node in deployed.graph.nodes:
        for value in node.outputs:
            maker = network.unit_of_value.get(value)
            if maker is not None:
                assert deployed.stream_of[value] == stream_of_unit[network.units[maker].name]
            else:
                assert deployed.stream_of[value] in range(len(streams.streams))
