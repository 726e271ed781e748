"""``python -m evidence rules``: rules found by enumerating graphs, none of them written by hand."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iossim.base.errors import OptionError
from iossim.cli.options import command
from iossim.cli.outputs import present, table

if TYPE_CHECKING:
    from evidence.rule_generation.derivation import Coverage

#: Beyond this size, even the graphs of the smallest vocabularies do not fit in memory.
_LARGEST = 5


@command
def generate_rules(
    ops: str | None = None,
    size: int = 2,
    inputs: str | None = None,
    out: Path | None = None,
    seed: int = 0,
    against: str | None = None,
    as_json: bool = False,
) -> None:
    """Generate the rules of a vocabulary, and count the candidates left by each pruning. They are not verified yet."""
    from evidence.rule_generation.derivation import coverage
    from evidence.rule_generation.generate import STAGES, generate
    from evidence.rule_generation.vocabulary import TASO_INPUTS, TASO_OPS, read_vocabulary
    from iossim.base.user_files import check_writable, write_atomically
    from iossim.cli.progress import progress_bars
    from iossim.transforms.rewriting.rule_file import rule_fields, write_rules
    from iossim.transforms.rewriting.rule_sets import rule_set

    vocabulary = read_vocabulary(TASO_OPS if ops is None else ops, TASO_INPUTS if inputs is None else inputs)
    if seed < 0 or not 1 <= size <= _LARGEST:
        name, value, wanted = ("--seed", seed, "0 or more") if seed < 0 else ("--size", size, f"1 to {_LARGEST}")
        raise OptionError(f"{name} {value} is out of range; give {wanted}")
    out = Path("generated_rules.yaml") if out is None and not as_json else out
    if out is not None:
        if out.suffix not in (".yaml", ".yml") or out.is_dir():
            raise OptionError(f"--out {out} is no file of rules; give a name that ends in .yaml")
        check_writable(out.parent)
    others = None if against is None else rule_set(against)
    start, cpu_start = time.perf_counter(), time.process_time()
    with progress_bars(quiet=as_json, unit="graphs or pairs") as stages:
        found = generate(vocabulary, size, seed, stages)
    seconds, cpu_seconds, memory_gb = time.perf_counter() - start, time.process_time() - cpu_start, _peak_gb()
    covered = None if others is None else coverage(others, found.equations, vocabulary.inputs)
    written = out if found.rules else None
    if written is not None:
        written.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(written, write_rules(found.rules))
    data: dict[str, Any] = {"size": size, "seconds": seconds, "cpu_seconds": cpu_seconds, "memory_gb": memory_gb}
    data |= {"counts": found.counts, "against": covered, "rules": [rule_fields(rule) for rule in found.rules]}
    rows = [{"left after": STAGES[name], "count": count} for name, count in found.counts.items()]
    memory = "" if memory_gb is None else f", {memory_gb:.2f} GB"
    title = f"Rules of up to {size} op{'s' * (size != 1)}, found in {seconds:.1f} s ({cpu_seconds:.1f} s CPU{memory})"
    said = [] if covered is None else list(_told(f"Of {against}", covered))
    if written is not None:
        said.append(f"wrote {written}; verify them: iossim rules verify {written}")
    else:
        said.append(f"no rules, so {out} was not written; give more ops or inputs, or a larger --size")
    present(data, chain(table(title, rows), said), as_json)


def _peak_gb() -> float | None:
    """Peak memory of this process; None where the system does not report it."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e9 if sys.platform == "darwin" else 1e6)


def _told(of: str, covered: Mapping[str, Coverage]) -> Iterator[str]:
    """Number of rules with each coverage, and the names of those that were neither found nor derived."""
    from evidence.rule_generation.derivation import AMONG_FOUND

    counts = Counter(covered.values())
    yield f"{of}: {', '.join(f'{count} {state}' for state, count in sorted(counts.items()))}"
    for state in sorted(counts.keys() - AMONG_FOUND):
        yield f"{state}: {', '.join(name for name, each in covered.items() if each is state)}"
