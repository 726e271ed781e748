"""Plans run on the host's device compute what the network does, whatever order the device takes."""

from __future__ import annotations

import numpy as np
import pytest
from host_device import HostDriver, HostLibrary
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import random_inputs, random_network, random_schedule, unscheduled

from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend
from iossim.backends.cupy_cudnn.options import CudnnOptions
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.schedule.schedule import Schedule


def host_backend(engine: Engine = Engine.GRAPH, seed: int = 0) -> CupyCudnnBackend:
    driver = HostDriver(seed)
    return CupyCudnnBackend(Precision.FP32, engine, CudnnOptions(), driver, HostLibrary(driver))


def agrees(
    backend: CupyCudnnBackend, network: Network, schedule: Schedule, engine: Engine, chosen: bool = True
) -> None:
    inputs = random_inputs(network)
    choices = backend.choices(network) if chosen else None
    plan = lower_schedule(schedule, network, engine, in_place=True, choices=choices)
    outputs = backend.execute(network, plan, inputs)
    expected = unscheduled(network, inputs)
    assert set(outputs) == set(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(outputs[name], array, rtol=1e-4, atol=1e-4)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), engine=st.sampled_from(list(Engine)), chosen=st.booleans())
def test_random_schedules_of_random_networks(seed: int, engine: Engine, chosen: bool) -> None:
    network = random_network(seed)
    agrees(host_backend(engine, seed), network, random_schedule(network, seed), engine, chosen)
