"""Commands and their options, from the tables of ``options.toml``; and the flags of names in messages.

The parameters of a :func:`command` are its options, by their entries in ``options.toml`` of its room; one of the class
of a group stands for all of the group's. Below the command line a message names an argument as Python does, in
backquotes (``give `max_groups` 8``); the flag is the name with dashes, or that of :data:`FLAGS`.

Several commands share the groups: reading of a model, admissible stages and their prices, search for streams,
transforms of a network, and timing of plans.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_type_hints

import typer
from typer.models import ParameterInfo

from iossim.base.errors import OptionError, did_you_mean, once

if TYPE_CHECKING:
    from iossim.cost.model import CostModel
    from iossim.execution.backend import Timing
    from iossim.ir.network import Network
    from iossim.search.options import SearchOptions


def whole_number(text: str) -> int:
    """An option's value as an integer; the option's reader checks its range."""
    try:
        return int(text)
    except ValueError:
        many = "; a study has several ('iossim study new')" if "," in text else ""
        raise typer.BadParameter(f"{text!r} is not a whole number{many}") from None


def help_without_command(context: typer.Context) -> None:
    """Print the available commands if none is given."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


#: Panels of commands in the program's help, in its order.
PANELS = SCHEDULE, RUN, PREDICT, FILES, OTHERS = (
    *("Search and explain schedules", "Run and measure", "Predict and calibrate", "Networks, devices and files"),
    "Commands",
)


def command_group(app: typer.Typer, name: str, meaning: str) -> typer.Typer:
    """A new group of commands of the application."""
    group = typer.Typer(help=meaning)
    group.callback(invoke_without_command=True)(help_without_command)
    app.add_typer(group, name=name, rich_help_panel=FILES)
    return group


def names_of(module: str, function: str) -> Callable[[str], list[str]]:
    """Completes a value to the names that a function of a module lists, or those of what it lists."""

    def known(begin: str) -> list[str]:
        listed = getattr(import_module(module), function)()
        return [name for name in (getattr(one, "name", one) for one in listed) if name.startswith(begin)]

    return known


#: A command, the class of a group, or the module of commands.
Owner = Callable[..., object] | ModuleType


def _room(owner: Owner) -> str:
    """The room of a command, of a group, or of a module: the name of its package."""
    return ".".join(getattr(owner, "__module__", owner.__name__).split(".")[:2])


@functools.cache
def _texts(room: str) -> dict[str, Any]:
    file = Path(__file__).parents[2].joinpath(*room.split("."), "options.toml")
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


#: Flags that are spelled differently from their parameter or field, by its name.
FLAGS: dict[str, str] = _texts("iossim.cli")["flags"]
#: Parameters without which another one has no effect, by that one's name.
ONLY_WITH: dict[str, list[str]] = _texts("iossim.cli")["only_with"]


def _flag(name: str) -> str:
    return FLAGS.get(name, "--" + name.replace("_", "-"))


def listed(name: str, owner: str = "", room: str = "iossim.cli") -> ParameterInfo:
    """The option or argument ``name`` as typer takes it: of the table ``owner`` of a room's ``options.toml``, or the
    one that all commands of the room, or of iossim, share.
    """
    shared = _texts("iossim.cli")["shared"] | _texts(room).get("shared", {})
    entry = _texts(room).get(owner, {}).get(name, name)
    entry = shared[entry] if isinstance(entry, str) else entry
    known = names_of(*entry["names"].split()) if "names" in entry else None
    if "argument" in entry:
        argument: ParameterInfo = typer.Argument(metavar=entry["argument"], help=entry["help"], autocompletion=known)
        return argument
    option: ParameterInfo = typer.Option(
        *entry.get("flags", _flag(name)).split(),
        metavar=entry.get("value", entry.get("number")),
        parser=whole_number if "number" in entry else None,
        help=entry["help"],
        min=entry.get("min"),
        rich_help_panel=entry.get("panel"),
        autocompletion=known,
    )
    return option


#: Value of --rewrite without one.
DEFAULT_REWRITE = "default"


def known_schedulers(names: str) -> list[str]:
    """``sequential,ios-both`` as a list; raises OptionError for an unknown scheduler, or an empty list."""
    from iossim.search.scheduler import STREAM_SCHEDULER, scheduler_names

    known = (*scheduler_names(), STREAM_SCHEDULER)
    chosen = list(once(list(filter(None, names.split(","))), "--schedulers"))
    for name in chosen:
        if name not in known:
            raise OptionError(f"--schedulers {name!r} is not known; {did_you_mean(name, known)}")
    if not chosen:
        raise OptionError(f"--schedulers names none; known: {', '.join(known)}")
    return chosen


