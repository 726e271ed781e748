"""The specialisation matrix over devices."""

from __future__ import annotations

from iossim.reporting.figures.figure import Figure
from iossim.reporting.study.cross_matrix import cross_matrix, has_cross
from iossim.reporting.study.plot import Plot
from iossim.study.study_run import StudyRun


def fits(run: StudyRun) -> bool:
    return has_cross(run, "device")


def draw(run: StudyRun) -> Figure | None:
    return cross_matrix(run, "device", PLOT.name)


PLOT = Plot("device_specialisation", 41, fits, draw)
