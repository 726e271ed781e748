"""Which rounds are kept, on machines of which the noise is known; and that only running is timed."""

import gc
import threading
from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

from graph_builders import builder_with
from random_networks import random_network, random_schedule, sequential_schedule

from iossim.backends.onnxruntime_cpu import backend as cpu
from iossim.backends.onnxruntime_cpu import measuring
from iossim.backends.onnxruntime_cpu.measuring import LoadReading, time_programs
from iossim.backends.onnxruntime_cpu.program import ALGORITHMS, Segment, SessionProgram, Step
from iossim.base.errors import OptionError
from iossim.base.threads import usable_cores
from iossim.execution.backend import BackendError, Samples, Timing, backend_names, create_backend, missing_for
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule
from iossim.execution.measured_run import plan_for
from iossim.execution.plan import repeat
from iossim.hardware import host_measuring
from iossim.ir.builder import GraphBuilder
from iossim.ir.graph import Graph, Node
from iossim.ir.network import Block, Network, make_unit
from iossim.ir.op import Array
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.nary import Add
from iossim.ir.ops.normalization import LocalResponseNorm
from iossim.ir.types import DType, Precision, TensorType
from iossim.schedule.batch import Strategy

CORES = usable_cores()


def program(step: Step, inputs: dict[str, Array] | None = None, streams: int = 1) -> SessionProgram:
    others = tuple((lane, (step,)) for lane in range(1, streams))
    return SessionProgram((Segment((step,), others),), streams, inputs or {}, {}, (), {}, 0)


