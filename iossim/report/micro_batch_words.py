"""Micro-batches as a table and sentences for the terminal."""

from __future__ import annotations

from rich.table import Table

from iossim.base.tables import Cell, Column, records_table
from iossim.transforms.microbatching.micro_batching import MicroBatching

_MIB = 1 << 20


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
            "workspace_mib": one.configuration.workspace_bytes / _MIB,
            "share_percent": 100 * one.configuration.workspace_bytes / total if total else 0.0,
        }
        for one in found.kernels
    ]
    columns = [
        Column("layer", wraps=True),
        *([Column("pass")] if several else []),
        Column("configuration", wraps=True),
        Column("undivided_us", digits=1),
        Column("divided_us", digits=1),
        Column("workspace_mib", digits=1),
        Column("share_percent", "share", digits=0),
    ]
    return records_table("", rows, columns)


def total_words(found: MicroBatching) -> str:
    """What all kernels take, divided and undivided, what they need, and how good the choice is."""
    words = f"{len(found.kernels)} kernels take {found.time_us / 1e3:,.3f} ms"
    whole_us = found.undivided_us
    if whole_us is None:
        words += "; undivided some of them do not fit the limit"
    else:
        words += f", undivided {whole_us / 1e3:,.3f} ms under the same limit: {whole_us / found.time_us:.2f} times"
    if found.memory is not None:
        words += f". The arena with activations has {found.memory.arena_bytes / _MIB:,.1f} MiB"
        return f"{words}; {'proved the best' if found.proved else f'no choice takes less than {found.lower_bound_us / 1e3:,.3f} ms'}."
    if found.division is None:
        return f"{words}. Each is the best under its limit (exact)."
    words += f". Workspaces of {found.workspace_bytes / _MIB:,.1f} MiB together"
    if found.division.proved:
        return f"{words}; proved the best under the limit (greedy: {found.division.greedy_us / 1e3:,.3f} ms)."
    return f"{words}; no choice takes less than {found.lower_bound_us / 1e3:,.3f} ms (gap {found.division.gap:.2%})."
