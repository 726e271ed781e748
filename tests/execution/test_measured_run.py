"""Schedules on the backends that are on every machine: NumPy's executor and the simulator."""

from __future__ import annotations

import numpy as np
import pytest
from random_networks import random_network, random_schedule

from iossim.backends.numpy_reference.execute import numpy_outputs
from iossim.base.errors import OptionError
from iossim.execution.backend import BackendError, Samples, Timing
from iossim.execution.backends import backend_from, create_backend, missing_for
from iossim.execution.engine import Engine
from iossim.execution.execution import Execution
from iossim.execution.lower import lower_schedule
from iossim.execution.made_inputs import made_inputs
from iossim.execution.measured_run import largest_error, measure_schedules, output_difference, plan_for, ratio_of
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.search.scheduler import schedule

QUICK = Timing(rounds=3, warm_up=1)


def test_the_numpy_backend_runs_and_times() -> None:
    network = random_network(5, movers=True)
    schedules = [random_schedule(network, seed) for seed in (1, 2)]
    backend = create_backend("numpy_reference")
    assert backend.context.libraries == (("numpy", np.__version__),)
    assert max(output_difference(network, found, backend, numpy_outputs).relative for found in schedules) < 1e-5
    rounds: list[tuple[int, int]] = []
    samples = measure_schedules(network, schedules, backend, QUICK, lambda done, total: rounds.append((done, total)))
    assert [len(found.times_us) for found in samples] == [3, 3]
    assert rounds == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert all(found.median_us > 0 and found.spread_us >= 0 for found in samples)


def test_the_simulator_backend_takes_what_the_events_take() -> None:
    from iossim.backends.simulator.events import run_plan
    from iossim.cost.create import create_cost_model
    from iossim.hardware.load import device

    network, profile = load("squeezenet"), device("v100-sxm2")
    found = schedule(network, create_cost_model("simulator", profile, Precision.FP32, Engine.PAPER), "greedy")
    backend = backend_from("simulator", device="v100-sxm2")
    (samples,) = measure_schedules(network, [found], backend, QUICK)
    execution: Execution = run_plan(plan_for(found, network, backend), network, profile)
    assert samples.times_us == (execution.latency_us,)
    # Concats in place are no work: the published engine's plan, which launches them, takes longer.
    assert execution.latency_us < run_plan(lower_schedule(found, network), network, profile).latency_us
    assert not {span.unit for span in execution.spans} & {"fire2.concat"}
    with pytest.raises(BackendError, match="computes no values; use `backend` numpy_reference"):
        output_difference(network, found, backend, numpy_outputs)


def test_copies_take_time_in_the_simulation() -> None:
    """A concat of an input: what cannot be in place is a copy kernel, on the stream of the unit."""
    from iossim.backends.simulator.events import run_plan
    from iossim.hardware.load import device

    network = random_network(17, movers=True)
    chosen = random_schedule(network, 3)
    plan = lower_schedule(chosen, network, in_place=True)
    copies = [command for command in plan.commands if type(command).__name__ == "Copy"]
    assert copies
    spans = run_plan(plan, network, device("v100-sxm2")).spans
    assert sum(span.name == "copy" for span in spans) >= len(copies)


def test_inputs_are_seeded_by_name() -> None:
    network = random_network(5)
    plan = plan_for(random_schedule(network, 1), network, create_backend("numpy_reference"))
    first, again, other = (made_inputs(plan, network, seed)["x"] for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_errors_of_outputs() -> None:
    expected = {"y": np.array([1.0, -4.0], np.float32)}
    assert largest_error({"y": np.array([1.0, -4.0])}, expected) == 0.0
    assert largest_error({"y": np.array([1.2, -4.0])}, expected) == pytest.approx(0.05)
    assert largest_error({"y": np.array([np.nan, -4.0])}, expected) == np.inf
    assert largest_error({"y": np.array([np.inf])}, {"y": np.array([np.inf])}) == 0.0


def test_ratios() -> None:
    fast, slow = Samples((10.0, 11.0, 9.0)), Samples((20.0, 20.0, 20.0))
    ratio = ratio_of(slow, fast)
    assert ratio.value == 2.0
    assert 20 / 11 <= ratio.low <= 2.0 <= ratio.high <= 20 / 9
    assert ratio_of(slow, fast) == ratio


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("numpy", r"`backend` 'numpy' is not known; did you mean 'numpy_reference'\?"),
        ("numpy_reference:threads=2", "backend numpy_reference has no option 'threads'"),
        ("simulator", "backend simulator needs a device; give `device` NAME"),
        ("simulator:devise=v100", r"backend simulator has no option 'devise'; did you mean 'device'\?"),
        ("simulator:device", r"`backend` 'simulator:device': 'device' is not a setting; write simulator:option=value"),
    ],
)
def test_backends_that_are_misspelt(spec: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        backend_from(spec)


def test_nothing_is_missing_for_what_needs_nothing() -> None:
    assert (missing_for("numpy_reference"), missing_for("simulator")) == ("", "")
