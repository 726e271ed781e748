"""How wrong predictions are, as pictures: operators, networks, one engine against the other, unseen devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from iossim.calibration.leave_one_out import LeaveOneOut
from iossim.ir.types import Precision
from iossim.reporting.figures import PALETTE, new_figure
from iossim.validation.engines import EngineAgreement
from iossim.validation.networks import NetworkEvaluation, NetworkLatency
from iossim.validation.operators import OperatorEvaluation
from iossim.validation.report import ValidationReport, sampled_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

_PANEL_INCHES = 2.5
_GAP_INCHES, _ROW_GAP_INCHES = 0.75, 0.72
_LEFT_INCHES, _RIGHT_INCHES = 0.75, 0.2
_HEADER_INCHES, _FOOTER_INCHES = 0.85, 0.5
_BAR_INCHES = 0.3
_HELD_OUT, _SEEN, _LINE = PALETTE[0], "#c8c8c8", PALETTE[5]
#: Residuals beyond this are drawn at the edge.
_LARGEST_RESIDUAL = 0.6
_TRENDS = 12


def accuracy_figures(report: ValidationReport) -> dict[str, Figure]:
    """All pictures of a report by file name without ending; a part without figures has none."""
    figures = {
        f"operators.{device}": operators_figure(device, list(own))
        for device, own in groupby(report.operators, key=lambda each: each.device)
    }
    for networks in report.networks:
        if networks.latencies:
            figures[f"networks.{networks.device}"] = networks_figure(networks)
    if report.engines:
        figures["engines"] = engines_figure(report.engines)
    if report.transfer is not None and sampled_rows(report.transfer):
        figures["transfer"] = transfer_figure(report.transfer)
    return figures


def operators_figure(device: str, evaluations: Sequence[OperatorEvaluation]) -> Figure:
    """A row of panels for each data set: predicted against measured device time, and errors against time and arithmetic."""
    figure, panels = _grid(len(evaluations), 3, f"Device time of operators on {device}: predicted against measured")
    _legend(figure, {"shapes that no fit sees": _HELD_OUT, "shapes for the fit": _SEEN}, {"median error": _LINE})
    for row, each in zip(panels, evaluations, strict=True):
        flops = np.array([float(m.operator.flops) for m in each.measurements])
        ((kind, precision),) = each.kinds
        name = f"{kind}, {each.data_set}" + ("" if precision is Precision.FP32 else f", {precision}")
        _draw_identity(row[0], each.measured_us, each.predicted_us, each.held_out, "measured, us", "predicted, us")
        row[0].set_title(name, loc="left", fontsize=9.5, fontweight="bold", pad=5)
        accuracy = each.unseen.gpu_time()
        if accuracy.mean_error is not None:
            row[0].text(
                0.04, 0.95, f"mean error {accuracy.mean_error:.1%}", transform=row[0].transAxes, fontsize=8, va="top"
            )
        _draw_residuals(row[1], each.measured_us, each.errors, each.held_out, "measured, us")
        _draw_residuals(row[2], flops, each.errors, each.held_out, "arithmetic, FLOP")
    return figure


def engines_figure(agreements: Sequence[EngineAgreement]) -> Figure:
    """For each device the prices of stages by both engines, and how far they differ."""
    figure, panels = _grid(len(agreements), 2, f"stages of {agreements[0].network}: event-driven against analytic")
    _legend(figure, {"several groups": _HELD_OUT, "one group": _SEEN}, {"median difference": _LINE})
    for row, each in zip(panels, agreements, strict=True):
        several = each.groups > 1
        _draw_identity(row[0], each.analytic_us, each.events_us, several, "analytic, us", "event-driven, us")
        row[0].set_title(
            f"{each.device}: {len(each.groups):,} of {each.total:,} stages", loc="left", fontsize=9.5,
            fontweight="bold", pad=5,
        )  # fmt: skip
        text = f"median {each.median:.1%}\n95th percentile {each.percentile_95:.1%}"
        row[0].text(0.04, 0.95, text, transform=row[0].transAxes, fontsize=8, va="top")
        _draw_residuals(row[1], each.analytic_us, each.difference, several, "analytic, us", "difference")
    return figure


def transfer_figure(found: LeaveOneOut) -> Figure:
    """For each data set of convolutions of a device left out, predicted against measured device time, and errors."""
    rows = sampled_rows(found)
    figure, panels = _grid(len(rows), 2, "unseen devices: convolutions, from datasheet facts")
    _legend(figure, {"operators": _HELD_OUT}, {"median error": _LINE})
    for panel, row in zip(panels, rows, strict=True):
        measured_us, predicted_us = row.zero_shot.measured_us, row.zero_shot.predicted_us
        every = np.ones(len(measured_us), dtype=np.bool_)
        _draw_identity(panel[0], measured_us, predicted_us, every, "measured, us", "predicted, us")
        name = f"{row.device}, {row.zero_shot.data_set}"
        panel[0].set_title(name, loc="left", fontsize=9.5, fontweight="bold", pad=5)
        text = f"mean error {np.abs(row.zero_shot.errors).mean():.1%}"
        if row.refined is not None:
            text += f"\nwith {found.samples} samples {np.abs(row.refined.errors).mean():.1%}"
        panel[0].text(0.04, 0.95, text, transform=panel[0].transAxes, fontsize=8, va="top")
        _draw_residuals(panel[1], measured_us, row.zero_shot.errors, every, "measured, us")
    return figure


def networks_figure(evaluation: NetworkEvaluation) -> Figure:
    """A panel for each network: a bar of each scheduler's predicted latency with its interval, and the published one."""
    groups = [
        (f"{model}, batch {batch}", list(own))
        for (model, batch), own in groupby(evaluation.latencies, key=lambda each: (each.model, each.batch))
    ]
    width, left, axis = 8.0, 1.25, 0.75
    height = 0.9 + sum(len(rows) * _BAR_INCHES + axis for _, rows in groups)
    figure = new_figure(width, height)
    figure.text(
        0.25 / width, 1 - 0.15 / height, f"networks on {evaluation.device}: predicted and published latency",
        fontsize=12, fontweight="bold", va="top",
    )  # fmt: skip
    top = height - 0.5
    for name, rows in groups:
        tall = len(rows) * _BAR_INCHES
        top -= 0.3
        axes = figure.add_axes((left / width, (top - tall) / height, (width - left - 0.35) / width, tall / height))
        _draw_bars(axes, name, rows)
        top -= tall + axis - 0.3
    _networks_legend(figure, width, height)
    return figure


