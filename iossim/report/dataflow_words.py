"""Dataflow on an edge device as a table and sentences for the terminal."""

from __future__ import annotations

from rich.table import Table

from iossim.base.tables import Cell, Column, records_table
from iossim.edge.plan import Variant
from iossim.edge.planned import Dataflow
from iossim.measurements.published_figures import published_dataflow

_KIB = 1 << 10


def dataflow_table(found: Dataflow) -> Table:
    """A row an operator: how it is split, for whom it is written, what it moves, and its three times."""
    rows: list[dict[str, Cell]] = [
        {
            "operator": row.operator,
            "partition": row.partition,
            **({"slices": row.slices} if row.slices > 1 else {}),
            "linked": row.layout,
            "moved_kib": row.moved_bytes / _KIB,
            "vanilla_us": row.vanilla_us,
            "horizontal_us": row.horizontal_us,
            "full_us": row.full_us,
        }
        for row in found.operators
    ]
    columns = [
        Column("operator", shortens=True),
        Column("partition", shortens=True),
        Column("slices"),
        Column("linked", shortens=True),
        Column("moved_kib", digits=0),
        *(Column(f"{variant}_us", digits=1) for variant in Variant),
    ]
    return records_table("", rows, columns)


def dataflow_words(found: Dataflow) -> str:
    """The three times, what each step takes off, and what ran whole."""
    vanilla, horizontal, full = (found.total_us(variant) for variant in Variant)
    words = (
        f"vanilla {vanilla / 1e3:,.3f} ms; split over {found.device.units.value} units {horizontal / 1e3:,.3f} ms "
        f"({_change(horizontal, vanilla)}); linked too {full / 1e3:,.3f} ms (a further {_change(full, horizontal)}). "
        f"Found in {found.optimise_s:.3f} s by policy {found.policy}."
    )
    if found.was_interrupted:
        words += " The search was interrupted: operators that it did not come to are split by the priority."
    for step, taken, name in (
        ("horizontal", 1 - horizontal / vanilla, "splitting"),
        ("vertical", 1 - full / horizontal, "linking"),
    ):
        low, high = published_dataflow(found.device.name).get(step, (-1e9, 0))
        if 100 * taken < low:
            words += (
                f"\nXenos (figure 7) measured that {name} takes {low:g} to {high:g}% off on this device. "
                "This model does not reproduce that here."
            )
    if (parts := found.parts) is not None:
        words += (
            f"\nBranches side by side on parts of the units: {parts.total_us / 1e3:,.3f} ms "
            f"({_change(parts.total_us, full)}), {len(parts.rows)} of {parts.proposed} stages that the search found."
        )
        for stage in parts.rows:
            lanes = "; ".join(
                f"{', '.join(names)} on {units}" for names, units in zip(stage.operators, stage.units, strict=True)
            )
            words += f"\n  {stage.parts_us / 1e3:,.3f} for {stage.whole_us / 1e3:,.3f} ms: {lanes}."
    whole = {row.whole: row.operator for row in found.operators if row.whole}
    for why, operator in whole.items():
        words += f" Whole on one unit for {why}: {operator}."
    return words


def _change(now_us: float, before_us: float) -> str:
    """``12.5% less``, or ``more``."""
    return f"{abs(1 - now_us / before_us):.1%} {'more' if now_us > before_us else 'less'}"
