"""A stage in a line of text, as explanations and comparisons of schedules write it."""

from __future__ import annotations

from collections.abc import Sequence

from iossim.schedule.schedule import Stage
from iossim.schedule.strategy import Strategy


def stage_words(stage: Stage, block: str = "") -> str:
    """``a > b | c``: ``>`` in order, ``|`` side by side; ``merge: a + b``. The name of the block is left out of its units'."""
    groups = [[unit.removeprefix(f"{block}.") for unit in group] for group in stage.groups]
    if stage.strategy is Strategy.MERGE:
        return "merge: " + " + ".join(groups[0])
    return " | ".join(" > ".join(group) for group in groups)


def number_words(numbers: Sequence[int]) -> str:
    """``3-5`` for ``3, 4, 5``."""
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return ", ".join(map(str, numbers))
