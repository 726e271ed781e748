"""The Python interface: values or names in, typed values out; and bounds of comparisons, never above the latency that they bound."""

import inspect
import re
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_networks import random_network, random_schedule

import iossim
from iossim import api
from iossim.base.errors import OptionError, ScheduleError
from iossim.cost.random import RandomCostModel
from iossim.models.load import load
from iossim.report.schedule_tables import summary
from iossim.report.search_words import comparison_lines, optimality
from iossim.search.assemble import reprice
from iossim.search.options import SearchLimits, SearchOptions, StageSpace


def test_every_public_name_is_there_and_documented() -> None:
    for name in iossim.__all__:
        value = getattr(iossim, name)
        assert name == "__version__" or inspect.getdoc(value), name
    assert dir(iossim) == sorted(iossim.__all__)
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        _ = iossim.optimise  # type: ignore[attr-defined]


def test_the_reference_has_every_name_and_every_parameter() -> None:
    """Each parameter is in the docstring of its function, in that of the task which it takes, or common to many."""
    page = (Path(__file__).resolve().parents[1] / "docs" / "api.md").read_text(encoding="utf-8")
    common = page.partition("## Common parameters")[2].partition("\n## ")[0]
    for name in [*iossim.__all__, "api.task", "api.search_options"]:
        assert f"::: iossim.{name}\n" in page or f"`iossim.{name}`" in page, name
    for function in [*FUNCTIONS, api.task, api.search_options]:
        text = inspect.getdoc(function) or ""
        assert "rais" in text.lower(), function.__name__
        text += common + (inspect.getdoc(api.task) or "" if ":func:`task`" in text else "")
        for parameter in inspect.signature(function).parameters:
            assert re.search(rf"`{parameter}\b", text), (function.__name__, parameter)


def test_values_are_printed_short() -> None:
    """What a notebook shows of a value is read: no dump of the graph."""
    network = iossim.load("squeezenet", batch=2)
    comparison = iossim.compare(network, "v100-sxm2")
    for value in (network, network.graph, comparison.best, iossim.device("v100-sxm2")):
        assert len(repr(value)) < 200
        assert "\n" not in repr(value)
        assert str(value) == repr(value)
    assert "batch 2" in repr(network)
    assert "50 units in 12 blocks" in repr(network)
    assert f"{comparison.best.latency_us / 1e3:.3f} ms" in repr(comparison.best)
    assert len(repr(comparison)) < 200
    lines = str(comparison).splitlines()
    assert len(lines) <= 14
    for found in comparison.schedules:
        (line,) = [line for line in lines if line.split()[0].rstrip("≈") == found.scheduler]
        assert f"{found.latency_us / 1e3:.3f}" in line
    assert "\x1b" not in str(comparison)


