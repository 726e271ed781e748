"""The formats of others that a schedule can be written in: each a function from a network and its schedule to text.

Others add formats as plugins (:mod:`iossim.plugins`).
"""

from __future__ import annotations

from collections.abc import Callable

from iossim.errors import OptionError, did_you_mean
from iossim.ir.network import Network
from iossim.plugins import OUTPUTS, Plugin, PluginError, plugin, plugins
from iossim.schedule.schedule import Schedule

ScheduleFormat = Callable[[Network, Schedule], str]


def ios(network: Network, schedule: Schedule) -> str:
    """A file of the published IOS engine; raises ScheduleError for what it has no words for."""
    from iossim.models.ios_engine.export import ios_file

    return ios_file(schedule, network).text()


def dot(network: Network, schedule: Schedule) -> str:
    """A graph for Graphviz, stages as clusters."""
    from iossim.reporting.dot import dot as text

    return text(network, schedule)


_FORMATS: dict[str, ScheduleFormat] = {"ios": ios, "dot": dot}


def own_formats() -> list[str]:
    """Those that iossim has itself."""
    return sorted(_FORMATS)


def schedule_format_names() -> list[str]:
    """The formats that can be asked for by name."""
    return sorted({*_FORMATS, *plugins(OUTPUTS)})


def schedule_format(name: str) -> ScheduleFormat:
    """The format of that name; raises OptionError for an unknown one, PluginError for one that does not work."""
    if name in _FORMATS:
        return _FORMATS[name]
    added = plugin(OUTPUTS, name)
    if added is None:
        raise OptionError(f"`format` {name!r} is not known; {did_you_mean(name, schedule_format_names())}")
    return lambda network, schedule: _text(added, network, schedule)


def _text(added: Plugin, network: Network, schedule: Schedule) -> str:
    text = added.call(network, schedule)
    if not isinstance(text, str):
        raise PluginError(f"{added} returns {type(text).__name__}, not text; update or uninstall {added.package}")
    return text
