"""How wrong predictions are, as pictures: operators, networks, one engine against the other, unseen devices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iossim.calibration.leave_one_out import LeftOut
from iossim.ir.types import Precision
from iossim.reporting.figures.bars import bar_legend, bar_record, bar_specification, share_scales
from iossim.reporting.figures.figure import Figure, LegendEntry, Panel
from iossim.reporting.figures.specifications import layer, log_ticks, need_altair, only, specification
from iossim.reporting.figures.theme import HALO, PALETTE
from iossim.tables import Cell
from iossim.validation.engines import EngineAgreement
from iossim.validation.networks import NetworkEvaluation
from iossim.validation.operators import OperatorEvaluation
from iossim.validation.report import ValidationReport, sampled_rows

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_HELD_OUT, _SEEN, _LINE = PALETTE[0], "#b4b4b4", PALETTE[5]
#: Residuals beyond this are drawn at the edge.
_LARGEST_RESIDUAL_PERCENT = 60.0
_TRENDS = 12
_HEIGHT_PIXELS = 230
#: Points of a panel that are drawn, evenly taken of all: more would lie on each other, and make an SVG slow to open.
_MOST_POINTS = 800
#: What the predicted latency and its error take behind a bar.
_TEXT_PIXELS = 110


def accuracy_figures(report: ValidationReport) -> list[Figure]:
    """All figures of a report, named as their files; a part without figures has none."""
    figures = [
        operators_figure(device, list(own))
        for device, own in groupby(report.operators, key=lambda each: each.device)
    ]  # fmt: skip
    figures += [networks_figure(networks) for networks in report.networks if networks.latencies]
    if report.engines:
        figures.append(engines_figure(report.engines))
    if report.transfer is not None:
        left_out = sorted(sampled_rows(report.transfer), key=lambda row: row.device)
        figures += [
            transfer_figure(device, list(own), report.transfer.samples)
            for device, own in groupby(left_out, key=lambda row: row.device)
        ]
    return figures


def operators_figure(device: str, evaluations: Sequence[OperatorEvaluation]) -> Figure:
    """A row of panels for each data set: predicted against measured device time, and errors against time and arithmetic."""
    grid = _Grid("measured, us", "predicted, us", "error, %")
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
        {"shapes that no fit sees": _HELD_OUT, "shapes for the fit": _SEEN},
        "median error",
    )


def engines_figure(agreements: Sequence[EngineAgreement]) -> Figure:
    """For each device the prices of stages by both engines, and how far they differ."""
    grid = _Grid("analytic, us", "event-driven, us", "difference, %")
    for each in agreements:
        several = each.groups > 1
        name = f"{each.device}: {len(each.groups):,} of {each.total:,} stages"
        said = f"median {each.median:.1%}\n95th percentile {each.percentile_95:.1%}"
        grid.identity(name, said, each.analytic_us, each.events_us, several)
        grid.residuals("analytic, us", each.analytic_us, each.difference, several)
    title = f"Stages of {agreements[0].network}: event-driven against analytic"
    return grid.figure("engines", title, {"several groups": _HELD_OUT, "one group": _SEEN}, "median difference")


def transfer_figure(device: str, rows: Sequence[LeftOut], samples: int) -> Figure:
    """For each kind of a device left out, predicted against measured device time, and errors."""
    grid = _Grid("measured, us", "predicted, us", "error, %")
    for row in rows:
        measured_us = row.zero_shot.measured_us
        every = np.ones(len(measured_us), dtype=np.bool_)
        said = f"mean error {np.abs(row.zero_shot.errors).mean():.1%}"
        if row.refined is not None:
            said += f"\nwith {samples} samples {np.abs(row.refined.errors).mean():.1%}"
        grid.identity(f"{row.kind}, {row.zero_shot.data_set}", said, measured_us, row.zero_shot.predicted_us, every)
        grid.residuals("measured, us", measured_us, row.zero_shot.errors, every)
    title = f"Unseen devices: {device}, from datasheet facts"
    return grid.figure(f"transfer.{device}", title, {"operators": _HELD_OUT}, "median error")


def networks_figure(evaluation: NetworkEvaluation) -> Figure:
    """A panel for each network: a bar of each scheduler's predicted latency with its interval, and the published one."""
    records: list[dict[str, Cell]] = []
    for each in evaluation.latencies:
        told = each.foretold
        latency_ms = told.predicted_us / 1e3
        text = f"{latency_ms:.3f} ms  {each.foretold_error:+.1%}"
        marks = bar_record(latency_ms, text, (told.low_us / 1e3, told.high_us / 1e3), each.published_us / 1e3)
        panel = f"{each.model}, batch {each.batch}"
        records.append({"panel": panel, "scheduler": each.scheduler, "latency_ms": latency_ms, **marks})
    share_scales(records, ["panel"], None)
    panels = []
    for panel, group in groupby(records, key=lambda record: record["panel"]):
        own = list(group)
        schedulers = [str(record["scheduler"]) for record in own]
        spec = bar_specification("latency_ms", "latency (ms)", schedulers, own, text_pixels=_TEXT_PIXELS)
        panels.append(Panel(str(panel), spec, {"panel": panel}))
    return Figure(
        name=f"networks.{evaluation.device}",
        title=f"Networks on {evaluation.device}: predicted and published latency",
        finding="bars: predicted by a fit without the network, and how far that is from the published latency",
        records=tuple(records),
        panels=tuple(panels),
        legend=bar_legend(records, "where nine of ten measurements are expected"),
        stacked=True,
        panel_pixels=640,
    )


class _Grid:
    """Rows of panels: predicted against measured, then errors against one thing or another."""

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
            # As many panels in a row of the picture as a data set has.
            panel_pixels=420 if len(self.panels) == 2 * rows else 300,
        )

    def identity(self, name: str, said: str, across: Floats, up: Floats, coloured: Flags) -> None:
        """Points on logarithmic axes of one scale, the line of equality, and dashed lines 20% beside it."""
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
        self.records += [
            {"panel": panel, "what": "point", "x": float(across[row]), "y": float(up[row]), "coloured": bool(coloured[row])}
            for row in shown
        ]  # fmt: skip
        self.records += [{"panel": panel, **other} for other in others]
        return panel


def _points(x: Any, y: Any) -> list[Any]:
    mark = {"size": 14, "opacity": 0.55, "filled": True, "clip": True}
    points = only("point")
    return [
        points.transform_filter("!datum.coloured").mark_point(color=_SEEN, **mark).encode(x=x, y=y),
        points.transform_filter("datum.coloured").mark_point(color=_HELD_OUT, **mark).encode(x=x, y=y),
    ]


def _log(low: float, high: float) -> Any:
    return need_altair().Scale(type="log", domain=[low, high], nice=False)


def _log_axis(low: float, high: float) -> Any:
    return need_altair().Axis(values=[tick for tick in log_ticks([low, high]) if low <= tick <= high], format="~s")


def _span(values: Floats) -> tuple[float, float]:
    """The ends of a logarithmic axis with all finite positive values."""
    usable = values[np.isfinite(values) & (values > 0)]
    if not len(usable):
        return 1.0, 10.0
    return float(usable.min()) / 1.3, float(usable.max()) * 1.3
