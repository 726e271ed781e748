"""Tables of a Markdown file, found by their headers: what prose quotes is held to what commands print."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

Table = list[list[str]]


def tables(path: Path) -> list[Table]:
    """All tables of a file, the header first; cells without the marks of bold text."""
    found: list[Table] = []
    inside = False
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip().replace("**", "") for cell in line.strip().strip("|").split("|")]
        if not inside:
            found.append([])
        inside = True
        if not all(cell and set(cell) <= set("-:") for cell in cells):
            found[-1].append(cells)
    return found


def table(path: Path, *header: str) -> Table:
    """The rows of the one table with these cells in its header, in their order; the first column may have no name."""
    wanted = list(header)
    fitting = [one for one in tables(path) if [cell for cell in one[0] if cell] == wanted]
    assert len(fitting) == 1, f"{path.name} has {len(fitting)} tables with the header {wanted}"
    return fitting[0][1:]


def alike(printed: str, made: str, within: float) -> bool:
    """Whether two texts are the same but for numbers that differ by ``within`` at most."""
    number = r"\d+(?:\.\d+)?"
    if re.split(number, printed) != re.split(number, made):
        return False
    pairs = zip(re.findall(number, printed), re.findall(number, made), strict=True)
    return all(abs(float(one) - float(other)) <= within + 1e-9 for one, other in pairs)


def differences(printed: Sequence[Sequence[str]], made: Sequence[Sequence[str]], within: float = 0.0) -> list[str]:
    """A line for each row that is not as it was made, with what it should be; numbers may differ by ``within``."""
    if len(printed) != len(made):
        return [f"{len(printed)} rows are printed, {len(made)} were made"]
    return [
        f"printed {list(one)}, made {list(other)}"
        for one, other in zip(printed, made, strict=True)
        if not alike("|".join(one), "|".join(other), within)
    ]
