"""Prediction errors as tables, of operators, of stages, and of networks measured as a whole; and as pictures, predicted
against measured, of operators by device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.text import Text

from iossim.base.compiled import Floats
from iossim.base.tables import Cell, described_table
from iossim.calibration.accuracy import Accuracy
from iossim.calibration.evaluated_networks import MeasuredEvaluation, MeasuredLatency
from iossim.calibration.validation import OperatorEvaluation, StageEvaluation, Validation
from iossim.ir.types import Precision
from iossim.measurements.operator_kinds import ALIASES
from iossim.prediction.bands import key_of
from iossim.report.figures.figure import Figure, LegendEntry, Panel, Spec
from iossim.report.figures.vega import HALO, PALETTE, described, log_ticks

#: Kinds of a data set with fewer rows than this share one line.
FEWEST_SHOWN = 20


def accuracy_tables(found: Validation) -> RenderableType:
    """All tables of a validation, each with a line that says what its figures cover."""
    notes = (Text(f"note: {note}", style="dim") for note in found.notes)
    parts = (operators_part(found.operators), stages_part(found.stages), measured_part(found.measured), notes)
    return Group(*chain(*parts))


def operators_part(operators: Sequence[OperatorEvaluation]) -> Iterator[RenderableType]:
    """Operators of all data sets, held-out rows: a line for each kind of each data set under its device."""
    rows: list[dict[str, Cell]] = []
    for device, own in groupby(operators, key=attrgetter("device")):
        several = list(own)
        rows.append({"op": device})
        rows += [_operators_row(each) for each in several if len(each) >= FEWEST_SHOWN]
        rows += few_rows(((len(each), each.unseen.errors) for each in several if len(each.unseen)), "held")
    has_baseline = any(row.get("roof") is not None for row in rows)
    return titled(
        __package__,
        "operators",
        "operators: errors of device time on held-out shapes, %",
        rows,
        "within: % of measured times inside the 90% interval of their prediction; wide: its median high / low"
        + ("; roof: mean error of a calibrated roofline" if has_baseline else ""),
        *_clamped(operators),
    )


def _operators_row(each: OperatorEvaluation) -> dict[str, Cell]:
    unseen = each.unseen
    gpu = unseen.gpu_time()
    ((kind, precision),) = each.kinds
    return {
        "op": f"  {shown(key_of(kind, precision), each.data_set)}",
        "rows": len(each),
        "held": len(unseen),
        **errors(gpu),
        "tau": gpu.kendall_tau,
        **dict(zip(("small", "middle", "large"), map(mean, unseen.by_bucket().values()), strict=True)),
        "inside": percent(unseen.coverage()),
        "wide": unseen.width(),
        "roof": mean(unseen.baseline()),
    }


def _clamped(evaluations: Sequence[OperatorEvaluation]) -> Iterator[str]:
    counts = {each.data_set: int(each.clamped.sum()) for each in evaluations if each.clamped.any()}
    if counts:
        of = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        yield f"rows with less device time than their recording can resolve, counted as the least that it can: {of}"


def stages_part(stages: Sequence[StageEvaluation]) -> Iterator[RenderableType]:
    """Measured stages of several groups, a line for each data set under its device."""
    rows: list[dict[str, Cell]] = []
    for device, own in groupby(stages, key=attrgetter("device")):
        rows.append({"data set": device})
        for each in own:
            concurrent = each.concurrent
            latency, gain = concurrent.latency(), concurrent.gain()
            line = {"data set": f"  {each.data_set}", "stages": len(concurrent), **errors(latency)}
            rows.append(line | {"tau": latency.kendall_tau, "gain": mean(gain), "gain_bias": percent(gain.bias)})
    return titled(
        __package__,
        "stages",
        "measured stages of concurrent groups: errors, %",
        rows,
        "gain: time on one stream over time of the stage",
    )


def measured_part(networks: Sequence[MeasuredEvaluation]) -> Iterator[RenderableType]:
    """Networks measured as a whole, one table per file: runs by network and engine; baselines have no prediction."""
    group_of = attrgetter("run.model", "run.batch", "run.engine", "run.backend")
    for measured in networks:
        rows: list[dict[str, Cell]] = []
        for (model, batch, engine, backend), own in groupby(measured.latencies, key=group_of):
            by = ", ".join(filter(None, [f"{model}, batch {batch}", f"{engine} engine" if engine else "", backend]))
            rows += [{"network": by}, *map(_measured_row, own)]
        title = f"networks measured on {measured.device} ({measured.source})"
        yield from titled(__package__, "measured", title, rows, measured_networks_summary(measured))


def titled(
    package: str, name: str, title: str, rows: Sequence[Mapping[str, Cell]], *lines: str
) -> Iterator[RenderableType]:
    """A table that a package describes under a name, its title above and lines of text below; nothing without rows."""
    if not rows:
        return
    # This is not the table's own title, which would wrap at the table's width.
    yield Text(title, style="bold")
    yield described_table(package, name, "", rows)
    yield from (Text(line, style="dim") for line in lines)
    yield Text("")


def errors(accuracy: Accuracy) -> dict[str, Cell]:
    """Mean and median size of errors, and their mean, in percent."""
    found = {"mean": accuracy.mean_error, "median": accuracy.median_error, "bias": accuracy.bias}
    return {name: percent(value) for name, value in found.items()}


def few_rows(kinds: Iterable[tuple[int, np.ndarray]], counted: str = "rows") -> list[dict[str, Cell]]:
    """One line for kinds with too few rows: their number, as ``counted``, and the mean of all their errors."""
    few = [errors for count, errors in kinds if 0 < count < FEWEST_SHOWN]
    if not few:
        return []
    joined = np.concatenate(few)
    name = f"  {len(few)} of few rows" if len(few) > 1 else "  one of few rows"
    return [{"op": name, counted: len(joined), "mean": 100 * float(np.abs(joined).mean())}]


def shown(kind: str, data_set: str) -> str:
    """Displayed kind; a table named for another spelling of it (conv2d) uses that spelling."""
    name = data_set.partition(".")[0]
    return name if ALIASES.get(name) == kind else kind


def mean(accuracy: Accuracy) -> float | None:
    """Mean error in percent."""
    return percent(accuracy.mean_error)


def percent(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction


def measured_networks_summary(evaluation: MeasuredEvaluation) -> str:
    """Errors over all runs that have a prediction, and how many are within their intervals."""
    accuracy = evaluation.accuracy
    if accuracy.mean_error is None or accuracy.bias is None:
        return "no run of a schedule could be predicted"
    covered = [each.is_covered is True for each in evaluation.latencies if each.error is not None]
    errors = f"error: mean {100 * accuracy.mean_error:.1f}%, bias {100 * accuracy.bias:+.1f}%"
    return f"{errors}; {sum(covered)} of {len(covered)} latencies in their intervals"


def _measured_row(each: MeasuredLatency) -> dict[str, Cell]:
    times_us = {
        "predicted": each.predicted_us,
        "low": each.low_us,
        "high": each.high_us,
        "measured": each.run.median_us,
    }
    return {
        "network": f"  {each.run.name}",
        **{f"{name}_ms": None if us is None else us / 1e3 for name, us in times_us.items()},
        "error_percent": percent(each.error),
        "gain_x": each.speedup,
        "measured_gain_x": each.measured_speedup,
    }


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
