"""Micro-batches as a table and sentences for the terminal."""

from __future__ import annotations

from rich.table import Table

from iossim.base.memory_size import size_text
from iossim.base.tables import Cell, Column, records_table
from iossim.transforms.microbatching.kernels_under_limits import WORTH_DIVIDING, MicroBatching


def micro_batch_table(found: MicroBatching) -> Table:
    """A row a kernel: what it runs as, its time divided and undivided, its workspace and that's share of all."""
    total = found.workspace_bytes
    several = len({one.name.direction for one in found.kernels}) > 1
    rows: list[dict[str, Cell]] = [
        {
            "layer": one.name.layer,
            **({"pass": one.name.direction.replace("_", " ")} if several else {}),
            "configuration": str(one.configuration),
            "undivided_us": None if one.undivided is None else one.undivided.time_us,
            "divided_us": one.configuration.time_us,
            "workspace": size_text(one.configuration.workspace_bytes),
            "share_percent": 100 * one.configuration.workspace_bytes / total if total else 0.0,
        }
        for one in found.kernels
    ]
    columns = [
        Column("layer", shortens=True),
        *([Column("pass")] if several else []),
        Column("configuration", wraps=True),
        Column("undivided_us", digits=1),
        Column("divided_us", digits=1),
        Column("workspace"),
        Column("share_percent", "share", digits=0),
    ]
    table = records_table("", rows, columns)
    table.columns[-2].justify = "right"
    return table


def total_words(found: MicroBatching) -> str:
    """What all kernels take, divided and undivided, what they need, and how good the choice is."""
    count = len(found.kernels)
    words = f"{count} kernel{'s' * (count > 1)} take{'s' * (count == 1)} {_time_text(found.time_us)}"
    whole_us = found.undivided_us
    if whole_us is None:
        words += "; undivided some of them do not fit the limit"
    else:
        words += f", undivided {_time_text(whole_us)} under the same limit: {whole_us / found.time_us:.2f} times"
    worth = f"a batch is divided where that gains {1 - WORTH_DIVIDING:.0%}"
    if found.memory is not None:
        words += f". The arena with activations has {size_text(found.memory.arena_bytes)}"
        return f"{words}; {'proved the best' if found.proved else f'no choice takes less than {_time_text(found.lower_bound_us)}'} ({worth})."
    if found.division is None:
        return f"{words}. Each is the fastest under its limit ({worth})."
    words += f". Their workspaces have {size_text(found.workspace_bytes)} together"
    if found.division.proved:
        return f"{words}; proved the best under the limit (greedy: {_time_text(found.division.greedy_us)}; {worth})."
    return f"{words}; no choice takes less than {_time_text(found.lower_bound_us)} (gap {found.division.gap:.2%}; {worth})."


def _time_text(time_us: float) -> str:
    return f"{time_us:,.1f} us" if time_us < 1e3 else f"{time_us / 1e3:,.3f} ms"
