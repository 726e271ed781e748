"""Calibration with rows of tensor cores' precisions: their parameters are found, and no other changes."""

from __future__ import annotations

from iossim.calibration.calibrate import DeviceData, calibrate
from iossim.calibration.samples import OperatorSamples
from iossim.hardware.kinds.gpu import GPU_SPACE, TENSOR_SPACE
from iossim.hardware.load import device
from iossim.hardware.profile import with_values
from iossim.ir.types import Precision
from iossim.measurements.measurement import Header, Measurement, MeasurementSet
from iossim.measurements.operator_kinds import read_record


def test_tensor_cores_are_fitted_beside_what_a_profile_holds() -> None:
    profile = device("v100-sxm2")
    truth = with_values(profile, {"tensor_efficiency": 0.7, "tensor_dram_efficiency": 0.75})
    operators = [
        read_record({"op": "linear", "batch": 1, "m": m, "n": n, "k": k}, Precision.FP16)
        for m in (1, 8, 64, 512, 1024, 4096, 8192, 16_384)
        for n in (2048, 4096, 8192, 16_384)
        for k in (2048, 4096, 8192, 12_288)
    ]
    header = Header(device=profile.name, data_set="made", precision=Precision.FP16)
    rows = tuple(Measurement(operator, 1.0) for operator in operators)
    measured = MeasurementSet(header, rows)
    times, _ = OperatorSamples.of(measured, rows, truth, 1.0).predict(truth)
    made = tuple(Measurement(one, us) for one, us in zip(operators, times.tolist(), strict=True))
    found = calibrate(
        [DeviceData(profile, (MeasurementSet(header, made),))], folds=0, rounds=15, resamples=4, trusts_labels=True
    )
    assert found.fit.space.names == TENSOR_SPACE.names
    # Weights of dense layers lie along the inner dimension: what DRAM gives for those is one figure of two parameters.
    assert abs(found.profile.parameters.tensor_efficiency - 0.7) < 0.05
    before_fit, after_fit = profile.parameter_values, found.profile.parameter_values
    assert all(after_fit[name] == before_fit[name] for name in GPU_SPACE.names)
    # What was known of the rest still is, errors and resamples too.
    provenance, before = found.profile.provenance, profile.provenance
    assert provenance.data_sets[: len(before.data_sets)] == before.data_sets
    assert provenance.data_sets[-1].name == "made"
    assert provenance.spread.items() >= before.spread.items()
    assert provenance.bands.keys() == before.bands.keys() | {"linear fp16"}
    assert found.held_out[0].mape_percent < 2
