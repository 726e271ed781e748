"""A study run: its rows are what the schedulers say, the same whoever did the work and in whatever order; on Dask, too."""

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cpus import cpu
from joblib import parallel_config
from made_studies import files_of, small_study

import iossim
from iossim import api
from iossim.backends.simulator.events import run_schedule
from iossim.base.errors import OptionError, say_once
from iossim.hardware.load import device
from iossim.schedule.schedule import Schedule
from iossim.search.scheduler import scheduler_names
from iossim.study import sweep
from iossim.study.axes import Device, Model, Search
from iossim.study.points import Point
from iossim.study.question import in_words
from iossim.study.report.layout import remarks_in_words
from iossim.study.report.report import printed
from iossim.study.run_directory import read_run
from iossim.study.scenario_file import read_scenario, write_scenario
from iossim.study.study_run import Row, StudyRun
from iossim.study.sweep import run_study

SCENARIO = small_study(("ios_sample", "squeezenet"), crossed=["device", "batch"], units="model")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    return run_study(SCENARIO, tmp_path_factory.mktemp("study") / "run", workers=1)


def rows_at(run: StudyRun, model: str, device: str, batch: int) -> dict[str, Row]:
    found = (row for row in run.results.rows if (row.model, row.device, row.batch) == (model, device, batch))
    return {row.scheduler: row for row in found}


def test_there_is_a_row_for_each_point_and_scheduler(run: StudyRun) -> None:
    rows = run.results.rows
    assert len(rows) == 2 * 2 * 2 * len(scheduler_names())
    assert len({(row.point, row.scheduler) for row in rows}) == len(rows)
    assert [row.point for row in rows] == sorted(row.point for row in rows)
    assert all(row.status == "ok" for row in rows)
    assert run.results.answers[0].question == in_words(SCENARIO.questions[0])
    assert set(run.search_s) == {(row.point, row.scheduler) for row in rows}


def test_rows_are_what_compare_says(run: StudyRun) -> None:
    comparison = api.compare(iossim.load("squeezenet", batch=8), "t4")
    rows = rows_at(run, "squeezenet", "t4", 8)
    for found in comparison.schedules:
        row = rows[found.scheduler]
        assert row.latency_ms == found.latency_us / 1e3
        assert (row.low_ms, row.high_ms) == tuple(bound / 1e3 for bound in found.interval_us or ())
        assert (row.stages, row.streams, row.ties) == (len(found.stages), found.streams, found.ties)
        assert row.gap == found.gap
        assert row.speedup == comparison.baseline_us / found.latency_us
        assert row.throughput_per_s == pytest.approx(8e6 / found.latency_us)
        saved = Schedule.read(run.folder / str(row.schedule))
        assert saved == found.model_copy(update={"search_s": 0.0})
    assert sum(row.merged_stages or 0 for row in rows.values()) > 0
    assert rows_at(run, "squeezenet", "v100-sxm2", 1)["sequential"].published_ms == 0.86
    assert rows_at(run, "squeezenet", "v100-sxm2", 1)["sequential"].in_sample is True


def test_a_row_says_where_the_time_goes(run: StudyRun) -> None:
    for row in run.results.rows:
        assert sum(row.time_by_kind_us.values()) == pytest.approx(1e3 * (row.latency_ms or 0))
        assert {"conv", "boundaries"} <= set(row.time_by_kind_us)


def test_measures_are_those_of_the_event_driven_simulator_and_of_the_planner(run: StudyRun, tmp_path: Path) -> None:
    assert all(row.active_warps is None and row.peak_memory_mib is None for row in run.results.rows)
    scenario = small_study(
        devices=[Device(device="v100-sxm2")], questions=[{"metric": "peak_memory_mib"}, {"metric": "active_warps"}]
    )
    run = run_study(scenario, tmp_path / "measured", workers=1)
    row = rows_at(run, "ios_sample", "v100-sxm2", 8)["ios-both"]
    network = iossim.load("ios_sample", batch=8)
    schedule = Schedule.read(run.folder / str(row.schedule))
    assert row.active_warps == run_schedule(network, schedule, device("v100-sxm2")).mean_active_warps
    inputs_mib = network.graph.types[network.graph.inputs[0]].bytes / 2**20
    assert row.peak_memory_mib >= row.weights_mib + inputs_mib
    assert (row.board_power_w, row.peak_tflops) == (300, device("v100-sxm2").fp32_tflops)


