"""The scenarios that ship: all are valid, and what the report says of the thesis holds or not as their descriptions say."""

from pathlib import Path

import pytest

from iossim.hardware.load import device as load_device
from iossim.hardware.names import shipped_names
from iossim.study.points import device_of_kind, points_of
from iossim.study.scenario import Scenario
from iossim.study.scenario_file import MODELINE, read_scenario, scenario_names, scenario_path
from iossim.study.study_run import Results
from iossim.study.sweep import run_study

#: Claims of publications that do not hold on the simulator: the scenarios' descriptions say why.
NOT_SHOWN = {
    ("active_warps", "The IOS schedule achieves 58% more active warps on average than the sequential schedule."),
    ("another_device", "IOS-Both is 1.1 to 1.5 times as fast as the sequential schedule."),
    ("substitutions", "Less memory is read and written, 95.4 -> 62.2, 62.1 -> 46.1 and 37.2 -> 35.8 GB."),
    ("micro_batches_conv2", "Under 64 MiB the second convolution is 2.33 times as fast as undivided (within 25%)."),
    ("dataflow_devices", "On the C6678 horizontal optimisation takes 17.9 to 43.9% off."),
    ("dataflow_devices", "On the ZCU102 vertical optimisation takes a further 21.2 to 83.3% off."),
    ("dataflow_partitions", "A ring with the mix is about 3.7 times as fast as one device (3.3 to 4.0)."),
    ("substitutions", "Fewer kernels run, 138 -> 115, 50 -> 40 and 70 -> 67."),
    ("resnet", "For ResNet-50 and ResNet-34 only 2% to 5% are gained, by running the downsample convolutions side by side."),
}  # fmt: skip


@pytest.mark.parametrize("name", scenario_names())
def test_a_scenario_is_complete_and_makes_points(name: str) -> None:
    scenario = read_scenario(name)
    assert scenario.name == name
    assert scenario.title.endswith("?")
    assert len(scenario.description) > 100
    assert scenario.questions
    points = points_of(scenario)
    assert len({point.key for point in points}) == len(points)
    for device in scenario.devices:
        device_of_kind(scenario.kind, device)
    for published in scenario.published:
        assert published.source.startswith(("IOS thesis, ", "MetaFlow, ", "u-cuDNN, ", "Xenos, "))
        assert published.claims
    first, *_ = scenario_path(name).read_text(encoding="utf-8").splitlines()
    assert first == f"{MODELINE}../docs/schemas/scenario.json"
    assert (Path(__file__).parents[2] / "docs/schemas/scenario.json").is_file()


def test_the_choice_of_a_gpu_is_among_all_that_ship() -> None:
    scenario = read_scenario("which_gpu")
    assert sorted(each.device for each in scenario.devices) == shipped_names()
    assert (scenario.engines, scenario.dtypes) == (["auto"], ["fp16"])
    both = read_scenario("which_gpu_bf16")
    with_bf16 = [each for each in shipped_names() if float(load_device(each).compute_capability) >= 8.0]
    assert sorted(each.device for each in both.devices) == with_bf16
    assert (both.engines, both.dtypes) == (["auto"], ["fp16", "bf16"])


def test_the_automatic_engine_is_that_of_each_device(tmp_path: Path) -> None:
    """The prices of rows, and the warps of runs: streams before Ampere, one CUDA graph since."""
    given = {
        "name": "engines",
        "models": ["ios_sample"],
        "devices": ["v100-sxm2", "h100-sxm"],
        "schedulers": ["greedy"],
    }
    scenario = Scenario.model_validate(given | {"questions": [{"metric": "active_warps"}]})
    found = {
        engine: run_study(scenario.model_copy(update={"engines": [engine]}), tmp_path / engine, workers=1).results.rows
        for engine in ("auto", "paper", "graph")
    }
    figures = {engine: [(row.latency_ms, row.active_warps) for row in rows] for engine, rows in found.items()}
    assert figures["auto"] == [figures["paper"][0], figures["graph"][1]]
    assert figures["paper"] != figures["graph"]


def whole(name: str, folder: Path) -> Results:
    return run_study(read_scenario(name), folder / name, workers=1).results


def shown(results: Results) -> None:
    """No row failed, every question has an answer, and all claims hold but those that are known not to."""
    assert not [row.reason for row in results.rows if row.status == "failed"]
    said = {answer.question for answer in results.answers}
    name = results.scenario.name
    for published in results.scenario.published:
        assert published.says in said
    for answer in results.answers:
        if answer.source:
            assert answer.holds is ((name, answer.question) not in NOT_SHOWN), answer


SMALL = ("active_warps", "last_inception_block")
OTHERS = (
    "another_device", "batch_specialisation", "block_by_block", "dataflow_devices", "dataflow_partitions", "device_specialisation",
    "micro_batches_conv2", "pruning", "resnet", "schedules_compared", "shared_experts", "substitutions", "throughput_and_batch",
    "transformer_blocks", "twice_the_sms",
)  # fmt: skip
LARGE = (
    "transformers_served", "which_gpu", "which_gpu_bf16", "streams_worth_having", "batching_or_concurrency", "edge_or_server",
    "substitutions_alpha", "substitutions_elsewhere", "substitutions_searches",
)  # fmt: skip
NOT_RUN = ("dataflow_scaling", "micro_batches_training", "substitutions_and_schedules")


def test_every_scenario_is_run_but_three() -> None:
    assert set(scenario_names()) == {*SMALL, *OTHERS, *LARGE, *NOT_RUN}


@pytest.mark.parametrize("name", SMALL)
def test_what_the_smallest_show(name: str, tmp_path: Path) -> None:
    shown(whole(name, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_what_the_others_show(name: str, tmp_path: Path) -> None:
    results = whole(name, tmp_path)
    shown(results)
    # Every schedule is best where it was made.
    own = {(row.point, row.scheduler): row.latency_ms for row in results.rows}
    crossed = [price for price in results.cross if price.scheduler == "ios-both" and price.made_for != price.run_at]
    points = len(points_of(results.scenario))
    assert len(crossed) == (points * (points - 1) if results.scenario.cross_evaluate else 0)
    for price in crossed:
        best_ms = own[price.run_at, price.scheduler]
        assert price.latency_ms >= best_ms * (1 - 1e-9)


def smaller(scenario: Scenario) -> Scenario:
    """The small models alone, on the first and last of the other axes' values."""
    ends = {
        field: [getattr(scenario, field)[0], *getattr(scenario, field)[1:][-1:]]
        for field in ("devices", "batch_sizes", "searches", "dtypes")
    }
    models = [model for model in scenario.models if model.model == "squeezenet"] or scenario.models[:1]
    return scenario.model_copy(update={**ends, "models": models, "questions": [], "published": []})


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_the_large_ones_run_smaller(name: str, tmp_path: Path) -> None:
    scenario = smaller(read_scenario(name))
    results = run_study(scenario, tmp_path / name, workers=1).results
    assert {row.status for row in results.rows} == {"ok"}
    assert len(results.rows) == len(points_of(scenario)) * len(scenario.schedulers)
    for row in results.rows:
        if row.scheduler == "ios-both":
            assert row.speedup >= 1 - 1e-12
