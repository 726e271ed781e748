"""Options that several commands share, each declared once, and in groups; and the flags of names in messages.

Below the command line a message names an argument as Python does, in backquotes (``give `max_groups` 8``); the flag is
the name with dashes, or that of :data:`FLAGS`. A command has a group of options by a parameter of its class, under
:func:`takes_options`.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

import typer

from iossim.base.errors import OptionError, did_you_mean, once

_Command = TypeVar("_Command", bound=Callable[..., None])


def whole_number(text: str) -> int:
    """An option's value as an integer; the option's reader checks its range."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number") from None


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


def shown(panel: str, *examples: str) -> Callable[[_Command], _Command]:
    """Puts a command under ``panel``, and examples at the end of its help, without the program's name."""

    def mark(command: _Command) -> _Command:
        vars(command)["shown"] = panel, "\n".join(["Examples:", *(f"  iossim {example}" for example in examples)])
        return command

    return mark


def option(
    flags: str, metavar: str, meaning: str, panel: str | None = None, known: Callable[[str], list[str]] | None = None
) -> Any:
    """An option that takes a value: its flags separated by blanks, the placeholder of the value, and its help.

    It is listed under ``panel``, by default that of its group; ``known`` completes its value in a shell.
    """
    return typer.Option(*flags.split(), metavar=metavar, help=meaning, rich_help_panel=panel, autocompletion=known)


def number(flags: str, meaning: str, metavar: str = "N") -> Any:
    """An option whose value is a whole number."""
    return typer.Option(*flags.split(), metavar=metavar, parser=whole_number, help=meaning)


def switch(flags: str, meaning: str, panel: str | None = None) -> Any:
    """An option that takes no value."""
    return typer.Option(*flags.split(), help=meaning, rich_help_panel=panel)


def argument(metavar: str, meaning: str, known: Callable[[str], list[str]] | None = None) -> Any:
    """An argument: the placeholder of its value, its help, and what completes its value in a shell."""
    return typer.Argument(metavar=metavar, help=meaning, autocompletion=known)


def names_of(module: str, function: str) -> Callable[[str], list[str]]:
    """Completes a value to the names that a function of a module lists, or those of what it lists."""

    def known(begin: str) -> list[str]:
        listed = getattr(import_module(module), function)()
        return [name for name in (getattr(one, "name", one) for one in listed) if name.startswith(begin)]

    return known