FUNCTIONS = [getattr(iossim, name) for name in iossim.__all__ if inspect.isfunction(getattr(iossim, name))]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_misspelt_keyword_is_one_line_with_the_nearest(function: Callable[..., object]) -> None:
    """Each parameter stands in the signature by its name, and one that is misspelt is no TypeError of a callee."""
    parameters = inspect.signature(function).parameters
    assert all(each.kind is not inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    name = list(parameters)[-1]
    with pytest.raises(OptionError, match=rf"{function.__name__} takes no `{name}x`; did you mean '{name}'\? known: "):
        function(**{f"{name}x": 1})


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"scheduler": ["greedy"]}, "`scheduler` of optimize cannot be .'greedy'.; give a value of type str"),
        ({"device": 3}, "`device` of optimize cannot be 3; give a value of type DeviceProfile, str, Path or None"),
        ({"options": "paper"}, "`options` of optimize cannot be 'paper'; give a value of type SearchOptions or None"),
        ({"cost_model": 7}, "give a value of type str or CostModel"),
        ({"rewrite": ["default"]}, "`rewrite` .'default'. are no rules; give their names as one text"),
        ({"progress": True}, "`progress` of optimize cannot be True"),
    ],
)
def test_a_value_of_another_type_is_one_line_with_its_types(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        iossim.optimize(**{"model": "ios_sample", "device": "t4"} | asked)


def test_types_are_checked_elsewhere_too() -> None:
    for call, words in [
        (partial(iossim.load, "squeezenet", batch="8"), "`batch` of load cannot be '8'; .* int or None"),
        (partial(iossim.load, "squeezenet", strict=1), "`strict` of load cannot be 1; .* bool"),
        (
            partial(iossim.compare, "ios_sample", "t4", schedulers=["greedy", 3]),
            "'greedy', 3.; .* of type Sequence.str.",
        ),
        (partial(SearchOptions, seconds="3"), "`seconds` of SearchOptions cannot be '3'; .* float or None"),
        (partial(SearchOptions, seed=1.5), "`seed` of SearchOptions cannot be 1.5; .* int"),
    ]:
        with pytest.raises(OptionError, match=words):
            call()


def test_a_number_of_numpy_is_a_number() -> None:
    assert SearchOptions(seconds=np.float32(2), seed=np.int64(3)).seconds == 2  # type: ignore[arg-type]


def test_networks_and_devices_by_value_name_or_path() -> None:
    path = Path(str(resources.files("iossim.hw_profiles"))) / "t4.yaml"
    assert iossim.device(iossim.device(path)).name == "t4"
    assert iossim.compare("ios_sample", path, schedulers="greedy,sequential").best.scheduler == "greedy"


def test_names_and_values_give_the_same() -> None:
    by_name = iossim.optimize("squeezenet", "t4")
    network, device = iossim.load("squeezenet"), iossim.device("t4")
    by_value = iossim.optimize(network, device, choose_joins=True)
    by_model = iossim.optimize(network, None, cost_model=iossim.cost_model("simulator", device), choose_joins=True)
    assert by_name.blocks == by_value.blocks == by_model.blocks
    assert by_name.scheduler == "ios-both"


def test_comparison() -> None:
    comparison = iossim.compare("squeezenet", "t4", schedulers=["greedy", "sequential"])
    assert [found.scheduler for found in comparison.schedules] == ["greedy", "sequential"]
    assert comparison["greedy"] is comparison.schedules[0]
    assert comparison.baseline is comparison["sequential"]
    assert comparison.best.latency_us == min(row.latency_us for row in comparison.rows)
    assert (comparison.batch, comparison.device, comparison.engine) == (1, "t4", "paper")
    with pytest.raises(OptionError, match="no schedule by 'greedi'; did you mean 'greedy'"):
        _ = comparison["greedi"]
    # Without a sequential schedule speed-ups are against the slowest of those that were asked for.
    comparison = iossim.compare("squeezenet", "v100-sxm2", schedulers=["ios-both", "greedy"])
    assert comparison.baseline is comparison["greedy"]
    assert [row["speedup"] for row in comparison.to_json()["schedules"]][1] == 1.0
    # A chain has nothing to schedule: of equal latencies the best is the simplest one's, and the widest search proves it.
    comparison = iossim.compare("resnet18", "v100-sxm2")
    assert comparison.best.latency_us == pytest.approx(min(row.latency_us for row in comparison.rows))
    assert comparison.best_of_all.label == "sequential, fused"
    assert comparison_lines(comparison)[-1].startswith("Provably optimal under this cost model (general stages)")


def test_progress_is_told_of_every_scheduler() -> None:
    network, names = iossim.load("squeezenet"), ["ios-merge", "ios-both"]
    told: list[tuple[str, int, int]] = []

    def progress(scheduler: str) -> Callable[[int, int], None]:
        return lambda done, total: told.append((scheduler, done, total))

    iossim.compare(network, "t4", schedulers=names, progress=progress)
    units = sum(len(block.units) for block in network.blocks)
    for name in names:
        done = [done for who, done, _ in told if who == name]
        assert done == sorted(done)
        assert (name, units, units) in told


def test_simulate_takes_schedules_and_paths(tmp_path: Path) -> None:
    found = iossim.optimize("squeezenet", "t4")
    path = tmp_path / "schedule.json"
    found.save(path)
    there = iossim.simulate(found, "v100-sxm2")
    assert iossim.simulate(path, "v100-sxm2") == iossim.simulate(str(path), "v100-sxm2") == there
    assert there.device == "v100-sxm2"
    assert there.blocks != found.blocks
    with pytest.raises(ScheduleError, match="hash"):
        iossim.simulate(found, "t4", network=iossim.load("squeezenet", batch=2))


@settings(max_examples=15)
@given(st.integers(0, 2**20))
def test_stages_of_ones_own_have_the_price_of_their_schedule(seed: int) -> None:
    """However they are spelt: stages, groups, or units alone; and the optimum is never above it."""
    network, prices = random_network(seed), RandomCostModel(seed)
    drawn = reprice(random_schedule(network, seed), network, prices)
    groups = [{"merge": stage.units} if stage.strategy == "merge" else stage.groups for stage in drawn.stages]
    units = [
        spelt if isinstance(spelt, dict) else stage.units for spelt, stage in zip(groups, drawn.stages, strict=True)
    ]
    for spelt in (drawn.stages, groups, units):
        found = iossim.price(network, spelt, None, cost_model=prices, scheduler="drawn")
        assert found.latency_us == pytest.approx(drawn.latency_us, rel=1e-12)
        assert [set(stage.units) for stage in found.stages] == [set(stage.units) for stage in drawn.stages]
    best = iossim.optimize(network, None, cost_model=prices)
    assert best.latency_us <= found.latency_us * (1 + 1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda own: own[:-1], "block 'tail': unit 'pool10' is in no stage; add it"),
        (lambda own: [*own, own[0]], "stage 50: unit 'conv1' is scheduled twice; keep one"),
        (lambda own: [["conv_1"], *own[1:]], "stage 0: 'conv_1' is no unit of 'squeezenet'; did you mean 'conv1'?"),
        (
            lambda own: [*own[2:], *own[:2]],
            "stage 48: 'conv1' is in block 'stem', and a stage of the later block 'tail'",
        ),
        (lambda own: [own[1], own[0], *own[2:]], "stage 0: unit 'pool1' reads 'conv1', which runs in a later stage"),
        (lambda own: [own[0] + own[1] + own[2], *own[3:]], "stage 0: 'conv1' is in block 'stem', 'fire2.squeeze' in"),
        (lambda own: [[own[0], own[1]], *own[2:]], "stage 0: unit 'pool1' reads 'conv1', which runs in another group"),
        (lambda own: [{"merge": own[0] + own[1]}, *own[2:]], "stage 0: units conv1, pool1 do not merge: "),
        (lambda own: [own[0][0], *own[1:]], "stage 0: 'conv1' is no stage; give a list of unit names, a list of"),
        (lambda own: [{"merge": own[0][0]}, *own[1:]], "stage 0: {'merge': 'conv1'} is no stage; give"),
        (lambda own: [{"merged": own[0]}, *own[1:]], "is no stage; give a list of unit names"),
        (lambda own: "conv1", "'conv1' is no list of stages; give one, such as the `stages` of a schedule"),
    ],
)
def test_stages_that_are_no_schedule(change: Callable[[list[list[str]]], Any], message: str) -> None:
    network = iossim.load("squeezenet")
    with pytest.raises(ScheduleError, match=re.escape(message)):
        iossim.price(network, change([[unit.name] for unit in network.units]), "t4")