def _draw_bars(axes: Axes, name: str, rows: Sequence[NetworkLatency]) -> None:
    furthest_ms = 0.0
    for lane, row in enumerate(rows):
        told = row.foretold
        predicted_ms, published_ms = told.predicted_us / 1e3, row.published_us / 1e3
        right_ms = max(published_ms, told.high_us / 1e3)
        furthest_ms = max(furthest_ms, right_ms)
        axes.barh(lane, predicted_ms, height=0.66, color=PALETTE[0], zorder=2)
        reach = [[predicted_ms - told.low_us / 1e3], [told.high_us / 1e3 - predicted_ms]]
        axes.errorbar(predicted_ms, lane, xerr=reach, color="black", linewidth=1.1, capsize=3, zorder=3)
        axes.plot(
            published_ms, lane, marker="D", markersize=5.5, color=PALETTE[1], zorder=4, markeredgecolor="black",
            markeredgewidth=0.7,
        )  # fmt: skip
        axes.annotate(
            f"{predicted_ms:.3f} ms  {row.foretold_error:+.1%}", (right_ms, lane), (8, 0), textcoords="offset points",
            va="center", fontsize=8, color="#222222",
        )  # fmt: skip
    axes.set_title(name, loc="left", fontsize=10, fontweight="bold", pad=4)
    axes.set_xlim(0, furthest_ms * 1.24)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [row.scheduler for row in rows], fontsize=9)
    axes.set_xlabel("latency, ms", fontsize=8, labelpad=1)
    _style(axes, "x")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0, labelsize=9)


def _networks_legend(figure: Figure, width: float, height: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Patch | Line2D] = [
        Patch(color=PALETTE[0], label="predicted, by a fit without the network"),
        Line2D([], [], color="black", linewidth=1.1, label="where nine of ten measurements are expected"),
        Line2D([], [], color=PALETTE[1], marker="D", markeredgecolor="black", linestyle="", label="published"),
    ]
    figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.2 / width, 0.08 / height), ncols=3, fontsize=8,
        frameon=False, borderaxespad=0, handlelength=1.2,
    )  # fmt: skip


def _grid(rows: int, columns: int, title: str) -> tuple[Figure, list[list[Axes]]]:
    """A figure of square panels, and the panels row by row."""
    width = _LEFT_INCHES + columns * _PANEL_INCHES + (columns - 1) * _GAP_INCHES + _RIGHT_INCHES
    height = _HEADER_INCHES + rows * _PANEL_INCHES + (rows - 1) * _ROW_GAP_INCHES + _FOOTER_INCHES
    figure = new_figure(width, height)
    figure.text(0.2 / width, 1 - 0.12 / height, title, fontsize=12, fontweight="bold", va="top")
    panels = []
    for row in range(rows):
        bottom = height - _HEADER_INCHES - (row + 1) * _PANEL_INCHES - row * _ROW_GAP_INCHES
        lefts = [_LEFT_INCHES + column * (_PANEL_INCHES + _GAP_INCHES) for column in range(columns)]
        panels.append(
            [
                figure.add_axes((left / width, bottom / height, _PANEL_INCHES / width, _PANEL_INCHES / height))
                for left in lefts
            ]
        )
    return figure, panels