MODELS = names_of("iossim.models.catalogue", "zoo_models")
_DEVICES = names_of("iossim.hardware.names", "device_names")
Model = Annotated[str, argument("MODEL", "A network of the zoo (see 'iossim models list') or an ONNX file.", MODELS)]
_DEVICE = "A device (see 'iossim devices list') or a profile.yaml"
Device = Annotated[str | None, option("--device -d", "NAME", f"{_DEVICE}.", known=_DEVICES)]
Devices = Annotated[
    list[str] | None, option("--device -d", "NAME", f"{_DEVICE}; several by commas or again.", known=_DEVICES)
]
Batch = Annotated[int | None, number("--batch -b", "Batch size; by default 1, or an ONNX file's own.")]
ModelDataType = Annotated[
    str | None, option("--dtype", "TYPE", "fp32, tf32, fp16, bf16 or int8; by default fp32, or an ONNX file's own.")
]
Shape = Annotated[
    list[str] | None, option("--shape", "NAME=1x3x224x224", "Shape of an ONNX file's input; may be repeated.")
]
Dimension = Annotated[
    list[str] | None, option("--dim", "NAME=8", "Size of an ONNX file's named dimension; may be repeated.")
]
Strict = Annotated[
    bool, switch("--strict", "Refuse operators that iossim does not know, instead of pricing their traffic.")
]
Training = Annotated[bool, switch("--training", "Add the gradients of activations and weights: docs/training.md.")]
Passes = Annotated[
    list[str] | None, option("--pass", "NAME", "Rewrite an ONNX file's graph by a plugin's pass; may be repeated.")
]
Graphs = Annotated[
    Path | None, option("--graphs", "DIR", "Folder of edge lists for randwire, instead of its own graphs.")
]
Units = Annotated[
    str | None,
    option(
        "--units",
        "POLICY",
        "How ops fuse into schedule units: model, fused, apart, none ...; by default the model's, where a search fuses "
        "each sum of branches or keeps it separate, whichever is faster.",
    ),
]
MaxBlock = Annotated[int | None, number("--max-block", "Split blocks of more than N units.")]
Engine = Annotated[
    str,
    option(
        "--engine",
        "NAME",
        "auto: graph since Ampere, paper before; paper: streams with syncs between stages; graph: one CUDA graph; "
        "partition: that, each group of a stage on SMs of its own; onnxruntime: its streams (simulated only).",
    ),
]
CostModelName = Annotated[
    str,
    option("--cost-model", "NAME", "simulator, table:PRICES.json, random:SEED, a backend (measures), or replay:STORE."),
]
#: Value of --rewrite without one.
DEFAULT_REWRITE = "default"
Rewrite = Annotated[
    str | None,
    option(
        "--rewrite",
        "[RULES]",
        "Rewrite the graph by these rules, searched together with the schedule: sets (see 'iossim rules list') and "
        "files, separated by commas; without a value those that ship.",
    ),
]
OUTPUT = "Output"
RewriteSearch = Annotated[
    str,
    option(
        "--rewrite-search",
        "joint|saturation|backtracking",
        "With --rewrite: joint (graph and schedule together), or backtracking or saturation (least sum of operators "
        "first, then scheduled).",
    ),
]
Alpha = Annotated[
    float, option("--alpha", "X", "With --rewrite: keep expanding graphs that cost up to X times the best.")
]
RewriteBudget = Annotated[
    str,
    option("--rewrite-budget", "N|SECONDSs|all", "With --rewrite: number of graphs to expand (200), or seconds (30s)."),
]
Unproved = Annotated[bool, switch("--unproved", "With --rewrite: also use rules that are neither proved nor refuted.")]
Stages = Annotated[str, option("--stages", "DEFINITION", "Definition of a stage: general (any ending) or paper.")]
MaxGroupSize = Annotated[
    int | None, number("--max-group-size -r", "Prune the search: at most N units in a group (r in the paper).")
]
MaxGroups = Annotated[
    int | None, number("--max-groups -s", "Prune the search: at most N groups in a stage (s in the paper).")
]
WorkspaceLimit = Annotated[
    str | None, option("--workspace-limit", "SIZE", "Limit on the total workspace of concurrent kernels: 64MiB.")
]
Company = Annotated[
    bool, switch("--company", "Choose the kernels that are fastest together, not each the fastest alone.")
]
MicroBatch = Annotated[
    str | None,
    option(
        "--micro-batch",
        "K|auto",
        "Divide the batch of each block into K micro-batches, units of their own; auto: 1, 2 or 4, the fastest.",
    ),
]
Search = Annotated[
    str,
    option(
        "--search",
        "in-turn|joint",
        "Apply --rewrite, joins and --micro-batch in sequence, or search all jointly, with kernels and streams.",
    ),
]
Out = Annotated[Path | None, option("--out -o", "DIR", "Folder to write files to.", OUTPUT)]
Trace = Annotated[bool | None, switch("--trace/--no-trace", "Write a trace for Perfetto (default with --out).", OUTPUT)]
Plot = Annotated[
    bool | None, switch("--plot/--no-plot", "Write pictures (default with --out; needs iossim[report]).", OUTPUT)
]
Store = Annotated[Path | None, option("--store", "FILE", "Measurement store; by default in your data folder.")]
Seconds = Annotated[
    float | None,
    option("--seconds", "S", "How long each scheduler (or all of coschedule) may search; no limit by default."),
]
StreamSeed = Annotated[int, number("--stream-seed", "Seed of the random choices of ios-streams.")]
Json = Annotated[bool, switch("--json", "Print JSON, and nothing else, to standard output.", OUTPUT)]