def test_what_is_proven() -> None:
    """Exact over the whole space; over a pruned space; not at all where blocks were too wide to be solved as a whole."""
    whole = iossim.optimize("squeezenet", "t4")
    assert optimality(whole) == "Provably optimal under this cost model (general stages) for these joins"
    merging = iossim.optimize("squeezenet", "t4", scheduler="ios-merge")
    assert str(optimality(merging)).endswith("(single units and merged convolutions) for these joins")
    pruned = iossim.optimize("squeezenet", "t4", scheduler="ios-parallel", options=api.search_options("paper", 3, 2))
    assert str(optimality(pruned)).endswith(
        "(paper stages, groups of at most 3 units, at most 2 groups, without merging) for these joins"
    )
    limited = iossim.optimize("squeezenet", "t4", options=SearchOptions(limits=SearchLimits(max_states=8)))
    assert any("solved in windows" in note for note in limited.notes)
    assert optimality(limited) == "Not proven optimal: part of the search space was left out (see the notes)"
    assert (whole.proven, merging.proven, pruned.proven, limited.proven) == (True, True, True, False)
    assert limited.complete
    comparison = iossim.compare("squeezenet", "t4", options=SearchOptions(limits=SearchLimits(max_states=8)))
    assert not any(found["proven"] for found in comparison.to_json()["schedules"])
    assert all(found["complete"] for found in comparison.to_json()["schedules"])
    assert limited.latency_us >= whole.latency_us * (1 - 1e-9)
    assert optimality(iossim.optimize("squeezenet", "t4", scheduler="greedy")) is None


