"""Lookup by name: iossim's own things, followed by those that other packages add through entry points.

Each kind of thing has a :class:`Group` beside its contract. iossim's own things are found by listing a package, so that
adding one is adding a file, or in a table of places. Another package declares its own in its ``pyproject.toml``::

    [project.entry-points."iossim.cost_models"]
    mine = "my_package.costs:create"

The groups that take entry points are ``OPS`` (:mod:`iossim.ir.op`), ``SCHEDULERS`` (:mod:`iossim.search.scheduler`),
``COST_MODELS`` (:mod:`iossim.cost.create`), ``DEVICES`` (:mod:`iossim.hardware.load`), ``DEVICE_KINDS``
(:mod:`iossim.hardware.kind`), ``PASSES`` (:mod:`iossim.models.passes.pipeline`), ``RULE_SETS``
(:mod:`iossim.transforms.rewriting.rule_sets`), ``BACKENDS`` (:mod:`iossim.execution.backend`), ``OUTPUTS``
(:mod:`iossim.cli.schedules`) and ``COMMANDS`` (:mod:`iossim.cli.main`); that of
kinds of studies is in :mod:`iossim.study.study_kind`.

Rooms of iossim whose features stand on all others' (*guests*) are found in the same way, by the names of their modules
(:func:`guest_modules`). Without the folder of such a room there is only its feature missing.

iossim's own names win. A plugin is imported only when it is requested; one that cannot be imported, or violates its
group's contract, is reported in one line, where it is requested and in ``iossim doctor``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from iossim.base.errors import IossimError, OptionError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
P = ParamSpec("P")


class PluginError(IossimError):
    """A plugin that cannot be imported, or that violates its group's contract."""


@dataclass(frozen=True)
class Plugin:
    """An entry point, not imported yet. ``package`` names the package that declares it, with its version."""

    group: str
    name: str
    package: str
    entry_point: EntryPoint

    def guarded(self, function: Callable[P, T], problem: Callable[P, str] | None = None) -> Callable[P, T]:
        """A function of the plugin that raises PluginError in place of any error that is no IossimError; ``problem``
        says from the arguments what went wrong.
        """

        def call(*arguments: P.args, **options: P.kwargs) -> T:
            try:
                return function(*arguments, **options)
            except IossimError:
                raise
            except (Exception, SystemExit) as error:
                # Code of others may raise anything; it must not stop the rest.
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                what = problem(*arguments, **options) if problem else "does not work"
                raise self.error(f"{what}: {reason}") from error

        return call

    def error(self, problem: str) -> PluginError:
        return PluginError(f"{self} {problem}; update or uninstall {self.package}")

    def __str__(self) -> str:
        return f"plugin {self.name!r} of {self.package} ({self.group})"


@dataclass(frozen=True)
class Extension(Generic[T]):
    """A group's contract for plugins: the name of its entry points, their type, and their conversion to an entry.

    An entry point that does not satisfy the type is refused as not ``wanted``. ``adapt`` may raise any IossimError.
    """

    entry_points: str
    wanted: str
    adapt: Callable[..., T]
    fits: Callable[[object], bool] = callable

    def load(self, plugin: Plugin) -> T:
        """The entry of a plugin; raises PluginError in one line."""
        found = plugin.guarded(plugin.entry_point.load)()
        if not self.fits(found):
            value = plugin.entry_point.value
            raise PluginError(f"{plugin}: {value} is {type(found).__name__}, not {self.wanted}")
        return self.adapt(plugin, found)


