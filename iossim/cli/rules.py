"""``iossim rules``: the sets of substitution rules, and what a rule says; modules of this package whose names begin with
``rules_`` add what verifies and generates them.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from iossim.base.registry import modules
from iossim.cli import options
from iossim.cli.flags import with_flags
from iossim.cli.outputs import plain_console, print_json

SetName = Annotated[
    str,
    typer.Argument(
        metavar="RULES", help="A set by name (see 'iossim rules list'), a .yaml file, or a .pb file of TASO's."
    ),
]
RuleNames = Annotated[
    list[str] | None, typer.Argument(metavar="[RULE]...", help="Rules by name; all of the set without.")
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Graph substitutions: rules as data, of files that ship and of your own.")
    group.callback(invoke_without_command=True)(options.help_without_command)
    group.command("list", help="The sets of rules that can be asked for by name.")(list_rules)
    group.command("show", help="What rules say: source, target, conditions, and where they are from.")(show_rules)
    for module in modules("iossim.cli"):
        if module.__name__.startswith("iossim.cli.rules_") and hasattr(module, "register_in"):
            module.register_in(group)
    app.add_typer(group, name="rules")


def list_rules(as_json: options.Json = False) -> None:
    """The sets that ship and those of plugins, with their rules counted; a plugin that does not work is a warning."""
    from iossim.base.errors import IossimError
    from iossim.base.notices import warn_once
    from iossim.transforms.rewriting.rule_sets import RULE_SETS, origin, rule_set

    rows: list[dict[str, Any]] = []
    for name in RULE_SETS.names():
        try:
            rules = rule_set(name)
        except IossimError as error:
            warn_once(with_flags(str(error)))
            continue
        ops = {op.kind for rule in rules for op in rule.source}
        rows.append({"name": name, "rules": len(rules), "of": sorted(ops), "from": origin(name)})
    if as_json:
        print_json(rows)
        return
    from iossim.base.tables import Column, records_table

    shown = [{**row, "of": ", ".join(row["of"])} for row in rows]
    columns = [Column("name"), Column("rules"), Column("of", wraps=True), Column("from", wraps=True)]
    plain_console().print(records_table("Sets of rules", shown, columns))


def show_rules(rules: SetName, names: RuleNames = None, as_json: options.Json = False) -> None:
    """Rules in the text form of their file; with --json their fields, as 'iossim schema rule' has them."""
    from iossim.base.errors import did_you_mean
    from iossim.transforms.rewriting.rule import RuleError
    from iossim.transforms.rewriting.rule_file import rule_fields
    from iossim.transforms.rewriting.rule_sets import rule_set

    known = {rule.name: rule for rule in rule_set(rules)}
    for name in names or ():
        if name not in known:
            raise RuleError(f"rules {rules}: has no rule {name!r}; {did_you_mean(name, known)}")
    chosen = [known[name] for name in dict.fromkeys(names or known)]
    if as_json:
        print_json([rule_fields(rule) for rule in chosen])
        return
    for place, rule in enumerate(chosen):
        typer.echo(f"{chr(10) * (place > 0)}{rule}")
        if rule.origin:
            typer.echo(f"  from {rule.origin}")
