"""A network over several edge devices as a table and sentences for the terminal."""

from __future__ import annotations

from rich.table import Table

from iossim.base.tables import Cell, Column, records_table
from iossim.edge.distributed import Distributed

_KIB = 1 << 10


def distribution_table(found: Distributed) -> Table:
    """A row an operator: how it is divided, what is sent for it, what of that is waited for, and the slowest device's time."""
    rows: list[dict[str, Cell]] = [
        {
            "operator": row.operator,
            "mode": row.mode,
            "sent_kib": row.sent_bytes / _KIB,
            "exchange_us": row.exchange_us,
            "waited_us": row.waited_us,
            "compute_us": row.compute_us,
        }
        for row in found.rows
    ]
    columns = [
        Column("operator", shortens=True),
        Column("mode", "divided by"),
        Column("sent_kib", digits=0),
        Column("exchange_us", "sending", digits=1),
        Column("waited_us", "waiting", digits=1),
        Column("compute_us", "computing", digits=1),
    ]
    return records_table("", rows, columns)


def distribution_words(found: Distributed) -> str:
    """One device against all of them, each mode by itself, and what was sent."""
    distribution = found.distribution
    alone = ", ".join(f"{mode} {found.one_us / us:.2f}x" for mode, us in found.by_mode_us.items())
    sent = distribution.sent_bytes / _KIB
    words = (
        f"one device {found.one_us / 1e3:,.3f} ms; {distribution.devices} of them {found.latency_us / 1e3:,.3f} ms, "
        f"{found.speedup:.2f}x: {found.compute_us / 1e3:,.3f} ms computing, {found.waited_us / 1e3:,.3f} ms waiting for "
        f"{sent:,.0f} KiB over {found.link} by {found.sync}.\n"
    )
    if found.mix == "mix":
        words += f"Every operator divided alike: {alone}.\n"
    words += f"Found in {found.optimise_s:.2f} s" + ("." if distribution.exact else ", not all choices followed.")
    return words