def known_schedulers(names: str, with_streams: bool = False) -> list[str]:
    """``sequential,ios-both`` as a list; raises OptionError for an unknown scheduler, or an empty list.

    ``with_streams`` says whether schedulers of streams are accepted.
    """
    from iossim.search.scheduler import scheduler_names, stream_scheduler_names

    known = (*scheduler_names(), *(stream_scheduler_names() if with_streams else ()))
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


#: Flags that are spelled differently from their parameter or field, by its name.
FLAGS = {
    "address": "--scheduler",  # of a Dask cluster
    "board_power_w": "--power-w",
    "boost_clock_ghz": "--clock-ghz",
    "dimensions": "--dim",
    "dram_bandwidth_gbps": "--dram-gbps",
    "fp32_lanes_per_sm": "--lanes",
    "passes": "--pass",
    "shapes": "--shape",
    "sm_count": "--sm",
}
#: Parameters without which another one has no effect, by that one's name.
ONLY_WITH = {
    "rewrite_search": ("rewrite",),
    **dict.fromkeys(("alpha", "rewrite_budget", "unproved"), ("rewrite", "search")),
    **dict.fromkeys(("link", "sync", "mix"), ("devices", "processes")),
    "arrival_seed": ("arrivals",),
    "requests": ("arrivals",),
    "plot": ("out",),
    "tolerance": ("baseline",),
    "trace": ("out",),
}
#: A comma before a device, not one before a replaced fact.
_COMMA = re.compile(r",(?![^,+]*=)")
_NAME = re.compile(r"`([a-z][a-z0-9_]*)`")


def with_flags(message: str) -> str:
    """The message with flags in place of names: ``give --max-groups 8``."""
    return _NAME.sub(lambda name: FLAGS.get(name[1], "--" + name[1].replace("_", "-")), message)


class OptionGroup:
    """The base of groups: frozen dataclasses whose fields are options, by their names, listed under a ``PANEL``."""

    PANEL: ClassVar[str | None] = None

    @classmethod
    def check_names(cls, given: Mapping[str, Any]) -> None:
        """Refuse unknown names before anything is loaded that works with them."""


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Command in which parameters that are groups are replaced by their options, for typer to read."""
    groups: dict[str, Any] = {}
    written: dict[str, inspect.Parameter] = {}

    def write(name: str, kind: Any, default: Any) -> None:
        written[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)

    hints = get_type_hints(command, include_extras=True)
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if isinstance(kind, type) and issubclass(kind, OptionGroup):
            groups[parameter.name] = kind
            own = get_type_hints(kind, include_extras=True)
            for field in fields(kind):  # type: ignore[arg-type]
                of: Any = next(base for base in kind.__mro__ if field.name in inspect.get_annotations(base))
                info = copy(own[field.name].__metadata__[0])
                info.rich_help_panel = info.rich_help_panel or of.PANEL
                write(field.name, Annotated[own[field.name].__origin__, info], field.default)
        else:
            write(parameter.name, kind, parameter.default)

    @functools.wraps(command)
    def run(**given: Any) -> None:
        for group in reversed(groups.values()):  # devices before models, whose names take longer to load
            group.check_names(given)
        _check_effects({name for name, value in given.items() if value and value != written[name].default}, given)
        made = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)}) for name, kind in groups.items()
        }
        command(**given, **made)

    run.__signature__ = inspect.Signature(list(written.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in written.items()}
    return run


def _check_effects(used: Collection[str], given: Collection[str]) -> None:
    """Refuse an option that has no effect without another option of the command."""
    for name, others in ONLY_WITH.items():
        known = [f"`{other}`" for other in others if other in given]
        if name in used and known and not set(others) & set(used):
            if "out" in others:
                raise OptionError(f"--{name} needs a folder to write to; give --out DIR")
            raise OptionError(with_flags(f"`{name}` has no effect without {' or '.join(known)}; give that, too"))
