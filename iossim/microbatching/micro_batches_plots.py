"""Bars of the gain by micro-batches in the report of a study."""

from __future__ import annotations

from iossim.study.report.plots.bars import Bars, most, plot_of


def _bars(name: str, metric: str, title: str, what: str) -> Bars:
    return Bars(
        name,
        metric,
        title,
        "gain over undivided under the same limit (×)",
        most(metric, lambda most, row: f"The most is {most:.2f} times as fast: {row.model} on {row.device}, batch "
              f"{row.batch}, under {row.workspace}."),
        f"{what} in micro-batches that run one after another in one workspace, over the same undivided under the same "
        "limits. Both are the best that these allow.",
        f"Bars of how many times as fast as undivided: {what}",
        lambda value: f"{value:.2f}x",
    )  # fmt: skip


PLOTS = (
    plot_of(_bars("micro_batches", "micro_batch_gain", "What micro-batches gain", "All convolutions"), 66),
    plot_of(_bars("largest_gain", "largest_gain", "What one kernel gains most", "The convolution that gains most"), 67),
)
