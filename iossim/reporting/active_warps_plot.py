"""Active warps over time as a picture: one run of a network above another, on one scale of time (thesis, figure 4.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from iossim.execution.execution import Execution
from iossim.reporting.figures import PALETTE, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH_INCHES, _PANEL_INCHES = 9.0, 1.9
_LEFT_INCHES, _RIGHT_INCHES = 0.85, 0.25
_HEADER_INCHES, _AXIS_INCHES, _GAP_INCHES = 0.5, 0.55, 0.42


def active_warps_figure(title: str, runs: Mapping[str, Execution]) -> Figure:
    """Draw a panel for each run, from top to bottom, with the mean over its own time as a dashed line.

    Means after the first are also given over the first's.
    """
    height = _HEADER_INCHES + len(runs) * (_PANEL_INCHES + _GAP_INCHES) + _AXIS_INCHES - _GAP_INCHES + 0.25
    figure = new_figure(_WIDTH_INCHES, height)
    figure.text(_LEFT_INCHES / _WIDTH_INCHES, 1 - 0.14 / height, title, fontsize=12, fontweight="bold", va="top")
    latest_us = max((run.latency_us for run in runs.values()), default=0.0) or 1.0
    most = max((int(run.active_warps.max(initial=0)) for run in runs.values()), default=0) or 1
    first = next(iter(runs.values()), None)
    top = height - _HEADER_INCHES - 0.25
    for number, (name, run) in enumerate(runs.items()):
        axes = figure.add_axes(
            (
                _LEFT_INCHES / _WIDTH_INCHES,
                (top - _PANEL_INCHES) / height,
                (_WIDTH_INCHES - _LEFT_INCHES - _RIGHT_INCHES) / _WIDTH_INCHES,
                _PANEL_INCHES / height,
            )
        )
        mean = f"{run.mean_active_warps:,.0f} warps on average"
        if number and first is not None and first.mean_active_warps:
            mean += f", {run.mean_active_warps / first.mean_active_warps:.2f}x"
        axes.set_title(f"{name}: {run.latency_us / 1000:.3f} ms, {mean}", loc="left", fontsize=9.5, pad=4)
        _draw_warps(axes, run, PALETTE[number % len(PALETTE)])
        _set_axes(axes, latest_us, most, last=number == len(runs) - 1)
        top -= _PANEL_INCHES + _GAP_INCHES
    return figure


def _draw_warps(axes: Axes, run: Execution, colour: str) -> None:
    axes.stairs(run.active_warps, run.time_us, fill=True, color=colour, alpha=0.35, linewidth=0)
    axes.stairs(run.active_warps, run.time_us, color=colour, linewidth=0.9)
    axes.hlines(run.mean_active_warps, 0, run.latency_us, color="black", linewidth=1.1, linestyle=(0, (4, 2)))
    axes.vlines(run.latency_us, 0, run.mean_active_warps, color="black", linewidth=1.1)


def _set_axes(axes: Axes, latest_us: float, most: int, last: bool) -> None:
    scale, unit = (1000.0, "ms") if latest_us >= 10_000 else (1.0, "us")
    axes.set_xlim(0, latest_us * 1.01)
    axes.set_ylim(0, most * 1.06)
    axes.set_ylabel("active warps", fontsize=8.5)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / scale:g}")
    axes.tick_params(labelsize=8, colors="#444444", length=2.5)
    if last:
        axes.set_xlabel(f"time, {unit}", fontsize=8.5, labelpad=2)
    else:
        axes.tick_params(labelbottom=False)
    axes.grid(axis="y", color="#e2e2e2", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#888888")
