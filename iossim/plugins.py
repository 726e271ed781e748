"""What others add to iossim from packages of their own, through entry points: a group for each kind of thing.

A package declares in its ``pyproject.toml``, for example::

    [project.entry-points."iossim.cost_models"]
    mine = "my_package.costs:create"

What an entry point must name, by its group:

- ``iossim.cost_models``: a function ``create(device, precision, engine, argument)`` that returns a
  :class:`~iossim.cost.model.CostModel`; found as ``--cost-model mine:ARGUMENT``.
- ``iossim.devices``: a function without arguments that returns the YAML text of a device profile of that name.
- ``iossim.passes``: a :class:`~iossim.passes.graph_pass.GraphPass`; runs on models of a file where it is asked for.
- ``iossim.backends``: a module with ``create(precision, engine, options)`` and ``missing()``
  (:mod:`iossim.execution.backend`).
- ``iossim.outputs``: a function of a network and a schedule that returns the text of a file, for
  ``iossim schedules export --format mine``.

What iossim has itself by that name wins. Nothing is imported before it is asked for, and what cannot be imported or does
not do what its group asks stands in nobody's way: it is one line that names it, where it is asked for and in
``iossim doctor``; the list of devices, which reads them all, leaves it out and warns.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from iossim.errors import IossimError

COST_MODELS = "iossim.cost_models"
DEVICES = "iossim.devices"
PASSES = "iossim.passes"
BACKENDS = "iossim.backends"
OUTPUTS = "iossim.outputs"
GROUPS = (COST_MODELS, DEVICES, PASSES, BACKENDS, OUTPUTS)


class PluginError(IossimError):
    """A plugin that cannot be imported, or that does not do what its group asks."""


@dataclass(frozen=True)
class Plugin:
    """An entry point of one of the groups, not imported yet. ``package`` says whose it is, with its version."""

    group: str
    name: str
    package: str
    entry_point: EntryPoint

    def load(self) -> Any:
        """What it names; raises PluginError in one line."""
        found = self.run(self.entry_point.load)
        if not _fits(self.group, found):
            raise PluginError(
                f"{self}: {self.entry_point.value} is {type(found).__name__}, not {_WANTED[self.group]}"
            )
        return found

    def call(self, *arguments: Any) -> Any:
        """What its function returns for these arguments; raises PluginError for anything but a mistake of the user's."""
        function = self.load()
        return self.run(lambda: function(*arguments))

    def run(self, step: Callable[[], Any]) -> Any:
        """What ``step``, which is the plugin's doing, returns; PluginError instead of whatever else it raises."""
        try:
            return step()
        except IossimError:
            raise
        except (Exception, SystemExit) as error:
            # Code of others may raise anything; whatever it is, it must not look like a defect here, nor stop the rest.
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise PluginError(f"{self} does not work: {reason}; update or uninstall {self.package}") from error

    def __str__(self) -> str:
        return f"plugin {self.name!r} of {self.package} ({self.group})"


def plugins(group: str) -> dict[str, Plugin]:
    """The plugins of a group by name, sorted; where two packages have one name, that of the first package."""
    first: dict[str, Plugin] = {}
    for each in _found(group, tuple(sys.path)):
        first.setdefault(each.name, each)
    return first


def plugin(group: str, name: str) -> Plugin | None:
    """The plugin of that name, None where there is none."""
    return plugins(group).get(name)


def states() -> list[tuple[Plugin, str]]:
    """Every plugin, and what is wrong with it in one line, empty where nothing is; each is imported to tell."""
    found: list[tuple[Plugin, str]] = []
    for group in GROUPS:
        chosen = plugins(group)
        own = _own_names(group)
        for each in _found(group, tuple(sys.path)):
            if each.name in own:
                found.append((each, f"{each} is not used: iossim has {each.name!r} itself"))
            elif chosen[each.name] is not each:
                found.append((each, f"{each} is not used: {chosen[each.name].package} has the same name"))
            else:
                found.append((each, _problem(each)))
    return found


@cache
def warn_once(line: str) -> None:
    """One line on standard error, unless the program that uses iossim has set up logging otherwise."""
    logging.getLogger("iossim").warning("warning: %s", line)


@cache
def note_once(line: str) -> None:
    """One line on standard error that is no warning: how something that was given is taken."""
    logging.getLogger("iossim").warning("note: %s", line)


def _problem(each: Plugin) -> str:
    try:
        if each.group == DEVICES:
            from iossim.devices.load import plugin_device

            plugin_device(each)
        else:
            each.load()
    except IossimError as error:
        return str(error)
    return ""


_WANTED = {
    COST_MODELS: "a function that creates a cost model",
    DEVICES: "a function that returns a profile's YAML",
    PASSES: "a GraphPass",
    BACKENDS: "a module with create and missing",
    OUTPUTS: "a function that returns text",
}


def _fits(group: str, found: Any) -> bool:
    if group == PASSES:
        from iossim.passes.graph_pass import GraphPass

        return isinstance(found, GraphPass)
    if group == BACKENDS:
        return all(callable(getattr(found, name, None)) for name in ("create", "missing"))
    return callable(found)


def _own_names(group: str) -> list[str]:
    """What iossim has itself, which no plugin replaces."""
    if group == COST_MODELS:
        from iossim.cost.create import own_cost_models

        return own_cost_models()
    if group == DEVICES:
        from iossim.devices.load import own_names

        return own_names()
    if group == BACKENDS:
        from iossim.execution.backend import own_backends

        return own_backends()
    if group == OUTPUTS:
        from iossim.reporting.schedule_formats import own_formats

        return own_formats()
    return []


@cache
def _found(group: str, path: tuple[str, ...]) -> list[Plugin]:
    """All of a group, by name and package; ``path`` is where packages are looked for, so that a changed one is seen."""
    found = []
    for entry_point in entry_points(group=group):
        package = entry_point.dist
        owner = f"{package.name} {package.version}" if package is not None else "an unknown package"
        found.append(Plugin(group, entry_point.name, owner, entry_point))
    return sorted(found, key=lambda each: (each.name, each.package, each.entry_point.value))
