"""Tables that are checked in: launch costs by generation, what sessions cost, and what the simulator says."""

from __future__ import annotations

from pathlib import Path

import pytest

from evidence.predictions import DEVICES, computed, moved, read
from evidence.profiles.launch_costs import (
    ENGINE_OPERATORS,
    PAIRS,
    TABLE,
    Estimate,
    engine_calls_us,
    graph_start_us,
    launch_costs,
    lightest_nodes_us,
    read_launch_costs,
)
from evidence.profiles.runtime_streams import session_costs
from iossim.hardware.compute_capability import Architecture
from iossim.hardware.kinds.cpu import KIND
from iossim.hardware.kinds.gpu import ENGINES, PARAMETERS
from iossim.hardware.names import device_names
from iossim.measurements.measurement import MeasurementError

HEAD = "device,software,what,value,unit\n"


@pytest.fixture
def found(shared: Path) -> dict[str, dict[str, Estimate]]:
    data = shared / "data"
    costs = read_launch_costs(data / TABLE)
    return launch_costs(costs, engine_calls_us(data / ENGINE_OPERATORS), lightest_nodes_us(data / PAIRS))


def test_what_kinds_have_is_rounded_from_the_tables(found: dict[str, dict[str, Estimate]]) -> None:
    for generation, estimates in found.items():
        costs = ENGINES[generation]
        values = costs.values.model_dump() | {"kernel_gap_us": PARAMETERS[Architecture.VOLTA].kernel_gap_us}
        for name, one in estimates.items():
            assert values[name] == pytest.approx(one.value, rel=0.06), (generation, name)
            assert costs.spread[name] == pytest.approx(one.spread, rel=0.06), (generation, name)
    assert set(found) == {Architecture.VOLTA, Architecture.TURING, Architecture.ADA}
    assert set(ENGINES) == set(Architecture)


def test_nodes_of_graphs_follow_each_other_faster_than_kernels_of_streams(
    found: dict[str, dict[str, Estimate]],
) -> None:
    for estimates in found.values():
        assert estimates["graph_gap_factor"].value < 1


def test_the_start_of_a_graph(shared: Path) -> None:
    start = graph_start_us(read_launch_costs(shared / "data" / TABLE))
    assert start.value == pytest.approx(15.5, abs=0.2)
    assert start.spread < 2


def test_times_are_in_microseconds(tmp_path: Path) -> None:
    path = tmp_path / "costs.csv"
    path.write_text(HEAD + "A,x,a chain,1.5,ms\nA,x,a launch,3,us (about)\n")
    assert [row.value_us for row in read_launch_costs(path)] == [1500.0, 3.0]


@pytest.mark.parametrize("line", ["A,x,a launch,fast,us", "A,x,a launch,3,miles", "A,x,a launch,3,"])
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "costs.csv"
    path.write_text(HEAD + "A,x,a launch,3,us\n" + line + "\n")
    with pytest.raises(MeasurementError, match=r"costs.csv, line 3: .* correct the line"):
        read_launch_costs(path)


def test_a_table_that_lacks_a_figure_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "costs.csv"
    path.write_text(HEAD + "A,x,a launch,3,us\n")
    with pytest.raises(MeasurementError, match="0 rows of RTX 5090"):
        launch_costs(read_launch_costs(path), {"A": 9.0, "B": 8.0}, (0.5, 1.0))
    with pytest.raises(MeasurementError, match="IOSSIM_SHARED"):
        read_launch_costs(tmp_path / "none.csv")


def test_the_defaults_are_what_the_rows_say() -> None:
    found = session_costs()
    costs, parameters = KIND.engines["cpu"].values, KIND.parameters["cpu"]
    assert costs.session_gap_factor == pytest.approx(found.node_us / parameters.kernel_gap_us, rel=0.1)
    assert costs.notification_us == pytest.approx(found.notification_us, rel=0.1)
    assert costs.starved_notification_us == pytest.approx(found.starved_us, rel=0.1)
    low, high = found.starved_quartiles_us
    assert low < costs.starved_notification_us < high


def test_no_prediction_moves_unnoticed() -> None:
    lines = moved(read(), computed())
    assert not lines, "\n".join(["run: python -m evidence predictions", *lines])


def test_what_moved_is_said() -> None:
    before = {("t4", "a", "x"): 100.0, ("t4", "b", "x"): 100.0, ("t4", "c", "x"): 5.0}
    now = {("t4", "a", "x"): 100.5, ("t4", "b", "x"): 110.0, ("t4", "d", "x"): 7.0}
    assert moved(before, now) == ["t4, c, x: gone", "t4, b, x: 100 -> 110 us (+10.0%)", "t4, d, x: new, 7 us"]


@pytest.mark.parametrize("name", DEVICES)
def test_devices_ship(name: str) -> None:
    assert name in device_names()