def _legend(figure: Figure, points: Mapping[str, str], lines: Mapping[str, str]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, marker="o", markersize=4, linestyle="", label=name)
        for name, colour in points.items()
    ]
    handles += [Line2D([], [], color=colour, linewidth=1.6, label=name) for name, colour in lines.items()]
    handles.append(Line2D([], [], color="black", linewidth=0.8, linestyle="dashed", label="20% off"))
    width, height = figure.get_size_inches()
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.15 / width, 1 - 0.36 / height), ncols=len(handles),
        fontsize=8, frameon=False, borderaxespad=0, handlelength=1.4,
    )  # fmt: skip


def _draw_identity(
    axes: Axes, across: Floats, up: Floats, coloured: NDArray[np.bool_], across_label: str, up_label: str
) -> None:
    """Points on logarithmic axes of one scale, the line of equality, and dashed lines 20% beside it."""
    _draw_points(axes, across, up, coloured)
    low, high = _span(np.concatenate([across, up]))
    for factor, dash in ((1.0, "solid"), (1.2, "dashed"), (1 / 1.2, "dashed")):
        axes.plot([low, high], [low * factor, high * factor], color="black", linewidth=0.8, linestyle=dash, zorder=4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_xlabel(across_label, fontsize=8.5, labelpad=1)
    axes.set_ylabel(up_label, fontsize=8.5, labelpad=1)
    _style(axes, "both")


def _draw_residuals(
    axes: Axes, across: Floats, errors: Floats, coloured: NDArray[np.bool_], label: str, up_label: str = "error"
) -> None:
    """Relative errors over a logarithmic axis, and their median in bins of equally many points."""
    limited = np.clip(errors, -_LARGEST_RESIDUAL, _LARGEST_RESIDUAL)
    _draw_points(axes, across, limited, coloured)
    axes.axhline(0.0, color="black", linewidth=0.8, zorder=4)
    chosen = coloured if coloured.any() else np.ones_like(coloured)
    order = np.argsort(across[chosen], kind="stable")
    bins = [part for part in np.array_split(order, _TRENDS) if len(part)]
    if len(order) >= 3 * _TRENDS:
        middle = [float(np.exp(np.log(across[chosen][part]).mean())) for part in bins]
        axes.plot(middle, [np.median(limited[chosen][part]) for part in bins], color=_LINE, linewidth=1.6, zorder=5)
    axes.set_xscale("log")
    axes.set_xlim(*_span(across))
    axes.set_ylim(-_LARGEST_RESIDUAL * 1.05, _LARGEST_RESIDUAL * 1.05)
    axes.yaxis.set_major_formatter(_percent_ticks())
    axes.set_xlabel(label, fontsize=8.5, labelpad=1)
    axes.set_ylabel(up_label, fontsize=8.5, labelpad=-1)
    _style(axes, "both")


def _draw_points(axes: Axes, across: Floats, up: Floats, coloured: NDArray[np.bool_]) -> None:
    # As pixels also in an SVG, which thousands of circles would make slow to open.
    size = float(np.clip(3000 / max(1, len(across)), 2.5, 16))
    for rows, colour, order in ((~coloured, _SEEN, 1), (coloured, _HELD_OUT, 2)):
        axes.scatter(
            across[rows], up[rows], s=size, color=colour, alpha=0.55, linewidths=0, zorder=order, rasterized=True
        )


def _span(values: Floats) -> tuple[float, float]:
    """The ends of a logarithmic axis with all finite positive values."""
    usable = values[np.isfinite(values) & (values > 0)]
    if not len(usable):
        return 1.0, 10.0
    return float(usable.min()) / 1.3, float(usable.max()) * 1.3


def _percent_ticks() -> Callable[[float, object], str]:
    return lambda value, _: f"{100 * value:+.0f}%" if value else "0"


def _style(axes: Axes, grid: str) -> None:
    axes.tick_params(labelsize=7.5, colors="#444444", length=2.5)
    axes.tick_params(which="minor", length=1.5)
    axes.grid(axis=grid, color="#e6e6e6", linewidth=0.7, zorder=0)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#888888")
