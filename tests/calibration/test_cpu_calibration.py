"""A CPU's parameters from measured operators and stages that the model itself made up."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import printed, printed_json
from cpus import cpu
from operators import parse_description

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.calibration.calibrate import Calibration, DeviceData, Protocol, calibrate
from iossim.calibration.concurrency_fit import fit_concurrency
from iossim.hardware.kind import device_kind
from iossim.hardware.load import device
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.hardware.write import save_host_cpu, write_profile
from iossim.ir.types import Precision
from iossim.measurements.measurement import (
    Header,
    Measurement,
    MeasurementError,
    MeasurementSet,
    Operator,
    StageMeasurement,
)
from iossim.measurements.measurement_set import write_measurements
from iossim.models.load import load
from iossim.prediction.predict import predict, stage_us
from iossim.prediction.schedule_interval import ScheduleErrors
from iossim.search.scheduler import schedule

#: Away from the defaults.
TRUTH = {
    "gemm_efficiency": 0.6,
    "implicit_gemm_efficiency": 0.72,
    "depthwise_efficiency": 0.25,
    "vector_efficiency": 0.07,
    "transform_efficiency": 0.35,
    "l2_bytes_per_clock_per_sm": 16.0,
    "beyond_core_cache_factor": 0.5,
    "kernel_gap_us": 6.0,
}
DEVICE = with_values(cpu(), TRUTH)


def shapes(count: int) -> list[Operator]:
    generator = np.random.default_rng(0)
    texts = []
    for index in range(count):
        channels, filters = (16 * generator.integers(1, 20, 2)).tolist()
        size, kernel = int(generator.integers(7, 56)), int(generator.choice([1, 3, 5]))
        image = f"in_size={size} kernel={kernel} padding={kernel // 2} stride={1 + index % 2}"
        texts.append(
            (
                f"conv batch=1 in_channels={channels} out_channels={filters} {image}",
                f"conv batch=1 in_channels={channels} out_channels={channels} groups={channels} {image}",
                f"max_pool batch=1 channels={channels} {image}",
                f"linear batch=1 m={1 + index % 9} n={8 * channels} k={8 * filters}",
                f"add rows={channels} cols={size * size}",
            )[(0, 0, 0, 1, 2, 3, 4)[index % 7]]
        )
    return [parse_description(text) for text in texts]


def made(count: int = 240, noise: float = 0.03) -> MeasurementSet:
    factors = np.exp(noise * np.random.default_rng(1).normal(size=count)).tolist()
    operators = shapes(count)
    rows = tuple(
        Measurement(operator, one.gpu_time_us * factor, row, algorithm=one.algorithm)
        for row, (operator, one, factor) in enumerate(zip(operators, predict(operators, DEVICE), factors, strict=True))
    )
    return MeasurementSet(Header(device="cpu", data_set="made"), rows)


@pytest.fixture(scope="module")
def found() -> Calibration:
    return calibrate([DeviceData(cpu(), (made(),))], Protocol("2026-11-21", folds=2, rounds=30, resamples=30))


def test_recovers_what_is_identifiable_and_errs_by_the_noise(found: Calibration) -> None:
    for name, truth in TRUTH.items():
        assert getattr(found.profile.parameters, name) == pytest.approx(truth, rel=0.08), name
    assert found.profile.datasheet == cpu().datasheet
    assert found.profile.engine == cpu().engine
    assert {error.kind for error in found.profile.provenance.held_out} == {
        "conv",
        "depthwise",
        "max_pool",
        "linear",
        "add",
    }
    for error in (*found.profile.provenance.held_out, *found.profile.provenance.cross_validated):
        assert error.mape_percent < 8


def test_provenance_and_intervals(found: Calibration) -> None:
    provenance = found.profile.provenance
    assert provenance.kind == "fitted"
    assert set(provenance.spread) == set(device_kind("cpu").fits().kernels.names)
    assert set(provenance.bands) >= {"conv", "add"}
    for prediction in predict(shapes(20), found.profile):
        assert 0.7 * prediction.gpu_time_us < prediction.low_us < prediction.gpu_time_us < prediction.high_us
    network = load("squeezenet")
    best = schedule(network, SimulatorCostModel(found.profile, Precision.FP32), "ios-both")
    interval = ScheduleErrors(network, found.profile).interval(best)
    assert 0.8 * best.latency_us < interval.low_us < best.latency_us < interval.high_us < 1.25 * best.latency_us


def test_kernels_of_a_gpu_are_refused() -> None:
    rows = tuple(replace(row, kernels=("volta_sgemm_128x64_nn",)) for row in made().measurements)
    with pytest.raises(MeasurementError, match="ran kernels of GPUs, cpu is a CPU"):
        calibrate([DeviceData(cpu(), (replace(made(), measurements=rows),))], Protocol(folds=0))


def stages(profile: DeviceProfile) -> MeasurementSet:
    """One to three convolutions side by side on two cores, with the threads' hand-over."""
    model = SimulatorCostModel(profile, Precision.FP32)
    several = []
    for size in (14, 20, 28, 40):
        one = parse_description(
            f"conv batch=1 in_channels=64 out_channels=64 in_size={size} kernel=3 stride=1 padding=1"
        )
        for groups in (((one,), (one,)), ((one,), (one,), (one,))):
            several.append(StageMeasurement(groups, stage_us(groups, model)))
    return MeasurementSet(Header(device="cpu", data_set="side by side"), (), tuple(several))


def test_stages_tell_the_hand_over_and_what_cores_share() -> None:
    truth = {"interference": 0.2, "synchronise_us": 25.0}
    fitted = fit_concurrency(cpu(), [stages(with_values(cpu(), truth))])
    assert fitted.parameters.interference == pytest.approx(0.2, abs=0.01)
    assert fitted.engine.synchronise_us == pytest.approx(25.0, abs=2.0)
    assert fitted.provenance.data_sets[-1].name == "side by side, stages"


def test_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IOSSIM_DATA_DIR", str(tmp_path / "data"))
    write_measurements(made(), Path("lab.jsonl"))
    write_profile(cpu(), Path("cpu.yaml"))
    found = printed_json("calibrate --data lab.jsonl --device cpu.yaml --folds 0 --json")
    assert set(found["parameters"]) == {*device_kind("cpu").fits().kernels.names, "interference", "synchronise_us"}
    save_host_cpu(device("./cpu.calibrated.yaml"))
    names = [row["name"] for row in printed_json("devices list --json")]
    assert "cpu" in names
    comparison = printed_json("compare squeezenet -d cpu --json")
    latency = {one["scheduler"]: one["latency_us"] for one in comparison["schedules"]}
    assert latency["ios-both"] <= latency["sequential"]
    Path("ops.csv").write_text("rows,cols\n64,784\n")
    (row,) = printed_json("predict ops.csv --op relu -d cpu --json")
    assert row["algorithm"] == "nchw"
    assert "cpu" in printed("devices show cpu")
    assert found["provenance"]["kind"] == "fitted"
