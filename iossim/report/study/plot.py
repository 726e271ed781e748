"""A kind of figure of a study's report, and the commands that make a study and its figures again."""

from __future__ import annotations

import shlex
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


def study_command(run: StudyRun) -> str:
    """The command that ran the study, as its environment says it, or as it can be run again."""
    attempts = run.environment.get("attempts") or [{}]
    said = attempts[0].get("command") or run.environment.get("command")
    if isinstance(said, list) and said:
        return shlex.join(map(str, said))
    return f"iossim study run scenario.yaml --out {shlex.quote(run.folder.name)}"


def figure_command(run: StudyRun, plot: str) -> str:
    """The command that draws one figure of a run directory as a picture."""
    return f"iossim study report {shlex.quote(run.folder.name)} --plot {plot} --figures svg"


def in_folder(run: StudyRun, file: str) -> str:
    """A file of the run directory, as a command takes it."""
    return shlex.quote(f"{run.folder.name}/{file}")
