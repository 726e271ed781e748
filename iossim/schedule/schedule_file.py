"""Schedules in files: read, with every field validated, and told from models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Discriminator, Tag, ValidationError
from pydantic_core import from_json

from iossim.base.errors import ScheduleError
from iossim.base.user_files import read_text
from iossim.base.values import first_problem
from iossim.schedule.schedule import AnySchedule, Schedule, StreamSchedule


def _kind(document: object) -> str:
    has_streams = "streams" in document if isinstance(document, dict) else isinstance(document, StreamSchedule)
    return "streams" if has_streams else "stages"


#: Either kind, as a field of another value: errors are reported for the kind that it is.
ScheduleField = Annotated[
    Annotated[Schedule, Tag("stages")] | Annotated[StreamSchedule, Tag("streams")], Discriminator(_kind)
]


def read_schedule(path: Path) -> AnySchedule:
    """A saved schedule, of stages or of streams; raises ScheduleError naming the file and the field."""
    text = read_text(path, "schedule", "give a schedule.json that optimize wrote", ScheduleError)
    kind = StreamSchedule if _has_streams(text) else Schedule
    try:
        schedule = kind.model_validate_json(text)
    except ValidationError as error:
        raise ScheduleError(
            f"schedule {path} is not valid: {first_problem(error)}; write it again with optimize"
        ) from None
    known = kind.model_fields["format_version"].default
    if schedule.format_version != known:
        raise ScheduleError(
            f"schedule {path} has format {schedule.format_version}, this iossim reads {known}; write it again with "
            "optimize"
        )
    return schedule.model_copy(update={"source": schedule.source.found_from(path)})


def read_stages(path: Path) -> Schedule:
    """The schedule of stages in a file; raises ScheduleError naming the file and the field, or if it holds streams."""
    found = read_schedule(path)
    if isinstance(found, StreamSchedule):
        raise ScheduleError(
            f"schedule {path} is of streams, and has no stages; iossim.api.read_any_schedule reads it, or write "
            "one of stages with optimize"
        )
    return found


def is_schedule(path: Path) -> bool:
    """True for a file with a saved schedule, valid or not, as opposed to a model; a JSON file that is missing or
    unreadable counts as one.
    """
    try:
        document = from_json(path.read_bytes())
    except (OSError, ValueError):
        return path.suffix.lower() == ".json"
    return isinstance(document, dict) and "graph_hash" in document


def _has_streams(text: str) -> bool:
    try:
        document = from_json(text)
    except ValueError:  # the reader reports the error
        return False
    return isinstance(document, dict) and "streams" in document
