"""Plans whose values lie in boxes of larger storages, along any axis: what halos, splits and micro-batches make of them."""

from __future__ import annotations

import random
from dataclasses import replace

from iossim.execution.plan import Buffer, Launch, Plan
from iossim.ir.types import TensorType


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
