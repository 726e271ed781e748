"""A network over several edge devices: what every way to divide it takes, and where the best one computes and waits."""

from __future__ import annotations

from typing import Any

from iossim.base.tables import Cell
from iossim.edge.distributed import Distributed
from iossim.report.figures.figure import Figure, LegendEntry, Panel
from iossim.report.figures.specifications import layer, need_altair, specification
from iossim.report.figures.theme import PALETTE

_PARTS = {"computing": PALETTE[0], "waiting": PALETTE[5], "total": PALETTE[1]}
_WAYS, _OPERATORS = "every way", "operators of the best"
_ROW_PIXELS = 20


def distribution_figure(found: Distributed, title: str) -> Figure:
    """The latency of each way against one device, and the time of each operator of the best, in order."""
    devices = found.distribution.devices
    records: list[dict[str, Cell]] = [
        {"panel": _WAYS, "name": "one device", "part": "total", "ms": found.one_us / 1e3},
    ]
    for mode, us in found.by_mode_us.items():
        records.append({"panel": _WAYS, "name": f"all by {mode}", "part": "total", "ms": us / 1e3})
    for part, us in (("computing", found.compute_us), ("waiting", found.waited_us)):
        records.append({"panel": _WAYS, "name": found.mix, "part": part, "ms": us / 1e3})
    for row in found.rows:
        for part, us in (("computing", row.compute_us), ("waiting", row.waited_us)):
            records.append(
                {"panel": _OPERATORS, "name": f"{row.operator} ({row.mode})", "part": part, "ms": us / 1e3}
            )
    if found.gather_us:
        records.append({"panel": _OPERATORS, "name": "gather", "part": "waiting", "ms": found.gather_us / 1e3})
    panels = (_WAYS, _OPERATORS)
    return Figure(
        name="distribution",
        title=title,
        finding=f"{devices} devices are {found.speedup:.2f}x the speed of one; {found.waited_us / found.latency_us:.0%} of their "
        "time they wait for what is sent.",
        records=tuple(records),
        panels=tuple(
            Panel(name, _bars([row for row in records if row["panel"] == name]), {"panel": name}) for name in panels
        ),
        legend=tuple(LegendEntry(part, colour) for part, colour in _PARTS.items()),
        stacked=True,
        panel_pixels=640,
    )


def _bars(records: list[dict[str, Cell]]) -> dict[str, Any]:
    alt = need_altair()
    names = list(dict.fromkeys(str(row["name"]) for row in records))
    return specification(
        layer()
        .mark_bar(cornerRadiusEnd=1)
        .encode(
            y=alt.Y("name:N", sort=names, title=None, axis=alt.Axis(labelLimit=220)),
            x=alt.X("ms:Q", title="ms", stack="zero", scale=alt.Scale(nice=False)),
            color=alt.Color("part:N", scale=alt.Scale(domain=list(_PARTS), range=list(_PARTS.values())), legend=None),
            order=alt.Order("part:N"),
            tooltip=["name:N", "part:N", alt.Tooltip("ms:Q", format=".3~f")],
        ),
        height={"step": _ROW_PIXELS},
    )
