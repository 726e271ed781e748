"""The command line: one module per command, found by import; a user's mistake is one clear line and exit code 2."""

from __future__ import annotations

import errno
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from iossim._version import __version__
from iossim.base.errors import IossimError, warn_once
from iossim.base.registry import Extension, Group, Plugin, PluginError, guest_modules, module_names
from iossim.cli.options import DEFAULT_REWRITE, OTHERS, PANELS, help_without_command, register_commands, with_flags
from iossim.cli.outputs import ExitCode
from iossim.cli.progress import StopNow, hears_interrupts, tells_of_work

#: Base class of the errors of typer's own parser: unknown options, missing arguments, values of the wrong type.
_ParserError: type[Exception] = typer.BadParameter.__mro__[2]

#: These errors are neither a user's mistake nor a defect of iossim: a full disk, a folder without permission.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_ENVIRONMENT = _FULL | {errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM}


_PURPOSE = "Find, price and explain inter-operator schedules of neural networks, with or without a GPU."


Register = Callable[[typer.Typer], None]


@cache
def commands_of(package: str) -> Group[Register]:
    """The functions that register commands: ``register`` of each module of the package, or of those it declares. Those
    of iossim include its guests' modules ``NAME_command`` and plugins.
    """
    own = {name: f"{package}.{name}" for name in module_names(package)}
    plugins = None
    if package == "iossim.cli":
        own |= guest_modules("command")
        wanted = "a function that registers commands with a typer application"
        plugins = Extension[Register]("iossim.commands", wanted, Plugin.guarded)

    def get_own(name: str) -> Register | None:
        if name not in own:
            return None
        module = import_module(own[name])
        return getattr(module, "register", None) or partial(register_commands, module)

    return Group("no command {!r}", lambda: own, get_own, plugins)


