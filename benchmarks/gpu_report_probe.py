"""Single costs of a device and of its host, measured through the driver of the cuDNN backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
from gpu_report_kernels import COPIED_A_THREAD, COPY, EMPTY, FLOPS_A_STEP, MULTIPLY_ADD, PLACEMENT

from iossim.backends.cupy_cudnn.capture import Issue, Lane, captured
from iossim.backends.cupy_cudnn.clock import DeviceTimer, WorkingClock, cycles
from iossim.backends.cupy_cudnn.convolution import Convolution, TensorLayout
from iossim.backends.cupy_cudnn.cublas import WithCublas
from iossim.backends.cupy_cudnn.driver import Allocation, Driver, Graph, Kernel
from iossim.backends.cupy_cudnn.views import Scalar
from iossim.execution.lead import Lead

THREADS = 256
#: Host calls that are timed as one: fewer than a stream takes before it makes the host wait.
CALLS = 64
GRAPH_LAUNCHES = 16
#: Number of forks and joins in one graph.
FORKS = 8
#: Time for which the blocks of a placement stay in place.
STAY_US = 50.0
#: More blocks than multiprocessors of any device.
MANY_BLOCKS = 1024
NOTHING = np.int32(0)


@dataclass(frozen=True)
class Chains:
    """Times of chains of empty kernels by their length, and the line through them."""

    times_us: dict[int, float]

    @property
    def each_us(self) -> float:
        """Slope: the time of one more kernel."""
        return self._line()[0]

    @property
    def start_us(self) -> float:
        """Intercept: the time without any kernel."""
        return self._line()[1]

    def _line(self) -> tuple[float, float]:
        slope, start = np.polyfit(list(self.times_us), list(self.times_us.values()), 1).tolist()
        return float(slope), float(start)


class Probe:
    """Measures on the lanes of one device; each time is the median of ``rounds``."""

    def __init__(self, driver: Driver, library: WithCublas, lanes: Callable[[int], Lane], rounds: int) -> None:
        self._driver, self._library, self._lanes, self._rounds = driver, library, lanes, rounds
        self._main = lanes(0).stream
        self._timer = DeviceTimer(driver, self._main)
        self._clock = WorkingClock(driver, self._main)
        self._empty = driver.kernel(EMPTY, "empty")

    def empty_graph_us(self) -> float:
        """Time on the device of a graph without a node: its launch alone."""
        return self._graph_us(captured(self._driver, self._main, []))

    def graph_chains(self, lengths: Sequence[int]) -> Chains:
        """Empty kernels one after the other in a graph."""
        return Chains({length: self._graph_us(self._captured([self._nothing()] * length)) for length in lengths})

    def stream_chains(self, lengths: Sequence[int]) -> Chains:
        """Chains issued to a stream one by one, all before the first runs."""
        return Chains({length: self._device_us(partial(_all, [self._nothing()] * length)) for length in lengths})

    def fork_and_join_us(self, branches: int, depth: int) -> float:
        """Time of a fork and a join of so many chains in a graph, beyond a single chain of that depth."""
        forked: list[Issue] = []
        for _ in range(FORKS):
            forked.append(self._nothing())
            forked += self._fork(range(1, branches))
            forked += [self._nothing(lane) for lane in range(branches) for _ in range(depth)]
            forked += self._join(range(1, branches))
            forked.append(self._nothing())
        single = [self._nothing()] * (FORKS * (depth + 2))
        return (self._graph_us(self._captured(forked)) - self._graph_us(self._captured(single))) / FORKS

    def launch_host_us(self) -> float:
        """Host time of one launch of a kernel."""
        return self._host_us(self._nothing(), CALLS)

    def library_call_host_us(self, convolution: Convolution) -> float:
        """Host time of one convolution by the first plan that the library offers."""
        plan = next(self._library.plans(convolution))
        layouts = {"x": convolution.x, "w": convolution.w, "y": convolution.y}
        if convolution.bias:
            layouts["b"] = TensorLayout((convolution.y.shape[1],), (1,))
        memory = {name: self._driver.allocate(4 * int(np.prod(one.shape))) for name, one in layouts.items()}
        workspace = self._driver.allocate(plan.workspace_bytes)
        addresses = {name: one.address for name, one in memory.items()}
        call = partial(self._library.bind(convolution, plan.name), addresses, workspace.address, self._lanes(0).handle)
        return self._host_us(call, CALLS)

    def graph_launch_host_us(self, nodes: int) -> float:
        """Host time of one launch of a graph of empty kernels."""
        graph = self._captured([self._nothing()] * nodes)
        return self._host_us(partial(self._driver.launch_graph, graph, self._main), GRAPH_LAUNCHES)

    def event_record_host_us(self) -> float:
        """Host time of recording an event."""
        return self._host_us(partial(self._driver.record, self._driver.event(), self._main), CALLS)

    def event_wait_host_us(self) -> float:
        """Host time of making another stream wait for an event."""
        event = self._driver.event()
        self._driver.record(event, self._main)
        return self._host_us(partial(self._driver.wait, event, self._lanes(1).stream), CALLS)

    def synchronise_host_us(self) -> float:
        """Host time of waiting for an idle device."""
        return self._host_us(self._driver.synchronize, CALLS)

    def launch_and_synchronise_us(self) -> float:
        """A launch and the wait for it: the kernel, the host's two calls, and the bubble before the next."""
        return self._host_us(partial(_all, [self._nothing(), self._driver.synchronize]), CALLS)

    def placement(self, blocks: int, threads: int) -> list[int]:
        """Multiprocessor of each block of a kernel that runs alone."""
        (sms,) = self._placed([blocks], threads)
        return sms

    def placement_beside(self, blocks: int, threads: int) -> list[list[int]]:
        """Multiprocessors of the blocks of two kernels that a graph forks to."""
        return self._placed([blocks, blocks], threads)

    def copy_gbps(self, size_bytes: int) -> float:
        """Bandwidth of a copy: bytes read and written in 10^9 per second."""
        source, target = self._driver.allocate(size_bytes), self._driver.allocate(size_bytes)
        elements = size_bytes // 4
        arguments = (np.uint32(elements), np.uint64(source.address), np.uint64(target.address))
        kernel = self._driver.kernel(COPY, "copy")
        blocks = -(-elements // (THREADS * COPIED_A_THREAD))
        return 2 * size_bytes / self._graph_us(self._captured([self._launch(kernel, blocks, arguments)])) / 1e3

    def fp32_tflops(self, blocks: int, steps: int) -> float:
        """Rate of multiplications and additions in registers: 10^12 per second."""
        kept = self._driver.allocate(4)
        arguments = (np.int32(steps), np.uint64(kept.address))
        kernel = self._driver.kernel(MULTIPLY_ADD, "multiply_add")
        flops = blocks * THREADS * steps * FLOPS_A_STEP
        return flops / self._graph_us(self._captured([self._launch(kernel, blocks, arguments)])) / 1e6

    def _nothing(self, lane: int = 0) -> Issue:
        return self._launch(self._empty, 1, (NOTHING,), lane)

    def _launch(
        self, kernel: Kernel, blocks: int, arguments: tuple[Scalar, ...], lane: int = 0, threads: int = THREADS
    ) -> Issue:
        return partial(self._driver.launch, kernel, blocks, threads, arguments, self._lanes(lane).stream)

    def _fork(self, lanes: Sequence[int]) -> list[Issue]:
        event = self._driver.event()
        waits = [partial(self._driver.wait, event, self._lanes(lane).stream) for lane in lanes]
        return [partial(self._driver.record, event, self._main), *waits]

    def _join(self, lanes: Sequence[int]) -> list[Issue]:
        found: list[Issue] = []
        for lane in lanes:
            event = self._driver.event()
            found.append(partial(self._driver.record, event, self._lanes(lane).stream))
            found.append(partial(self._driver.wait, event, self._main))
        return found

    def _captured(self, issues: Sequence[Issue]) -> Graph:
        """Calls as a graph, after they ran once: nothing need be loaded during capture."""
        _all(issues)
        self._driver.synchronize()
        return captured(self._driver, self._main, issues)

    def _graph_us(self, graph: Graph) -> float:
        return self._device_us(partial(self._driver.launch_graph, graph, self._main))

    def _device_us(self, issue: Issue) -> float:
        """Device time, with the host ahead; the calls have run once just before."""
        self._clock.ensure()
        lead = Lead()
        times = [self._timer.take(issue, issue, lead).time_us for _ in range(1 + self._rounds)]
        self._clock.worked()
        return median(times[1:])

    def _host_us(self, call: Issue, calls: int) -> float:
        """Host time of a call, among several in sequence without any wait."""
        times = []
        for _ in range(1 + self._rounds):
            self._driver.synchronize()
            begin_us = self._driver.host_us()
            for _ in range(calls):
                call()
            times.append((self._driver.host_us() - begin_us) / calls)
        self._driver.synchronize()
        return median(times[1:])

    def _placed(self, grids: Sequence[int], threads: int) -> list[list[int]]:
        """Multiprocessors of the blocks of kernels, each in its own lane, in one graph."""
        kernel = self._driver.kernel(PLACEMENT, "placement")
        memory: list[Allocation] = [self._driver.allocate(4 * blocks) for blocks in grids]
        lanes = range(len(grids))
        stay = cycles(self._driver, STAY_US)
        launches = [
            self._launch(kernel, blocks, (stay, np.uint64(memory[lane].address)), lane, threads)
            for lane, blocks in zip(lanes, grids, strict=True)
        ]
        graph = self._captured([self._nothing(), *self._fork(lanes[1:]), *launches, *self._join(lanes[1:])])
        self._driver.launch_graph(graph, self._main)
        found = []
        for blocks, own in zip(grids, memory, strict=True):
            sms = np.empty(blocks, np.uint32)
            self._driver.read(own.address, sms)
            found.append([int(sm) for sm in sms])
        return found


def _all(issues: Sequence[Issue]) -> None:
    for issue in issues:
        issue()
