"""A plan written as JSON and read back is the same plan; what is wrong in it is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from boxed_plans import boxed
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_reading import plan_from_json
from random_networks import random_network, random_schedule

from iossim.base.errors import ScheduleError
from iossim.execution.backend import Choice
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import plan_memory
from iossim.execution.plan import Plan
from iossim.execution.plan_json import plan_to_json

SEEDS = st.integers(0, 2**20)


def planned(network: int, schedule: int, engine: str, in_arena: bool) -> Plan:
    drawn = random_network(network, movers=True)
    plan = lower_schedule(
        random_schedule(drawn, schedule),
        drawn,
        engine,
        in_place=True,
        choices=lambda units, strategy, variant: Choice("some", 100 * len(units)),
    )
    return plan_memory(plan) if in_arena else plan


@settings(max_examples=20, deadline=None)
@given(SEEDS, SEEDS, st.sampled_from(["paper", "graph"]), st.booleans())
def test_there_and_back(network: int, schedule: int, engine: str, in_arena: bool) -> None:
    plan = boxed(planned(network, schedule, engine, False), network)
    plan = plan_memory(plan) if in_arena else plan
    back = plan_from_json(plan_to_json(plan))
    assert (back.commands, dict(back.buffers), back.offsets) == (plan.commands, dict(plan.buffers), plan.offsets)
    assert (back.inputs, back.outputs, back.graph_hash) == (plan.inputs, plan.outputs, plan.graph_hash)
    assert back.arena_bytes == plan.arena_bytes


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data.update(format_version=1), "format_version"),
        (lambda data: data["commands"][0].update(kind="launches"), "kind"),
        (lambda data: data["commands"][0].pop("queue"), "a launch names no queue"),
        (lambda data: data["commands"][0].update(reads=["nothing"]), "there is no buffer 'nothing'"),
        (lambda data: data["buffers"][0].pop("offset"), "has no offset in the arena"),
        (lambda data: data["buffers"][0].update(view_of="nothing"), "is a view of 'nothing', which is no storage"),
        (lambda data: data["buffers"][-1].update(view_of="x", starts=[0, 3, 0, 0]), "does not lie in 'x'"),
        (lambda data: data.pop("outputs"), "outputs"),
    ],
)
def test_what_is_wrong_is_named(change: Any, reason: str) -> None:
    data = json.loads(plan_to_json(planned(3, 1, "paper", True)))
    change(data)
    with pytest.raises(ScheduleError, match=f"the plan is not valid: .*{reason}.*; lower the schedule again"):
        plan_from_json(json.dumps(data))
