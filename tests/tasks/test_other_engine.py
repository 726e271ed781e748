"""What the other engine gives for a network: priced and searched under it, told in one line."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from command_line import printed, printed_json, refused
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_tensor_value_info

import iossim
from iossim import api
from iossim.cost.random import RandomCostModel
from iossim.tasks.task import under_other_engine


@pytest.mark.parametrize(("engine", "other"), [("paper", "graph"), ("graph", "paper")])
def test_it_is_what_that_engine_says(engine: str, other: str) -> None:
    network, pruned = iossim.load("squeezenet"), api.search_options("general", 3, 8)
    prices = api.cost_model("simulator", "h100-sxm", engine=engine)
    found = iossim.optimize(network, None, engine=engine, cost_model=prices)
    there = under_other_engine(network, found, prices)
    assert there is not None
    assert there.engine == other
    assert there.same_schedule_us == iossim.simulate(found, "h100-sxm", engine=other).latency_us
    best, plain = (
        iossim.optimize(network, "h100-sxm", engine=other, scheduler=name, options=pruned).latency_us
        for name in ("ios-both", "sequential")
    )
    assert there.best_us == min(best, there.same_schedule_us)
    assert there.sequential_us == plain


def test_other_prices_have_no_engine() -> None:
    network = iossim.load("ios_sample")
    prices = RandomCostModel()
    assert under_other_engine(network, iossim.optimize(network, None, cost_model=prices), prices) is None


def test_a_network_of_views_takes_no_time_anywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Found by a fuzz: every ratio of latencies was a division by zero."""
    x, y = (
        make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [2, 3, 4]), ("y", [2, 12]))
    )
    onnx.save(make_model(make_graph([make_node("Flatten", ["x"], ["y"])], "views", [x], [y])), tmp_path / "views.onnx")
    told = printed_json(capsys, f"compare {tmp_path / 'views.onnx'} -d v100-sxm2 --json")
    assert told["other_engine"] is None
    assert {(each["latency_us"], each["speedup"]) for each in told["schedules"]} == {(0.0, 1.0)}
    assert printed_json(capsys, f"optimize {tmp_path / 'views.onnx'} -d v100-sxm2 --json")["latency_us"] == 0.0
    kept = tmp_path / "kept"
    plain = f"{tmp_path / 'views.onnx'} -d v100-sxm2"
    told = printed_json(capsys, f"optimize {plain} --scheduler ios-streams --out {kept} --json")
    assert (told["latency_us"], told["scheduler"]) == (0.0, "ios-streams")
    assert printed_json(capsys, f"diff {kept}/schedule.json {kept}/schedule.json --json")["regrets"] == [0.0, 0.0]
    beside = f"coschedule {tmp_path / 'views.onnx'} squeezenet -d a100-sxm-40gb"
    (tmp_path / "requests.csv").write_text("time_ms,model\n0,views\n5,squeezenet\n5,views\n")
    told = printed_json(capsys, f"{beside} --objective latency --arrivals {tmp_path / 'requests.csv'} --json")
    assert {way["ends_us"]["views"] for way in told["ways"]} == {0.0}
    assert len(told["served"]) == 3
    assert "the models take no time" in refused(capsys, f"coschedule {plain} --arrivals poisson")


def test_a_network_that_gains_nothing_on_streams_is_told_what_a_graph_gains(capsys: pytest.CaptureFixture[str]) -> None:
    """Found by a new user: on an H100 nothing in GoogLeNet's kind was worth running side by side, unless as one graph."""
    told = printed_json(capsys, "compare inception_v3 -d h100 --engine paper -r 3 -s 8 --json")["other_engine"]
    assert told["engine"] == "graph"
    assert told["sequential_us"] / told["best_us"] > 1.5
    line = printed(capsys, "compare inception_v3 -d h100 --engine paper -r 3 -s 8").splitlines()[-1]
    assert line.startswith("With --engine graph: ")
    assert f"{told['best_us'] / 1e3:.3f} ms" in line
    remarks = json.loads(printed(capsys, "optimize inception_v3 -d h100 --engine paper -r 3 -s 8 --json"))["remarks"]
    assert remarks == [line]
