"""Fuzzes the importer: mutants of real models, each loaded, priced and shown in a process that is limited in memory and time."""

from __future__ import annotations

from pathlib import Path

from fuzz_mutations import Mutant, mutant_of


def mutants(count: int, seed: int, names: list[str]) -> list[Mutant]:
    """``count`` mutants of the models of these names; the first ones of a larger count are the same."""
    return [mutant_of(seed * 1_000_003 + index, names) for index in range(count)]


def parsed(name: str) -> Mutant:
    """A mutant by its name."""
    seed, *steps = name.split(" ")
    return Mutant(seed, tuple((step.rpartition(":")[0], int(step.rpartition(":")[2])) for step in steps))


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
