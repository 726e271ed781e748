"""Kernels side by side: a lane for each stream, a bar for each kernel, and below how full the SMs are and what is in
use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from iossim.base.tables import Cell
from iossim.calibration.prediction.corun import Corun
from iossim.report.colours import REST, text_on
from iossim.report.corun_words import makespan_words, short_name
from iossim.report.figures import timeline
from iossim.report.figures.figure import Figure, LegendEntry, Panel
from iossim.report.figures.vega import PALETTE, coloured, layer, need_altair, only, specification

_WIDTH_PIXELS = 1000
#: What is in use, by the name of its cell.
_USES = {"issue_percent": "issue", "l2_percent": "L2", "dram_percent": "DRAM", "power_percent": "power"}
_IN_USE, _WAITS = "#8b939c", "#555555"


def corun_figure(run: Corun, title: str) -> Figure:
    """The picture of a run; of what is never in use nothing is shown."""
    domain_ms = (0.0, (run.makespan_us or 1.0) * 1.005 / 1e3)
    colours = _colours(run)
    execution = run.execution
    uses = {
        name: values
        for name, values in zip(_USES, (execution.issue, execution.l2, execution.dram, execution.power), strict=True)
        if values.any()
    }
    records: list[dict[str, Cell]] = [{"strip": False, **record} for record in _kernels(run, colours, domain_ms)]
    records += [{"strip": True, **step} for step in timeline.occupancy_steps(execution, **uses)]
    strips = [timeline.occupancy(domain_ms), *(_use(name, domain_ms) for name in uses)]
    waits = any(row.start_us > row.ready_us for row in run.kernels)
    entries = [LegendEntry(name, colour) for name, colour in colours.items() if colour != REST]
    rest = len(colours) - len(entries)
    entries += [LegendEntry(f"{rest} others", REST)] if rest else []
    return Figure(
        name="timeline",
        title=title,
        finding=makespan_words(run),
        records=tuple(records),
        panels=(
            Panel("", _lanes(colours, domain_ms), {"strip": False}),
            *(Panel("", strip, {"strip": True}) for strip in strips),
        ),
        legend=(
            *entries,
            *([LegendEntry("waits", _WAITS, "dashes")] if waits else []),
            *timeline.occupancy_legend(),
            *([LegendEntry("in use, % of the device's", _IN_USE)] if uses else []),
        ),
        stacked=True,
        panel_pixels=_WIDTH_PIXELS,
    )


def _colours(run: Corun) -> dict[str, str]:
    """The colour of each name: the palette's for those that take most time, grey for the rest."""
    total_us: Counter[str] = Counter()
    for row in run.kernels:
        total_us[short_name(row.kernel.name)] += row.end_us - row.start_us  # type: ignore[assignment]
    order = sorted(total_us, key=lambda name: (-total_us[name], name))
    return {name: PALETTE[place] if place < len(PALETTE) else REST for place, name in enumerate(order)}


def _kernels(run: Corun, colours: Mapping[str, str], domain_ms: tuple[float, float]) -> list[dict[str, Cell]]:
    """A record for each kernel, for each one's wait, and for each label that has room."""
    records: list[dict[str, Cell]] = []
    pixels_per_ms = _WIDTH_PIXELS / domain_ms[1]
    for number, row in enumerate(run.kernels):
        name, stream = short_name(row.kernel.name), row.kernel.stream
        start_ms, end_ms = row.start_us / 1e3, row.end_us / 1e3
        records.append({"what": "kernel", "stream": stream, "kind": name, "start_ms": start_ms, "end_ms": end_ms})
        if row.start_us > row.ready_us:
            records.append({"what": "wait", "stream": stream, "start_ms": row.ready_us / 1e3, "end_ms": start_ms})
        texts = (f"{number} {name}", str(number))
        text, size = timeline.fitting_label(texts, (end_ms - start_ms) * pixels_per_ms - 4)
        if text:
            label: dict[str, Cell] = {"what": "label", "stream": stream, "text": text, "size": size}
            records.append({**label, "colour": text_on(colours[name]), "start_ms": (start_ms + end_ms) / 2})
    return records


def _lanes(colours: Mapping[str, str], domain_ms: tuple[float, float]) -> dict[str, Any]:
    alt = need_altair()
    x = timeline.time_axis(alt, "start_ms", None, domain_ms)
    y = timeline.stream_axis(alt)
    return specification(
        only("wait").mark_rule(color=_WAITS, strokeDash=[4, 3]).encode(x=x, x2="end_ms:Q", y=y),
        only("kernel")
        .mark_bar(stroke="#ffffff", strokeWidth=0.5)
        .encode(x=x, x2="end_ms:Q", y=y, color=coloured("kind", colours)),
        *timeline.label_layers(x, y),
        height={"step": timeline.LANE_PIXELS},
    )


def _use(name: str, domain_ms: tuple[float, float]) -> dict[str, Any]:
    alt = need_altair()
    axis = alt.Axis(minExtent=timeline.LABELS_PIXELS, maxExtent=timeline.LABELS_PIXELS, tickCount=3)
    return specification(
        layer()
        .mark_rect(color=_IN_USE, stroke=_IN_USE, strokeWidth=0.6)
        .encode(
            x=timeline.time_axis(alt, "start_ms", None, domain_ms, labels=False),
            x2="end_ms:Q",
            y=alt.Y(f"{name}:Q", title=_USES[name], scale=alt.Scale(domain=[0, 100]), axis=axis),
            y2=alt.datum(0),
        ),
        height=timeline.LOW_STRIP_PIXELS,
    )
