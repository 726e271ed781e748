"""Cost of a second stream in backend ``onnxruntime_cpu``: a stage of two tiny ops, in one stream and in two.

    python benchmarks/thread_handover.py [ROUNDS]

The difference is a hand-over to a second thread and back, including contention of two threads for Python's interpreter
lock; the same with empty steps is the hand-over alone. Both grow with the idle time of the second thread, since its
core goes to sleep: so the host is busy alone for a while before each run. It needs two cores.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import median
from time import perf_counter_ns

from iossim.backends.onnxruntime_cpu.program import Segment, SessionProgram, Sessions, Step, bind, make_arena
from iossim.backends.onnxruntime_cpu.worker_pool import WorkerPool
from iossim.base.threads import usable_cores
from iossim.execution.lower import lower_stage
from iossim.execution.memory import with_memory
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.unary import Relu
from iossim.schedule.batch import Strategy

#: Idle times of the second thread: almost none, and as long as small and large ops take.
IDLE_US = (0, 50, 200, 1_000)


def two_small_ops() -> Network:
    """Two concurrent activations of a dozen numbers."""
    b = GraphBuilder("two_small_ops")
    x = b.input("x", (1, 3, 2, 2))
    with b.block("block"):
        outputs = [b.add(Relu(), x, name=name) for name in ("left", "right")]
    return b.network(outputs)


def stage(network: Network, groups: Sequence[Sequence[int]]) -> SessionProgram:
    plan = with_memory(lower_stage(network, groups, Strategy.CONCURRENT))
    return bind(plan, network, Sessions(1), make_arena(plan.arena_bytes))


def of_nothing(streams: int) -> SessionProgram:
    steps: tuple[Step, ...] = (lambda: None,)
    others = tuple((lane, steps) for lane in range(1, streams))
    return SessionProgram((Segment(steps, others),), streams, {}, {}, (), {}, 0)


def medians_us(programs: Sequence[SessionProgram], rounds: int, idle_us: int) -> list[float]:
    """Median time of each, in alternating runs; before each run all threads but the host's are idle for ``idle_us``."""
    taken_ns: list[list[int]] = [[] for _ in programs]
    with WorkerPool(max(program.streams for program in programs), usable_cores()) as pool:
        for _ in range(rounds):
            for program, times in zip(programs, taken_ns, strict=True):
                end_ns = perf_counter_ns() + 1_000 * idle_us
                while perf_counter_ns() < end_ns:
                    pass
                begin_ns = perf_counter_ns()
                pool.run(program)
                times.append(perf_counter_ns() - begin_ns)
    return [median(times) / 1e3 for times in taken_ns]


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    network = two_small_ops()
    programs = [of_nothing(1), of_nothing(2), stage(network, [[0, 1]]), stage(network, [[0], [1]])]
    print(f"{len(usable_cores())} cores, medians of {rounds} rounds, us; what a second stream costs is the difference")
    print(
        f"{'idle before':>11} {'nothing: 1':>11} {'2 streams':>9} {'cost':>6} {'two ops: 1':>11} {'2 streams':>9} {'cost':>6}"
    )
    for idle_us in IDLE_US:
        found = medians_us(programs, rounds, idle_us)
        cells = [f"{one:11.1f} {two:9.1f} {two - one:6.1f}" for one, two in (found[:2], found[2:])]
        print(f"{idle_us:11} {' '.join(cells)}")


if __name__ == "__main__":
    main()
