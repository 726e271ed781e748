"""Which plan of cuDNN a convolution runs by, and how plans are timed: at the working clock, side by side, the first few of the ranking; and kept."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from graph_builders import builder_with
from host_backend import HostBackend, always
from host_device import KERNEL_US, HostDriver, Ramp
from random_networks import random_inputs
from small_networks import UNITS, of_op

from iossim.backends.cupy_cudnn.algorithms import FORMAT, KeptChoices
from iossim.backends.cupy_cudnn.convolution import Convolution
from iossim.backends.cupy_cudnn.cudnn_graphs import EnginePlan, engines_first
from iossim.backends.cupy_cudnn.options import CudnnOptions, parsed_options, usual_choices
from iossim.base.errors import OptionError
from iossim.execution.backend import BackendError, Choice, DeviceLostError, Timing
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_stage
from iossim.ir.network import Network
from iossim.ir.ops.conv import Conv
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.schedule.batch import Strategy, UnitVariant

PlansOf = Callable[[Convolution], Mapping[EnginePlan, float]]


def only_choice(network: Network, plans_of: PlansOf, **options: int) -> Choice:
    (unit,) = network.units
    return HostBackend(plans_of=plans_of, **options).choices(network)((unit.name,), Strategy.CONCURRENT)


def plans(fused: float, apart: float) -> PlansOf:
    """A plan of each kind; the plain convolution is the one that is run apart from its epilogue."""

    def plans_of(convolution: Convolution) -> dict[EnginePlan, float]:
        if convolution.bias or convolution.activation:
            return {EnginePlan("eng1", 512): fused, EnginePlan("slow", 0): fused + 1}
        return {EnginePlan("eng2", 256): apart, EnginePlan("slow", 0): apart + 1}

    return plans_of


@pytest.mark.parametrize(
    ("unit", "fused", "apart", "options", "expected"),
    [
        # The kernel that follows a plain convolution counts.
        ("conv and relu without bias", 10.0, 10.0 - KERNEL_US - 0.5, {}, Choice("apart:eng2", 256)),
        ("conv and relu without bias", 10.0, 10.0 - KERNEL_US + 0.5, {}, Choice("fused:eng1", 512)),
        ("conv and relu without bias", 5.0, 50.0, {"workspace_limit_bytes": 511}, Choice("fused:slow")),
        # cuDNN does not know the activation.
        ("conv and clip without bias", 1.0, 50.0, {}, Choice("apart:eng2", 256)),
        # Scratch holds the sum, what the depthwise convolution makes, and the workspace.
        ("separable conv of a sum", 5.0, 50.0, {}, Choice("own1x1 fused:eng1", 2 * 3072 + 512)),
    ],
)
def test_the_fastest_plan_within_the_limit_is_taken(
    unit: str, fused: float, apart: float, options: dict[str, int], expected: Choice
) -> None:
    assert only_choice(UNITS[unit](), plans(fused, apart), **options) == expected


@pytest.mark.parametrize(
    ("offered", "why"),
    [
        ({}, ""),
        ({EnginePlan("refused", 0): 1.0}, r".*CUDNN_STATUS_NOT_SUPPORTED: refused.*"),
        ({EnginePlan("eng0", 2**40): 1.0}, ""),
    ],
)
def test_a_convolution_that_nothing_runs_is_refused_in_one_line(offered: dict[EnginePlan, float], why: str) -> None:
    with pytest.raises(BackendError, match=rf"no way to run .*1x4x5x5 by 3x4x1x1 .*{why}; raise workspace_limit"):
        only_choice(one_convolution(), lambda _: offered)


def test_launches_run_by_the_algorithms_that_the_plan_names() -> None:
    network = UNITS["conv and relu without bias"]()
    for algorithm, heard in (
        ("apart:slow", ["slow"]),
        ("fused:slow", ["slow"]),
        ("fused:unheard of", ["eng1"]),
        ("", ["eng1"]),
    ):
        backend = HostBackend(engine=Engine.PAPER, plans_of=plans(5.0, 50.0))
        backend.algorithm(network)
        backend.driver.calls.clear()
        backend.agree(network, backend.lowered(network, choices=always(algorithm)))
        assert backend.heard == heard


def test_choices_of_merged_stages_name_the_stacked_convolution() -> None:
    network = load("squeezenet")
    backend = HostBackend(plans_of=plans(5.0, 50.0))
    fire = next(
        (first, second)
        for first in network.units
        for second in network.units
        if first is not second and first.inputs == second.inputs and first.kind == second.kind == "Conv-Relu"
    )
    choice = backend.choices(network)(tuple(unit.name for unit in fire), Strategy.MERGE)
    assert choice.algorithm == "fused:eng1"
    filters = sum(network.graph.types[unit.outputs[0]].shape[1] for unit in fire)
    assert backend.library.asked[0].y.shape[1] == filters


#: As an H200: it idles at 345 MHz, runs at 1980, and takes a while from the one to the other.
IDLING = {"slowdown": 1980 / 345, "ramp_us": 250_000.0, "idle_us": 100_000.0}


def one_convolution() -> Network:
    return of_op(Conv(), (1, 4, 5, 5), weights=((3, 4, 1, 1),))


def two_convolutions() -> Network:
    b, x = builder_with("two", x=(1, 4, 5, 5))
    return b.network([b.conv(x, 4, name="first"), b.conv(x, 5, name="second")])


def choose(backend: HostBackend, network: Network) -> list[str]:
    return [backend.algorithm(network, unit.name) for unit in network.units]


def ranked(*times_us: float) -> PlansOf:
    """Plans ``eng0``, ``eng1``, ... in the order of the ranking."""
    return lambda _: {EnginePlan(f"eng{index}", 0): time_us for index, time_us in enumerate(times_us)}


@pytest.mark.usefixtures("_as_shipped")
def test_what_is_timed_first_is_not_judged_by_a_clock_that_idles() -> None:
    """The first plan is the fastest by a fifth; while the clock comes up it takes several times as long as the last."""
    plans = ranked(40.0, 50.0, 50.0, 50.0)
    driver = HostDriver(ramp=Ramp(**IDLING))
    backend = HostBackend(driver=driver, plans_of=plans)
    assert choose(backend, one_convolution()) == ["fused:eng0"]
    assert backend.planning.warm_up_us >= 300_000


def test_last_resorts_that_take_milliseconds_are_run_but_not_timed() -> None:
    backend = HostBackend(plans_of=ranked(40.0, 60.0, 4_000.0))
    assert choose(backend, one_convolution()) == ["fused:eng0"]
    assert backend.planning.candidates_timed == 2
    assert choose(HostBackend(plans_of=ranked(4_000.0)), one_convolution()) == ["fused:eng0"]


@pytest.mark.usefixtures("_as_shipped")
def test_a_device_that_idled_while_plans_were_ranked_is_warmed_up_again() -> None:
    driver = HostDriver(ramp=Ramp(**IDLING))
    backend = HostBackend(driver=driver, plans_of=ranked(40.0, 50.0))
    backend.library.planning_us = 400_000.0
    choices = backend.choices(network := two_convolutions())
    for unit in network.units:
        before_us = backend.planning.warm_up_us
        assert choices((unit.name,), Strategy.CONCURRENT).algorithm == "fused:eng0"
        assert backend.planning.warm_up_us - before_us > 200_000
    # No pause, no warming up beyond a look at the clock.
    driver = HostDriver(ramp=Ramp(**IDLING))
    backend = HostBackend(driver=driver, plans_of=ranked(40.0, 50.0))
    choose(backend, two_convolutions())
    assert backend.planning.warm_up_us < 700_000


def test_a_clock_that_stays_low_is_taken_as_it_is() -> None:
    driver = HostDriver(ramp=Ramp(slowdown=3.0, ramp_us=1e12))
    backend = HostBackend(driver=driver, plans_of=ranked(50.0, 40.0))
    assert choose(backend, one_convolution()) == ["fused:eng1"]
    assert backend.planning.warm_up_us < 2_500_000


def test_the_first_few_of_the_ranking_are_built_and_timed() -> None:
    plans = ranked(50.0, 40.0, 30.0, 20.0, 10.0)
    for most, algorithm in ((1, "fused:eng0"), (2, "fused:eng1"), (4, "fused:eng3"), (9, "fused:eng4")):
        backend = HostBackend(plans_of=plans, plans=most)
        assert choose(backend, one_convolution()) == [algorithm]
        planning = backend.planning
        assert (planning.convolutions, planning.recalled) == (1, 0)
        assert planning.candidates_timed == planning.plans_built == min(most, 5)
    backend = HostBackend(plans_of=ranked(*range(1, 17)))
    choose(backend, one_convolution())
    assert backend.planning.plans_built == CudnnOptions().plans == 12


def test_different_engines_are_timed_before_knobs_of_one() -> None:
    """Five plans of one engine lead the ranking; the fastest engine comes behind them."""
    names = ["eng11_k2=0", "eng11_k2=1", "eng11_k2=2", "eng11_k2=3", "eng11_k2=4", "eng1", "eng1_k3=1", "eng57_k2=7"]
    assert engines_first(names) == ["eng11_k2=0", "eng1", "eng57_k2=7", "eng11_k2=1", "eng1_k3=1", *names[2:5]]
    plans = {EnginePlan(name, 0): 50.0 for name in names[:-1]} | {EnginePlan(names[-1], 0): 10.0}
    backend = HostBackend(plans_of=lambda _: plans, plans=3)
    assert choose(backend, one_convolution()) == ["fused:eng57_k2=7"]


def test_equal_convolutions_are_planned_once_and_counted_once() -> None:
    backend = HostBackend(plans_of=ranked(2.0, 1.0))
    network = two_convolutions()
    for _ in range(3):
        choose(backend, network)
    stage = lower_stage(network, [[0], [1]], Strategy.CONCURRENT, Engine.GRAPH, choices=backend.choices(network))
    backend.measure(network, [stage], Timing(rounds=2))
    planning = backend.planning
    # Two convolutions with a bias: each fused and apart, two plans of each.
    assert (planning.convolutions, planning.candidates_timed, planning.plans_built) == (2, 8, 8)


@pytest.mark.parametrize("name", ["refused", "uncaptured"])
def test_refusals_are_counted_with_the_first_reason(name: str) -> None:
    plans = {EnginePlan(name, 0): 1.0, EnginePlan("eng0", 0): 9.0}
    backend = HostBackend(plans_of=lambda _: plans)
    assert choose(backend, one_convolution()) == ["fused:eng0"]
    (refusal,) = backend.planning.refusals
    assert backend.planning.candidates_timed == 1
    assert f"CUDNN_STATUS_NOT_SUPPORTED: {name}" in refusal
    assert "a convolution of 1x4x5x5 by 3x4x1x1" in refusal


@pytest.mark.parametrize("ahead", [{}, {EnginePlan("eng0", 0): 1.0}])
def test_a_plan_that_breaks_the_device_is_no_refusal(ahead: dict[EnginePlan, float]) -> None:
    """All that comes after it fails, too: it ends what runs, and is told as itself."""
    driver = HostDriver()
    plans = {**ahead, EnginePlan("breaks", 0): 1.0, EnginePlan("eng9", 0): 1.0}
    backend = HostBackend(driver=driver, plans_of=lambda _: plans)
    network = one_convolution()
    with pytest.raises(
        DeviceLostError, match="the GPU failed: cudaErrorIllegalAddress: an illegal memory access"
    ) as error:
        choose(backend, network)
    assert "no way to run" not in str(error.value)
    with pytest.raises(DeviceLostError, match="cudaErrorIllegalAddress"):
        choose(backend, two_convolutions())
    assert len(backend.planning.refusals) == 1  # and not every plan behind it as well
    assert backend.planning.convolutions == 0  # nothing was chosen for lack of what could not run


def test_a_plan_that_refuses_once_it_is_named_leaves_no_capture_open() -> None:
    """A plan may be named that was never timed."""
    network = one_convolution()
    driver = HostDriver()
    backend = HostBackend(
        driver=driver, plans_of=lambda _: {EnginePlan("uncaptured", 0): 1.0, EnginePlan("eng0", 0): 9.0}
    )

    def execute(algorithm: str) -> Mapping[str, object]:
        choice = Choice(algorithm)
        stage = lower_stage(network, [[0]], Strategy.CONCURRENT, Engine.GRAPH, choices=lambda *_: choice)
        return backend.execute(network, stage, random_inputs(network))

    with pytest.raises(BackendError, match="the GPU refused a call: CUDNN_STATUS_NOT_SUPPORTED: uncaptured") as error:
        execute("fused:uncaptured")
    assert not isinstance(error.value, DeviceLostError)
    assert not driver.is_capturing
    assert execute("fused:eng0")


VERSIONS = {"cudnn": "9.19.1", "cudnn-frontend": "1.28.0"}
PLANS = {EnginePlan("eng0", 0): 9.0, EnginePlan("eng1", 256): 5.0}


def backend(
    path: Path | None,
    engine: Engine = Engine.GRAPH,
    plans: dict[EnginePlan, float] | None = None,
    options: CudnnOptions | None = None,
    **versions: str,
) -> HostBackend:
    given = {**VERSIONS, **{name.replace("_", "-"): version for name, version in versions.items()}}
    settings = asdict(options or CudnnOptions(choices=path))
    return HostBackend(engine=engine, plans_of=lambda _: plans or PLANS, versions=tuple(given.items()), **settings)


def chosen(made: HostBackend) -> list[str]:
    networks = [UNITS[name]() for name in ("conv and relu without bias", "separable conv of a sum")]
    return [made.algorithm(network, unit.name) for network in networks for unit in network.units]


def test_a_second_backend_times_nothing(tmp_path: Path) -> None:
    path = tmp_path / "made" / "choices.json"
    first = backend(path)
    names = chosen(first)
    assert (first.planning.convolutions, first.planning.recalled) == (3, 0)
    second = backend(path, Engine.PAPER)  # a choice does not depend on the engine
    assert chosen(second) == names
    planning = second.planning
    assert (planning.convolutions, planning.recalled, planning.candidates_timed) == (3, 3, 0)
    assert planning.plans_built == 2  # those that run, and no other: the depthwise one runs by a kernel of ours
    assert planning.warm_up_us == 0
    assert list(path.parent.iterdir()) == [path]


def test_two_that_write_in_turn_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "choices.json"
    first, second = KeptChoices(path, {"device": "a"}), KeptChoices(path, {"device": "b"})
    first.keep("x", "about x", UnitVariant("fused:eng1", 1.0, 0))
    second.keep("y", "about y", UnitVariant("fused:eng2", 2.0, 0))
    first.keep("z", "about z", UnitVariant("fused:eng3", 3.0, 0))
    again = KeptChoices(path, {"device": "a"})
    assert [again.find(key) and again.find(key).name for key in "xyz"] == ["fused:eng1", None, "fused:eng3"]  # type: ignore[union-attr]
    assert KeptChoices(path, {"device": "b"}).find("y") is not None


@pytest.mark.parametrize(
    ("change", "is_other", "recalled", "plan"),
    [
        ({"cudnn": "9.20.0"}, True, 0, "fused:eng1"),
        ({"cudnn_frontend": "1.27.0"}, True, 0, "fused:eng1"),
        ({"options": CudnnOptions(workspace_limit_bytes=100)}, True, 0, "fused:eng0"),
        ({"plans": {EnginePlan("eng5", 0): 1.0}}, False, 1, "fused:eng5"),  # what no plan of cuDNN computes
        ({}, False, 3, "fused:eng1"),
    ],
)
def test_choices_of_other_versions_and_options_are_none(
    change: dict[str, Any], is_other: bool, recalled: int, plan: str, tmp_path: Path
) -> None:
    """Nor is a plan that is no longer offered; what another backend has kept since this one began is."""
    path = tmp_path / "choices.json"
    given = {name: replace(each, choices=path) if name == "options" else each for name, each in change.items()}
    other = backend(path, **given)
    chosen(backend(path))
    assert set(" ".join(chosen(other)).split()) == {plan, "own1x1"}
    assert other.planning.recalled == recalled
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert [len(place["choices"]) for place in kept["places"]] == [3] * (1 + is_other)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"format": "mine"}', json.dumps({"format": FORMAT}), "\x00\xff"]
    + [json.dumps({"format": FORMAT, "places": places}) for places in (1, [1], [{"where": {}, "choices": {"a": {}}}])],
)
def test_a_file_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "choices.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(OptionError, match="choices") as error:
        backend(path)
    assert "name another file, or remove this one" in str(error.value)
    assert path.read_bytes() == text.encode("latin-1")


def separable(channels: int) -> Network:
    b, x = builder_with(f"separable {channels}", x=(1, 4, 6, 5))
    return b.network([b.conv(b.conv(x, 4, 3, padding=1, name="same"), channels, name="own")])


def test_by_default_another_network_recalls_what_it_shares_with_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IOSSIM_DATA_DIR", str(tmp_path / "made"))
    counts = []
    for channels in (6, 7, 7):
        made = backend(None, options=parsed_options(Precision.FP32, {}))
        choices = made.choices(network := separable(channels))
        for unit in network.units:
            choices((unit.name,), Strategy.CONCURRENT)
        counts.append((made.planning.recalled, made.planning.convolutions))
    assert counts == [(0, 2), (1, 2), (2, 2)]
    assert usual_choices() == tmp_path / "made" / "cudnn_choices.json"
    assert usual_choices().is_file()
    (place,) = json.loads(usual_choices().read_text())["places"]
    assert place["where"].items() >= {"driver": "580.1", "device": "NVIDIA H100 80GB HBM3", "cudnn": "9.19.1"}.items()
    assert parsed_options(Precision.FP32, {"choices": "off"}).choices is None


def test_a_file_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    made = backend(tmp_path / "file" / "folder" / "choices.json")
    assert chosen(made)
    assert "choices of algorithms cannot be kept in" in caplog.text
    assert "Not a directory; give option choices off, or name another file" in caplog.text


def test_the_option_names_the_file_and_is_no_part_of_the_context(tmp_path: Path) -> None:
    given = parsed_options(Precision.FP32, {"choices": "a/b.json"})
    assert given.choices == Path("a/b.json")
    assert "choices" not in dict(given.pairs)
    assert backend(tmp_path / "c.json").context == backend(None).context