def test_schedules_are_priced_at_all_points_that_differ_in_one_axis(run: StudyRun) -> None:
    schedulers = len(scheduler_names())
    devices = [price for price in run.results.cross if price.axis == "device"]
    batches = [price for price in run.results.cross if price.axis == "batch"]
    assert len(devices) == len(batches) == 2 * 2 * 2 * schedulers
    rows = {(row.point, row.scheduler): row for row in run.results.rows}
    for price in run.results.cross:
        made_for, run_at = (rows[point, price.scheduler] for point in (price.made_for, price.run_at))
        differing = [axis for axis in ("model", "device", "batch") if getattr(made_for, axis) != getattr(run_at, axis)]
        assert differing == [price.axis]
        if price.axis == "device" and price.scheduler == "greedy":
            saved = Schedule.read(run.folder / str(made_for.schedule))
            assert price.latency_ms == iossim.simulate(saved, run_at.device).latency_us / 1e3
        if price.scheduler == "ios-both":
            # The search there is exact: nothing that was made elsewhere is faster.
            assert (price.latency_ms or 0) >= (run_at.latency_ms or 0) * (1 - 1e-9)
        if price.latency_ms == run_at.latency_ms:
            assert price.tie


def test_the_table_has_the_same_rows(run: StudyRun) -> None:
    lines = list(csv.DictReader(io.StringIO((run.folder / "results.csv").read_text())))
    assert [float(line["latency_ms"]) for line in lines] == [row.latency_ms for row in run.results.rows]
    assert [line["ties"].split(";") if line["ties"] else [] for line in lines] == [row.ties for row in run.results.rows]
    assert read_scenario(run.folder / "scenario.yaml") == SCENARIO


@pytest.mark.slow
def test_two_processes_write_the_same(run: StudyRun, tmp_path: Path) -> None:
    run_study(SCENARIO, tmp_path / "two", workers=2)
    assert files_of(tmp_path / "two") == files_of(run.folder)


class _Backwards:
    """A worker that hands its results over last things first."""

    count = 1

    def each(self, work: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        yield from reversed([work(*task) for task in tasks])


def test_the_order_in_which_work_ends_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = small_study(crossed=["device", "batch"])
    run_study(scenario, tmp_path / "forwards", workers=1)
    monkeypatch.setattr(sweep, "workers_for", lambda count: _Backwards())
    run_study(scenario, tmp_path / "backwards")
    assert files_of(tmp_path / "backwards") == files_of(tmp_path / "forwards")


@pytest.mark.slow
def test_the_seed_of_hashes_is_not_seen(run: StudyRun, tmp_path: Path) -> None:
    """In processes of another seed than this one's, the command's and its workers'."""
    write_scenario(SCENARIO, tmp_path / "scenario.yaml")
    command = [sys.executable, "-m", "iossim", "study", "run", "scenario.yaml", "--out", "out", "--json"]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": "1"}, check=True, capture_output=True)
    assert files_of(tmp_path / "out") == files_of(run.folder)


def test_what_fails_is_a_row_and_the_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    network = iossim.load("ios_sample")
    stages = [{"units": [unit.name], "latency_us": 10} for unit in network.units]
    (tmp_path / "prices.json").write_text(json.dumps({"stages": stages}))
    scenario = small_study(
        models=["ios_sample", str(tmp_path / "broken.onnx")],
        devices=[Device(device="v100-sxm2")],
        batch_sizes=[1],
        cost_models=["simulator", f"table:{tmp_path / 'prices.json'}"],
        crossed=["device"],
    )
    rows = run_study(scenario, tmp_path / "run", workers=1).results.rows
    assert len(rows) == 2 * 2 * len(scheduler_names())
    for row in rows:
        broken = row.model == "broken"
        unpriced = row.cost_model != "simulator" and row.scheduler == "greedy"
        assert row.status == ("failed" if broken or unpriced else "ok"), row
        assert bool(row.reason) == (row.status == "failed")
        assert "\n" not in row.reason
        assert (row.latency_ms is None) == (row.status == "failed")
        assert (row.schedule is None) == (row.status == "failed")
    assert "broken.onnx" in next(row.reason for row in rows if row.model == "broken")
    assert "no price" in next(row.reason for row in rows if row.status == "failed" and row.model == "ios_sample")
    table = [row for row in rows if row.model == "ios_sample" and row.cost_model != "simulator" and row.status == "ok"]
    assert all(row.low_ms is None and row.published_ms is None and not row.time_by_kind_us for row in table)


def test_what_is_published_stands_beside_searches_as_wide_as_its_own(tmp_path: Path) -> None:
    scenario = small_study(
        devices=[Device(device="v100-sxm2")],
        batch_sizes=[1],
        searches=[Search(), Search(max_group_size=3, max_groups=8), Search(max_group_size=1, max_groups=8)],
        schedulers=["sequential", "ios-both"],
    )
    rows = run_study(scenario, tmp_path / "run", workers=1).results.rows
    found = {(row.search, row.scheduler): row.published_ms for row in rows}
    assert {found[row.search, "sequential"] for row in rows} == {0.486}
    assert [found[label, "ios-both"] for label in ("exact", "r=3 s=8", "r=1 s=8")] == [0.333, 0.333, None]


def test_a_cpu_has_rows_without_power_or_warps(tmp_path: Path) -> None:
    profile = tmp_path / "cpu.yaml"
    profile.write_text(cpu().model_dump_json())
    scenario = small_study(
        devices=[Device(device=str(profile))],
        batch_sizes=[1],
        questions=[{"metric": "peak_memory_mib"}, {"metric": "active_warps"}],
    )
    rows = run_study(scenario, tmp_path / "run", workers=1).results.rows
    assert {row.status for row in rows} == {"ok"}, rows[0].reason
    assert {(row.board_power_w, row.active_warps) for row in rows} == {(None, None)}
    assert all(row.latency_ms and row.peak_memory_mib for row in rows)


def test_points_that_are_the_same_are_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    evaluate = sweep.evaluate_point

    def counted(point: Point, *asked: Any) -> Any:
        done.append(point.key)
        return evaluate(point, *asked)

    monkeypatch.setattr(sweep, "evaluate_point", counted)
    scenario = small_study(
        models=[Model(model="ios_sample"), Model(model="ios_sample", label="again")],
        batch_sizes=[1],
        searches=[Search(), Search(max_groups=2)],
        schedulers=["greedy", "ios-both"],
    )
    rows = run_study(scenario, tmp_path / "run", workers=1).results.rows
    assert len(done) == len(set(done)) == 4
    assert min(row.speedup or 0 for row in rows) == 1  # over the slowest, without a sequential schedule
    first, again = ([row for row in rows if row.model == model] for model in ("ios_sample", "again"))
    assert [row.latency_ms for row in first] == [row.latency_ms for row in again]
    assert len({row.point for row in rows}) == 8


def test_random_prices_go_by_the_seed_and_predict_nothing(tmp_path: Path) -> None:
    rows = {
        seed: run_study(
            small_study(batch_sizes=[1], cost_models=["random"], seed=seed), tmp_path / str(seed), workers=1
        ).results.rows
        for seed in (0, 1)
    }
    assert [row.latency_ms for row in rows[0]] != [row.latency_ms for row in rows[1]]
    assert all(row.low_ms is None and not row.ties for row in rows[0])


def test_impossible_workers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="`workers` 0"):
        run_study(small_study(), tmp_path / "run", workers=0)
    assert not (tmp_path / "run").exists()


