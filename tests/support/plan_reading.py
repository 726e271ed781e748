"""Plans read back from their JSON (:mod:`iossim.execution.plan_json`), and what is wrong with one that is not valid."""

from __future__ import annotations

from operator import gt
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from iossim.base.errors import ScheduleError
from iossim.base.values import Value, first_problem
from iossim.execution.plan import Buffer, Command, Copy, Launch, Plan, Queue, Record, Synchronize, Wait
from iossim.ir.types import DType, TensorType
from iossim.schedule.batch import Strategy


class _Buffer(Value):
    name: str
    shape: tuple[int, ...]
    dtype: DType
    view_of: str | None = None
    starts: tuple[Annotated[int, Field(ge=0)], ...] = ()
    device: int = Field(default=0, ge=0)
    offset: int | None = Field(default=None, ge=0)


class _Command(Value):
    kind: Literal["launch", "copy", "record", "wait", "synchronise"]
    queue: tuple[int, int] | None = None
    units: tuple[str, ...] = ()
    strategy: Strategy = Field(default=Strategy.CONCURRENT, strict=False)
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    algorithm: str = ""
    workspace: str | None = None
    event: int | None = None
    #: The first of the SMs that it may use, and the first after them.
    sms: tuple[Annotated[int, Field(ge=0)], int] | None = None
    adds_to: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> _Command:
        if self.kind != "synchronise" and self.queue is None:
            raise ValueError(f"a {self.kind} names no queue")
        if self.kind in ("record", "wait") and self.event is None:
            raise ValueError(f"a {self.kind} names no event")
        if self.sms is not None and self.sms[0] >= self.sms[1]:
            raise ValueError(f"a {self.kind} has SMs {list(self.sms)}, which are none")
        if self.adds_to is not None and self.adds_to not in self.reads:
            raise ValueError(f"a {self.kind} adds to {self.adds_to!r}, which it does not read")
        if self.kind == "copy" and not len(self.reads) == len(self.writes) == len(self.units) == 1:
            raise ValueError("a copy has one unit, reads one buffer and writes one")
        return self


class _Plan(Value):
    format_version: Literal[2]
    graph_hash: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    arena_bytes: int = Field(default=0, ge=0)
    buffers: list[_Buffer]
    commands: list[_Command]

    @model_validator(mode="after")
    def _buffers_exist(self) -> _Plan:
        known = {buffer.name: buffer for buffer in self.buffers}
        for buffer in self.buffers:
            if buffer.view_of is not None and (buffer.view_of not in known or known[buffer.view_of].view_of):
                raise ValueError(f"buffer {buffer.name!r} is a view of {buffer.view_of!r}, which is no storage")
            whole = known[buffer.view_of].shape if buffer.view_of is not None else ()
            ends = [start + size for start, size in zip(buffer.starts, buffer.shape, strict=False)]
            if len(buffer.starts) != len(whole) or any(map(gt, ends, whole)):
                raise ValueError(f"buffer {buffer.name!r} does not lie in {buffer.view_of!r}")
        named = [*self.inputs, *self.outputs]
        for command in self.commands:
            named += [*command.reads, *command.writes, *([command.workspace] if command.workspace else [])]
        for name in named:
            if name not in known:
                raise ValueError(f"there is no buffer {name!r}")
        without = [buffer.name for buffer in self.buffers if buffer.view_of is None and buffer.offset is None]
        if self.arena_bytes and without:
            raise ValueError(f"buffer {without[0]!r} has no offset in the arena")
        return self


def plan_from_json(text: str) -> Plan:
    """Inverse of :func:`iossim.execution.plan_json.plan_to_json`; raises ScheduleError naming the field at fault."""
    try:
        document = _Plan.model_validate_json(text)
    except ValidationError as error:
        raise ScheduleError(f"the plan is not valid: {first_problem(error)}; lower the schedule again") from None
    offsets = {buffer.name: buffer.offset for buffer in document.buffers if buffer.offset is not None}
    return Plan(
        document.graph_hash,
        {
            one.name: Buffer(one.name, TensorType(one.shape, one.dtype), one.view_of, one.starts, one.device)
            for one in document.buffers
        },
        document.inputs,
        document.outputs,
        tuple(_read(command) for command in document.commands),
        offsets or None,
        document.arena_bytes,
    )


def _read(command: _Command) -> Command:
    queue = Queue(*(command.queue or (0, 0)))
    event = command.event or 0
    sms = None if command.sms is None else range(*command.sms)
    match command.kind:
        case "launch":
            return Launch(
                command.units,
                command.strategy,
                command.reads,
                command.writes,
                queue,
                command.algorithm,
                command.workspace,
                sms,
                command.adds_to,
            )
        case "copy":
            return Copy(command.reads[0], command.writes[0], command.units[0], queue, sms)
        case "record":
            return Record(event, queue)
        case "wait":
            return Wait(event, queue)
        case "synchronise":
            return Synchronize()
