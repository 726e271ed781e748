"""Kernels side by side in a notebook (:mod:`iossim.report.notebook`)."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from iossim.base.display import Picture
from iossim.profiles.corun import Corun
from iossim.profiles.corun_report import corun_figure, corun_lines, corun_table, inferred_words, slower
from iossim.report.notebook import MOST_ROWS, parts, picture, records, svg


@parts.register
def _(run: Corun) -> list[str | Table]:
    first, *rest = corun_lines(run)
    return [first, corun_table(run, MOST_ROWS), *rest, *(f"note: {one}" for one in (*run.notes, *inferred_words(run)))]


@picture.register
def _(run: Corun) -> Picture:
    return svg(corun_figure(run, "Kernels side by side"))


@records.register
def _(run: Corun) -> list[dict[str, Any]]:
    return [
        {
            **{name: getattr(row.kernel, name) for name in ("name", "stream")},
            **{name: getattr(row, name) for name in ("ready_us", "start_us", "end_us", "alone_us")},
            "slowdown": slower(row),
        }
        for row in run.kernels
    ]
