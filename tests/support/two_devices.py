"""Plans over two devices, made by hand from plans of one: what lies elsewhere is copied before it is read."""

from __future__ import annotations

from dataclasses import replace

from iossim.execution.plan import Command, Copy, Launch, Plan, Queue, Synchronize


def on_two_devices(plan: Plan) -> Plan:
    """Streams of odd numbers on device 1, the others on device 0, where the inputs are; each value where it is written.

    The plan has no views and no workspaces. A launch that reads a value of the other device has it copied to a buffer of its
    own first, on its own queue.
    """
    assert not any(buffer.view_of for buffer in plan.buffers.values())
    device_of = dict.fromkeys(plan.inputs, 0)
    for launch in plan.launches:
        device_of |= dict.fromkeys(launch.writes, launch.queue.stream % 2)
    buffers = {name: replace(buffer, device=device_of.get(name, 0)) for name, buffer in plan.buffers.items()}
    commands: list[Command] = []
    for number, command in enumerate(plan.commands):
        if isinstance(command, Synchronize):
            commands.append(command)
            continue
        queue = Queue(command.queue.stream % 2, command.queue.stream)
        moved = replace(command, queue=queue)
        if isinstance(moved, Launch):
            reads = []
            for name in moved.reads:
                if device_of[name] != queue.device:
                    replica = f"{name} for command {number}"
                    buffers[replica] = replace(plan.buffers[name], name=replica, device=queue.device)
                    commands.append(Copy(name, replica, moved.units[0], queue))
                    reads.append(replica)
                else:
                    reads.append(name)
            moved = replace(moved, reads=tuple(reads))
        commands.append(moved)
    return replace(plan, buffers=buffers, commands=tuple(commands))
