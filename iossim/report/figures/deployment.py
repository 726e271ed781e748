"""The streams of a deployed schedule over time: as predicted and, below, as profiled by the runtime."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from iossim.base.tables import Cell
from iossim.execution.execution import Span
from iossim.report.figures.figure import Figure, LegendEntry, Panel
from iossim.report.figures.timeline import LANE_PIXELS, fitting_label, from_to_ms, label_layers, stream_axis, time_axis
from iossim.report.figures.vega import PALETTE, need_altair, only, specification

_RUNS, _TOGETHER = PALETTE[0], "#f6c98f"
_WIDTH_PIXELS = 1100


def deployment_figure(title: str, finding: str, expected: Sequence[Span], ran: Sequence[Span]) -> Figure:
    """Two panels on one scale, one lane per stream; a band behind the lanes shows when several streams are active."""
    runs = {"predicted": expected, "ONNX Runtime's own profile": ran}
    latest_ms = max((span.end_us for span in (*expected, *ran)), default=1.0) / 1e3
    records: list[dict[str, Cell]] = []
    panels = []
    for name, spans in runs.items():
        together = overlapping(spans)
        records += [{"run": name, "what": "together", **from_to_ms(*extent)} for extent in together]
        for span in spans:
            common: dict[str, Cell] = {"run": name, "stream": span.stream, "name": span.unit}
            records.append({**common, "what": "bar", **from_to_ms(span.start_us, span.end_us)})
            pixels = (span.end_us - span.start_us) / 1e3 / latest_ms * _WIDTH_PIXELS - 4
            # Candidates are the name and ever shorter ends of it: it says where in the model the unit is.
            names = [*accumulate(re.split(r"[./]", span.unit.strip("/")), "{}.{}".format)][::-1]
            if text := fitting_label(names, pixels):
                middle_ms = (span.start_us + span.end_us) / 2e3
                records.append({**common, "what": "label", "start_ms": middle_ms, "text": text, "colour": "white"})
        last_ms = max((span.end_us for span in spans), default=0.0) / 1e3
        both_ms = sum(end - start for start, end in together) / 1e3
        said = f"{name}: {last_ms:.2f} ms, {both_ms:.2f} of them with several streams at work"
        panels.append(Panel(said, _lanes(latest_ms), {"run": name}))
    return Figure(
        name="timeline",
        title=title,
        finding=finding,
        records=tuple(records),
        panels=tuple(panels),
        legend=(LegendEntry("kernel or node", _RUNS), LegendEntry("several streams at work", _TOGETHER)),
        stacked=True,
        panel_pixels=_WIDTH_PIXELS,
    )


def overlapping(spans: Sequence[Span]) -> list[tuple[float, float]]:
    """Intervals in which several of the spans run, in order, cut wherever one begins or ends."""
    edges = sorted({edge for span in spans for edge in (span.start_us, span.end_us)})
    return [part for part in pairwise(edges) if sum(span.start_us <= part[0] < span.end_us for span in spans) > 1]


def _lanes(latest_ms: float) -> Mapping[str, Any]:
    alt = need_altair()
    x, y = time_axis(alt, "start_ms", None, (0.0, latest_ms * 1.005)), stream_axis(alt)
    whole = {"y": alt.value(0), "y2": alt.value("height")}
    return specification(
        only("together").mark_rect(color=_TOGETHER).encode(x=x, x2="end_ms:Q", **whole),
        only("bar")
        .mark_bar(color=_RUNS, stroke="#ffffff", strokeWidth=0.5)
        .encode(x=x, x2="end_ms:Q", y=y, tooltip=["name:N"]),
        *label_layers(x, y),
        height={"step": LANE_PIXELS},
    )
