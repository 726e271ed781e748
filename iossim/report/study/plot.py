"""A kind of figure of a study's report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from iossim.report.figures.figure import Figure
from iossim.study.study_run import StudyRun


@dataclass(frozen=True, slots=True)
class Plot:
    """A kind of figure; the modules of ``iossim.report.study.plots`` list theirs in ``PLOTS``."""

    name: str
    #: Place on the page.
    order: int
    #: Whether a report has it where the scenario names no plots.
    fits: Callable[[StudyRun], bool]
    #: The figure, None where the study holds no data for it.
    draw: Callable[[StudyRun], Figure | None]
