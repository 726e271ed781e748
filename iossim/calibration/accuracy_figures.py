"""Predicted against measured, as pictures: operators by device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iossim.base.tables import Cell
from iossim.calibration.validation import OperatorEvaluation
from iossim.ir.types import Precision
from iossim.report.figures.figure import Figure, LegendEntry, Panel
from iossim.report.figures.vega import HALO, PALETTE, layer, log_ticks, need_altair, only, specification

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

HELD_OUT, SEEN, _LINE = PALETTE[0], "#b4b4b4", PALETTE[5]
#: Larger residuals are drawn at the edge.
_LARGEST_RESIDUAL_PERCENT = 60.0
_TRENDS = 12
_HEIGHT_PIXELS = 230
#: A panel draws this many evenly chosen points: more would overlap, and make an SVG slow to open.
_MOST_POINTS = 800


def operators_figures(operators: Sequence[OperatorEvaluation]) -> list[Figure]:
    """One figure per device, in the order given."""
    return [operators_figure(name, list(own)) for name, own in groupby(operators, key=lambda each: each.device)]


def operators_figure(device: str, evaluations: Sequence[OperatorEvaluation]) -> Figure:
    """A row of panels per data set: predicted against measured device time, and errors against time and arithmetic."""
    grid = AccuracyGrid("measured, us", "predicted, us", "error, %")
    for each in evaluations:
        flops = np.array([float(m.operator.flops) for m in each.measurements])
        ((kind, precision),) = each.kinds
        name = f"{kind}, {each.data_set}" + ("" if precision is Precision.FP32 else f", {precision}")
        accuracy = each.unseen.gpu_time()
        said = "" if accuracy.mean_error is None else f"mean error {accuracy.mean_error:.1%}"
        grid.identity(name, said, each.measured_us, each.predicted_us, each.held_out)
        grid.residuals("measured, us", each.measured_us, each.errors, each.held_out)
        grid.residuals("arithmetic, FLOP", flops, each.errors, each.held_out)
    return grid.figure(
        f"operators.{device}",
        f"Device time of operators on {device}: predicted against measured",
        {"shapes that no fit sees": HELD_OUT, "shapes for the fit": SEEN},
        "median error",
    )


class AccuracyGrid:
    """Rows of panels: predicted against measured, then errors against other quantities."""

    def __init__(self, across: str, up: str, error: str) -> None:
        self.across, self.up, self.error = across, up, error
        self.records: list[dict[str, Cell]] = []
        self.panels: list[Panel] = []

    def figure(self, name: str, title: str, points: dict[str, str], line: str) -> Figure:
        legend = [LegendEntry(label, colour, "circle") for label, colour in points.items()]
        legend += [LegendEntry(line, _LINE, "line"), LegendEntry("20% off", "currentColor", "dashes")]
        rows = sum(bool(panel.title) for panel in self.panels)
        return Figure(
            name=name,
            title=title,
            finding=f"drawn are at most {_MOST_POINTS:,} points of each panel; figures are of all",
            records=tuple(self.records),
            panels=tuple(self.panels),
            legend=tuple(legend),
            # A row of the picture has as many panels as a data set has.
            panel_pixels=420 if len(self.panels) == 2 * rows else 300,
        )

    def identity(self, name: str, said: str, across: Floats, up: Floats, coloured: Flags) -> None:
        """Points on logarithmic axes of one scale, the line of equality, and dashed lines 20% from it."""
        low, high = _span(np.concatenate([across, up]))
        lines = [
            {"what": what, "line": factor, "x": place, "y": place * factor}
            for factor, what in ((1.0, "equal"), (1.2, "off"), (1 / 1.2, "off"))
            for place in (low, high)
        ]
        panel = self._add(across, up, coloured, lines)
        alt = need_altair()
        x, y = (
            alt.X("x:Q", title=self.across, scale=_log(low, high), axis=_log_axis(low, high)),
            alt.Y("y:Q", title=self.up, scale=_log(low, high), axis=_log_axis(low, high)),
        )
        line = {"color": "#111111", "strokeWidth": 0.8, "clip": True}
        layers = [
            *_points(x, y),
            only("equal").mark_line(**line).encode(x=x, y=y),
            only("off").mark_line(strokeDash=[4, 3], **line).encode(x=x, y=y, detail="line:N"),
        ]
        for number, text in enumerate(filter(None, said.split("\n"))):
            label = {"text": text, "align": "left", "baseline": "top"}
            place = {"x": alt.value(6), "y": alt.value(5 + 14 * number)}
            once = only("equal").transform_filter(f"datum.x == {low!r}")
            layers += [once.mark_text(style=HALO, **label).encode(**place), once.mark_text(**label).encode(**place)]
        self.panels.append(Panel(name, specification(*layers, height=_HEIGHT_PIXELS), {"panel": panel}))

    def residuals(self, label: str, across: Floats, errors: Floats, coloured: Flags) -> None:
        """Relative errors over a logarithmic axis, and their median in bins of equally many points."""
        limit = _LARGEST_RESIDUAL_PERCENT
        limited = np.clip(100 * errors, -limit, limit)
        chosen = coloured if coloured.any() else np.ones_like(coloured)
        order = np.argsort(across[chosen], kind="stable")
        trend = []
        if len(order) >= 3 * _TRENDS:
            for part in np.array_split(order, _TRENDS):
                middle = float(np.exp(np.log(across[chosen][part]).mean()))
                trend.append({"what": "trend", "x": middle, "y": float(np.median(limited[chosen][part]))})
        panel = self._add(across, limited, coloured, trend)
        alt = need_altair()
        low, high = _span(across)
        x = alt.X("x:Q", title=label, scale=_log(low, high), axis=_log_axis(low, high))
        scale = alt.Scale(domain=[-1.05 * limit, 1.05 * limit], nice=False)
        y = alt.Y("y:Q", title=self.error, scale=scale, axis=alt.Axis(format="+d", tickCount=7))
        layers = [
            *_points(x, y),
            layer().mark_rule(color="#111111", strokeWidth=0.8).encode(y=alt.datum(0.0)),
            only("trend").mark_line(color=_LINE, strokeWidth=1.8).encode(x=x, y=y),
        ]
        self.panels.append(Panel("", specification(*layers, height=_HEIGHT_PIXELS), {"panel": panel}))

    def _add(self, across: Floats, up: Floats, coloured: Flags, others: Sequence[dict[str, Any]]) -> int:
        """Keep the records of a panel; returns its number."""
        panel = len(self.panels)
        usable = np.flatnonzero(np.isfinite(across) & np.isfinite(up) & (across > 0))
        shown = usable[:: max(1, -(-len(usable) // _MOST_POINTS))]
        common: dict[str, Cell] = {"panel": panel, "what": "point"}
        for row in shown:
            place = {"x": float(across[row]), "y": float(up[row])}
            self.records.append({**common, **place, "coloured": bool(coloured[row])})
        self.records += [{"panel": panel, **other} for other in others]
        return panel


def _points(x: Any, y: Any) -> list[Any]:
    mark = {"size": 14, "opacity": 0.55, "filled": True, "clip": True}
    points = only("point")
    return [
        points.transform_filter("!datum.coloured").mark_point(color=SEEN, **mark).encode(x=x, y=y),
        points.transform_filter("datum.coloured").mark_point(color=HELD_OUT, **mark).encode(x=x, y=y),
    ]


def _log(low: float, high: float) -> Any:
    return need_altair().Scale(type="log", domain=[low, high], nice=False)


def _log_axis(low: float, high: float) -> Any:
    return need_altair().Axis(values=[tick for tick in log_ticks([low, high]) if low <= tick <= high], format="~s")


def _span(values: Floats) -> tuple[float, float]:
    """Ends of a logarithmic axis that spans all finite positive values."""
    usable = values[np.isfinite(values) & (values > 0)]
    if not len(usable):
        return 1.0, 10.0
    return float(usable.min()) / 1.3, float(usable.max()) * 1.3