class Machine:
    """A machine of which a script says how often threads lose their core, and how busy others are, run by run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs: list[int] = []
        self.told: list[tuple[int, int]] = []
        self.switches: Callable[[int], int] = lambda run: 0
        self.load: Callable[[int], float] = lambda run: 0.0
        self._lost = 0
        self._others_s = 0.0
        self._reading = 0
        monkeypatch.setattr(measuring, "involuntary_switches", lambda: self._lost)
        monkeypatch.setattr(measuring.LoadReading, "take", self._take)
        monkeypatch.setattr(measuring, "_ROUNDING_S", 0.0)
        monkeypatch.setattr(measuring, "WINDOW_S", -1.0)  # the load is read after every run

    def step(self, number: int) -> Step:
        """What a program of that number does."""

        def run() -> None:
            self._lost += self.switches(len(self.runs))
            self._others_s += self.load(len(self.runs))
            self.runs.append(number)

        return run

    def _take(self, cores: tuple[int, ...]) -> LoadReading:
        self._reading += 1  # a second goes by from each reading to the next
        return LoadReading(float(self._reading), self._others_s + 0.5 * self._reading, 0.5 * self._reading)

    def time(self, plans: int, timing: Timing, threads: int = 1, streams: int = 1) -> list[Samples]:
        programs = [program(self.step(number), streams=streams) for number in range(plans)]
        return time_programs(programs, [{}] * plans, timing, CORES, threads, lambda *told: self.told.append(told))


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_on_a_quiet_machine_each_plan_runs_once_a_round(quiet: Machine) -> None:
    taken = quiet.time(4, Timing(rounds=6, warm_up=2))
    assert [len(samples.times_us) for samples in taken] == [6] * 4
    assert [samples.rejected for samples in taken] == [0] * 4
    rounds = np.array(quiet.runs).reshape(8, 4)
    assert (np.sort(rounds, axis=1) == np.arange(4)).all()
    assert len({tuple(order) for order in rounds.tolist()}) > 2
    for samples in taken:
        assert samples.conditions["rejected_share"] == samples.conditions["disturbed_but_kept"] == 0
        assert samples.conditions["involuntary_switches"] == samples.conditions["other_load_cores"] == 0
        assert samples.conditions["load_average"] >= 0


def test_the_order_is_drawn_from_the_seed(quiet: Machine) -> None:
    orders = []
    for seed in (1, 1, 2):
        quiet.runs.clear()
        quiet.time(5, Timing(rounds=5, seed=seed))
        orders.append(list(quiet.runs))
    assert orders[0] == orders[1] != orders[2]


def test_rounds_that_lost_a_core_are_run_again(quiet: Machine) -> None:
    quiet.switches = lambda run: 2 if run % 3 == 0 else 0
    (samples,) = quiet.time(1, Timing(rounds=10, warm_up=0))
    assert len(quiet.runs) == 15
    assert len(samples.times_us) == 10
    assert samples.rejected == 5
    assert samples.conditions["rejected_share"] == 5 / 15
    assert samples.conditions["disturbed_but_kept"] == 0
    assert samples.conditions["involuntary_switches"] == 10


def test_rounds_beside_other_load_are_run_again(quiet: Machine) -> None:
    quiet.load = lambda run: 1.0 if run < 4 else 0.05
    (samples,) = quiet.time(1, Timing(rounds=5, warm_up=0))
    assert len(quiet.runs) == 9
    assert (len(samples.times_us), samples.rejected) == (5, 4)
    assert samples.conditions["other_load_cores"] == pytest.approx((4 * 1.0 + 5 * 0.05) / 9)


def test_only_the_plans_that_lack_samples_run_again(quiet: Machine) -> None:
    quiet.switches = lambda run: int(bool(quiet.runs) and run % 2 == 0)
    taken = quiet.time(2, Timing(rounds=4, warm_up=0))
    for number, samples in enumerate(taken):
        assert len(samples.times_us) == 4
        assert quiet.runs.count(number) == 4 + samples.rejected


def test_a_machine_that_is_never_quiet(quiet: Machine) -> None:
    """Three times the rounds, then the least disturbed are kept, and it is told."""
    quiet.switches = lambda run: 1 + run % 3
    (samples,) = quiet.time(1, Timing(rounds=5, warm_up=0))
    assert len(quiet.runs) == 15
    assert [done for done, _ in quiet.told] == [*(run // 3 for run in range(1, 16)), 5], "its bar moves nevertheless"
    assert (len(samples.times_us), samples.rejected) == (5, 10)
    assert samples.conditions["disturbed_but_kept"] == 5
    assert samples.conditions["rejected_share"] == 10 / 15
    assert samples.conditions["involuntary_switches"] == 30


@pytest.mark.parametrize(("threads", "streams"), [(2, 1), (1, len(CORES) + 1)])
def test_threads_that_take_cores_from_one_another_are_not_disturbed(quiet: Machine, threads: int, streams: int) -> None:
    quiet.switches = lambda run: 1
    (samples,) = quiet.time(1, Timing(rounds=5, warm_up=0), threads, streams)
    assert (len(samples.times_us), samples.rejected) == (5, 0)


def test_inputs_are_filled_before_each_run(quiet: Machine) -> None:
    arena = np.zeros(4, np.float32)
    seen: list[list[float]] = []

    def run() -> None:
        seen.append(arena.tolist())
        arena.fill(np.nan)

    programs = [program(run, {"x": arena}), program(run, {"x": arena[:2]})]
    ones = np.ones(4, np.float32)
    time_programs(programs, [{"x": ones}, {"x": 2 * ones[:2]}], Timing(3, 1), CORES, 1, lambda done, total: None)
    assert len(seen) == 8
    assert sorted(values[:2] for values in seen) == [[1, 1]] * 4 + [[2, 2]] * 4


def test_caches_are_flushed_before_each_cold_run(quiet: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "last_level_cache_bytes", lambda: 1 << 20)
    reads: list[int] = []
    original = np.max

    def reading(share: Array) -> object:
        reads.append(share.nbytes)
        return original(share)

    monkeypatch.setattr(measuring.np, "max", reading)
    (samples,) = quiet.time(1, Timing(rounds=3, warm_up=1, cold=True), streams=2)
    assert samples.conditions["flush_bytes"] == 1.25 * (1 << 20)
    assert len(reads) == 4 * 2  # a share each for two streams
    assert sum(reads) == 4 * samples.conditions["flush_bytes"]


def test_the_collector_is_off_while_the_clock_runs_and_on_again_after_an_error(quiet: Machine) -> None:
    states: list[bool] = []
    threads = threading.active_count()

    def run() -> None:
        states.append(gc.isenabled())
        raise OptionError("enough")

    with pytest.raises(OptionError, match="enough"):
        time_programs([program(run)], [{}], Timing(3, 0), CORES, 1, lambda done, total: None)
    assert states == [False]
    assert gc.isenabled()
    assert threading.active_count() <= threads


def test_nothing_is_made_while_the_clock_runs() -> None:
    network = random_network(2)
    plan = repeat(lower_schedule(random_schedule(network, 1), network, in_place=True), 5, synchronise=True)
    by = backend()
    made: list[int] = []
    (samples,) = by.measure(network, [plan], Timing(rounds=4), lambda done, total: made.append(by.sessions.made))
    assert len(samples.times_us) == 4
    assert min(samples.times_us) > 0
    assert made[0] == by.sessions.made
    assert by.sessions.made == len({launch.units for launch in plan.launches})


def backend(engine: str = "paper") -> cpu.OnnxRuntimeCpu:
    return cpu.OnnxRuntimeCpu(Engine(engine), 1)


def two_kinds() -> Network:
    b, x = builder_with("kinds", x=(1, 16, 12, 12))
    y = b.conv(x, 16, kernel=3, padding=1, name="conv")
    return b.network([b.add(Add(), x, y, name="add")])


def test_algorithms_are_chosen_by_measurement_once(monkeypatch: pytest.MonkeyPatch) -> None:
    network = two_kinds()
    by = backend()
    measured: list[list[str]] = []
    times = dict(zip(ALGORITHMS, (1.0, 0.5), strict=True))

    def measure(of: object, plans: list[object], timing: Timing) -> list[Samples]:
        names = [plan.launches[0].algorithm for plan in plans]  # type: ignore[attr-defined]
        measured.append(names)
        return [Samples((times[name],)) for name in names]

    monkeypatch.setattr(by, "measure", measure)
    choose = by.choices(network)
    assert choose(("conv",), Strategy.CONCURRENT).algorithm == "nchw"
    assert choose(("conv",), Strategy.CONCURRENT).algorithm == "nchw"
    assert choose(("add",), Strategy.CONCURRENT).algorithm == ""
    assert measured == [list(ALGORITHMS)]
    b = GraphBuilder("volume")  # ONNX Runtime blocks the channels of images only
    x, weight = b.input("x", (1, 16, 4, 6, 6)), b.constant("w", (16, 16, 3, 3, 3))
    volume = b.network([b.add(Conv((1, 1, 1), (0,) * 6, (1, 1, 1)), x, weight, name="conv")])
    assert (backend_choice(measure, volume), len(measured)) == ("", 1)
    times["nchw"] = 0.99  # within the noise
    assert backend_choice(measure, network) == "nchwc"


def backend_choice(measure: Callable[..., list[Samples]], network: Network) -> str:
    by = backend()
    by.measure = measure  # type: ignore[method-assign,assignment]
    return by.choices(network)(("conv",), Strategy.CONCURRENT).algorithm


def test_measured_choices_can_be_run() -> None:
    network = two_kinds()
    by = backend()
    plan = lower_schedule(sequential_schedule(network), network, choices=by.choices(network))
    assert {launch.algorithm for launch in plan.launches} <= {"", *ALGORITHMS}
    assert plan.launches[0].algorithm in ALGORITHMS
    told: list[tuple[int, int]] = []
    plan_for(sequential_schedule(network), network, by, progress=lambda *each: told.append(each))
    assert told == [(1, 2), (2, 2)]
    (samples,) = by.measure(network, [plan], Timing(2, 1))
    assert len(samples.times_us) == 2


def test_what_a_time_depends_on_is_told() -> None:
    context = create_backend("onnxruntime_cpu", options={"threads": "2"}).context
    assert context == create_backend("onnxruntime_cpu", options={"threads": "2"}).context
    assert context != create_backend("onnxruntime_cpu").context
    assert (context.backend, context.device, context.precision, context.engine) == (
        "onnxruntime_cpu",
        "cpu",
        "fp32",
        "paper",
    )
    assert [name for name, _ in context.libraries] == ["numpy", "onnxruntime"]
    options = dict(context.options)
    assert options["threads"] == "2"
    assert options["cores"] == str(len(CORES))
    assert options["processor"]
    assert list(context.options) == sorted(context.options)


def test_what_onnx_runtime_does_not_compute() -> None:
    double = TensorType((1, 4, 3, 3), DType.FLOAT64)
    graph = Graph.create({"x": double}, ["y"], [Node("norm", LocalResponseNorm(3), ("x",), ("y",))], {})
    network = Network("double", graph, (make_unit(graph, "norm", "Norm", [0]),), (Block("all", (0,)),))
    plan = lower_schedule(sequential_schedule(network), network)
    with pytest.raises(BackendError, match=r"^ONNX Runtime cannot run norm: .*LRN.*$"):
        backend().measure(network, [plan], Timing(1))


@pytest.mark.parametrize("value", ["0", "-1", "two", "", "1.5"])
def test_threads_that_are_none(value: str) -> None:
    with pytest.raises(OptionError, match=r"option threads=.* is not possible: give a whole number, 1 or more"):
        create_backend("onnxruntime_cpu", options={"threads": value})


def test_unknown_options_and_precisions() -> None:
    with pytest.raises(OptionError, match=r"has no option 'thread'; did you mean 'threads'\? known: threads"):
        create_backend("onnxruntime_cpu", options={"thread": "2"})
    with pytest.raises(BackendError, match="computes in fp32 only, not fp16"):
        create_backend("onnxruntime_cpu", Precision.FP16)


def test_without_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "onnxruntime_cpu" in backend_names()
    assert missing_for("onnxruntime_cpu") == ""
    monkeypatch.setattr(cpu, "find_spec", lambda name: None)
    assert missing_for("onnxruntime_cpu").endswith("run: pip install 'iossim[cpu]'")
    with pytest.raises(BackendError, match="needs ONNX Runtime"):
        create_backend("onnxruntime_cpu")


def test_the_load_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second each: two hundredths of those that are busy may be rounding."""
    monkeypatch.setattr(measuring, "_ROUNDING_S", 0.02)
    before = LoadReading(10.0, 5.0, 1.0)
    assert LoadReading(12.0, 8.0, 3.0).other_load_since(before) == pytest.approx(0.5 - 0.01)
    assert LoadReading(12.0, 6.0, 3.0).other_load_since(before) == 0.0  # ours is counted more finely than all
    assert LoadReading(12.0, None, 3.0).other_load_since(before) == 0.0


