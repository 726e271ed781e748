"""Several models on one device: ways of running them, requests over time, and the command."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from checked_execution import execute
from command_line import printed, printed_json
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import random_inputs, random_network, random_stream_batch

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.base.errors import OptionError
from iossim.cost.random import RandomCostModel
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import check_happens_before, with_memory
from iossim.hardware.load import device
from iossim.ir.network import Network
from iossim.models.load import load
from iossim.models.onnx.export import write_onnx
from iossim.prediction.schedule_interval import ScheduleErrors
from iossim.serving.arrivals import Request, poisson, read_trace, serve_in_turns, serve_side_by_side
from iossim.serving.coschedule import (
    ONE_AFTER_ANOTHER,
    ONE_STREAM_EACH,
    PARTITIONS,
    SLICE_US,
    STREAMS,
    TIME_SLICING,
    Server,
    Way,
    coschedule,
    time_sliced,
)
from iossim.serving.coschedule_report import bound_words
from iossim.serving.union import Objective, label_of, union

SEEDS = st.integers(0, 2**20)
MODELS = {engine: SimulatorCostModel(device("v100-sxm2"), random_network(0).precision, engine) for engine in Engine}


def two(seed: int) -> dict[str, Network]:
    return {"a": random_network(seed, blocks=1), "b": random_network(seed + 1, blocks=1)}


@settings(max_examples=10)
@given(SEEDS, st.sampled_from([Engine.PAPER, Engine.GRAPH]))
def test_ways_are_right_and_streams_are_not_above_any_of_them(seed: int, engine: Engine) -> None:
    networks = two(seed)
    found = coschedule(networks, MODELS[engine])
    assert found.labels == ("a", "b")
    by_name = {way.name: way for way in found.ways}
    assert by_name[STREAMS].makespan_us <= by_name[ONE_STREAM_EACH].makespan_us * (1 + 1e-9) or (
        by_name[STREAMS].simulated_us < by_name[ONE_STREAM_EACH].simulated_us
    )
    for way in found.ways:
        assert found.bound_us <= way.makespan_us
        assert way.simulated_us is None or way.simulated_us > 0
        assert max(way.ends_us.values()) == way.makespan_us
        assert way.interval_us is not None
        assert way.interval_us[0] < way.makespan_us < way.interval_us[1]
        if way.schedule is not None:
            check_happens_before(with_memory(lower_schedule(way.schedule, found.network, engine)))
    streams = by_name[STREAMS].schedule
    assert streams is not None
    inputs = random_inputs(found.network, seed)
    made = execute(with_memory(lower_schedule(streams, found.network, engine)), found.network, inputs)
    for label, network in networks.items():
        own = {name.removeprefix(f"{label}/"): array for name, array in inputs.items() if name.startswith(f"{label}/")}
        for name, expected in evaluate_graph(network.graph, own).items():
            np.testing.assert_allclose(made[f"{label}/{name}"], expected, rtol=1e-4, atol=1e-4)


@settings(max_examples=10)
@given(SEEDS, st.floats(0.1, 9.0), st.sampled_from([Engine.PAPER, Engine.GRAPH]))
def test_streams_are_searched_for_weighted_latencies(seed: int, weight: float, engine: Engine) -> None:
    networks, objective = two(seed), Objective({"a": weight, "b": 1.0})
    found = coschedule(networks, MODELS[engine], objective=objective)
    by_name = {way.name: way for way in found.ways}
    for way in found.ways:
        assert found.bound_us <= objective.value_us(way.ends_us) * (1 + 1e-9)
    alone, streams = by_name[ONE_STREAM_EACH], by_name[STREAMS]
    assert objective.value_us(streams.ends_us) <= objective.value_us(alone.ends_us) * (1 + 1e-9) or (
        streams.simulated_us / streams.makespan_us < alone.simulated_us / alone.makespan_us
    )
    assert found.best in found.ways
    assert found.to_json()["objective"]["weights"] == {"a": weight, "b": 1.0}


@pytest.mark.parametrize(("where", "engine"), [("v100-sxm2", Engine.PAPER), ("h100-sxm", Engine.GRAPH)])
def test_a_way_is_as_sure_as_its_schedule(where: str, engine: Engine) -> None:
    """By its kernels' spans alone, without pricing it again at changed parameters.

    What runs in turn is the surest where its own stages are, as before Hopper.
    """
    network = load("ios_sample")
    prices = SimulatorCostModel(device(where), network.precision, engine)
    found = coschedule({"a": network, "b": network}, prices)
    errors = ScheduleErrors(found.network, device(where), prices)
    width = {}
    for way in found.ways:
        assert way.interval_us is not None
        width[way.name] = way.interval_us[1] / way.interval_us[0]
        if way.name in (ONE_STREAM_EACH, STREAMS):
            assert way.schedule is not None
            whole = errors.interval(way.schedule)
            assert way.interval_us == pytest.approx((whole.low_us, whole.high_us), rel=0.01)
    assert width[TIME_SLICING] == width[ONE_AFTER_ANOTHER]
    assert width[ONE_AFTER_ANOTHER] < width[ONE_STREAM_EACH] or engine is Engine.GRAPH
    low_ms, high_ms = (us / 1e3 for us in found.best.interval_us or ())
    assert f"Expected on hardware: {low_ms:.3f}-{high_ms:.3f} ms (90% interval)" in bound_words(found)


def test_a_limit_makes_one_model_first() -> None:
    networks = {"small": load("squeezenet"), "large": load("resnet18")}
    prices = SimulatorCostModel(device("a100-sxm-40gb"), networks["small"].precision, Engine.GRAPH)
    free = coschedule(networks, prices)
    limit_us = 1.2 * free.baseline.ends_us["small"]
    kept = coschedule(networks, prices, objective=Objective(limits_us={"small": limit_us}))
    ends_us = {name: way.ends_us for found, name in ((free, "free"), (kept, "kept")) for way in found.ways[-1:]}
    assert ends_us["kept"]["small"] <= limit_us < ends_us["free"]["small"]
    assert max(ends_us["free"].values()) <= max(ends_us["kept"].values()) < kept.baseline.makespan_us


def test_an_objective_orders_limits_first() -> None:
    plain, weighted = Objective(), Objective({"a": 2.0}, {"b": 5.0})
    assert (plain.is_plain, weighted.is_plain) == (True, False)
    assert plain.order({"a": 3.0, "b": 7.0}) == (0.0, 7.0)
    assert weighted.order({"a": 3.0, "b": 7.0}) == (2.0, 6.0)
    with pytest.raises(OptionError, match="limit is of 'c', no model here; models: a, b"):
        coschedule(two(1), MODELS[Engine.GRAPH], objective=Objective(limits_us={"c": 1.0}))


@settings(max_examples=20)
@given(SEEDS)
def test_values_of_schedules_are_those_of_their_ends(seed: int) -> None:
    """What the search makes small is the objective of the plan that is run."""
    whole = union(two(seed))
    batch = random_stream_batch(whole, seed, count=3)
    objective = Objective({"a": 3.0, "b": 0.5}, {"a": 40.0})
    model = MODELS[Engine.GRAPH]
    prices = model.price_streams(batch)
    for index, value in enumerate(objective.of(batch.problem)(prices)):
        ends_us = {"a": 0.0, "b": 0.0}
        for launch, units in enumerate(batch.problem.launches):
            label = label_of(whole.units[units[0]].name)
            ends_us[label] = max(ends_us[label], float(prices.ends_us[index, launch]))
        assert value == pytest.approx(objective.value_us(ends_us) + 1e3 * objective.over_us(ends_us), rel=1e-9)


@given(st.lists(st.floats(1.0, 9000.0), min_size=1, max_size=4))
def test_time_slices_go_round(own_us: list[float]) -> None:
    ends_us = dict(zip("abcd", np.cumsum(own_us).tolist(), strict=False))
    in_turn = Way(ONE_AFTER_ANOTHER, None, ends_us["abcd"[len(own_us) - 1]], 0.0, ends_us, ())
    sliced = time_sliced(in_turn)
    assert max(sliced.ends_us.values()) == pytest.approx(in_turn.makespan_us)
    for number, (label, alone_us) in enumerate(zip("abcd", own_us, strict=False)):
        own = [span for span in sliced.spans if span.stream == number]
        assert sum(span.end_us - span.start_us for span in own) == pytest.approx(alone_us)
        assert all(span.end_us - span.start_us <= SLICE_US * (1 + 1e-9) for span in own)
        # Every model that has not ended had as many slices, but for the round that it is in.
        slices = len(own)
        others = sum(min(other, slices * SLICE_US) for at, other in enumerate(own_us) if at < number)
        others += sum(min(other, (slices - 1) * SLICE_US) for at, other in enumerate(own_us) if at > number)
        assert sliced.ends_us[label] == pytest.approx(alone_us + others)


def test_sms_that_cannot_be_divided_are_not() -> None:
    prices = SimulatorCostModel(device("k80"), random_network(0).precision, Engine.GRAPH)
    found = coschedule(two(1), prices)
    names = [way.name for way in found.ways]
    assert TIME_SLICING in names
    assert PARTITIONS not in names
    assert not any("not looked at" in note for note in found.notes)  # no time was wanting for them


def test_partitions_have_sms_of_their_own() -> None:
    networks = {"a": load("squeezenet"), "b": load("squeezenet")}
    prices = SimulatorCostModel(device("a100-sxm-40gb"), networks["a"].precision, Engine.GRAPH)
    (way,) = [way for way in coschedule(networks, prices).ways if way.name == PARTITIONS]
    sms: dict[str, set[int]] = {"a": set(), "b": set()}
    for span in way.spans:
        assert span.sms is not None
        sms[label_of(span.unit)] |= set(span.sms)
    assert not sms["a"] & sms["b"]
    assert len(sms["a"]) == len(sms["b"]) > 40
    assert way.ends_us["a"] == pytest.approx(way.ends_us["b"])
    assert way.simulated_us == pytest.approx(way.makespan_us, rel=0.1)


def test_what_cannot_be_one_is_refused() -> None:
    with pytest.raises(OptionError, match="prices no streams"):
        coschedule(two(1), RandomCostModel(0))


def ends(models: frozenset[str]) -> Mapping[str, float]:
    """10 us alone, 15 side by side."""
    return dict.fromkeys(models, 10.0 if len(models) == 1 else 15.0)


def test_one_request_after_another() -> None:
    requests = [Request(0.0, "a"), Request(1.0, "b"), Request(2.0, "a"), Request(50.0, "b")]
    assert serve_in_turns(requests, ends, together=False) == [10.0, 19.0, 28.0, 10.0]


def test_all_that_wait_at_a_time() -> None:
    requests = [Request(0.0, "a"), Request(1.0, "b"), Request(2.0, "a"), Request(3.0, "a")]
    # The first alone, until 10; then one of each, until 25; then the last alone.
    assert serve_in_turns(requests, ends, together=True) == [10.0, 24.0, 23.0, 32.0]


def test_side_by_side_all_go_slower() -> None:
    requests = [Request(0.0, "a"), Request(5.0, "b")]
    # Half of the first is done alone; the rest takes 7.5 beside the second, which has then done half.
    assert serve_side_by_side(requests, ends) == pytest.approx([12.5, 12.5])
    queued = [Request(0.0, "a"), Request(0.0, "a")]
    assert serve_side_by_side(queued, ends) == pytest.approx([10.0, 20.0])
    # Late, a clock's digits are 128 us apart: requests take a multiple of that, and end.
    late = [Request(1e18 + one.time_us, one.model) for one in (*requests, *queued)]
    assert max(serve_side_by_side(late, ends)) < 256.0


@given(SEEDS, st.integers(1, 40))
def test_whatever_comes_is_served(seed: int, count: int) -> None:
    requests = poisson(["a", "b"], 0.1, count, seed)
    assert requests == poisson(["a", "b"], 0.1, count, seed)
    assert [one.time_us for one in requests] == sorted(one.time_us for one in requests)
    for latencies_us in (
        serve_in_turns(requests, ends, together=False),
        serve_in_turns(requests, ends, together=True),
        serve_side_by_side(requests, ends),
    ):
        assert len(latencies_us) == count
        assert min(latencies_us) >= 10.0 - 1e-6


def test_a_server_tells_percentiles_by_policy(tmp_path: Path) -> None:
    networks = {"a": random_network(3, blocks=1), "b": random_network(3, blocks=1)}
    found = coschedule(networks, MODELS[Engine.GRAPH])
    from iossim.search.options import SearchOptions

    server = Server(networks, MODELS[Engine.GRAPH], SearchOptions(), found)
    path = tmp_path / "arrivals.csv"
    path.write_text("time_ms,model\n1700000000000.5,b\n1.7e12,a\n1700000000000.5,a\n")
    trace = read_trace(path, ["a", "b"])
    assert trace == [Request(0.0, "a"), Request(500.0, "b"), Request(500.0, "a")]
    served = server.serve(trace, server.load(trace))
    assert [one.policy for one in served] == [ONE_AFTER_ANOTHER, ONE_STREAM_EACH, STREAMS]
    alone_us = found.baseline.ends_us["a"]
    assert served[0].latencies_us == pytest.approx((alone_us, alone_us, 2 * alone_us))
    assert served[1].percentiles_us[99] <= served[0].percentiles_us[99]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time_ms,model\n", "holds no requests"),
        ("time_ms,model\nsoon,a\n", "line 2: time_ms 'soon' is not a number"),
        ("time_ms,model\n0,a\n1,c\n", "line 3: 'c' is not one of the models"),
        ("time_ms,model\n-1,a\n", "line 2: time_ms '-1' is negative"),
        ("time_ms,model\n0,a\n1e15,a\n", "line 3: time_ms '1e15' is"),
    ],
)
def test_traces_that_cannot_be_read(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text(text)
    with pytest.raises(OptionError, match=message):
        read_trace(path, ["a", "b"])


def test_copies_of_a_model_run_at_a_time(tmp_path: Path) -> None:
    command = f"coschedule squeezenet --copies 2 --device v100-sxm2 --arrivals poisson --requests 50 --out {tmp_path}"
    told = printed(command)
    assert "one stream a model" in told
    assert "Request latency by load" in told
    document = printed_json(f"{command} --json")
    assert document == json.loads((tmp_path / "coschedule.json").read_text())
    assert document["models"] == ["squeezenet#1", "squeezenet#2"]
    assert [way["way"] for way in document["ways"]] == [
        "one after another",
        "time slicing",
        "one stream a model",
        "stages side by side",
        "streams",
    ]
    assert all(document["bound_us"] <= way["makespan_us"] for way in document["ways"])
    assert len(document["served"]) == 15
    assert not any("no lower bound" in note for note in document["notes"])
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    colours = {event["args"]["model"]: event["cname"] for event in events if event["ph"] == "X"}
    assert len(set(colours.values())) == 2


def test_an_objective_is_told() -> None:
    command = "coschedule squeezenet resnet18 --device a100-sxm-40gb"
    document = printed_json(f"{command} --objective latency --weight squeezenet=4 --limit resnet18=9 --json")
    assert document["objective"] == {
        "name": "weighted latency",
        "weights": {"squeezenet": 4.0, "resnet18": 1.0},
        "limits_us": {"resnet18": 9000.0},
    }
    assert {"partitions", "time slicing"} < {way["way"] for way in document["ways"]}
    for way in document["ways"]:
        ends_us = way["ends_us"]
        assert way["objective_us"] == pytest.approx(4 * ends_us["squeezenet"] + ends_us["resnet18"])
        assert way["over_limits_us"] == 0.0
    told = printed(f"{command} --limit squeezenet=0.01")
    assert "no way keeps all limits" in told
    assert "requests a second" in told
    assert " on a100-sxm-40gb, fp32, graph engine, simulated" in " ".join(told.split())


def test_a_weight_or_limit_of_a_model_is_that_of_its_copies() -> None:
    """A copy of its own name keeps its own: what comes later counts."""
    given = "--weight ios_sample=4 --weight ios_sample#2=1 --limit ios_sample=9"
    command = f"coschedule ios_sample --copies 2 --device a100-sxm-40gb --objective latency --seconds 1 {given} --json"
    objective = printed_json(command)["objective"]
    assert objective["weights"] == {"ios_sample#1": 4.0, "ios_sample#2": 1.0}
    assert objective["limits_us"] == {"ios_sample#1": 9000.0, "ios_sample#2": 9000.0}


def test_a_model_named_as_a_copy_would_be_is_not_lost(tmp_path: Path) -> None:
    """Two of ``m``, ``m`` and ``m1`` had one name, and one of them was lost."""
    write_onnx(load("ios_sample").graph, tmp_path / "m.onnx", name="m")
    write_onnx(load("ios_sample").graph, tmp_path / "m1.onnx", name="m1")
    models = f"{tmp_path}/m.onnx {tmp_path}/m.onnx {tmp_path}/m1.onnx"
    document = printed_json(f"coschedule {models} -d t4 -b 8192 --seconds 1 --json")
    assert document["models"] == ["m#1", "m#2", "m1"]
    assert any("GiB (weights, and activations" in note and "t4 has 16.0" in note for note in document["notes"])
