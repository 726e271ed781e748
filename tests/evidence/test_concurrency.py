"""Kernels measured side by side against ``corun``, with bars: what of them is right, and what is known to be wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import printed, printed_json

from evidence.concurrency import grouped_experts
from evidence.concurrency.hopper_placement import Launched, makespan_us
from evidence.concurrency.hopper_sets import networks, prices, products_side_by_side, side_by_side
from evidence.validation.concurrency import MODELS, ConcurrencyEvaluation, RatioErrors, evaluate_concurrency
from iossim.hardware.load import device
from iossim.ir.types import Precision
from iossim.prediction.schedule_interval import NINE_OF_TEN, stage_error


@pytest.fixture(scope="module")
def found(shared: Path) -> ConcurrencyEvaluation:
    evaluation, notes = evaluate_concurrency(shared / "data" / "concurrency")
    assert notes == ()
    assert evaluation is not None
    return evaluation


def test_errors_of_ratios() -> None:
    errors = RatioErrors.of(np.array([1.1, 0.8, 1.0]), np.ones(3))
    assert (errors.median, errors.mean) == (pytest.approx(0.1), pytest.approx(0.1))
    assert errors.percentile_90 == pytest.approx(0.18)


def test_blocks_placed_one_by_one() -> None:
    """An SM each, one after another where a block takes a whole SM, and half as fast where two keep it busy."""
    limits, whole, small = device("h100-sxm").limits, (384, 168, 231_424), (128, 32, 0)

    def us(*kernels: tuple[int, tuple[int, int, int]], busy: float = 1.0) -> float:
        return makespan_us([Launched(blocks, needs, 10.0) for blocks, needs in kernels], limits, 132, busy)

    assert us((66, whole), (66, whole)) == pytest.approx(10.45)
    assert us((132, whole), (132, whole)) == pytest.approx(20.0)
    assert us((132, small), (132, small), busy=0.5) == pytest.approx(10.45)
    assert us((132, small), (132, small)) == pytest.approx(20.0, abs=0.01)


@pytest.mark.usefixtures("shared")
def test_products_of_experts_gain_from_concurrency_as_recorded() -> None:
    """In-sample: clusters and the SMs that they leave over were seen in these recordings."""
    errors = {
        count: np.mean([one.error for one in products_side_by_side(prices()) if one.kernels == count])
        for count in (2, 4, 8, 16)
    }
    assert max(errors[2], errors[8], errors[16]) <= 0.13
    assert errors[4] <= 0.21


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_published_layers_of_experts_take_their_grouped_products() -> None:
    """Nothing was fitted to them; shorter layers spend more than a third of their time on what is not priced."""
    errors = {key: np.mean(np.abs(np.array(own) - 1.0)) for key, own in grouped_experts.ratios().items()}
    assert max(error for (_, end_us), error in errors.items() if end_us == np.inf) <= 0.14
    assert max(error for (_, end_us), error in errors.items() if end_us == 300.0) <= 0.19


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_recorded_networks_are_predicted() -> None:
    """Of an H100, by schedules that follow from the network; nothing of them took part in a fit."""
    errors = networks()
    assert max(map(abs, errors["inception_v3:fp32"].values())) <= 2.0
    assert max(map(abs, (*errors["inception_v3:bf16"].values(), *errors["gpt2:bf16"].values()))) <= 7.0


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_nine_in_ten_recorded_sets_are_inside_the_interval_of_their_stage_which_is_no_wider_than_that() -> None:
    """In-sample. What older GPUs show of stages is told of fp32 there, and would hold one in four of these."""
    errors = {
        precision: [
            abs(np.log(one.predicted / np.sqrt(one.warm * one.cold)))
            / (NINE_OF_TEN * stage_error(device("h100-sxm"), precision, one.kernels))
            for one in side_by_side(prices())
        ]
        for precision in (Precision.BF16, Precision.FP32)
    }
    assert 0.87 <= np.mean(np.array(errors[Precision.BF16]) <= 1.0) <= 0.93
    assert np.mean(np.array(errors[Precision.FP32]) <= 1.0) < 0.5


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    evaluation, notes = evaluate_concurrency(tmp_path, [device("v100-sxm2"), device("t4")])
    assert evaluation is None
    (note,) = notes
    assert note.startswith(f"no measurements at {tmp_path / 'v100_microbenchmarks.csv'}")


@pytest.mark.slow
def test_pairs_of_operators_in_graphs(found: ConcurrencyEvaluation) -> None:
    (graphs,) = (one for one in found.pairs if one.device == "rtx-a5000")
    assert list(graphs.slowdowns) == list(MODELS)
    assert graphs.slowdowns["in_sample"].median <= 0.095
    assert graphs.slowdowns["family"].median <= 0.12
    for model in ("none", "sum"):
        assert graphs.slowdowns["in_sample"].mean < 0.6 * graphs.slowdowns[model].mean
    assert graphs.makespans["in_sample"].median <= 0.02
    # The profile has what the data tell.
    assert graphs.value == device("rtx-a5000").engine.graph_beside_us


def test_kernels_that_fill_the_device_overlap_in_their_tails(found: ConcurrencyEvaluation) -> None:
    (streams,) = (one for one in found.pairs if one.device == "gtx-1080-ti")
    assert streams.slowdowns["in_sample"].median <= 0.01
    assert streams.slowdowns["in_sample"].mean <= 0.02
    assert streams.slowdowns["none"].mean > 0.2


def test_prefill_beside_decode(found: ConcurrencyEvaluation) -> None:
    (shared,) = (one for one in found.pairs if one.device == "a100-sxm-80gb")
    assert shared.slowdowns["in_sample"].median <= 0.095
    assert shared.makespans["in_sample"].median <= 0.06
    for model in ("none", "sum"):
        assert shared.slowdowns["in_sample"].mean < 0.4 * shared.slowdowns[model].mean


def test_pairs_of_all_sets(found: ConcurrencyEvaluation) -> None:
    together = found.all_pairs
    assert together is not None
    assert together.pairs == sum(one.pairs for one in found.pairs) == 71
    assert together.slowdowns["in_sample"].median <= 0.05
    assert all(together.slowdowns[model].median <= 0.12 for model in ("family", "set", "device"))
    assert together.within is not None
    assert together.within > 0.8


@pytest.mark.parametrize(
    ("name", "mechanism", "right"),
    [
        ("v100-sxm2", "slots", 2),
        ("v100-sxm2", "fp64 pipe", 4),
        ("v100-sxm2", "L2 bandwidth", 1),
        ("v100-sxm2", "L2 capacity", 4),
        ("v100-sxm2", "copy beside arithmetic", 1),
        ("rtx-5090", "slots", 2),
        ("rtx-5090", "fp64 pipe", 4),
        ("rtx-5090", "L2 bandwidth", 3),
        ("rtx-5090", "L2 capacity", 9),
        ("rtx-5090", "DRAM by SMs", 10),
    ],
)
def test_mechanisms_within_ten_per_cent(found: ConcurrencyEvaluation, name: str, mechanism: str, right: int) -> None:
    own = found.by_mechanism()[name, mechanism]
    assert sum(one.is_right for one in own) >= right, [(one.title, one.measured, one.simulated) for one in own]


def test_blocks_go_where_they_were_seen(found: ConcurrencyEvaluation) -> None:
    assert [(one.kernel, one.foretold) for one in found.placements] == [("k_fma32", 1.0), ("k_copy_tb", 1.0)]
    assert max(one.in_turn for one in found.placements) < 0.1


def test_validate_tells_it(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOSSIM_SHARED", str(shared))
    monkeypatch.setenv("COLUMNS", "80")
    (told,) = printed_json("evidence validate --part concurrency -d gtx-1080-ti --json")["concurrency"]
    (pair,) = told["pairs"]
    assert (pair["data_set"], pair["pairs"]) == ("gtx1080ti_stream_pairs", 10)
    assert set(pair["slowdowns"]) == set(MODELS)
    text = printed("evidence validate --part concurrency -d v100-sxm2")
    assert "fp64 pipe, v100-sxm2" in text
    assert max(map(len, text.splitlines())) <= 80
