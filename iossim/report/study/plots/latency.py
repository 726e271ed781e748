"""Latency bars, with where measurements are expected, and what was published."""

from __future__ import annotations

import re

from iossim.report.figures.figure import Figure
from iossim.report.study.axes import best_of, point_label, points, values_of, varying
from iossim.report.study.bars import Bars, bar_figure, three_digits
from iossim.report.study.commands import figure_command
from iossim.report.study.plot import Plot
from iossim.study.study_run import Row, StudyRun

_NAME = "latency"


def fits(run: StudyRun) -> bool:
    """Latency against batch sizes alone is drawn as lines."""
    rows = run.results.rows
    sizes = {axis: len(values_of(rows, axis)) for axis in varying(rows)}
    return "batch" not in sizes or max(sizes.values()) > sizes["batch"]


def draw(run: StudyRun) -> Figure | None:
    return bar_figure(
        run,
        Bars(
            "latency_ms",
            "latency",
            "latency (ms)",
            lambda row: row.latency_ms,
            lambda value: f"{three_digits(value)} ms",
            _interval,
            lambda row: row.published_ms,
            limit=_limit_ms(run),
        ),
        name=_NAME,
        title="Latency",
        finding=_finding(run),
        caption=(
            "Shorter is faster. Whiskers span where nine of ten measurements are expected, where the prices are a prediction; "
            "diamonds are published measurements. ≈ marks what ties with the fastest of its point."
        ),
        alt="Bars of the latency of each scheduler's schedule, with whiskers of the expected interval.",
        command=figure_command(run, _NAME),
    )


def _limit_ms(run: StudyRun) -> float | None:
    """The latency that the scenario's constraints ask for, where one is of latency alone."""
    found = [re.fullmatch(r"latency_ms\s*<=?\s*([0-9.]+)", text.strip()) for text in run.results.scenario.constraints]
    return min((float(match[1]) for match in found if match), default=None)


def _interval(row: Row) -> tuple[float, float] | None:
    return None if row.low_ms is None or row.high_ms is None else (row.low_ms, row.high_ms)


def _finding(run: StudyRun) -> str:
    bests = [best for rows in points(run).values() if (best := best_of(rows)) is not None]
    if not bests:
        return "No scheduler finished."
    axes = varying(run.results.rows)
    fastest = min(bests, key=lambda row: row.latency_ms or 0.0)
    slowest = max(bests, key=lambda row: row.latency_ms or 0.0)
    if fastest is slowest:
        return f"The best schedule takes {fastest.latency_ms:.3f} ms ({fastest.scheduler})."
    return (
        f"The best schedules take {fastest.latency_ms:.3f} ms ({point_label(fastest, axes)}) to {slowest.latency_ms:.3f} ms "
        f"({point_label(slowest, axes)})."
    )


PLOTS = (Plot(_NAME, 20, fits, draw),)
