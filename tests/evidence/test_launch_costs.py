"""Tables that are checked in: launch costs by generation, what sessions cost, and kernels on parts of devices."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import pytest

from evidence.concurrency.sm_shares import BandwidthCurve, SmCurve, read_bandwidths, read_curves, read_network_pairs
from evidence.predictions import computed, moved, read
from evidence.profiles.launch_costs import (
    ENGINE_OPERATORS,
    PAIRS,
    TABLE,
    Estimate,
    engine_calls_us,
    launch_costs,
    lightest_nodes_us,
    read_launch_costs,
)
from evidence.profiles.runtime_streams import session_costs
from evidence.validation.sm_shares import (
    NetworkPrices,
    evaluate_curve,
    evaluate_networks,
    evaluate_pairs,
    evaluate_reach,
    evaluate_shares,
)
from iossim.backends.simulator.device_rates import bandwidth_part
from iossim.hardware.compute_capability import Architecture
from iossim.hardware.kind import device_kind
from iossim.hardware.load import device
from iossim.measurements.measurement import MeasurementError

GPU = device_kind("gpu")
HEAD = "device,software,what,value,unit\n"


@pytest.fixture
def found(shared: Path) -> dict[str, dict[str, Estimate]]:
    data = shared / "data"
    costs = read_launch_costs(data / TABLE)
    return launch_costs(costs, engine_calls_us(data / ENGINE_OPERATORS), lightest_nodes_us(data / PAIRS))


def test_what_kinds_have_is_rounded_from_the_tables(found: dict[str, dict[str, Estimate]]) -> None:
    for generation, estimates in found.items():
        costs = GPU.engines[generation]
        values = costs.values.model_dump() | {"kernel_gap_us": GPU.parameters[Architecture.VOLTA].kernel_gap_us}
        for name, one in estimates.items():
            assert values[name] == pytest.approx(one.value, rel=0.06), (generation, name)
            assert costs.spread[name] == pytest.approx(one.spread, rel=0.06), (generation, name)
    assert set(found) == {Architecture.VOLTA, Architecture.TURING, Architecture.ADA}
    assert set(GPU.engines) == set(Architecture)


def test_nodes_of_graphs_follow_each_other_faster_than_kernels_of_streams(
    found: dict[str, dict[str, Estimate]],
) -> None:
    for estimates in found.values():
        assert estimates["graph_gap_factor"].value < 1


def test_times_are_in_microseconds(tmp_path: Path) -> None:
    path = tmp_path / "costs.csv"
    path.write_text(HEAD + "A,x,a chain,1.5,ms\nA,x,a launch,3,us (about)\n")
    assert [row.value_us for row in read_launch_costs(path)] == [1500.0, 3.0]


@pytest.mark.parametrize("line", ["A,x,a launch,fast,us", "A,x,a launch,3,miles", "A,x,a launch,3,"])
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "costs.csv"
    path.write_text(HEAD + "A,x,a launch,3,us\n" + line + "\n")
    with pytest.raises(MeasurementError, match=r"costs.csv: line 3: .* correct the line"):
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
    kind = device_kind("cpu")
    costs, parameters = kind.engines["cpu"].values, kind.parameters["cpu"]
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


A100 = device("a100-sxm-80gb")
V100 = device("v100-sxm2")
SMS = (14, 27, 54, 81, 108)


def test_a_curve_of_sms_alone_is_told_exactly() -> None:
    curve = SmCurve("made", SMS, tuple(100.0 * 108 / sms for sms in SMS))
    found = evaluate_curve(curve, A100)
    assert found.sm_part == 1.0
    assert found.in_sample == pytest.approx(0.0, abs=1e-9)
    constant = evaluate_curve(SmCurve("made", SMS, (100.0,) * 5), A100)
    assert (constant.sm_part, constant.left_out) == (0.0, 0.0)


def test_a_reach_is_found_again() -> None:
    curve = BandwidthCurve("made", SMS, tuple(1_500.0 * bandwidth_part(sms / 108, 1.7) for sms in SMS))
    found = evaluate_reach(curve, A100)
    assert found.reach == pytest.approx(1.7)
    assert found.error < 1e-3 < found.profile_error


def test_copies_are_found_again() -> None:
    prices = NetworkPrices(V100)
    rows = [
        ("alexnet", batch, percent, prices.latency_us("alexnet", batch, percent) + 50.0 * batch)
        for batch in (1, 4)
        for percent in (20, 50, 100)
    ]
    (found,) = evaluate_networks(pandas.DataFrame(rows, columns=["network", "batch", "percent", "latency_us"]), prices)
    assert found.copy_us == pytest.approx(50.0)
    assert found.left_out == pytest.approx(0.0, abs=1e-9)
    assert found.slowdown < 0.2


def test_delays_are_found_again() -> None:
    counts = {"alexnet": 10, "vgg19": 30, "resnet50": 60}
    random = np.random.default_rng(0)
    shares, runs = [], []
    for batch, (own, other) in enumerate((own, other) for own in counts for other in counts if own != other):
        alone_us, l2 = random.uniform(500, 5_000), random.uniform(0.1, 0.3)
        shares.append((other, batch, 50, l2))
        together_us = alone_us * (1 + 4.0 * counts[own] / alone_us + 0.5 * l2)
        runs.append((own, alone_us, together_us, other, batch, 50))
    made = pandas.DataFrame(
        runs, columns=["network", "alone_us", "together_us", "other", "other_batch", "other_percent"]
    )
    known = pandas.DataFrame(shares, columns=["network", "batch", "percent", "l2"])
    found = evaluate_pairs(made, known, counts.__getitem__)
    assert (found.delay_us, found.l2_part) == pytest.approx((4.0, 0.5))
    assert found.left_out.percentile_90 < 1e-9 < found.no_interference.median
    assert evaluate_pairs(made, known[:0], counts.__getitem__) is None


def test_the_recorded_tables(shared: Path) -> None:
    """The errors that README states, to which these are bars."""
    folder = shared / "data" / "concurrency"
    if not folder.is_dir():
        pytest.skip(f"no reference data at {folder}")
    found = evaluate_shares(folder, batches=(1, 8, 32))
    assert len(found.curves) == 12
    assert max(one.left_out for one in found.curves) < 0.12
    assert np.mean([one.in_sample for one in found.networks]) < 0.15
    assert {one.device for one in found.reaches} == {"a100-sxm-80gb", "rtx-a6000", "rtx-5090"}
    assert found.pairs.left_out.median < 0.6 * found.pairs.no_interference.median
    assert not evaluate_shares(folder, [device("k80")])
    assert not evaluate_shares(folder / "none")


@pytest.mark.parametrize(
    ("read", "text", "error"),
    [
        (read_curves, "device,kernel,batch,context_or_tokens,sm_count,latency_ms,achieved_bandwidth_GB_per_s\na,k,1,1,,2,3\n", "line 2: sm_count is empty"),
        (read_bandwidths, "device,what,sm_or_blocks,value,unit\nRTX A6000 (84 SMs),DRAM read bandwidth,4,fast,GB/s\n", "line 2: value"),
        (read_network_pairs, "network_a,network_b\nalexnet,vgg19\n", "there is no column 'batch_a'|batch_a is empty"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_read(tmp_path: Path, read: Callable[[Path], object], text: str, error: str) -> None:
    path = tmp_path / "made.csv"
    path.write_text(text)
    with pytest.raises(MeasurementError, match=error):
        read(path)