def several_devices(given: str | Sequence[str] | None) -> list[str]:
    """Devices of ``["t4,v100-sxm2", "a100"]``, each once; a comma in ``t4+sms=20,dram_gbps=200`` is no separator."""
    texts = [given] if isinstance(given, str) else list(given or ())
    parts = (part for text in texts for part in ([text] if os.path.exists(text) else _COMMA.split(text)))
    return list(dict.fromkeys(filter(None, parts))) or texts[:1]


#: A comma before a device, not one before a replaced fact.
_COMMA = re.compile(r",(?![^,+]*=)")
_NAME = re.compile(r"`([a-z][a-z0-9_]*)`")


def with_flags(message: str) -> str:
    """The message with flags in place of names: ``give --max-groups 8``."""
    return _NAME.sub(lambda name: _flag(name[1]), message)


@dataclass(frozen=True)
class OptionGroup:
    """The base of groups: frozen dataclasses whose fields are options, by their names, listed under a ``PANEL``."""

    PANEL: ClassVar[str | None] = None

    @classmethod
    def check_names(cls, given: Mapping[str, Any]) -> None:
        """Refuse unknown names before anything is loaded that works with them."""


def command(function: Callable[..., None]) -> Callable[..., None]:
    """A command for typer to read, whose parameters are options as :func:`listed`, in place of groups all of theirs."""
    groups: dict[str, type[OptionGroup]] = {}
    written: dict[str, inspect.Parameter] = {}

    def write(name: str, kind: Any, default: object, owner: Owner, panel: str | None = None) -> None:
        info = listed(name, owner.__name__, _room(owner))
        info.rich_help_panel = info.rich_help_panel or panel
        kind = Annotated[kind, info]
        written[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)

    hints = get_type_hints(function)
    for parameter in inspect.signature(function).parameters.values():
        kind = hints[parameter.name]
        if isinstance(kind, type) and issubclass(kind, OptionGroup):
            groups[parameter.name] = kind
            own = get_type_hints(kind)
            bases = [base for base in kind.__mro__ if issubclass(base, OptionGroup)]
            for field in fields(kind):
                of = next(base for base in bases if field.name in inspect.get_annotations(base))
                write(field.name, own[field.name], field.default, of, of.PANEL)
        else:
            write(parameter.name, kind, parameter.default, function)

    @functools.wraps(function)
    def run(**given: object) -> None:
        for group in reversed(groups.values()):  # devices before models, whose names take longer to load
            group.check_names(given)
        _check_effects({name for name, value in given.items() if value and value != written[name].default}, given)
        made = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)}) for name, kind in groups.items()
        }
        function(**given, **made)

    run.__signature__ = inspect.Signature(list(written.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in written.items()}
    return run


def register_commands(module: ModuleType, app: typer.Typer) -> None:
    """Register the commands of a module as the entries ``command`` of its room's ``options.toml`` say: those of two
    words in the group that the first one names, others under their panel.
    """
    groups: dict[str, typer.Typer] = {"": app}
    texts = _texts(_room(module))
    for name, each in vars(module).items():
        if getattr(each, "__module__", "") == module.__name__ and (about := texts.get(name, {}).get("command")):
            group, _, own = about["name"].rpartition(" ")
            if group not in groups:
                groups[group] = command_group(app, group, texts["groups"][group])
            examples = "\n".join(["Examples:", *(f"  iossim {example}" for example in about.get("examples", ()))])
            epilog = examples if "examples" in about else about.get("epilog")
            register = groups[group].command(
                own, help=about["help"], epilog=epilog, rich_help_panel=about.get("panel", OTHERS)
            )
            register(each)


def _check_effects(used: Collection[str], given: Collection[str]) -> None:
    """Refuse an option that has no effect without another option of the command."""
    for name, others in ONLY_WITH.items():
        known = [f"`{other}`" for other in others if other in given]
        if name in used and known and not set(others) & set(used):
            if "out" in others:
                raise OptionError(f"--{name} needs a folder to write to; give --out DIR")
            raise OptionError(with_flags(f"`{name}` has no effect without {' or '.join(known)}; give that, too"))


@dataclass(frozen=True)
class BatchOptions(OptionGroup):
    """Batch size of a model."""

    PANEL = "Model"
    batch: int | None = None


@dataclass(frozen=True)
class ReadingOptions(OptionGroup):
    """Options for reading a model, apart from its batch, each named as its field."""

    PANEL = "Model"
    dtype: str | None = None
    shape: list[str] | None = None
    dim: list[str] | None = None
    strict: bool = False
    static_part: bool = False
    passes: list[str] | None = None
    graphs: Path | None = None
    units: str | None = None
    max_block: int | None = None
    training: bool = False

    def network_of_batch(self, model: str, batch: int | None) -> Network:
        from iossim.models.load import load
        from iossim.models.passes.unit_fusion import MODEL

        return load(
            model,
            batch=batch,
            dtype=self.dtype,
            shapes=_sizes_by_name(self.shape or (), "--shape", "1x3x224x224"),
            graphs=self.graphs,
            units=self.units or MODEL,
            max_block=self.max_block,
            dimensions={name: size for name, (size,) in _sizes_by_name(self.dim or (), "--dim", "8").items()},
            strict=self.strict,
            static_part=self.static_part,
            passes=self.passes or (),
            training=self.training,
        )


def make_ready(device: str | None) -> None:
    """Describe this machine's CPU if it is the device and has no profile yet; raises DeviceError."""
    if device is not None and device.startswith("cpu"):
        from iossim.hardware.host_measuring import ensure_host_cpu

        ensure_host_cpu(device)


@dataclass(frozen=True)
class ModelOptions(ReadingOptions, BatchOptions):
    """Options for reading a model: its batch, and all others."""

    @classmethod
    def check_names(cls, given: Mapping[str, Any]) -> None:
        """Raises ModelError for an unknown model."""
        if given.get("model"):
            from iossim.models.load import check_known

            check_known(given["model"])

    def network(self, model: str) -> Network:
        return self.network_of_batch(model, self.batch)


@dataclass(frozen=True)
class SpaceOptions(OptionGroup):
    """Limits of the search space: size of stages and of their groups, and their memory."""

    PANEL = "Search"
    max_group_size: int | None = None
    max_groups: int | None = None
    workspace_limit: str | None = None
    company: bool = False
    stages: str = "general"

    @property
    def search(self) -> SearchOptions:
        """Raises OptionError."""
        from iossim.tasks.requests import search_options

        return search_options(self.stages, self.max_group_size, self.max_groups, self.workspace_limit, self.company)


@dataclass(frozen=True)
class PricingOptions(SpaceOptions):
    """Search space, engine and cost model."""

    PANEL = "Prices"
    engine: str = "auto"
    cost_model: str = "simulator"
    store: Path | None = None

    @classmethod
    def check_names(cls, given: Mapping[str, Any]) -> None:
        """Raises DeviceError."""
        if given.get("device"):
            from iossim.hardware.load import check_known

            for device in several_devices(given["device"]):
                check_known(device)

    def prices(self, network: Network, device: str | None) -> CostModel:
        """Raises OptionError."""
        from iossim.tasks.requests import cost_model

        make_ready(device)
        return cost_model(self.cost_model, device, network.precision, self.engine, self.store)


@dataclass(frozen=True)
class StreamOptions(OptionGroup):
    """Options of the search for streams."""

    PANEL = "Search"
    seconds: float | None = None
    stream_seed: int = 0

    def of(self, search: SearchOptions, schedulers: Sequence[str] = ()) -> SearchOptions:
        """Raises OptionError for an invalid time or seed, or an option that none of the schedulers heeds."""
        from iossim.search.scheduler import check_heeded

        found = replace(search, seconds=self.seconds, seed=self.stream_seed)
        check_heeded(found, schedulers)
        return found


@dataclass(frozen=True)
class TransformOptions(OptionGroup):
    """Transforms of the network, rewriting and micro-batches: the options of :func:`iossim.api.task` of these names."""

    PANEL = "Graph and micro-batches"
    rewrite: str | None = None
    rewrite_search: str = "joint"
    alpha: float = 1.05
    rewrite_budget: str = "200"
    unproved: bool = False
    micro_batch: str | None = None
    search: str = "in-turn"


@dataclass(frozen=True)
class TimingOptions(OptionGroup):
    """Options of timing."""

    PANEL = "Timing"
    rounds: int = 30
    warm_up: int = 3
    seed: int = 0
    cold: bool = False

    def timing(self) -> Timing:
        """Raises OptionError for an invalid number of rounds or seed."""
        from iossim.execution.backend import Timing

        for name, least in (("rounds", 1), ("warm_up", 0), ("seed", 0)):
            if (value := getattr(self, name)) < least:
                raise OptionError(with_flags(f"`{name}` {value} is too few; give {least} or more"))
        return Timing(self.rounds, self.warm_up, self.seed, self.cold)


def _sizes_by_name(given: Sequence[str], flag: str, example: str) -> dict[str, tuple[int, ...]]:
    """``["x=1x3"]`` as ``{"x": (1, 3)}``; raises OptionError naming what is not as the ``example``, or given twice."""
    found: dict[str, tuple[int, ...]] = {}
    for text in given:
        name, _, written = text.rpartition("=")
        sizes = written.split("x") if "x" in example else [written]
        if not name or not all(size.isdecimal() for size in sizes):
            raise OptionError(f"{flag} {text!r} is not a size; write NAME={example}")
        once([*found, name], flag)
        found[name] = tuple(map(int, sizes))
    return found
