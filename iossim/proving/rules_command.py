"""``iossim rules``: the sets of substitution rules, the text of a rule, and the verdict on each rule of a set."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

from iossim.cli.options import command, with_flags
from iossim.cli.outputs import ExitCode, present, table
from iossim.cli.progress import progress_bars


@command
def list_rules(as_json: bool = False) -> None:
    """List the sets that ship and those of plugins, with their numbers of rules; a broken plugin is a warning."""
    from iossim.base.errors import IossimError, warn_once
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
    shown = [{**row, "of": ", ".join(row["of"])} for row in rows]
    present(rows, table("Sets of rules", shown, wraps=("of", "from")), as_json)


@command
def show_rules(rules: str, names: list[str] | None = None, as_json: bool = False) -> None:
    """Print rules in the text form of their file; with --json their fields, as in 'iossim schema rule'."""
    from iossim.base.errors import did_you_mean
    from iossim.transforms.rewriting.rule import RuleError
    from iossim.transforms.rewriting.rule_file import rule_fields
    from iossim.transforms.rewriting.rule_sets import rule_set

    known = {rule.name: rule for rule in rule_set(rules)}
    for name in names or ():
        if name not in known:
            raise RuleError(f"rules {rules}: has no rule {name!r}; {did_you_mean(name, known)}")
    chosen = [known[name] for name in dict.fromkeys(names or known)]
    said = [f"{rule}\n  from {rule.origin}" if rule.origin else str(rule) for rule in chosen]
    present(lambda: [rule_fields(rule) for rule in chosen], ["\n\n".join(said)], as_json)


@command
def verify_rules(
    rules: str,
    workers: int | None = None,
    seconds: float = 20.0,
    anew: bool = False,
    write: Path | None = None,
    as_json: bool = False,
) -> None:
    """Print the verdict on each rule: proved from axioms, refuted by a counterexample, or unknown, with its reason.

    Conditions are those that a rule lacks: it is proved if they hold. Verdicts are kept until rule, axioms or prover
    change; the seconds in JSON are those of the run that found the verdict. A refuted rule is exit code 1.
    """
    from iossim.base.threads import usable_cores
    from iossim.base.user_files import check_file, write_atomically
    from iossim.proving.verdict_checker import written
    from iossim.proving.verify import verify_all
    from iossim.transforms.rewriting.rule_sets import rule_set

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
    shown = [
        {
            **{key: row[key] for key in ("index", "name", "verdict")},
            "conditions": " and ".join(row["conditions"]) or None,
            "reason": row["reason"] or None,
        }
        for row in rows
    ]
    columns = table(f"Rules of {rules}", shown, titles={"conditions": "provided that"}, wraps=("conditions", "reason"))
    counts = Counter(row["verdict"] for row in rows)
    said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ("proved", "refuted", "unknown"))
    code = ExitCode.DOES_NOT_HOLD if counts["refuted"] else ExitCode.DONE
    present(rows, chain(columns, [said]), as_json, code=code)
