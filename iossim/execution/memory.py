"""Memory planning: storages at offsets of one arena, so that storages with disjoint lifetimes share memory.

Two storages may share bytes only if every access to one *happens before* every access to the other: a plan's queues
run in any order that its events allow, so positions in the list of commands are irrelevant. Storages that may not share
*interfere*. Finding the smallest arena is bin packing (NP-hard); the plan is the best of a few greedy orders, each
storage at the lowest offset that its neighbours leave (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural
Net Inference", 2020: greedy by size is the best of theirs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from iossim.execution.happens_before import timed_accesses
from iossim.execution.lower import lower_stage
from iossim.execution.plan import Buffer, Plan, Queue, aligned
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.schedule.batch import Strategy


def with_memory(plan: Plan) -> Plan:
    """The plan itself if its memory is planned, else with its memory planned."""
    return plan if plan.offsets is not None else plan_memory(plan)


def plan_memory(plan: Plan) -> Plan:
    """The plan with its storages at offsets of one arena, each a multiple of 256 bytes.

    Inputs keep their memory to the end, so that the plan can run again; outputs keep theirs from their first write.
    """
    storages = plan.storages
    interferes = interference(plan)
    sizes = [aligned(storage.bytes) for storage in storages]
    degree = interferes.astype(np.int64) @ np.array(sizes, dtype=np.int64)
    orders: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda i: (-sizes[i], i),
        lambda i: (-int(degree[i]), -sizes[i], i),
        lambda i: (i,),
        lambda i: (-sizes[i] * int(degree[i]), i),
    )
    plans = [_packed(sorted(range(len(storages)), key=key), sizes, interferes) for key in orders]
    peaks = [max(map(sum, zip(offsets, sizes, strict=True)), default=0) for offsets in plans]
    best = plans[peaks.index(min(peaks))]
    names = [storage.name for storage in storages]
    return replace(plan, offsets=dict(zip(names, best, strict=True)), arena_bytes=min(peaks))


def interference(plan: Plan) -> NDArray[np.bool_]:
    """Pairs of storages (in the order of ``plan.storages``) that must not share memory: ``[storages, storages]``."""
    index = {storage.name: number for number, storage in enumerate(plan.storages)}
    queues = {queue: column for column, queue in enumerate(plan.queues)}
    shape = (len(index), max(1, len(queues)))
    first = np.full(shape, np.iinfo(np.int64).max)  # the commands that are sure to have run at every access
    last = np.zeros(shape, dtype=np.int64)  # the last access of each queue
    for access in timed_accesses(plan):
        row = index[access.region.storage]
        for queue, column in queues.items():
            first[row, column] = min(first[row, column], access.clock.get(queue, 0))
        if access.queue is not None:
            column = queues[access.queue]
            last[row, column] = max(last[row, column], access.count)
    # Inputs, which the host fills before all commands, are kept for the next run.
    kept = [index[plan.region(name).storage] for name in (*plan.inputs, *plan.outputs)]
    last[kept] = np.iinfo(np.int64).max
    # [a, b]: all of a happens before all of b
    before = np.asarray((first[None, :, :] >= last[:, None, :]).all(axis=2))
    never = np.asarray((last == 0).all(axis=1))  # not accessed at all: never live
    result: NDArray[np.bool_] = ~(before | before.T | never[:, None] | never[None, :])
    np.fill_diagonal(result, False)
    return result


def memory_lower_bound_bytes(plan: Plan) -> int:
    """Lower bound of any arena: the maximum of live bytes, in the order of issue."""
    first: dict[str, int] = {}  # by storage the numbers of its first and last command in the order of issue
    last: dict[str, int] = {}
    number = 0
    command: tuple[Queue | None, int] = (None, 0)
    for access in timed_accesses(plan):
        if (access.queue, access.count) != command:
            number, command = number + 1, (access.queue, access.count)
        first.setdefault(access.region.storage, number)
        last[access.region.storage] = number
    for name in plan.inputs:
        first[plan.region(name).storage], last[plan.region(name).storage] = 0, number
    alive_bytes = np.zeros(number + 1, dtype=np.int64)
    for storage in plan.storages:
        if storage.name in first:
            alive_bytes[first[storage.name] : last[storage.name] + 1] += aligned(storage.bytes)
    return int(alive_bytes.max())


def needed_bytes(network: Network) -> tuple[int, int]:
    """Bytes of a network's weights, tied ones once, and the least of its activations, run unit by unit."""
    sequential = lower_stage(network, [range(len(network.units))], Strategy.CONCURRENT, in_place=True)
    weights = {id(constant.origin): constant.type.bytes for constant in network.graph.constants.values()}
    return sum(weights.values()), memory_lower_bound_bytes(sequential)


def memory_remarks(network: Network, capacity_bytes: int, device: str) -> list[str]:
    """A remark on a network that cannot run on a device for want of memory."""
    needed = sum(needed_bytes(network))
    told = f"{network.name} needs {needed / 2**30:.1f} GiB (weights, and activations of one unit after another)"
    return [f"{told}, and {device} has {capacity_bytes / 2**30:.1f}"] * (needed > capacity_bytes)


def _packed(order: Sequence[int], sizes: Sequence[int], interferes: NDArray[np.bool_]) -> list[int]:
    """Each storage in turn at the lowest offset without overlap with interfering ones."""
    offsets = [-1] * len(sizes)
    for index in order:
        taken = sorted(
            (offsets[other], offsets[other] + sizes[other])
            for other in np.flatnonzero(interferes[index]).tolist()
            if offsets[other] >= 0
        )
        offset = 0
        for begin, end in taken:
            if begin - offset >= sizes[index]:
                break
            offset = max(offset, end)
        offsets[index] = offset
    return offsets


def arena_of(plan: Plan, storage: Buffer) -> slice:
    """The bytes of a storage in the arena, in a plan whose memory is planned."""
    assert plan.offsets is not None, "plan the memory first"
    begin = plan.offsets[storage.name]
    return slice(begin, begin + storage.bytes)


def arrays_in(plan: Plan, arena: NDArray[np.uint8]) -> dict[str, Array]:
    """A view of the arena for each buffer of a plan whose memory is planned."""
    whole = {
        each.name: arena[arena_of(plan, each)].view(each.type.dtype.numpy).reshape(each.type.shape)
        for each in plan.storages
    }
    return {name: whole[each.view_of or name][each.box.selection] for name, each in plan.buffers.items()}
