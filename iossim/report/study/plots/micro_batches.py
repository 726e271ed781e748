"""What micro-batches gain: convolutions under each limit on their workspace, over the same undivided (Oyama et al., 2018)."""

from __future__ import annotations

from collections.abc import Callable

from iossim.report.figures.figure import Figure
from iossim.report.study.bars import Bars, bar_figure
from iossim.report.study.commands import figure_command
from iossim.report.study.plot import Plot
from iossim.study.study_run import Row, StudyRun


def _plot(name: str, order: int, title: str, what: str, gain: Callable[[Row], float | None]) -> Plot:
    """A figure of the column ``name``; ``what`` gains."""

    def fits(run: StudyRun) -> bool:
        return any(gain(row) is not None for row in run.results.rows)

    def draw(run: StudyRun) -> Figure | None:
        return bar_figure(
            run,
            Bars(name, "gain", "gain over undivided under the same limit (×)", gain, lambda value: f"{value:.2f}x", digits=2),
            name=name,
            title=title,
            finding=_finding(run, gain),
            caption=(
                f"{what} in micro-batches that run one after another in one workspace, over the same undivided under the same limits. "
                "Both are the best that these allow."
            ),
            alt=f"Bars of how many times as fast as undivided: {what}",
            command=figure_command(run, name),
        )  # fmt: skip

    return Plot(name, order, fits, draw)


def _finding(run: StudyRun, gain: Callable[[Row], float | None]) -> str:
    found = [(value, row) for row in run.results.rows if (value := gain(row)) is not None]
    most, row = max(found, key=lambda pair: pair[0], default=(0.0, None))
    if row is None:
        return ""
    return f"The most is {most:.2f} times as fast: {row.model} on {row.device}, batch {row.batch}, under {row.workspace}."


PLOTS = (
    _plot("micro_batches", 66, "What micro-batches gain", "All convolutions", lambda row: row.micro_batch_gain),
    _plot("largest_gain", 67, "What one kernel gains most", "The convolution that gains most", lambda row: row.largest_gain),
)  # fmt: skip
