"""Schedules as data: for each block its stages, in order, with their prices; or streams of launches.

One format holds either. It is saved with the hash of its graph, the device, the identity of the cost model and the
search options, so that it can be replayed, compared and explained. Reading checks every field; fitting
to a network checks every unit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer
from pydantic_core import from_json

from iossim.base.display import Displayed, Printed, counted
from iossim.base.errors import ScheduleError
from iossim.base.values import TimeUs, Value, validated
from iossim.ir.network import ModelSource
from iossim.schedule.batch import Strategy

#: Versions of the format: stages are as in the first, streams were added by the second.
STAGES_VERSION, STREAMS_VERSION = 1, 2


class Stage(Value):
    """Units that run together: groups (unit names, each group in execution order) and the strategy.

    A merged stage has one group, whose units run as one stacked convolution. ``variants`` has the units' variants
    (:mod:`iossim.schedule.batch`); units not in it run as fastest alone.
    """

    strategy: Strategy = Field(strict=False)
    groups: list[list[str]]
    variants: dict[str, str] = Field(default_factory=dict)
    latency_us: TimeUs
    #: Overhead between the preceding stage and this one.
    boundary_us: TimeUs = 0.0

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, object]:
        """The fields to be written: ``variants`` only if there are any."""
        return {name: value for name, value in write(self).items() if value or name != "variants"}

    @property
    def units(self) -> list[str]:
        return [unit for group in self.groups for unit in group]

    @property
    def concurrent(self) -> bool:
        """True if several groups run concurrently: the only property that boundaries depend on."""
        return self.strategy is Strategy.CONCURRENT and len(self.groups) > 1


class BlockSchedule(Value):
    """The stages of one block, in execution order."""

    name: str
    stages: list[Stage]


class ModelReference(Value):
    """The model that the schedule is for, sufficient to load it again."""

    model: str
    batch: int = Field(ge=1)
    options: dict[str, str] = Field(default_factory=dict)

    def to_source(self, model: str | None = None) -> ModelSource:
        """The source to load it from; ``model`` is its present path, if its file has moved."""
        return ModelSource(model or self.model, self.batch, tuple(self.options.items()))

    def found_from(self, file: Path) -> ModelReference:
        """The reference, read from ``file``, with paths that are valid here: next to the file, from the working
        directory, or from a folder above the file.
        """
        options = {name: _found_from(file, text) if name == "graphs" else text for name, text in self.options.items()}
        return self.model_copy(update={"model": _found_from(file, self.model), "options": options})


def _found_from(file: Path, name: str) -> str:
    given = Path(name)
    if given.name == name and not given.suffix:  # of the zoo
        return name
    beside, above = (file.parent / given, file.parent / given.name), file.absolute().parent.parents
    return str(next((one for one in (*beside, given, *(each / given for each in above)) if one.exists()), name))


class SavedSchedule(Value):
    """Common fields of schedules of stages and of streams: the model, device and origin."""

    format_version: int = STAGES_VERSION
    network: str
    source: ModelReference
    graph_hash: str
    device: str
    precision: str
    engine: str
    cost_model: dict[str, str]
    scheduler: str
    options: dict[str, Any] = Field(default_factory=dict)
    latency_us: TimeUs
    #: Lower bound of any schedule of the searched stages at these prices: its own latency, if it is proven
    #: optimal.
    lower_bound_us: float | None = None
    #: Lower bound of any schedule of any stages: critical paths, or work over the capacity of a resource.
    relaxed_bound_us: float | None = None
    #: 90% prediction interval of a measurement; None if the prices are no prediction.
    interval_us: list[float] | None = None
    #: Compared schedulers whose schedules differ by less than the noise: either may win when measured.
    ties: list[str] = Field(default_factory=list)
    search_s: float = Field(default=0.0, ge=0)
    #: False if the search was interrupted: then this is the best schedule so far.
    complete: bool = True
    #: True if a search proves that no schedule in its whole space costs less at these prices.
    proven: bool = False
    notes: list[str] = Field(default_factory=list)
    #: Unknown properties of the network (:attr:`iossim.ir.network.Network.remarks`), and the basis of its prices.
    remarks: list[str] = Field(default_factory=list)

    @property
    def gap(self) -> float | None:
        """Excess over the lower bound, as a fraction; None without a bound."""
        if not self.lower_bound_us:
            return None
        return self.latency_us / self.lower_bound_us - 1

    def excess(self, other_us: float) -> float:
        """Excess of ``other_us`` over the latency, as a fraction; 0 if the schedule takes no time."""
        return other_us / self.latency_us - 1.0 if self.latency_us else 0.0

    def speedup(self, baseline_us: float) -> float:
        """Speedup over a latency of ``baseline_us``; 1 if nothing takes time."""
        return baseline_us / self.latency_us if self.latency_us else 1.0

    def _shown(self, kind: str) -> str:
        where = f"{self.network} on {self.device}, batch {self.source.batch}, {self.precision}"
        return f"<{kind} {self.scheduler} of {where}: {self.latency_us / 1e3:.3f} ms"

    def save(self, path: str | Path) -> None:
        """Write as JSON: to a temporary file beside ``path``, then renamed."""
        from iossim.base.user_files import write_atomically

        write_atomically(Path(path), self.model_dump_json(indent=1) + "\n")


class Schedule(SavedSchedule, Displayed):
    """A schedule of stages. ``latency_us`` is the sum over its stages and boundaries."""

    blocks: list[BlockSchedule]

    def __repr__(self) -> str:
        return f"{self._shown('Schedule')} in {counted(len(self.stages), 'stage')}, up to {self.streams} side by side>"

    __str__ = __repr__

    @property
    def named_stages(self) -> list[tuple[str, Stage]]:
        """All stages in order, each with the name of its block."""
        return [(block.name, stage) for block in self.blocks for stage in block.stages]

    @property
    def stages(self) -> list[Stage]:
        return [stage for block in self.blocks for stage in block.stages]

    @property
    def streams(self) -> int:
        """Maximum number of concurrent groups."""
        return max((len(stage.groups) for stage in self.stages), default=0)

    @staticmethod
    def read(path: Path) -> Schedule:
        """The schedule in a file; raises ScheduleError naming the file and the field, or if it holds streams."""
        found = read_schedule(path)
        if isinstance(found, Schedule):
            return found
        raise ScheduleError(
            f"schedule {path} is of streams, and has no stages; iossim.api.read_any_schedule reads it, or write one of "
            "stages with optimize"
        )


class StreamLaunch(Value):
    """One launch of a stream: a unit, or several that run as one stacked convolution.

    ``after`` are units of other streams that must have ended before: the stream waits for them, by the fewest events.
    ``variant`` is the unit's variant, as in a stage.
    """

    units: list[str] = Field(min_length=1)
    after: list[str] = Field(default_factory=list)
    variant: str = ""


class StreamSchedule(SavedSchedule, Printed):
    """A schedule of streams: each runs its launches in order, and waits for others only by events.

    The host issues all of it without waiting. ``issue`` has the stream of each launch, in the order of issue;
    without it the order is that of :func:`iossim.schedule.streams.issue_order`.
    """

    format_version: int = STREAMS_VERSION
    streams: list[list[StreamLaunch]]
    issue: list[int] = Field(default_factory=list)

    def __repr__(self) -> str:
        return f"{self._shown('StreamSchedule')} in {counted(len(self.streams), 'stream')}>"

    __str__ = Printed.__str__

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, object]:
        """The fields to be written: ``issue`` only if it is given."""
        return {name: value for name, value in write(self).items() if value or name != "issue"}

    @property
    def launches(self) -> list[StreamLaunch]:
        return [launch for stream in self.streams for launch in stream]


AnySchedule = Schedule | StreamSchedule


def read_schedule(path: Path) -> AnySchedule:
    """A saved schedule, of stages or of streams; raises ScheduleError naming the file and the field."""
    from iossim.base.user_files import read_text

    text = read_text(path, "schedule", "give a schedule.json that optimize wrote", ScheduleError)
    kind: type[AnySchedule] = StreamSchedule if has_field(text, "streams") else Schedule
    again = "write it again with optimize"
    schedule: AnySchedule = validated(kind, text, f"schedule {path} is not valid", again, ScheduleError)
    known = kind.model_fields["format_version"].default
    if schedule.format_version != known:
        has = f"schedule {path} has format {schedule.format_version}"
        raise ScheduleError(f"{has}, this iossim reads {known}; {again}")
    return schedule.model_copy(update={"source": schedule.source.found_from(path)})


def has_field(text: str | bytes, field: str, unreadable: bool = False) -> bool:
    """True for the text of a JSON object with this field; ``unreadable`` for text that is no JSON."""
    try:
        document = from_json(text)
    except ValueError:
        return unreadable
    return isinstance(document, dict) and field in document