def test_measurements_are_made_by_one_worker(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    scenario = small_study(cost_models=["onnxruntime_cpu:threads=1"])
    with pytest.raises(OptionError, match="`workers` 1"):
        run_study(scenario, tmp_path / "run", workers=2)


def test_an_unfinished_or_foreign_folder_is_no_run(run: StudyRun, tmp_path: Path) -> None:
    assert read_run(run.folder).results == run.results
    for folder, says in ((tmp_path / "none", "not a folder"), (tmp_path, "cannot read results")):
        with pytest.raises(OptionError, match=says):
            read_run(folder)
    (tmp_path / "done").mkdir()
    with pytest.raises(OptionError, match="--resume"):
        read_run(tmp_path)
    (tmp_path / "results.json").write_text('{"rows": 3}')
    with pytest.raises(OptionError, match=r"results\.json are not valid: field"):
        read_run(tmp_path)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_note_is_logged_once_whoever_does_the_work(
    workers: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The Pascal board computes fp16 data in fp32, as each worker notes."""
    say_once.cache_clear()
    given = {
        "devices": [Device(device="gtx-1080-ti")],
        "dtypes": ["fp16"],
        "batch_sizes": [1, 2, 4, 8],
        "questions": [],
    }
    run_study(small_study(schedulers=["sequential"], **given), tmp_path / "out", workers=workers)
    assert sum("has no fast fp16" in record.getMessage() for record in caplog.records) == 1


def test_want_of_memory_is_told(tmp_path: Path) -> None:
    given = {"devices": [Device(device="t4")], "batch_sizes": [1, 65536], "questions": []}
    run = run_study(small_study(schedulers=["sequential"], **given), tmp_path / "run", workers=1)
    rows = run.results.rows
    assert (remarks_in_words(rows), "dim") in printed(run)
    assert [row.remark.partition(" and t4 has ")[2] for row in rows] == ["", "16.0"]
    assert remarks_in_words(rows).endswith(f"Want of memory: {rows[1].remark}.")


distributed = pytest.importorskip("distributed", reason="Dask is not installed; pip install 'dask[distributed]'")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("processes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_cluster_writes_the_same(tmp_path: Path, processes: bool) -> None:
    study = small_study(crossed=["device"])
    run_study(study, tmp_path / "here", workers=1)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1 if processes else 2, processes=processes, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
        parallel_config(backend="dask", client=client),
    ):
        run_study(study, tmp_path / "cluster", workers=2)
        assert client.run(lambda: "iossim.study.evaluate" in __import__("sys").modules)
    assert files_of(tmp_path / "cluster") == files_of(tmp_path / "here")
