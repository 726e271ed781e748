"""Formats of other tools that a schedule can be exported to: each a function from a network and its stages to text.

Other packages add formats by entry points ``iossim.outputs`` (:mod:`iossim.base.registry`).
"""

from __future__ import annotations

from collections.abc import Callable

from iossim.base.registry import Extension, Group, Plugin
from iossim.ir.network import Network
from iossim.schedule.schedule import Schedule

ScheduleFormat = Callable[[Network, Schedule], str]


def ios(network: Network, schedule: Schedule) -> str:
    """A file of the published IOS engine; raises ScheduleError for what its format cannot express."""
    from iossim.models.ios_engine.export import ios_file

    return ios_file(schedule, network).text()


def _of_plugin(added: Plugin, found: ScheduleFormat) -> ScheduleFormat:
    def write(network: Network, schedule: Schedule) -> str:
        text = added.guarded(found)(network, schedule)
        if not isinstance(text, str):
            raise added.error(f"returns {type(text).__name__}, not text")
        return text

    return write


_FORMATS: dict[str, ScheduleFormat] = {"ios": ios}
OUTPUTS: Group[ScheduleFormat] = Group(
    "`format` {!r} is not known",
    lambda: _FORMATS,
    _FORMATS.get,
    Extension("iossim.outputs", "a function that returns text", _of_plugin),
)
