"""A schedule as a deployed graph, and what is said of a check: who is fastest, whether streams win, and why not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_networks import merged_stages, random_inputs, random_network, random_schedule

from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.deploy.check import DEFAULT, SEQUENTIAL, STREAMS, DeploymentCheck
from iossim.deploy.deployment_report import outputs_sentence, overlap_sentence, verdict
from iossim.deploy.runtime import deployed_graph
from iossim.execution.backend import Samples
from iossim.execution.execution import Span
from iossim.execution.measured_run import MeasuredRow, ratio_of
from iossim.measurements.profilers.layer_times import LayerTimes, TimedLayer
from iossim.schedule.streams import as_streams


def check_of(cores: int, error: float = 0.0, **times_us: float) -> DeploymentCheck:
    names = {"default": DEFAULT, "sequential": SEQUENTIAL, "streams": STREAMS}
    samples = {
        names[name]: Samples(tuple(time + noise for noise in (-1.0, 0.0, 1.0))) for name, time in times_us.items()
    }
    first = next(iter(samples.values()))
    rows = tuple(MeasuredRow(name, found, ratio_of(first, found)) for name, found in samples.items())
    return DeploymentCheck(rows, cores, {SEQUENTIAL: 0.0, STREAMS: error}, 1e-4)


def test_streams_that_lose_where_cores_lack() -> None:
    said = verdict(check_of(2, default=3000, sequential=2000, streams=4000), 2)
    assert said.startswith(
        "Fastest: 'deployed, one thread', 2.000 ms. Streams take 2.00 times as long (they need 3 cores"
    )
    assert "cores" not in verdict(check_of(3, default=3000, sequential=2000, streams=4000), 2)


@pytest.mark.parametrize(
    ("predicted_us", "told"),
    [(4500.0, "That was predicted: 1.50 times as long as one thread, and measured 2.00."),
     (1500.0, "The prediction was wrong: 0.50 times as long as one thread, and measured 2.00.")],
)  # fmt: skip
def test_whether_it_was_predicted_that_streams_lose(predicted_us: float, told: str) -> None:
    check = check_of(2, default=3000, sequential=2000, streams=4000)
    predicted = {SEQUENTIAL: 3000.0, STREAMS: predicted_us}
    rows = tuple(replace(row, predicted_us=predicted.get(row.name)) for row in check.rows)
    assert verdict(replace(check, rows=rows), 2).endswith(told)


def test_streams_that_win_or_tie() -> None:
    assert (
        verdict(check_of(4, default=3000, sequential=2000, streams=1000), 2)
        == "Fastest: 'deployed, streams', 1.000 ms."
    )
    tie = verdict(check_of(4, default=3000, sequential=1000, streams=1001), 2)
    assert tie == "Fastest: 'deployed, one thread', 1.000 ms, a tie with 'deployed, streams'."
    assert verdict(check_of(4, default=3000, sequential=1000), 1).endswith("The schedule has a single stream.")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (0.0, "bit for bit"),
        (1e-6, "Outputs equal: those of 'deployed, streams' are off by 1.0e-06"),
        (0.5, "Outputs DIFFER"),
    ],
)
def test_outputs(error: float, told: str) -> None:
    check = check_of(2, error, default=3.0, sequential=2.0, streams=4.0)
    assert told in outputs_sentence(check)
    assert check.equal == (error <= 1e-4)


def test_overlap_measured_and_predicted() -> None:
    """Two nodes of 4 us of which 1 us is shared, and two kernels that run at the same time."""
    layers = tuple(TimedLayer(name, "Conv", 4.0, (begin, begin + 4)) for name, begin in (("a", 0.0), ("b", 3.0)))
    spans = [Span("k", unit, 0, stream, 0.0, 2.0) for stream, unit in enumerate("ab")]
    said = overlap_sentence(LayerTimes("ONNX Runtime", layers, 1), spans)
    assert "1.14 concurrent nodes; predicted 2.00" in said


@given(st.integers(0, 10_000))
def test_merged_convolutions_are_stacked(seed: int) -> None:
    network = random_network(seed)
    saved = random_schedule(network, seed)
    streams = as_streams(saved, network, 2)
    deployed = deployed_graph(network, streams)
    inputs = random_inputs(network, seed)
    found = evaluate_graph(deployed.graph, inputs)
    for name, expected in evaluate_graph(network.graph, inputs).items():
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
