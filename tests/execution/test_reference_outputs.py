"""Reference outputs, what outputs may differ by, and schedules on the backends that are on every machine."""

from collections.abc import Mapping
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from graph_builders import builder_with
from precisions import stored_in
from quantised_networks import QUANTISED
from random_networks import random_inputs, random_network, random_schedule
from small_networks import of_op

from benchmarks.gpu_report_references import kept_outputs
from iossim.backends.numpy_reference.backend import numpy_outputs
from iossim.backends.simulator.events import run_plan
from iossim.base.errors import OptionError
from iossim.cost.create import create_cost_model
from iossim.execution.backend import BackendError, Samples, Timing, backend_from, create_backend, missing_for
from iossim.execution.engine import Engine
from iossim.execution.execution import Execution
from iossim.execution.lower import lower_schedule
from iossim.execution.made_inputs import made_inputs
from iossim.execution.measured_run import (
    LEAST,
    Difference,
    largest_difference,
    output_difference,
    plan_for,
    ratio_of,
    tolerance,
)
from iossim.execution.plan import Copy
from iossim.hardware.load import device
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Add
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.search.scheduler import schedule


def counted() -> Mock:
    """NumPy's outputs, which count how often they were asked for."""
    return Mock(side_effect=numpy_outputs)


def test_equal_work_is_computed_once_for_all_processes(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "references"
    first, second = counted(), counted()
    found = kept_outputs(first, folder)(random_network(3), random_inputs(random_network(3)))
    again = kept_outputs(second, folder)(random_network(3), random_inputs(random_network(3)))
    assert (first.call_count, second.call_count) == (1, 0)
    assert found.keys() == again.keys() != set()
    for name, array in found.items():
        np.testing.assert_array_equal(again[name], array)


def test_other_inputs_networks_and_weights_are_other_work(tmp_path: Path) -> None:
    def named(name: str) -> Network:
        builder, x = builder_with("one", x=(1, 3, 8, 8))
        return builder.network([builder.conv(x, 4, kernel=3, padding=1, name=name)])

    asked = counted()
    outputs = kept_outputs(asked, tmp_path)
    for network, seed in ((named("a"), 0), (named("a"), 1), (named("b"), 0), (random_network(3), 0)):
        outputs(network, random_inputs(network, seed))
    outputs(named("b"), random_inputs(named("b"), 0))
    assert asked.call_count == 4


def test_what_cannot_be_read_is_computed_anew(tmp_path: Path) -> None:
    asked, network = counted(), random_network(3)
    outputs = kept_outputs(asked, tmp_path)
    found = outputs(network, random_inputs(network))
    (path,) = tmp_path.iterdir()
    for broken in (b"", b"no archive", path.read_bytes()[:100]):
        path.write_bytes(broken)
        again = outputs(network, random_inputs(network))
        np.testing.assert_array_equal(again[network.graph.outputs[0]], found[network.graph.outputs[0]])
    assert asked.call_count == 4


def test_schedules_are_held_to_the_reference_that_is_given(tmp_path: Path) -> None:
    network = random_network(5)
    backend = create_backend("numpy_reference")
    asked = counted()
    reference = kept_outputs(asked, tmp_path)
    made = [output_difference(network, random_schedule(network, seed), backend, reference) for seed in range(3)]
    assert max(each.relative for each in made) < 1e-5
    assert asked.call_count == 1

    def off(network: Network, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return {name: array * 1.5 for name, array in reference(network, inputs).items()}

    found = output_difference(network, random_schedule(network, 0), backend, off)
    assert found.relative == pytest.approx(1 / 3, rel=1e-3)


def test_outputs_that_are_known_are_not_compared() -> None:
    """The cache of a first step, for one: no plan makes it."""
    b, x = builder_with("known", x=(2, 3))
    with b.block("only"), b.unit("sum", "Add"):
        y = b.add(Add(), x, x)
    network = b.network([y, b.constant("none", (1, 3))])
    found = random_schedule(network, 0)
    assert output_difference(network, found, create_backend("numpy_reference"), numpy_outputs).relative == 0


def chain(length: int, depth: int) -> Network:
    b, value = builder_with("chain", x=(2, depth))
    for index in range(length):
        value = b.add(MatMul(), value, b.constant(f"w{index}", (depth, depth)))
    return b.network([value])


def test_tolerance_grows_with_rounding_and_depth() -> None:
    product = of_op(MatMul(), (2, 64), weights=((64, 8),))
    assert tolerance(product) == LEAST
    half, brain = (tolerance(stored_in(product, each)) for each in (Precision.FP16, Precision.BF16))
    assert half == pytest.approx(4 * (2**-11 + 8 * 2**-24))
    assert brain == pytest.approx(4 * (2**-8 + 8 * 2**-24))
    assert tolerance(product, Precision.TF32) == half
    short = tolerance(stored_in(product, Precision.FP16), sums=Precision.FP16)
    assert short == pytest.approx(4 * (2**-11 + 8 * 2**-11))
    assert tolerance(stored_in(chain(9, 64), Precision.BF16)) == pytest.approx(3 * brain)


def test_whole_numbers_are_rounded_as_8_bits_are() -> None:
    assert tolerance(QUANTISED["convolution"]()) == pytest.approx(4 * 3**0.5 * (2**-8 + 54**0.5 * 2**-24))


@pytest.mark.parametrize(
    ("got", "wanted", "expected", "words"),
    [
        (
            {"a": [[1.5, -4.0]], "b": [0.25, 1.0]},
            {"a": [[1.0, -4.0]], "b": [0.5, 1.0]},
            Difference("b", (0,), 0.25, 0.5, 0.25),
            "b[0] is 0.25 instead of 0.5, off by 0.25 of the largest value",
        ),
        ({"a": [1.0, -4.0, np.inf]}, {"a": [1.0, -4.0, np.inf]}, Difference(), "equal"),
    ],
)
def test_the_largest_difference_says_where_and_how_much(
    got: dict[str, list[float]], wanted: dict[str, list[float]], expected: Difference, words: str
) -> None:
    found, outputs = ({name: np.array(own, np.float32) for name, own in each.items()} for each in (got, wanted))
    difference = largest_difference(found, outputs)
    assert (difference, str(difference)) == (expected, words)
    assert largest_difference(found, outputs).relative == expected.relative


def test_what_is_not_finite_differs_most() -> None:
    wanted = {"a": np.array([1.0, 2.0, np.inf], np.float32)}
    found = largest_difference({"a": np.array([9.0, np.nan, np.inf], np.float32)}, wanted)
    assert (found.index, found.relative) == ((1,), np.inf)
    assert str(found) == "a[1] is nan instead of 2"


QUICK = Timing(rounds=3, warm_up=1)


def test_the_numpy_backend_runs_and_times() -> None:
    network = random_network(5, movers=True)
    schedules = [random_schedule(network, seed) for seed in (1, 2)]
    backend = create_backend("numpy_reference")
    assert backend.context.libraries == (("numpy", np.__version__),)
    assert max(output_difference(network, found, backend, numpy_outputs).relative for found in schedules) < 1e-5
    rounds: list[tuple[int, int]] = []
    plans = [plan_for(found, network, backend) for found in schedules]
    samples = backend.measure(network, plans, QUICK, lambda done, total: rounds.append((done, total)))
    assert [len(found.times_us) for found in samples] == [3, 3]
    assert rounds == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert all(found.median_us > 0 and found.spread_us >= 0 for found in samples)


def test_the_simulator_backend_takes_what_the_events_take() -> None:
    network, profile = load("squeezenet"), device("v100-sxm2")
    found = schedule(network, create_cost_model("simulator", profile, Precision.FP32, Engine.PAPER), "greedy")
    backend = backend_from("simulator", device="v100-sxm2")
    (samples,) = backend.measure(network, [plan_for(found, network, backend)], QUICK)
    execution: Execution = run_plan(plan_for(found, network, backend), network, profile)
    assert samples.times_us == (execution.latency_us,)
    # Concats in place are no work: the published engine's plan, which launches them, takes longer.
    assert execution.latency_us < run_plan(lower_schedule(found, network), network, profile).latency_us
    assert not {span.unit for span in execution.spans} & {"fire2.concat"}
    with pytest.raises(BackendError, match="computes no values; use `backend` numpy_reference"):
        output_difference(network, found, backend, numpy_outputs)


def test_copies_take_time_in_the_simulation() -> None:
    """A concat of an input: what cannot be in place is a copy kernel, on the stream of the unit."""
    network = random_network(17, movers=True)
    plan = lower_schedule(random_schedule(network, 3), network, in_place=True)
    copies = [command for command in plan.commands if isinstance(command, Copy)]
    assert copies
    spans = run_plan(plan, network, device("v100-sxm2")).spans
    assert sum(span.name == "copy" for span in spans) >= len(copies)


def test_inputs_are_seeded_by_name() -> None:
    network = random_network(5)
    plan = plan_for(random_schedule(network, 1), network, create_backend("numpy_reference"))
    first, again, other = (made_inputs(plan, network, seed)["x"] for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


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
