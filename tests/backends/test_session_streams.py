"""Streams of ONNX Runtime against sums by hand: notifications, the caller's core, and what stands between stages."""

from __future__ import annotations

import re

import pytest
from command_line import printed
from cpus import cpu

import iossim
from iossim.backends.simulator.events import run_schedule
from iossim.backends.simulator.events.program import AwaitDevice, IssueWait, KernelLibrary, instructions
from iossim.base.errors import OptionError
from iossim.cost.create import create_cost_model
from iossim.execution.backends import create_backend
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule
from iossim.execution.plan import Record, Synchronize, Wait
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.slice import Concat
from iossim.schedule.schedule import Schedule

NOTIFICATION_US, STARVED_US = 5.0, 5000.0
SESSION = Engine.ONNXRUNTIME


def device(cores: int) -> DeviceProfile:
    """Kernels side by side do not hinder each other."""
    costs = {"notification_us": NOTIFICATION_US, "starved_notification_us": STARVED_US, "interference": 0.0}
    return with_values(cpu(sm_count=cores, dram_bandwidth_gbps=1000.0), costs)


@pytest.fixture(scope="module")
def diamond() -> Network:
    """a, then b (1x1) and c (3x3) of a, then their concat d."""
    b = GraphBuilder("diamond")
    x = b.input("x", (1, 16, 32, 32))
    with b.block("only"):
        a = b.conv(x, 16, name="a")
        left = b.conv(a, 16, name="b")
        right = b.conv(a, 32, kernel=3, padding=1, name="c")
        b.add(Concat(), left, right, name="d")
    return b.network(["d"])


def schedules(network: Network) -> tuple[Schedule, dict[str, float]]:
    """Greedy's, with b beside c, and what each unit takes alone."""
    found = iossim.optimize(network, device(4), scheduler="greedy", engine=SESSION)
    assert [len(stage.groups) for stage in found.stages] == [1, 2, 1]
    one = iossim.optimize(network, device(4), scheduler="sequential", engine=SESSION)
    return found, {stage.units[0]: stage.latency_us for stage in one.stages}


@pytest.mark.parametrize(("cores", "wait_us"), [(4, NOTIFICATION_US), (3, NOTIFICATION_US), (2, STARVED_US)])
def test_two_branches_against_a_sum_by_hand(diamond: Network, cores: int, wait_us: float) -> None:
    """c, the longer branch, stays on the stream of a; b is notified of a, and d of b."""
    found, alone_us = schedules(diamond)
    whole_us = run_schedule(diamond, found, device(cores), SESSION).latency_us
    branches_us = max(alone_us["c"], wait_us + alone_us["b"]) if cores > 2 else wait_us + alone_us["b"]
    # d waits for b alone: the notification is seen behind the later of b's end and c's.
    assert whole_us == pytest.approx(alone_us["a"] + branches_us + wait_us + alone_us["d"], rel=1e-6)


def test_a_sum_of_stages_has_a_notification_on_each_side_of_several_groups(diamond: Network) -> None:
    found, alone_us = schedules(diamond)
    stages_us = alone_us["a"] + max(alone_us["b"], alone_us["c"]) + alone_us["d"]
    assert found.latency_us == pytest.approx(stages_us + 2 * NOTIFICATION_US)
    on_two = create_cost_model("simulator", device(2), diamond.precision, SESSION)
    assert [on_two.price_boundary(*sides) for sides in ((False, False), (True, False), (False, True), (True, True))] == [
        0.0, STARVED_US, STARVED_US, STARVED_US,
    ]  # fmt: skip


def test_stages_become_streams_without_barriers(diamond: Network) -> None:
    found, _ = schedules(diamond)
    plan = lower_schedule(found, diamond, SESSION)
    assert sum(isinstance(command, Wait) for command in plan.commands) == 2
    assert sum(isinstance(command, Record) for command in plan.commands) == 2
    assert [type(command) for command in plan.commands].index(Synchronize) == len(plan.commands) - 1
    issued = instructions(plan, diamond, [KernelLibrary(device(4), SESSION)])
    assert [one.stream_us for one in issued if isinstance(one, IssueWait)] == [NOTIFICATION_US] * 2
    assert sum(isinstance(one, AwaitDevice) for one in issued) == 1


def test_plan_prices_agree_with_the_events(diamond: Network) -> None:
    found, _ = schedules(diamond)
    for cores in (2, 3, 4):
        prices = create_cost_model("simulator", device(cores), diamond.precision, SESSION)
        plan = lower_schedule(found, diamond, SESSION)
        assert prices.plan_us(diamond, plan) == pytest.approx(  # type: ignore[attr-defined]
            run_schedule(diamond, found, device(cores), SESSION).latency_us, rel=1e-6
        )


def test_on_two_cores_no_schedule_beats_one_thread(diamond: Network) -> None:
    best = iossim.optimize(diamond, device(2), scheduler="ios-both", engine=SESSION)
    assert all(len(stage.groups) == 1 for stage in best.stages)
    # With a core for each branch, and one for the caller, b hides behind c.
    quick = with_values(device(3), {"notification_us": 0.1})
    assert max(len(stage.groups) for stage in iossim.optimize(diamond, quick, engine=SESSION).stages) == 2


@pytest.mark.parametrize(("profile", "copies"), [(device(4), 3), (iossim.device("v100-sxm2"), 1)], ids=["cpu", "gpu"])
def test_the_parts_of_a_merged_convolution_are_copied_out_of_it(profile: DeviceProfile, copies: int) -> None:
    """A session has no views; on a CPU it blocks channels, and splits only tensors whose channels are not."""
    b = GraphBuilder("pair")
    x = b.input("x", (1, 16, 32, 32))
    with b.block("only"):
        outputs = [b.conv(x, 32, name=name) for name in ("one", "other")]
    pair = b.network(outputs)
    found = iossim.optimize(pair, profile, scheduler="ios-merge", engine=Engine.PAPER)
    assert [stage.strategy for stage in found.stages] == ["merge"]
    libraries = {engine: KernelLibrary(profile, engine) for engine in (SESSION, Engine.PAPER)}
    merged = {engine: library.merged(pair, [0, 1]) for engine, library in libraries.items()}
    assert len(merged[SESSION]) - len(merged[Engine.PAPER]) == copies
    prices = create_cost_model("simulator", profile, pair.precision, SESSION)
    plan = lower_schedule(found, pair, SESSION)
    assert prices.plan_us(pair, plan) == pytest.approx(  # type: ignore[attr-defined]
        run_schedule(pair, found, profile, SESSION).latency_us, rel=1e-6
    )


def test_backends_run_no_session() -> None:
    with pytest.raises(OptionError, match="cannot run `engine` onnxruntime, which is simulated only"):
        create_backend("torch_cuda", engine=SESSION)


def test_commands_name_the_engine_and_say_what_is_not_known_of_gpus(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("examples/cpu.yaml", "t4"):
        for command in ("compare", "optimize", "predict"):
            text = printed(f"{command} ios_sample -d {name} --engine onnxruntime")
            assert "onnxruntime engine" in " ".join(text.split())
    notes = [record.getMessage() for record in caplog.records if "onnxruntime" in record.getMessage()]
    assert notes
    assert all(re.search("onnxruntime on t4 is priced from launches", note) for note in notes)
