"""How plans are timed: rounds, order, warm and cold, by the virtual time of the host's device; and which of NVML's devices is read."""

import sys
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from graph_builders import builder_with
from host_backend import HostBackend
from host_device import KERNEL_US, HostDriver, HostGraph, HostStream, Node, Ramp
from host_kernels import host_kernel
from random_networks import random_network

from iossim.backends.cupy_cudnn.clock import FLUSH
from iossim.backends.cupy_cudnn.cudnn_graphs import EnginePlan
from iossim.backends.cupy_cudnn.timing import EMPTY_ROUNDS, conditions
from iossim.cost.measured.record import Kind, MeasurementRecord, measurement_set
from iossim.execution.backend import Context, Samples, Timing
from iossim.execution.engine import UNDIVIDED, Engine
from iossim.execution.lower import lower_stage
from iossim.execution.plan import MAIN, Plan, Record, Wait, repeat
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.schedule.batch import Strategy

CONVOLUTION_US = 40.0


def two_branches() -> Network:
    """Two convolutions, of equal size, of one input; and a third of the first one's result."""
    b, x = builder_with("branches", x=(1, 4, 6, 6))
    left, right = b.conv(x, 4, name="left"), b.conv(x, 4, name="right")
    return b.network([right, b.conv(left, 4, name="next")])


NETWORK = two_branches()


def measured(
    plans: list[Plan],
    timing: Timing,
    driver: HostDriver | None = None,
    engine: Engine = Engine.GRAPH,
    network: Network = NETWORK,
) -> tuple[list[Samples], HostDriver, list[tuple[int, int]]]:
    """The samples of each plan, the device, and the progress that was told."""
    driver = driver or HostDriver()
    backend = HostBackend(engine=engine, driver=driver, plans_of=lambda _: {EnginePlan("eng0", 0): CONVOLUTION_US})
    told: list[tuple[int, int]] = []
    found = backend.measure(network, plans, timing, lambda *done: told.append(done))
    return found, driver, told


def stage(*groups: list[int], engine: Engine = Engine.GRAPH, network: Network = NETWORK) -> Plan:
    return lower_stage(network, groups, Strategy.CONCURRENT, engine, in_place=True)


@pytest.mark.parametrize("cold", [False, True])
def test_a_graph_takes_its_longest_path(cold: bool) -> None:
    plans = [stage([0]), stage([0], [1]), stage([0, 2], [1]), repeat(stage([0]), 5, False)]
    found, _, _ = measured(plans, Timing(rounds=4, warm_up=1, cold=cold))
    for samples, expected in zip(found, (1, 1, 2, 5), strict=True):
        assert samples.times_us == pytest.approx([expected * CONVOLUTION_US] * 4)


def test_every_round_times_every_plan_once_in_a_drawn_order() -> None:
    plans = [repeat(stage([0]), copies, False) for copies in (1, 2, 3)]
    found, driver, told = measured(plans, Timing(rounds=6, warm_up=2, seed=3, cold=True))
    sizes = [call.about for call in driver.calls if call.verb == "launch_graph"][-8 * 3 :]
    orders = [tuple(sizes[begin : begin + 3]) for begin in range(0, len(sizes), 3)]
    assert all(sorted(order) == [1, 2, 3] for order in orders)
    assert len(set(orders)) > 1
    assert told == [(3 * done, 24) for done in range(1, 9)]
    assert [(len(samples.times_us), samples.rejected) for samples in found] == [(6, 0)] * 3
    again = measured(plans, Timing(rounds=6, warm_up=2, seed=3, cold=True))[1]
    assert [call.about for call in again.calls if call.verb == "launch_graph"][-8 * 3 :] == sizes


def test_warm_runs_follow_a_run_of_their_own_and_cold_ones_a_flush() -> None:
    for cold, before in ((False, "launch_graph"), (True, "launch")):
        _, driver, _ = measured([stage([0])], Timing(rounds=3, warm_up=0, cold=cold))
        verbs = [call.verb for call in driver.calls]
        timed = [i for i, verb in enumerate(verbs) if verbs[i : i + 3] == ["record", "launch_graph", "record"]][-3:]
        assert len(timed) == 3
        for begin in timed:
            # The launch is that of the spin, whose own time is taken, too.
            assert verbs[begin - 3 : begin] == [before, "record", "launch"]
    assert [call.about for call in driver.calls].count("flush") == 3 + EMPTY_ROUNDS


class StartedSlowly(HostDriver):
    """A device on which starting a graph takes a while, however much is in it."""

    START_US = 7.0

    def end_capture(self, stream: HostStream) -> HostGraph:
        graph = super().end_capture(stream)
        start = Node(lambda: None, self.START_US, set())
        for node in graph.nodes:
            if not node.after:
                node.after = {start}
        graph.nodes.insert(0, start)
        return graph


