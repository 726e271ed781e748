"""The checker of plans against reachability in the graph of commands, over deliberately broken plans.

    python benchmarks/adversarial_plans.py [--count 7000] [--seed 0]

Plans of random schedules, of stages and of streams, on both engines, are broken one way at a time: a wait or
synchronise is dropped, a record or wait is moved, an event is turned around, a buffer is put at another's address. With
separate buffers the checker must refuse exactly those that race, or wait for an event that is not recorded; with
buffers that share memory it may refuse more, since storages that overlap at all count as one. Ends with exit code 1 if
it accepts a race, or refuses a correct plan.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Annotated

import typer

from iossim.base.errors import ScheduleError
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import check_happens_before, plan_memory
from iossim.execution.plan import Plan, Record, Wait

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from plan_races import Races
from random_networks import random_network, random_schedule, random_streams

#: Number of broken plans of each kind per plan, besides all that drop something.
BROKEN = 4


def main(
    most: Annotated[int, typer.Option("--count")] = 7000, first: Annotated[int, typer.Option("--seed")] = 0
) -> None:
    found: Counter[str] = Counter()
    for seed in count(first):
        network = random_network(seed, movers=seed % 3 == 0)
        schedule = random_streams(network, seed) if seed % 2 else random_schedule(network, seed)
        plan = lower_schedule(schedule, network, ("paper", "graph")[seed // 2 % 2], in_place=seed % 3 == 0)
        shared = seed % 4 == 3
        plan = plan_memory(plan) if shared else plan
        for broken, is_race in (*Races(plan).mutations(), *otherwise(plan, random.Random(seed))):
            found[verdict(broken, is_race, shared)] += 1
        if found.total() >= most:
            break
    print(f"{found.total():,} plans: " + ", ".join(f"{number:,} {what}" for what, number in sorted(found.items())))
    sys.exit(found["WRONGLY ACCEPTED"] + found["WRONGLY REFUSED"] > 0)


def otherwise(plan: Plan, draw: random.Random) -> Iterator[tuple[Plan, bool]]:
    """The plan with something moved, turned around or shared, and whether that is a race."""
    ordering = [number for number, command in enumerate(plan.commands) if isinstance(command, Record | Wait)]
    made = []
    for _ in range(BROKEN if ordering else 0):
        commands = list(plan.commands)
        number = draw.choice(ordering)
        moved = commands.pop(number)
        commands.insert(draw.randrange(max(0, number - 6), min(len(commands), number + 6) + 1), moved)
        made.append(replace(plan, commands=tuple(commands)))
        made.append(_turned(plan, draw.choice(ordering)))
    if plan.offsets is not None and len(plan.offsets) > 1:
        for _ in range(BROKEN):
            one, other = draw.sample(sorted(plan.offsets), 2)
            made.append(replace(plan, offsets={**plan.offsets, one: plan.offsets[other]}))
    yield from ((broken, Races(broken).exist()) for broken in made)


def _turned(plan: Plan, number: int) -> Plan:
    """The plan with an event recorded where it was first waited for, and waited for where it was recorded."""
    event = plan.commands[number].event
    queues = [
        command.queue for command in plan.commands if isinstance(command, Record | Wait) and command.event == event
    ]
    commands = [
        replace(command, queue=queues[isinstance(command, Record)])
        if isinstance(command, Record | Wait) and command.event == event
        else command
        for command in plan.commands
    ]
    return replace(plan, commands=tuple(commands))


def verdict(plan: Plan, is_race: bool, shared: bool) -> str:
    try:
        check_happens_before(plan)
    except ScheduleError:
        if is_race:
            return "refused that race"
        if _waits_for_nothing(plan):
            return "refused that wait for what is not recorded"
        return "refused for shared memory" if shared else "WRONGLY REFUSED"
    return "WRONGLY ACCEPTED" if is_race else "accepted that are right"


def _waits_for_nothing(plan: Plan) -> bool:
    recorded = set()
    for command in plan.commands:
        if isinstance(command, Wait) and command.event not in recorded:
            return True
        if isinstance(command, Record):
            recorded.add(command.event)
    return False


if __name__ == "__main__":
    typer.run(main)