@dataclass(frozen=True)
class Group(Generic[T]):
    """Things of one kind, found by name.

    ``unknown`` is the error for an unknown name (``"plot {!r} is not known"``). ``own`` lists iossim's own names in
    display order, and ``get_own`` returns the thing of a name, or None.
    """

    unknown: str
    own: Callable[[], Iterable[str]]
    get_own: Callable[[str], T | None]
    extension: Extension[T] | None = None
    error: type[IossimError] = OptionError

    def names(self) -> list[str]:
        """All available names: iossim's own, then those of plugins, sorted."""
        own = list(self.own())
        return [*own, *sorted(self.plugins().keys() - set(own))]

    def plugins(self) -> dict[str, Plugin]:
        """The plugins by name, including those whose name iossim has itself."""
        return {} if self.extension is None else plugins_of(self.extension.entry_points)

    def get(self, name: str) -> T | None:
        """The thing of that name, None if there is none; raises PluginError for a plugin that does not work."""
        found = self.get_own(name)
        if found is None and self.extension is not None and (added := self.plugins().get(name)) is not None:
            return self.extension.load(added)
        return found

    def find(self, name: str) -> T:
        """The thing of that name; raises the group's error for an unknown one, else PluginError."""
        found = self.get(name)
        if found is None:
            raise self.refusal(name, self.names())
        return found

    def refusal(self, name: object, known: Iterable[str]) -> IossimError:
        """The error for a name that is not among ``known``."""
        remedy = did_you_mean(name, known) if known else "no installed package adds any"
        return self.error(f"{self.unknown.format(name)}; {remedy}")

    def states(self) -> list[tuple[Plugin, str]]:
        """Every plugin, and its defect in one line, empty if there is none; each is imported for the check."""
        if self.extension is None:
            return []
        chosen, own = self.plugins(), set(self.own())
        found: list[tuple[Plugin, str]] = []
        for each in _installed(self.extension.entry_points, tuple(sys.path)):
            problem = ""
            if each.name in own:
                problem = f"{each} is not used: iossim has {each.name!r} itself"
            elif chosen[each.name] is not each:
                problem = f"{each} is not used: {chosen[each.name].package} has the same name"
            else:
                try:
                    self.extension.load(each)
                except IossimError as error:
                    problem = str(error)
            found.append((each, problem))
        return found


def module_names(package: str) -> list[str]:
    """The modules of a package, sorted; none of them is imported."""
    return sorted(module.name for module in iter_modules(import_module(package).__path__))


def modules(package: str) -> list[ModuleType]:
    """The modules of a package, imported in the order of their names."""
    return [import_module(f"{package}.{name}") for name in module_names(package)]


class Places(Mapping[str, T]):
    """Values by name, each imported on first use.

    ``places`` maps a module of ``package`` and its attribute (``streaming:copy``) to the names of that value, separated
    by spaces.
    """

    def __init__(self, package: str, places: Mapping[str, str]) -> None:
        self._package = package
        self._places = {name: place for place, names in places.items() for name in names.split()}

    def __getitem__(self, name: str) -> T:
        module, _, attribute = self._places[name].partition(":")
        found: T = getattr(import_module(f"{self._package}.{module}"), attribute)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


@cache
def guest_modules(part: str) -> dict[str, str]:
    """The modules ``NAME_part`` of iossim's rooms, by NAME; none of them is imported.

    A guest (a package whose feature builds on all others) adds its commands, schemas and so on this way.
    """
    files = (file for folder in import_module("iossim").__path__ for file in Path(folder).glob(f"*/*_{part}.py"))
    return {file.stem.removesuffix(f"_{part}"): f"iossim.{file.parent.name}.{file.stem}" for file in sorted(files)}


def guest_part(part: str, name: str, attribute: str) -> Any:
    """An attribute of a module of :func:`guest_modules`; None if there is no such module or attribute."""
    place = guest_modules(part).get(name)
    return None if place is None else getattr(import_module(place), attribute, None)


def needed_part(part: str, name: str, attribute: str, option: str) -> Any:
    """:func:`guest_part` that an ``option`` asks for; raises OptionError if there is none."""
    found = guest_part(part, name, attribute)
    if found is None:
        raise OptionError(f"`{option}`: this copy of iossim lacks {name!r}; leave it out, or install iossim whole")
    return found


def plugins_of(entry_points: str) -> dict[str, Plugin]:
    """The installed plugins of a group by name, sorted; if two packages use one name, that of the first package."""
    first: dict[str, Plugin] = {}
    for each in _installed(entry_points, tuple(sys.path)):
        first.setdefault(each.name, each)
    return first


@cache
def _installed(group: str, path: tuple[str, ...]) -> list[Plugin]:
    """All entry points of a group, by name and package; a changed ``path`` of packages is noticed."""
    from importlib.metadata import entry_points  # slow to import

    found = []
    for entry_point in entry_points(group=group):
        package = entry_point.dist
        owner = f"{package.name} {package.version}" if package is not None else "an unknown package"
        found.append(Plugin(group, entry_point.name, owner, entry_point))
    return sorted(found, key=lambda each: (each.name, each.package, each.entry_point.value))
