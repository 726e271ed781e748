"""Plans as JSON: one object, commands in order, each tagged by its kind; reading back gives an equal plan."""

from __future__ import annotations

import json
from dataclasses import fields
from operator import gt
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from iossim.base.errors import ScheduleError
from iossim.base.values import Value, first_problem
from iossim.execution.plan import Buffer, Command, Copy, Launch, Plan, Queue, Record, Synchronize, Wait
from iossim.ir.types import DType, TensorType
from iossim.schedule.batch import Strategy

#: 1 knew views of channels alone, and one device.
FORMAT_VERSION: Literal[2] = 2


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
    format_version: Literal[2] = FORMAT_VERSION
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


def plan_to_json(plan: Plan) -> str:
    """A plan as JSON text; what is as by default is left out, but for the version."""
    offsets = plan.offsets or {}
    document = _Plan(
        graph_hash=plan.graph_hash,
        inputs=plan.inputs,
        outputs=plan.outputs,
        arena_bytes=plan.arena_bytes,
        buffers=[
            _Buffer(
                name=buffer.name,
                shape=buffer.type.shape,
                dtype=buffer.type.dtype,
                view_of=buffer.view_of,
                starts=buffer.starts,
                device=buffer.device,
                offset=offsets.get(buffer.name),
            )
            for buffer in plan.buffers.values()
        ],
        commands=[_written(command) for command in plan.commands],
    )
    values = {"format_version": FORMAT_VERSION} | document.model_dump(mode="json", exclude_defaults=True)
    return json.dumps(values)


def plan_from_json(text: str) -> Plan:
    """Inverse of :func:`plan_to_json`; raises ScheduleError naming the field at fault."""
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


def _written(command: Command) -> _Command:
    match command:
        case Launch():
            values = {field.name: getattr(command, field.name) for field in fields(command)}
            return _Command(kind="launch", **values | {"sms": _ends(command.sms)})
        case Copy():
            return _Command(
                kind="copy",
                queue=command.queue,
                units=(command.unit,),
                reads=(command.source,),
                writes=(command.target,),
                sms=_ends(command.sms),
            )
        case Record() | Wait():
            kind: Literal["record", "wait"] = "record" if isinstance(command, Record) else "wait"
            return _Command(kind=kind, queue=command.queue, event=command.event)
        case Synchronize():
            return _Command(kind="synchronise")


def _ends(sms: range | None) -> tuple[int, int] | None:
    return None if sms is None else (sms.start, sms.stop)


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
