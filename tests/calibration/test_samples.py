"""Rows of a table of candidates are the rows of a table of those operators."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import measured, true_profile

from iossim.calibration.samples import OperatorSamples, fit_nuisances
from iossim.calibration.validation.operators import evaluate_operators
from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Issue
from iossim.measurements.measurement import Header, Measurement, MeasurementSet
from iossim.measurements.operator_kinds import parse_description


@pytest.mark.parametrize("seed", range(3))
def test_the_same_as_lowering_the_rows_alone(seed: int) -> None:
    profile = true_profile()
    several = measured(profile, 40)
    chosen = np.random.default_rng(seed).random(40) < 0.5
    rows = [row for row, is_chosen in zip(several.measurements, chosen, strict=True) if is_chosen]
    alone = OperatorSamples.of(several, rows, profile, 3.0)
    part = OperatorSamples.of(several, several.measurements, profile, 3.0).where(chosen)
    np.testing.assert_array_equal(part.latency_us, alone.latency_us)
    np.testing.assert_array_equal(part.table.kernels, alone.table.kernels)
    for mine, other in zip(part.predict(profile), alone.predict(profile), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_a_profiler_flushes_the_caches_holds_the_clock_and_adds_a_constant() -> None:
    profile = device("v100-sxm2")
    operators = [parse_description(f"relu rows={rows} cols=1024") for rows in range(64, 6464, 64)]
    us_of_bytes = 1e-3 / (profile.dram_bandwidth_gbps * profile.parameters.stream_efficiency)
    # Up to 5 MB the copy stays in L2, where it costs nothing beside what is read.
    small = [one for one in operators if one.bytes <= 2 * 5_000_000]
    rows = tuple(Measurement(one, 2.5 + one.bytes / 2 * us_of_bytes) for one in small)
    header = Header(device="v100-sxm2", data_set="copies", includes_gaps=False, issue=Issue.PROFILER, clock_ghz=1.2)
    measured = MeasurementSet(header, rows)
    samples = OperatorSamples.of(measured, rows, profile, 1.0)
    assert fit_nuisances(samples, samples.predict(profile)[0]) == pytest.approx([2.5], rel=0.02)
    found = evaluate_operators(measured, profile)
    np.testing.assert_allclose(found.predicted_us, found.latency_us, rtol=0.01)
    assert not found.overhead_us.any()
    # A product is bound by the clock.
    product = (Measurement(parse_description("gemm m=4096 n=4096 k=4096 trans_a=n trans_b=n"), 1.0),)
    held, free = (
        OperatorSamples.of(MeasurementSet(one, product), product, profile, 1.0).predict(profile)[0]
        for one in (header, header.model_copy(update={"clock_ghz": None}))
    )
    assert held / free == pytest.approx(1.53 / 1.2, rel=0.01)
