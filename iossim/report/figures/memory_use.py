"""What each memory of an edge device holds over time, without and with all optimisation (Xenos, figure 9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iossim.base.tables import Cell
from iossim.edge.plan import Variant
from iossim.edge.planned import Dataflow
from iossim.report.figures.figure import Figure, LegendEntry, Panel
from iossim.report.figures.specifications import layer, need_altair, specification
from iossim.report.figures.theme import PALETTE

_MIB = 1 << 20
_MEMORIES = ("private", "shared", "external")
_COLOURS = dict(zip(_MEMORIES, (PALETTE[0], PALETTE[1], PALETTE[5]), strict=True))
_HEIGHT_PIXELS = 150


def memory_figure(found: Dataflow, title: str) -> Figure:
    """A panel a plan; ``private`` is of the unit that holds most."""
    variants = (Variant.VANILLA, Variant.FULL)
    records = tuple(record for variant in variants for record in _records(found, variant))
    busy = [row for row in found.memory(Variant.VANILLA) if row.external_bytes]
    last = f", last by {busy[-1].operator} until {busy[-1].end_us / 1e3:,.1f} ms" if busy else ""
    return Figure(
        name="memory",
        title=f"Memory over time: {title}",
        finding=f"Without optimisation {len(busy)} operators need external memory while they run{last}.",
        records=records,
        panels=tuple(Panel(str(variant), _specification(), {"plan": str(variant)}) for variant in variants),
        legend=tuple(LegendEntry(memory, _COLOURS[memory]) for memory in _MEMORIES),
        stacked=True,
        panel_pixels=720,
    )


def _records(found: Dataflow, variant: Variant) -> list[dict[str, Cell]]:
    return [
        {
            "plan": str(variant),
            "operator": row.operator,
            "memory": memory,
            "start_ms": row.start_us / 1e3,
            "end_ms": row.end_us / 1e3,
            "mib": getattr(row, f"{memory}_bytes") / _MIB,
        }
        for row in found.memory(variant)
        for memory in _MEMORIES
    ]


def _specification() -> Mapping[str, Any]:
    alt = need_altair()
    colour = alt.Color(
        "memory:N", scale=alt.Scale(domain=list(_MEMORIES), range=list(_COLOURS.values())), legend=None
    )
    spec: Mapping[str, Any] = specification(
        layer()
        .mark_rule(strokeWidth=2.4)
        .encode(
            x=alt.X("start_ms:Q", title="ms"),
            x2="end_ms:Q",
            y=alt.Y("mib:Q", title="in use, MiB"),
            color=colour,
            tooltip=["operator:N", "memory:N", alt.Tooltip("mib:Q", format=".2~f")],
        ),
        height=_HEIGHT_PIXELS,
    )
    return spec
