"""Stages as streams: the same work, ordered wherever data crosses, and by nothing more."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_networks import random_inputs, random_network, random_schedule, sequential_schedule, unscheduled

from iossim.backends.numpy_reference.execute import execute
from iossim.base.errors import OptionError, ScheduleError
from iossim.execution.happens_before import check_happens_before
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import with_memory
from iossim.schedule.fit import fit
from iossim.schedule.schedule import StreamSchedule
from iossim.schedule.streams import as_streams

seeds = st.integers(0, 10_000)


@given(seeds, st.one_of(st.none(), st.integers(1, 4)))
def test_the_same_units_in_order_without_races(seed: int, most: int | None) -> None:
    network = random_network(seed)
    saved = random_schedule(network, seed)
    streams = as_streams(saved, network, most)
    fit(streams, network)
    assert len(streams.streams) <= (most or saved.streams)
    assert all(streams.streams)
    plan = with_memory(lower_schedule(streams, network, "graph"))
    check_happens_before(plan)


@given(seeds)
def test_outputs_are_those_of_the_graph(seed: int) -> None:
    network = random_network(seed)
    streams = as_streams(random_schedule(network, seed), network, 2)
    inputs = random_inputs(network, seed)
    found = execute(with_memory(lower_schedule(streams, network, "graph")), network, inputs)
    for name, expected in unscheduled(network, inputs).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-4)


@given(seeds)
def test_each_wait_is_needed(seed: int) -> None:
    """Without the only wait of a stream's first launch a unit reads what nothing orders before it."""
    network = random_network(seed)
    streams = as_streams(random_schedule(network, seed, merge=False), network, 3)
    for stream, own in enumerate(streams.streams):
        for place, launch in enumerate(own):
            for gone in launch.after:
                kept = launch.model_copy(update={"after": [unit for unit in launch.after if unit != gone]})
                changed = [list(one) for one in streams.streams]
                changed[stream][place] = kept
                without = StreamSchedule.model_construct(**{**dict(streams), "streams": changed})
                # An earlier launch of this stream, or what the rest waits for, may have waited as long.
                if place == 0 and len(launch.after) == 1:
                    with pytest.raises(ScheduleError, match="nothing orders the two"):
                        fit(without, network)


def test_a_single_stream_has_no_waits() -> None:
    network = random_network(3)
    (own,) = as_streams(random_schedule(network, 3), network, 1).streams
    assert not [launch for launch in own if launch.after]
    assert len(as_streams(sequential_schedule(network), network).streams) == 1


def test_no_streams_are_refused() -> None:
    network = random_network(3)
    with pytest.raises(OptionError, match="`streams` 0 is not possible"):
        as_streams(random_schedule(network, 3), network, 0)