def test_what_linux_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """User, system, interrupts and steal are busy time, of the cores that may be used; idle and waiting for disks are not."""
    files = {
        "/proc/stat": [
            "cpu 9 9 9 9 9 9 9 9 0 0",
            "cpu0 100 1 20 500 70 3 4 2 0 0",
            "cpu1 10 0 0 0 0 0 0 0 0 0",
            "intr 5",
        ],
        "/proc/cpuinfo": ["model name : Fast One", "cpu family : 6", "model : 7", "cpu MHz : 2100.5", "model name : b"],
        "/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": ["powersave"],
        "/sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": ["3200000"],
    }
    for module in (measuring, host_measuring):
        monkeypatch.setattr(module, "system_text", lambda path: "\n".join(files.get(str(path), [])))
    monkeypatch.setattr(measuring, "_TICKS_PER_S", 100)
    assert LoadReading.take((0,)).busy_s == pytest.approx(1.30)
    assert LoadReading.take((0, 1)).busy_s == pytest.approx(1.40)
    assert LoadReading.take((5,)).busy_s is None
    assert measuring.cpu_model() == "Fast One (family 6 model 7)"
    assert (measuring.governor(1), measuring.governor(0)) == ("powersave", "")
    assert (measuring.frequency_mhz(1), measuring.frequency_mhz(0)) == (3200.0, 2100.5)


def test_the_own_time_of_this_process_runs() -> None:
    before = LoadReading.take(CORES)
    sum(range(200_000))
    after = LoadReading.take(CORES)
    assert after.at_s > before.at_s
    assert after.own_s > before.own_s