class Staggered(HostDriver):
    """A device on which branches at the root of a graph start one after the other."""

    def end_capture(self, stream: HostStream) -> HostGraph:
        graph = super().end_capture(stream)
        for place, node in enumerate(node for node in graph.nodes if not node.after):
            node.duration_us += 5.0 * place
        return graph


def test_branches_at_the_root_begin_behind_an_empty_kernel_where_that_is_faster() -> None:
    for driver, empty in ((HostDriver(), 0), (Staggered(), 1)):
        measured([stage([0], [1])], Timing(rounds=1, warm_up=0), driver)
        assert [call.about for call in driver.calls if call.verb == "launch_graph"][-1] == 2 + empty


def test_what_starting_a_graph_takes_is_no_part_of_a_stage_that_was_taken_cold() -> None:
    plans = [stage([0]), stage([0], [1])]
    for cold in (False, True):
        driver = StartedSlowly()
        found, _, _ = measured(plans, Timing(rounds=4, warm_up=1, cold=cold), driver)
        for samples in found:
            assert samples.median_us == pytest.approx(CONVOLUTION_US + driver.START_US)
            context = Context("cupy_cudnn", "h100-sxm", "fp32", "graph")
            record = MeasurementRecord(context, Kind.UNIT, "s", 1, 1, samples, is_cold=cold)
            # Warm, many copies share one start; cold, each stage has its own.
            assert ("empty_graph_us" in samples.conditions) is cold
            assert record.copy_us() == pytest.approx(CONVOLUTION_US + (0.0 if cold else driver.START_US))
            # Nothing of the host is left in a cold time of a graph; in one without that condition there may be.
            assert not measurement_set([record], cold).header.includes_host_overhead
    bare = MeasurementRecord(context, Kind.UNIT, "s", 1, 1, Samples((1.0,)), is_cold=True)
    assert measurement_set([bare, record], True).header.includes_host_overhead


def test_the_paper_engine_is_timed_by_the_host() -> None:
    plan = repeat(stage([0], [1], engine=Engine.PAPER), 3, synchronise=True)
    (samples,), driver, _ = measured([plan], Timing(rounds=5, warm_up=1), engine=Engine.PAPER)
    assert len(samples.times_us) == 5
    assert min(samples.times_us) > 0
    assert not any(call.verb == "launch_graph" and call.about != 1 for call in driver.calls[-40:])


def test_conditions_tell_of_the_sentinel_and_the_cache() -> None:
    (samples,), _, _ = measured([stage([0])], Timing(rounds=2, cold=True))
    assert samples.conditions["l2"] == "cold"
    for name in ("sentinel_first_us", "sentinel_least_us", "sentinel_most_us"):
        assert samples.conditions[name] == pytest.approx(KERNEL_US)
    assert samples.conditions["host_was_behind"] == 0


def test_plans_that_do_not_fit_together_are_measured_in_turns() -> None:
    network = random_network(4)
    plans = [stage([unit], network=network) for unit in range(4)]
    found, _, told = measured(plans, Timing(rounds=2, warm_up=1), HostDriver(free_bytes=1), network=network)
    assert [len(samples.times_us) for samples in found] == [2] * 4
    assert told == [(done, 12) for done in range(1, 13)]


def test_a_stage_that_launches_nothing_can_be_measured() -> None:
    b = GraphBuilder("views")
    x = b.conv(b.input("x", (1, 4, 6, 6)), 4, name="before")
    from iossim.ir.ops.slice import Split

    network = b.network(b.add_all(Split(1, (1, 3)), x, name="cut"))
    plan = stage([1], network=network)
    assert not plan.launches
    for engine in UNDIVIDED:
        (samples,), _, _ = measured([plan], Timing(rounds=2), engine=engine, network=network)
        assert len(samples.times_us) == 2


def test_the_host_does_not_count_however_its_times_scatter() -> None:
    """Behind a spin for the least that the host has needed, the device would wait for it in every third launch."""
    launches = count()

    def issue_us(verb: str) -> float:
        if verb != "launch_graph":
            return 1.0
        return 5.0 if next(launches) % 3 else 400.0

    driver = HostDriver(issue_us=issue_us)
    (samples,), _, _ = measured([stage([0])], Timing(rounds=12), driver)
    assert samples.times_us == pytest.approx([CONVOLUTION_US] * 12)
    assert samples.rejected > 0  # the first times, before it is known what the host needs
    assert float(samples.conditions["issue_us"]) >= 400
    assert samples.conditions["host_was_behind"] == 0


def test_a_host_that_is_never_through_in_time_is_told() -> None:
    driver = HostDriver(issue_us=lambda verb: 50_000.0 if verb == "launch_graph" else 1.0)
    (samples,), _, _ = measured([stage([0])], Timing(rounds=2), driver)
    assert float(samples.conditions["host_was_behind"]) > 0
    assert len(samples.times_us) == 2


