"""Schedulers side by side as a picture: a bar of latency each, its lower bound, and the published figure if known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from iossim.analysis.comparison import TIE, ComparisonRow, best_row
from iossim.reporting.figures import PALETTE, new_figure
from iossim.reporting.scheduler_colours import scheduler_marks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR_INCHES = 0.34
_HEADER_INCHES, _AXIS_INCHES, _LEGEND_INCHES = 0.55, 0.75, 0.35
#: What a letter of a name takes at most, nearly.
_LETTER_INCHES = 0.082
_WIDTH_INCHES, _LEFT_INCHES, _RIGHT_INCHES = 8.0, 1.25, 0.35


def comparison_figure(
    title: str, panels: Mapping[str, Sequence[ComparisonRow]], whiskers: str = "expected"
) -> Figure:
    """Draw one panel for each entry (a network, say), its schedulers from top to bottom.

    A scheduler has its colour of every picture; bars are labelled with the latency and the speed-up, the best one's in bold,
    with a sign at those that tie with it; whiskers span each row's interval: what that is, the legend says in the words of ``whiskers``.
    """
    bars = sum(len(rows) for rows in panels.values())
    height = _HEADER_INCHES + _LEGEND_INCHES + bars * _BAR_INCHES + len(panels) * _AXIS_INCHES
    figure = new_figure(_WIDTH_INCHES, height)
    figure.text(0.25 / _WIDTH_INCHES, 1 - 0.15 / height, title, fontsize=12, fontweight="bold", va="top")
    top = height - _HEADER_INCHES
    longest = max((len(row.scheduler) for rows in panels.values() for row in rows), default=0)
    left_inches = max(_LEFT_INCHES, 0.15 + longest * _LETTER_INCHES)
    for name, rows in panels.items():
        tall = len(rows) * _BAR_INCHES
        top -= 0.3
        plot_inches = _WIDTH_INCHES - left_inches - _RIGHT_INCHES
        axes = figure.add_axes(
            (left_inches / _WIDTH_INCHES, (top - tall) / height, plot_inches / _WIDTH_INCHES, tall / height)
        )
        _draw_panel(axes, name, rows)
        top -= tall + _AXIS_INCHES - 0.3
    _draw_legend(figure, [row for rows in panels.values() for row in rows], height, whiskers)
    return figure


def _draw_panel(axes: Axes, name: str, rows: Sequence[ComparisonRow]) -> None:
    best = best_row(rows)
    colours = scheduler_marks([row.scheduler for row in rows])
    longest_us = max(_right_us(row) for row in rows)
    for lane, row in enumerate(rows):
        latency_ms = row.latency_us / 1000
        is_tie = best is not None and row.scheduler in best.ties
        axes.barh(lane, latency_ms, height=0.66, color=colours[row.scheduler][0], zorder=2)
        if row.interval_us is not None:
            low_us, high_us = row.interval_us
            axes.hlines(lane, low_us / 1000, high_us / 1000, color="#222222", linewidth=1.1, zorder=3)
        if row.lower_bound_us is not None:
            axes.vlines(row.lower_bound_us / 1000, lane - 0.33, lane + 0.33, color="black", linewidth=1.6, zorder=3)
        if row.published_us is not None:
            axes.plot(
                row.published_us / 1000, lane, marker="D", markersize=6, color=PALETTE[1], zorder=4,
                markeredgecolor="black", markeredgewidth=0.7,
            )  # fmt: skip
        # Behind whatever is drawn furthest to the right.
        right_ms = _right_us(row) / 1000
        axes.annotate(
            f"{latency_ms:.3f} ms  {row.speedup:.2f}x{f' {TIE}' if is_tie else ''}", (right_ms, lane), (7, 0),
            textcoords="offset points", va="center", fontsize=8, color="#222222",
            fontweight="bold" if row is best else "normal",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6}, zorder=5,
        )  # fmt: skip
    axes.set_title(name, loc="left", fontsize=10, fontweight="bold", pad=4)
    axes.set_xlim(0, longest_us / 1000 * 1.24)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [row.scheduler for row in rows], fontsize=9)
    axes.set_xlabel("latency, ms", fontsize=8, labelpad=1)
    axes.tick_params(axis="x", labelsize=8, colors="#444444")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e2e2e2", linewidth=0.7, zorder=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#888888")


def _right_us(row: ComparisonRow) -> float:
    """Where what is drawn of a row ends."""
    return max(row.latency_us, row.published_us or 0.0, row.interval_us[1] if row.interval_us else 0.0)


def _draw_legend(figure: Figure, rows: Sequence[ComparisonRow], height: float, whiskers: str) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Patch | Line2D] = [Patch(facecolor="none", label="bold: the best")]
    if any(row.ties for row in rows):
        handles.append(Patch(facecolor="none", label=f"{TIE} a tie with it"))
    if any(row.interval_us is not None for row in rows):
        handles.append(Line2D([], [], color="#555555", linewidth=1.0, label=whiskers))
    if any(row.lower_bound_us is not None for row in rows):
        handles.append(
            Line2D(
                [],
                [],
                color="black",
                marker="|",
                markersize=11,
                markeredgewidth=1.6,
                linestyle="",
                label="lower bound",
            )
        )
    if any(row.published_us is not None for row in rows):
        handles.append(
            Line2D([], [], color=PALETTE[1], marker="D", markeredgecolor="black", markeredgewidth=0.7, linestyle="", label="published")
        )  # fmt: skip
    figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.2 / _WIDTH_INCHES, 0.08 / height), ncols=len(handles),
        fontsize=8, frameon=False, borderaxespad=0, handlelength=1.2,
    )  # fmt: skip
