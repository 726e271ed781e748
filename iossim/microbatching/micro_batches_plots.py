"""Bars of the gain by micro-batches in the report of a study."""

from __future__ import annotations

from iossim.study.report.plots import Plot
from iossim.study.report.plots.bars import bar_plot


def _plot(name: str, metric: str, title: str, what: str, order: int) -> Plot:
    words = {
        "title": title,
        "axis": "gain over undivided under the same limit (×)",
        "caption": f"{what} in micro-batches that run one after another in one workspace, over the same undivided "
        "under the same limits. Both are the best that these allow.",
        "alt": f"Bars of how many times as fast as undivided: {what}",
    }
    return bar_plot(name, order, metric, "{:.2f}x".format, words=words)


PLOTS = (
    _plot("micro_batches", "micro_batch_gain", "What micro-batches gain", "All convolutions", 66),
    _plot("largest_gain", "largest_gain", "What one kernel gains most", "The convolution that gains most", 67),
)
