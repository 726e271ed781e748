"""``iossim rules generate``: rules found by enumerating graphs, none of them written by hand."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from iossim.cli import options
from iossim.cli.options import whole_number
from iossim.cli.outputs import plain_console, print_json
from iossim.errors import OptionError

Ops = Annotated[
    str | None,
    typer.Option(
        "--ops", metavar="OP,...", help="Ops that graphs are made of: add,matmul,...; those of TASO without."
    ),
]
Size = Annotated[
    int,
    typer.Option("--size", metavar="N", parser=whole_number, help="Most ops of a graph, on either side of a rule."),
]
Seed = Annotated[
    int,
    typer.Option("--seed", metavar="N", parser=whole_number, help="Of the inputs that graphs are told apart with."),
]
Inputs = Annotated[
    str | None,
    typer.Option(
        "--inputs", metavar="SHAPE*COUNT,...", help="Shapes of inputs: 2x4*3,4x4*3,scalar; those of TASO without."
    ),
]
RulesOut = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write the rules to a .yaml file that the others read.")
]
#: Above, the graphs of the smallest vocabularies do not fit in memory.
_LARGEST = 5


def register_in(group: typer.Typer) -> None:
    group.command("generate", help="Find rules: enumerate graphs, and match those that compute the same.")(
        generate_rules
    )


def generate_rules(
    ops: Ops = None,
    size: Size = 2,
    inputs: Inputs = None,
    out: RulesOut = None,
    seed: Seed = 0,
    as_json: options.Json = False,
) -> None:
    """The rules of a vocabulary, and how many candidates each pruning leaves. They are not verified yet."""
    from iossim.cli.progress import progress_bars
    from iossim.rewriting.generation.generate import generate
    from iossim.rewriting.generation.vocabulary import TASO_INPUTS, TASO_OPS, read_vocabulary
    from iossim.rewriting.rule_file import rule_fields, write_rules
    from iossim.user_files import check_writable, write_atomically

    vocabulary = read_vocabulary(TASO_OPS if ops is None else ops, TASO_INPUTS if inputs is None else inputs)
    if seed < 0 or not 1 <= size <= _LARGEST:
        name, value, wanted = ("--seed", seed, "0 or more") if seed < 0 else ("--size", size, f"1 to {_LARGEST}")
        raise OptionError(f"{name} {value} is out of range; give {wanted}")
    if out is not None:
        if out.suffix not in (".yaml", ".yml") or out.is_dir():
            raise OptionError(f"--out {out} is no file of rules; give a name that ends in .yaml")
        check_writable(out.parent)
    start = time.perf_counter()
    with progress_bars(quiet=as_json, unit="graphs or pairs") as stages:
        found = generate(vocabulary, size, seed, stages)
    seconds = time.perf_counter() - start
    written = out if found.rules else None
    if written is not None:
        written.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(written, write_rules(found.rules))
    counts = found.counts.to_json()
    if as_json:
        data: dict[str, Any] = {"size": size, "seconds": seconds, "counts": counts}
        print_json(data | {"rules": [rule_fields(rule) for rule in found.rules]})
        return
    from iossim.tables import Column, records_table

    rows: list[dict[str, Any]] = [{"left after": label, "count": counts[name]} for name, label in _STAGES.items()]
    title = f"Rules of up to {size} ops, in {seconds:.1f} s"
    plain_console().print(records_table(title, rows, [Column("left after"), Column("count")]))
    if written is not None:
        typer.echo(f"wrote {written}; verify them: iossim rules verify {written}")
    elif out is None:
        for rule in found.rules:
            typer.echo(f"\n{rule}")
    else:
        typer.echo(f"no rules, so {out} was not written; give more ops or inputs, or a larger --size")


_STAGES = {
    "graphs": "enumeration: graphs",
    "hits": "matching: pairs with equal fingerprints",
    "renamed": "renaming of inputs",
    "shapes": "forgetting shapes",
    "canonical": "one order of operands and sides",
    "equal": "other inputs",
    "equations": "what follows from smaller ones, and common subgraphs",
    "rules": "rules, by direction",
}
