"""``iossim rules verify``: is each rule of a set right?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from iossim.cli import options
from iossim.cli.outputs import plain_console, print_json
from iossim.cli.progress import progress_bars
from iossim.cli.rules import SetName

Workers = Annotated[int | None, typer.Option("--workers", metavar="N", min=1, help="Processes; without, one a core.")]
Seconds = Annotated[
    float, typer.Option("--seconds", metavar="S", min=0, help="CPU seconds that the proof of a rule may take.")
]
Anew = Annotated[bool, typer.Option("--anew", help="Verify what has a verdict already, too.")]
Write = Annotated[
    Path | None, typer.Option("--write", metavar="FILE", help="Write the verdicts as a file as well (JSON).")
]


def register_in(group: typer.Typer) -> None:
    group.command("verify", help="Prove or refute rules; find the conditions that they lack.")(verify_rules)


def verify_rules(
    rules: SetName,
    workers: Workers = None,
    seconds: Seconds = 20.0,
    anew: Anew = False,
    write: Write = None,
    as_json: options.Json = False,
) -> None:
    """The verdict on each rule: proved from axioms, refuted by a counterexample, or unknown, each with its reason.

    Conditions are those that a rule lacks: it is proved where they hold. Verdicts are kept until rule, axioms or
    prover change; the seconds that JSON tells are those of the run that found the verdict.
    """
    from iossim.base.cores import usable_cores
    from iossim.base.user_files import check_file, write_atomically
    from iossim.transforms.rewriting.rule_sets import rule_set
    from iossim.transforms.rewriting.verdict import written
    from iossim.transforms.rewriting.verify import verify_all

    check_file(write, "--write")
    chosen = rule_set(rules)
    count = min(workers or len(usable_cores()), len(chosen))
    with progress_bars(quiet=as_json, unit="rules", tells_rest=True) as bars:
        found = list(verify_all(chosen, seconds, count, anew, bars("verifying")))
    if write is not None:
        write_atomically(write, written(zip(chosen, found, strict=True)))
    rows: list[dict[str, Any]] = [
        {"index": index, "name": rule.name, **verification.to_json()}
        for index, (rule, verification) in enumerate(zip(chosen, found, strict=True))
    ]
    if as_json:
        print_json(rows)
        return
    from iossim.base.tables import Column, records_table

    columns = [
        Column("index"),
        Column("name"),
        Column("verdict"),
        Column("conditions", "provided that", wraps=True),
        Column("reason", wraps=True),
    ]
    shown = [
        {**row, "conditions": " and ".join(row["conditions"]) or None, "reason": row["reason"] or None}
        for row in rows
    ]
    plain_console().print(records_table(f"Rules of {rules}", shown, columns))
    verdicts = [row["verdict"] for row in rows]
    counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in ("proved", "refuted", "unknown")]
    typer.echo(", ".join(counts))
