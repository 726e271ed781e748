"""Plans read back from their JSON (:mod:`iossim.execution.plan_json`)."""

from __future__ import annotations

import json
from typing import Any

from iossim.execution.plan import Buffer, Command, Copy, Launch, Plan, Record, Synchronize, Wait
from iossim.execution.plan_json import FORMAT_VERSION
from iossim.ir.types import DType, TensorType
from iossim.schedule.batch import Strategy


def plan_from_json(text: str) -> Plan:
    """Inverse of :func:`iossim.execution.plan_json.plan_to_json`."""
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
