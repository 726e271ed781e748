"""Predicted against measured, as pictures: operators by device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import Floats
from iossim.base.tables import Cell
from iossim.calibration.validation import OperatorEvaluation
from iossim.ir.types import Precision
from iossim.report.figures.figure import Figure, LegendEntry, Panel, Spec
from iossim.report.figures.vega import HALO, PALETTE, described, log_ticks

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
        lines: list[dict[str, Cell]] = [
            {"what": what, "line": factor, "x": place, "y": place * factor}
            for factor, what in ((1.0, "equal"), (1.2, "off"), (1 / 1.2, "off"))
            for place in (low, high)
        ]
        panel = self._add(across, up, coloured, lines)
        x, y = _log("x", self.across, low, high), _log("y", self.up, low, high)
        spec = described(__package__, "identity", x=x, y=y, seen=SEEN, held_out=HELD_OUT, height=_HEIGHT_PIXELS)
        for number, text in enumerate(filter(None, said.split("\n"))):
            label = {"type": "text", "text": text, "align": "left", "baseline": "top"}
            place = {"x": {"value": 6}, "y": {"value": 5 + 14 * number}}
            once = [{"filter": "datum.what == 'equal'"}, {"filter": f"datum.x == {low!r}"}]
            marks = ({**label, "style": HALO}, label)
            spec["layer"] += [{"mark": mark, "encoding": place, "transform": once} for mark in marks]
        self.panels.append(Panel(name, spec, {"panel": panel}))

    def residuals(self, label: str, across: Floats, errors: Floats, coloured: Flags) -> None:
        """Relative errors over a logarithmic axis, and their median in bins of equally many points."""
        limit = _LARGEST_RESIDUAL_PERCENT
        limited = np.clip(100 * errors, -limit, limit)
        chosen = coloured if coloured.any() else np.ones_like(coloured)
        order = np.argsort(across[chosen], kind="stable")
        trend: list[dict[str, Cell]] = []
        if len(order) >= 3 * _TRENDS:
            for part in np.array_split(order, _TRENDS):
                middle = float(np.exp(np.log(across[chosen][part]).mean()))
                trend.append({"what": "trend", "x": middle, "y": float(np.median(limited[chosen][part]))})
        panel = self._add(across, limited, coloured, trend)
        axis, scale = {"format": "+d", "tickCount": 7}, {"domain": [-1.05 * limit, 1.05 * limit], "nice": False}
        spec = described(
            __package__,
            "residuals",
            x=_log("x", label, *_span(across)),
            y={"axis": axis, "field": "y", "scale": scale, "title": self.error, "type": "quantitative"},
            seen=SEEN,
            held_out=HELD_OUT,
            line=_LINE,
            height=_HEIGHT_PIXELS,
        )
        self.panels.append(Panel("", spec, {"panel": panel}))

    def _add(self, across: Floats, up: Floats, coloured: Flags, others: Sequence[Mapping[str, Cell]]) -> int:
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


def _log(key: str, title: str, low: float, high: float) -> Spec:
    """Channel of a column on a logarithmic axis."""
    axis = {"format": "~s", "values": [tick for tick in log_ticks([low, high]) if low <= tick <= high]}
    scale = {"domain": [low, high], "nice": False, "type": "log"}
    return {"axis": axis, "field": key, "scale": scale, "title": title, "type": "quantitative"}


def _span(values: Floats) -> tuple[float, float]:
    """Ends of a logarithmic axis that spans all finite positive values."""
    usable = values[np.isfinite(values) & (values > 0)]
    if not len(usable):
        return 1.0, 10.0
    return float(usable.min()) / 1.3, float(usable.max()) * 1.3
