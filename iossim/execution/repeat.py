"""A plan many times in a row: what takes microseconds is timed in numbers."""

from __future__ import annotations

from dataclasses import replace

from iossim.execution.plan import Command, Plan, Record, Synchronize, Wait


def repeat(plan: Plan, copies: int, synchronise: bool) -> Plan:
    """The commands of a plan ``copies`` times in a row, on the same buffers; events are recorded anew each time.

    The last synchronise of the plan comes once, at the end, or with ``synchronise`` after each copy: then a copy takes what
    the stage takes with the boundary behind it. A plan of several streams without it must join them itself.
    """
    *body, end = plan.commands
    assert isinstance(end, Synchronize), "every plan ends in a synchronise"
    events = 1 + max((command.event for command in body if isinstance(command, Record | Wait)), default=-1)
    commands: list[Command] = []
    for copy in range(copies):
        commands += [
            replace(command, event=command.event + copy * events) if isinstance(command, Record | Wait) else command
            for command in body
        ]
        if synchronise or copy == copies - 1:
            commands.append(end)
    return replace(plan, commands=tuple(commands))