def test_summary() -> None:
    found = iossim.optimize("squeezenet", "t4")
    text = summary(found)
    assert text.startswith(f"{found.latency_us / 1e3:.3f} ms in {len(found.stages)} stages")
    assert found.lower_bound_us == found.latency_us
    assert found.relaxed_bound_us is not None
    assert found.relaxed_bound_us < found.latency_us
    assert f"Lower bound of any schedule: {found.relaxed_bound_us / 1e3:.3f} ms" in text
    split = iossim.optimize("squeezenet", "t4", options=SearchOptions(limits=SearchLimits(max_states=8)))
    assert split.lower_bound_us is not None
    assert split.gap is not None
    assert split.gap > 0
    assert split.latency_us == pytest.approx(split.lower_bound_us * (1 + split.gap))
    assert f"this one is {100 * split.gap:.1f}% above" in summary(split)


def test_bounds_of_a_comparison_are_what_its_searches_prove() -> None:
    """Each proven schedule is its own bound, and the greedy one has that of the same stages searched."""
    rows = iossim.compare("inception_v3", "v100-sxm2").to_json()["schedules"]
    bounds_us = {row["scheduler"]: row["lower_bound_us"] for row in rows}
    assert bounds_us.pop("greedy") == bounds_us["ios-parallel"]
    for row in rows:
        assert row["relaxed_bound_us"] <= row["latency_us"] * (1 + 1e-9)
        if row["scheduler"].startswith("ios"):
            assert row["proven"]
            assert bounds_us[row["scheduler"]] == row["latency_us"]
    paper = iossim.compare(
        "squeezenet", "t4", schedulers=["greedy", "ios-parallel"], options=SearchOptions(StageSpace("paper", 3, 2))
    )
    greedy, parallel = (paper[name].lower_bound_us for name in ("greedy", "ios-parallel"))
    assert greedy is not None
    assert parallel is not None
    assert greedy < parallel, "what is proven of few stages holds for no others"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: iossim.optimize("ios_sample", "t4", scheduler="ios"), "`scheduler` 'ios'"),
        (lambda: iossim.optimize("ios_sample", "t4", engine="x"), "known: auto, graph, onnxruntime, paper"),
        (lambda: iossim.compare("ios_sample", None), "needs a device"),
        (lambda: iossim.compare(5, "t4"), "`model` of compare cannot be 5; give"),  # type: ignore[arg-type]
        (lambda: iossim.load("ios_sample", dtype="x"), "unknown dtype 'x'"),
        (lambda: iossim.load("m.onnx", shapes={"x": 3}), r"shapes {'x': 3}, dimensions None: give whole numbers"),  # type: ignore[dict-item]
        (lambda: iossim.load("m.onnx", dimensions={"n": "8"}), "give whole numbers by name"),  # type: ignore[dict-item]
        (lambda: iossim.simulate(None, "t4"), "`saved` of simulate cannot be None; give"),  # type: ignore[call-overload]
        (lambda: iossim.cost_model("simulator", "t4", "x"), "unknown dtype 'x'"),
        (
            lambda: iossim.optimize("ios_sample", None, cost_model=iossim.cost_model("simulator", "t4", "fp16")),
            "same dtype",
        ),
        (lambda: api.search_options("x"), "general, paper"),
        (lambda: api.search_options(max_groups=2.5), "`max_groups` of search_options cannot be 2.5"),  # type: ignore[arg-type]
        *(
            (partial(iossim.load, "squeezenet", **{option: value}), f"{value}")
            for option, value in (("batch", 0), ("seed", 1.5), ("block", 1.5))
        ),
        *(
            (partial(iossim.load, "squeezenet", **{name: True}), "True")
            for name in ("batch", "seed", "max_block", "block")
        ),
    ],
)
def test_mistakes(call: Callable[[], object], message: str) -> None:
    """A cost model for one precision refuses a network of another; what is no count is taken for none."""
    with pytest.raises(OptionError, match=message):
        call()


