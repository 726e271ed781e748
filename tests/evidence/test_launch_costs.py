"""Launch costs by generation: what the tables say is what kinds have, and what is wrong with a table is told."""

from __future__ import annotations

from pathlib import Path

import pytest

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
from iossim.hardware.compute_capability import Architecture
from iossim.hardware.kinds.gpu import ENGINES, PARAMETERS
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
