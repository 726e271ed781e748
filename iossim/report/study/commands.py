"""The commands that make a study and its figures again."""

from __future__ import annotations

import shlex

from iossim.study.study_run import StudyRun


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
