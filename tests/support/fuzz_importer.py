"""Fuzzes the importer: mutants of real models, each loaded, priced and shown in a process that is limited in memory and time.

    python tests/support/fuzz_importer.py [--count N] [--seed S] [--coverage] [--json] [--failures DIR]

prints how many were imported and refused, by class of error, the peak memory and the longest run; with ``--coverage`` the lines
of the importer that were run. The same seed makes the same mutants. An input that neither imports nor is refused by one line is
written to ``DIR``, and the exit code is 1. ``--one NAME`` runs a single mutant again, by the name that was printed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from fuzz_mutations import Mutant, mutant_of
from fuzz_runner import Outcome, Runner, Tally, run_all
from fuzz_seeds import KINDS, seed_models


def mutants(count: int, seed: int, names: list[str]) -> list[Mutant]:
    """``count`` mutants of the models of these names; the first ones of a larger count are the same."""
    return [mutant_of(seed * 1_000_003 + index, names) for index in range(count)]


def parsed(name: str) -> Mutant:
    """A mutant by its name."""
    seed, *steps = name.split(" ")
    return Mutant(seed, tuple((step.rpartition(":")[0], int(step.rpartition(":")[2])) for step in steps))


def fuzz(
    found: list[Mutant], models: dict[str, bytes], runner: Runner
) -> tuple[Tally, list[tuple[str, bytes, Outcome]]]:
    """Outcomes counted, and the inputs that did not end as they should."""
    tally, failures = Tally.empty(), []
    for name, data, outcome in run_all(runner, ((str(each), each.data(models)) for each in found)):
        tally.add(name, outcome)
        if not outcome.is_fine:
            failures.append((name, data, outcome))
    return tally, failures


def covered_lines(folder: Path) -> dict[str, tuple[int, int]]:
    """Lines run and lines there are, by file; of all that a process wrote into the folder."""
    import coverage

    data = coverage.Coverage(data_file=str(folder / "coverage"))
    data.combine([str(path) for path in folder.glob("coverage.*")])
    found: dict[str, tuple[int, int]] = {}
    for path in sorted(data.get_data().measured_files()):
        _, statements, _, missing, _ = data.analysis2(path)
        found["/".join(Path(path).parts[-2:])] = (len(statements) - len(missing), len(statements))
    return found


def alike(outcome: Outcome) -> str:
    """What failures of one cause have in common."""
    return f"{outcome.verdict} {outcome.kind} " + re.sub(r"0x[0-9a-f]+|'[^']*'|\d{3,}", "..", outcome.line)[-160:]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), help=f"of seed models: {', '.join(KINDS)}")
    parser.add_argument("--coverage", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--failures", type=Path, help="folder to write failing inputs to")
    parser.add_argument("--one", metavar="NAME", help="run one mutant, and print what becomes of it")
    options = parser.parse_args(arguments)
    models = seed_models(options.kinds)
    found = [parsed(options.one)] if options.one else mutants(options.count, options.seed, list(models))
    with tempfile.TemporaryDirectory() as folder:
        with Runner(coverage_folder=Path(folder) if options.coverage else None) as runner:
            tally, failures = fuzz(found, models, runner)
        lines = covered_lines(Path(folder)) if options.coverage else {}
    if options.one:
        print(failures[0][2] if failures else next(tally.lines()))
    if options.failures and failures:
        options.failures.mkdir(parents=True, exist_ok=True)
        for index, (name, data, outcome) in enumerate(failures):
            (options.failures / f"{index}.onnx").write_bytes(data)
            (options.failures / f"{index}.txt").write_text(f"{name}\n{outcome}\n")
    if options.json:
        print(json.dumps(_as_json(tally, failures, lines), indent=1))
    else:
        print("\n".join(tally.lines()))
        for cause, count in Counter(alike(outcome) for _, _, outcome in failures).most_common():
            name = next(name for name, _, outcome in failures if alike(outcome) == cause)
            print(f"FAILED {count:4} {cause}\n            {name}")
        for path, (run, there) in lines.items():
            print(f"  {100 * run / max(1, there):5.1f}% {path} ({run} of {there})")
        for part in sorted({path.split("/")[0] for path in lines}):
            counts = [each for path, each in lines.items() if path.startswith(f"{part}/")]
            run, there = (sum(each[place] for each in counts) for place in (0, 1))
            print(f"coverage of {part}: {100 * run / there:.1f}% ({run} of {there} lines)")
    return 1 if failures else 0


def _as_json(
    tally: Tally, failures: list[tuple[str, bytes, Outcome]], lines: dict[str, tuple[int, int]]
) -> dict[str, Any]:
    return {
        "inputs": tally.count,
        "verdicts": dict(tally.verdicts),
        "kinds": dict(tally.kinds),
        "seconds": tally.seconds,
        "longest_s": tally.longest_s,
        "peak_bytes": tally.grown_bytes,
        "failures": [{"name": name, **vars(outcome)} for name, _, outcome in failures],
        "coverage": {path: {"run": run, "lines": there} for path, (run, there) in lines.items()},
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