def build_app(commands: str = "iossim.cli", purpose: str = _PURPOSE, only: str = "") -> typer.Typer:
    """The typer application with the commands of :func:`commands_of`; with ``only``, those of that module alone.

    A plugin that does not work is one line on standard error.
    """
    app = typer.Typer(
        name="iossim",
        help=purpose,
        add_completion=commands == "iossim.cli",
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help fits 80 columns, and prints brackets literally
        epilog="Exit codes: 0 done; 1 a check failed; 2 invalid input; 3 interrupted, the\n"
        "best schedule so far was printed and written; 130 interrupted before a search,\nor twice.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback(invoke_without_command=True)
    def _root(
        context: typer.Context,
        version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
    ) -> None:
        if version:
            typer.echo(f"iossim {__version__}")
            raise typer.Exit
        help_without_command(context)

    group = commands_of(commands)
    for name in [only] if only else group.names():
        try:
            register = group.get(name)
            if register is not None:
                register(app)
        except PluginError as error:
            if only:
                raise
            warn_once(str(error))
    for command in app.registered_commands:
        command.rich_help_panel = command.rich_help_panel or OTHERS
    app.registered_commands.sort(key=lambda command: (PANELS.index(str(command.rich_help_panel)), command.name or ""))
    app.registered_groups.sort(key=lambda group: str(group.name))
    return app


@cache
def build_command(commands: str = "iossim.cli", purpose: str = _PURPOSE, only: str = "") -> TyperGroup:
    """Command that runs arguments: the application, strict about what typer permits."""
    command = typer.main.get_command(build_app(commands, purpose, only))
    assert isinstance(command, TyperGroup), "an application with a callback is a group"
    _finish(command)
    return command


def main(
    arguments: Sequence[str] | None = None, commands: str = "iossim.cli", name: str = "iossim", purpose: str = _PURPOSE
) -> int:
    """Run the command line of the package ``commands``, whose help calls it ``name``; returns the exit code."""
    try:
        with hears_interrupts():
            code = _run(sys.argv[1:] if arguments is None else list(arguments), commands, purpose, name)
        if sys.stdout is not None:
            sys.stdout.flush()  # an error of writing is reported here; at the interpreter's end it is a traceback
    except (KeyboardInterrupt, StopNow, typer.Abort):
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return ExitCode.NO_READER
    except OSError as error:
        if error.errno not in _ENVIRONMENT:
            raise
        if error.filename is None:
            _drop_output()
        remedy = "free some space, or write elsewhere" if error.errno in _FULL else "write elsewhere"
        return _fail(f"cannot write {error.filename or 'to standard output'}: {error.strerror}; {remedy}")
    if code == ExitCode.INTERRUPTED:
        _say("interrupted")
    return code


def _command_for(arguments: Sequence[str], commands: str, purpose: str) -> TyperGroup:
    """Command that runs these arguments: that of the module that they name first if it exists, else all."""
    first = arguments[0] if arguments else ""
    group, module = commands_of(commands), first.replace("-", "_")
    if module in group.own() or (module := first) in group.plugins():
        command = build_command(commands, purpose, module)
        if first in command.commands:
            return command
    return build_command(commands, purpose)


def _run(arguments: list[str], commands: str, purpose: str, name: str) -> int:
    try:
        command = _command_for(arguments, commands, purpose)
        with tells_of_work():
            result = command(args=arguments, prog_name=name, standalone_mode=False)
    except IossimError as error:
        return _fail(with_flags(str(error)))
    except _ParserError as error:
        return _fail(_one_line(error))
    except SystemExit as error:
        # typer signals in this way that the reader of our output went away; it wraps both streams then.
        sys.stdout, sys.stderr = (getattr(stream, "wrapped", stream) for stream in (sys.stdout, sys.stderr))
        raise BrokenPipeError from error
    return result if isinstance(result, int) else ExitCode.DONE


def _finish(command: Any) -> None:
    """Make a command, and those of a group, refuse a repeated option, of which the last value would silently win; and
    list options and commands by panels in its help, with the lines of its epilog as they are.

    This also lets --rewrite lack its value, which typer cannot express.
    """
    commands = getattr(command, "commands", {})
    for each in commands.values():
        _finish(each)
    make_parser = command.make_parser

    def format_options(context: typer.Context, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in command.get_params(context):
            if (row := parameter.get_help_record(context)) is not None:
                kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
                panels.setdefault(getattr(parameter, "rich_help_panel", None) or kind, []).append(row)
        for name, each in commands.items():
            panels.setdefault(each.rich_help_panel or OTHERS, []).append((name, each.get_short_help_str(200)))
        for title, rows in panels.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(context: object, formatter: Any) -> None:
        if command.epilog:
            formatter.write_paragraph()
            for line in command.epilog.splitlines():
                formatter.write(f"{line}\n")

    command.format_options, command.format_epilog = format_options, format_epilog

    def make_strict_parser(context: typer.Context) -> object:
        parser = make_parser(context)
        parse = parser.parse_args

        def parse_args(args: list[str]) -> tuple[object, object, list[object]]:
            values, rest, order = parse(_with_value(args, "--rewrite", DEFAULT_REWRITE))
            for option, times in Counter(order).items():
                if times > 1 and option.param_type_name == "option" and not option.multiple:
                    raise typer.BadParameter(f"it is given {times} times; give it once", ctx=context, param=option)
            return values, rest, order

        parser.parse_args = parse_args
        return parser

    command.make_parser = make_strict_parser


def _with_value(args: Sequence[str], flag: str, value: str) -> list[str]:
    """Arguments with a value after a flag that has none: nothing follows it, or another flag does."""
    given: list[str] = []
    for argument, following in zip(args, [*args[1:], "-"], strict=False):  # no arguments have no pair
        given += [argument, value] if argument == flag and following.startswith("-") else [argument]
    return given


def _drop_output() -> None:
    """Discard unprinted output: the interpreter tries to print it again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(line: str) -> int:
    _say(f"error: {' '.join(line.split())}")
    return ExitCode.MISTAKE


def _say(line: str) -> None:
    with suppress(OSError):  # no reader, or no space
        print(line, file=sys.stderr, flush=True)


def _one_line(error: Exception) -> str:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "iossim"
    return f"{message} (see '{path} --help')"