class Disturbed(Ramp):
    """The device is slow from one sentinel to another, as told by how many of them it has heard."""

    def __init__(self, driver: HostDriver, first: int, last: int) -> None:
        super().__init__()
        self.driver, self.first, self.last = driver, first, last

    def factor(self, begin_us: float) -> float:
        heard = sum(call.about == "sentinel" for call in self.driver.calls)
        return 1.5 if self.first <= heard < self.last else 1.0


@pytest.mark.parametrize("engine", UNDIVIDED)
def test_disturbed_rounds_are_left_out_and_taken_again(engine: Engine) -> None:
    driver = HostDriver()
    driver._ramp = Disturbed(driver, 6, 9)
    plans = [stage([0], engine=engine), stage([0, 2], engine=engine)]
    found, _, told = measured(plans, Timing(rounds=8, warm_up=1), driver, engine)
    for samples, expected in zip(found, (1, 2), strict=True):
        assert samples.times_us == pytest.approx([expected * CONVOLUTION_US] * 8)
        # Those between slow sentinels, and those on the way in and out.
        assert 3 <= samples.rejected <= 5
        assert float(samples.conditions["sentinel_most_us"]) == pytest.approx(1.5 * KERNEL_US)
    assert told[-1] == (18, 18)
    assert told == sorted(told)


def test_where_the_device_is_never_the_same_some_round_is_accepted_all_the_same() -> None:
    class Wandering(Ramp):
        def factor(self, begin_us: float) -> float:
            return 1.0 + (begin_us % 977) / 977

    driver = HostDriver(ramp=Wandering())
    (samples,), _, _ = measured([stage([0])], Timing(rounds=4), driver)
    assert 1 <= len(samples.times_us) <= 4
    assert len(samples.times_us) + samples.rejected >= 8


def test_measuring_begins_at_the_working_clock() -> None:
    driver = HostDriver(ramp=Ramp(5.7, 250_000.0, 100_000.0))
    (samples,), _, _ = measured([stage([0])], Timing(rounds=4, warm_up=0), driver)
    assert samples.times_us == pytest.approx([CONVOLUTION_US] * 4)


def test_a_flush_reads_several_times_the_cache_and_leaves_nothing_to_write_back() -> None:
    """What a flush wrote would have to go to memory while the plan is timed."""
    driver = HostDriver()
    measured([stage([0])], Timing(rounds=2, warm_up=0, cold=True), driver)
    assert 4 * driver.facts.l2_bytes in [call.about for call in driver.calls if call.verb == "allocate"]
    memory = np.arange(600, dtype=np.float32)
    before = memory.copy()
    host_kernel(FLUSH, "flush")(3, 256, (np.uint32(600), np.uint64(memory.ctypes.data)))
    np.testing.assert_array_equal(memory, before)


@pytest.mark.parametrize("engine", UNDIVIDED)
def test_a_plan_of_one_engine_runs_under_the_other(engine: Engine) -> None:
    """Also where it waits for an event that was recorded before the last synchronise: the host has waited for it."""
    plan = stage([0], [1], engine=Engine.GRAPH if engine is Engine.PAPER else Engine.PAPER)
    twice = repeat(plan, 2, synchronise=True)
    first = (
        next(command for command in twice.commands if isinstance(command, Record)) if engine is Engine.PAPER else None
    )
    if first is not None:
        late = Wait(first.event, MAIN)
        twice = replace(twice, commands=(*twice.commands[:-1], late, twice.commands[-1]))
    (samples,), _, _ = measured([twice], Timing(rounds=2), engine=engine)
    assert len(samples.times_us) == 2


class NVMLError(Exception):
    """As NVML's."""


class Nvml(SimpleNamespace):
    """Two GPUs; the one that CUDA calls its first is the second here."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self) -> None:
        super().__init__()
        self.buses = ["0000:0a:00.0", HostDriver().facts.pci_bus]

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByPciBusId(self, bus: str) -> int:  # noqa: N802
        if bus not in self.buses:
            raise NVMLError("Not Found")
        return self.buses.index(bus)

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> int:  # noqa: N802
        return [345, 1980][handle] if clock == self.NVML_CLOCK_SM else 2619

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:  # noqa: N802
        return [30, 60][handle]

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        raise NVMLError("Not Supported")

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:  # noqa: N802
        return [1, 0][handle]

    def nvmlDeviceGetUUID(self, handle: int) -> Any:  # noqa: N802
        return [b"GPU-idle", b"GPU-busy"][handle]


def test_the_device_is_found_by_where_it_is_plugged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())  # type: ignore[arg-type]
    read = conditions(HostDriver().facts.pci_bus)
    assert read == {
        "sm_clock_mhz": 1980.0, "memory_clock_mhz": 2619.0, "temperature_c": 60.0, "throttle_reasons": "0x0",
        "gpu": "GPU-busy",
    }  # fmt: skip


def test_a_device_that_nvml_does_not_know_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())  # type: ignore[arg-type]
    assert conditions("0000:ff:00.0") == {}
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    assert conditions("0000:1b:00.0") == {}