def test_what_commands_ask_can_be_asked_in_python(tmp_path: Path) -> None:
    network = iossim.load("ios_sample")
    schedule = iossim.optimize(network, "t4")
    explained = iossim.explain(schedule, network)
    assert len(explained.stages) == len(schedule.stages)
    elsewhere = iossim.explain(schedule, network, "v100-sxm2", stages=[0])
    anew = iossim.explain(network, "t4", scheduler=schedule.scheduler)
    assert anew.to_json() == explained.to_json()
    assert elsewhere.schedule.device == "v100-sxm2"
    # Of a model by name, joins of branches are fused where that is faster; the network as it is loaded fits, too.
    schedule, network = iossim.optimize("squeezenet", "t4"), iossim.load("squeezenet")
    assert "joins" in dict(schedule.source.options)
    assert iossim.explain(schedule, network).to_json() == iossim.explain(schedule).to_json()
    assert iossim.simulate(schedule, network=network).latency_us == schedule.latency_us
    table = iossim.predict(network, "t4")
    assert table.total_us == pytest.approx(sum(row.prediction.gpu_time_us for row in table.rows))
    (tmp_path / "k.csv").write_text("stream,op,rows,cols\n0,relu,4096,4096\n1,relu,4096,4096\n", encoding="utf-8")
    run = iossim.corun(tmp_path / "k.csv", "t4")
    assert run.makespan_us < run.sequential_us * 1.01
    assert iossim.microbatch("ios_sample", "t4", workspace="1MiB").kernels


def test_a_study_is_run_by_name(tmp_path: Path) -> None:
    scenario = tmp_path / "mine.yaml"
    scenario.write_text("name: mine\nmodels: [ios_sample]\ndevices: [t4]\nschedulers: [sequential, greedy]\n")
    found = iossim.run_study(scenario, tmp_path / "out", workers=1)
    assert [row.scheduler for row in found.results.rows] == ["sequential", "greedy"]


def test_values_complete_to_no_deprecated_name() -> None:
    names = [*dir(iossim.optimize("ios_sample", "t4")), *dir(iossim.Schedule)]
    assert not {"construct", "parse_raw", "dict", "json", "copy", "parse_obj"} & set(names)
    assert {"stages", "model_dump_json", "save"} <= set(names)


@pytest.mark.parametrize("budget", ["lots", "60s"])
def test_a_budget_is_refused_before_rewriting_as_without(budget: str) -> None:
    with pytest.raises(OptionError) as plain:
        iossim.optimize("ios_sample", "t4", budget=budget)
    with pytest.raises(OptionError) as rewritten:
        iossim.optimize("ios_sample", "t4", budget=budget, rewrite="default")
    assert str(plain.value) == str(rewritten.value)


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["alexnet", "ios_sample"]),
    st.integers(1, 256),
    st.sampled_from(["h100-sxm", "a100-sxm-40gb", "l4"]),
    st.sampled_from(["paper", "graph"]),
)
@example("alexnet", 256, "h100-sxm", "graph")
def test_no_gap_is_negative(model: str, batch: int, name: str, engine: str) -> None:
    compared = api.compare(load(model, batch=batch, dtype="tf32"), name, engine=engine)
    for row in compared.rows:
        assert row.gap_percent is not None
        assert row.gap_percent >= 0.0, (row.scheduler, row.gap_percent)
