"""Schedulers of other packages: their schedules must fit the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from iossim.base.errors import ScheduleError
from iossim.base.registry import Plugin
from iossim.ir.network import Network
from iossim.schedule.fit import fit
from iossim.schedule.schedule import AnySchedule


def adapted(plugin: Plugin, function: Callable[..., AnySchedule]) -> Callable[..., AnySchedule]:
    """The scheduler of a plugin, raising its error for what is no schedule of the network."""

    def scheduled(network: Network, *given: Any, **named: Any) -> AnySchedule:
        found = plugin.guarded(function)(network, *given, **named)
        try:
            fit(found, network)
        except (AttributeError, ScheduleError) as error:
            raise plugin.error(f"returned no schedule of {network.name}: {error}") from None
        return found

    return scheduled
