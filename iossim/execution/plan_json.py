"""Plans as JSON: one object, commands in order, each tagged by its kind; default values are left out."""

from __future__ import annotations

import json

from iossim.execution.plan import Command, Copy, Launch, Plan, Queue, Record, Synchronize, Wait
from iossim.schedule.batch import Strategy

#: Version 1 had only views of channels, and queues without a device, of which there is one.
FORMAT_VERSION = 2


def plan_to_json(plan: Plan) -> str:
    """A plan as JSON text."""
    offsets = plan.offsets or {}
    buffers = [
        {"name": buffer.name, "shape": buffer.type.shape, "dtype": buffer.type.dtype}
        | _given(view_of=buffer.view_of, starts=buffer.starts, offset=offsets.get(buffer.name))
        for buffer in plan.buffers.values()
    ]
    document = {
        "format_version": FORMAT_VERSION,
        "graph_hash": plan.graph_hash,
        "inputs": plan.inputs,
        "outputs": plan.outputs,
        **_given(arena_bytes=plan.arena_bytes or None),
        "buffers": buffers,
        "commands": [_command(command) for command in plan.commands],
    }
    return json.dumps(document)


def _command(command: Command) -> dict[str, object]:
    match command:
        case Launch():
            return {"kind": "launch"} | _given(
                queue=_queue(command.queue),
                units=command.units,
                strategy=None if command.strategy is Strategy.CONCURRENT else command.strategy,
                reads=command.reads,
                writes=command.writes,
                algorithm=command.algorithm,
                workspace=command.workspace,
                sms=_ends(command.sms),
                adds_to=command.adds_to,
            )
        case Copy():
            moved = {"units": [command.unit], "reads": [command.source], "writes": [command.target]}
            return {"kind": "copy", "queue": _queue(command.queue), **moved, **_given(sms=_ends(command.sms))}
        case Record() | Wait():
            kind = "record" if isinstance(command, Record) else "wait"
            return {"kind": kind, "queue": _queue(command.queue), "event": command.event}
        case Synchronize():
            return {"kind": "synchronise"}


def _queue(queue: Queue) -> tuple[int, int]:
    """A queue in the file: its device, which is the first, and its stream."""
    return 0, queue


def _ends(sms: range | None) -> tuple[int, int] | None:
    """The first SM available to a command, and the first one after the range."""
    return None if sms is None else (sms.start, sms.stop)


def _given(**values: object) -> dict[str, object]:
    """The values that are not empty."""
    return {name: value for name, value in values.items() if value not in (None, "", ())}
