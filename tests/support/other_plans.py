"""Plans that no schedule is lowered to: read back from their JSON, and with values in boxes of larger storages."""

import json
import random
from dataclasses import replace
from typing import Any

from iossim.execution.plan import FORMAT_VERSION, Buffer, Command, Copy, Launch, Plan, Record, Synchronize, Wait
from iossim.ir.types import DType, TensorType
from iossim.schedule.batch import Strategy


def plan_from_json(text: str) -> Plan:
    """Inverse of :func:`iossim.execution.plan.plan_to_json`."""
    document = json.loads(text)
    assert document["format_version"] == FORMAT_VERSION
    offsets = {one["name"]: one["offset"] for one in document["buffers"] if "offset" in one}
    return Plan(
        document["graph_hash"],
        {one["name"]: _buffer(one) for one in document["buffers"]},
        tuple(document["inputs"]),
        tuple(document["outputs"]),
        tuple(_command(one) for one in document["commands"]),
        offsets or None,
        document.get("arena_bytes", 0),
    )


def _buffer(one: dict[str, Any]) -> Buffer:
    of_type = TensorType(tuple(one["shape"]), DType(one["dtype"]))
    return Buffer(one["name"], of_type, one.get("view_of"), tuple(one.get("starts", ())))


def _command(one: dict[str, Any]) -> Command:
    if one["kind"] == "synchronise":
        return Synchronize()
    (_, queue), sms = one["queue"], range(*one["sms"]) if "sms" in one else None
    if one["kind"] in ("record", "wait"):
        return (Record if one["kind"] == "record" else Wait)(one["event"], queue)
    names = {name: tuple(one.get(name, ())) for name in ("units", "reads", "writes")}
    if one["kind"] == "copy":
        ((unit,), (source,), (target,)) = names.values()
        return Copy(source, target, unit, queue, sms)
    given = {name: one[name] for name in ("algorithm", "workspace", "adds_to") if name in one}
    return Launch(strategy=Strategy(one.get("strategy", "concurrent")), queue=queue, sms=sms, **names, **given)


def boxed(plan: Plan, seed: int) -> Plan:
    """The plan with each storage of a value inside another: stacked with those of its shape along an axis, or with a halo."""
    generator = random.Random(seed)
    workspaces = {command.workspace for command in plan.commands if isinstance(command, Launch)}
    by_type: dict[TensorType, list[Buffer]] = {}
    for storage in plan.storages:
        if storage.name not in workspaces and storage.type.shape:
            by_type.setdefault(storage.type, []).append(storage)
    places: dict[str, tuple[str, tuple[int, ...]]] = {}
    buffers: dict[str, Buffer] = {}
    for of_type, storages in by_type.items():
        while storages:
            together = [storages.pop() for _ in range(min(len(storages), generator.randint(1, 3)))]
            margin = [generator.randint(0, 2) for _ in of_type.shape]
            axis = generator.randrange(len(of_type.shape))
            shape = [size + 2 * more for size, more in zip(of_type.shape, margin, strict=True)]
            shape[axis] += (len(together) - 1) * of_type.shape[axis]
            whole = "box of " + "+".join(storage.name for storage in together)
            buffers[whole] = Buffer(whole, TensorType(tuple(shape), of_type.dtype))
            for number, storage in enumerate(together):
                starts = list(margin)
                starts[axis] += number * of_type.shape[axis]
                places[storage.name] = whole, tuple(starts)
    for buffer in plan.buffers.values():
        if (storage := buffer.view_of or buffer.name) in places:
            whole, starts = places[storage]
            buffers[buffer.name] = replace(buffer, view_of=whole, starts=buffer.box.moved(starts).starts)
        else:
            buffers[buffer.name] = buffer
    return replace(plan, buffers=buffers)
