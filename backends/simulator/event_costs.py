"""Costs of records and waits under an engine, and its limit of concurrent kernels."""

from __future__ import annotations

from typing import NamedTuple

from iossim.backends.simulator.device_sharing import MAX_GROUPS
from iossim.base.errors import note_once
from iossim.execution.engine import Engine
from iossim.hardware.lowering.target import target_of
from iossim.hardware.profile import DeviceProfile


class EventCosts(NamedTuple):
    """``host_us`` for each record and wait; of the stream ``fork_us`` and ``join_us`` in a graph, ``wait_us`` for each
    wait in a session. Kernels of a graph start ``apart_us`` after one another, at the soonest, ``code_us`` more with
    code that none has that runs, and ``follow_us`` after their predecessor in a stream while others run.
    """

    host_us: float
    fork_us: float
    join_us: float
    wait_us: float
    apart_us: float = 0.0
    code_us: float = 0.0
    follow_us: float = 0.0

    @staticmethod
    def of(engine: Engine, profile: DeviceProfile) -> EventCosts:
        """In a session on a CPU whose cores, but the caller's, are fewer than two streams, a notified stream waits
        until the system gives its thread a turn.
        """
        costs = profile.engine
        if engine.is_recorded:
            apart = costs.graph_apart_us, costs.graph_code_us, costs.graph_follow_us
            return EventCosts(0.0, costs.fork_us, costs.join_us, 0.0, *apart)
        if not engine.facts.is_session:
            return EventCosts(costs.event_us, 0.0, 0.0, 0.0)
        is_starved = runs_on_cores(profile) and kernels_at_a_time(engine, profile) < 2
        wait_us = costs.starved_notification_us if is_starved else costs.notification_us
        return EventCosts(costs.event_us, 0.0, 0.0, wait_us)


def tell_unknown(engine: Engine, profile: DeviceProfile) -> None:
    """Note what prices of an engine leave out on a device, where they do."""
    if engine.facts.is_session and not runs_on_cores(profile):
        note_once(
            f"`engine` {engine} on {profile.name} is priced from launches of one thread; not known are what its CUDA "
            "provider leaves to the CPU, how its threads share the driver, and what it takes in captured graphs"
        )


def runs_on_cores(profile: DeviceProfile) -> bool:
    """True where each kernel has a core to itself."""
    return target_of(profile).runs_one_kernel_per_sm


def kernels_at_a_time(engine: Engine, profile: DeviceProfile) -> int:
    """Kernels that run at a time: one a core of a CPU, less the core of a session's calling thread."""
    if not runs_on_cores(profile):
        return MAX_GROUPS
    return max(1, profile.sm_count - engine.facts.is_session)
