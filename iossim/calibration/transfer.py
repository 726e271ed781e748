"""Transfer to devices without measurements, and its refinement with a handful of them.

``iossim.devices.transfer`` says how parameters are transferred. Refinement is a maximum a posteriori fit: the transferred
values are the centre of a normal prior, whose widths are how far calibrated devices lie from each other. Common factors of
arithmetic, of memory and of what a call costs beside come first, with prior widths of their own: a device that is slower
than expected is so in all of its kernels, before it is in one. So twenty rows cannot bend what they do not show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from iossim.calibration.fit import OUTLIER, relative_errors
from iossim.calibration.samples import OperatorSamples
from iossim.devices.kinds.gpu import GPU_SPACE
from iossim.devices.parameters import CALL
from iossim.devices.profile import DeviceProfile, with_values
from iossim.devices.transfer import (
    ARITHMETIC,
    CAPS,
    MEMORY,
    BoardFacts,
    SourceDevice,
    TransferTable,
    transfer_table,
    transferred_provenance,
    transferred_values,
)
from iossim.measurements.measurement import MeasurementError, MeasurementSet
from iossim.measurements.plausibility import check_plausible

Floats = NDArray[np.float64]

#: A starting point that knows no device: round values that any GPU could have. Parameters that are not here start from
#: the middle of their bounds.
NEUTRAL = {
    "gemm_efficiency": 0.85,
    "implicit_gemm_efficiency": 0.85,
    "direct_efficiency": 0.6,
    "winograd_fused_efficiency": 0.8,
    "winograd_gemm_efficiency": 0.8,
    "tile_128x32_factor": 0.85,
    "tile_32x128_factor": 0.85,
    "tile_64x64_factor": 0.9,
    "tile_64x32_factor": 0.85,
    "tile_32x32_factor": 0.7,
    "latency_hiding_warps": 6.0,
    "block_prologue_clocks": 4000.0,
    "gemm_prologue_clocks": 3000.0,
    "wave_quantisation": 0.8,
    "overlap_norm": 3.0,
    "gemm_overlap_norm": 3.0,
    "dram_efficiency": 0.85,
    "stream_efficiency": 0.85,
    "transform_efficiency": 0.7,
    "filter_transform_efficiency": 0.3,
    "tile_generation_efficiency": 0.6,
    "l2_bytes_per_clock_per_sm": 48.0,
    "l2_resident_fraction": 0.8,
    "reuse_l2_fraction": 1.0,
    "drift_inner": 3000.0,
    "translation_penalty": 0.2,
    "translation_reach_bytes": 3e7,
    "kernel_gap_us": 2.0,
    "transform_ramp_us": 2.0,
    "dispatch_us": 6.0,
    "dispatch_kernel_us": 2.0,
}

#: Prior widths of the logarithms of the common factors.
_FACTOR_WIDTHS = {"arithmetic": 0.12, "memory": 0.12, "call": 0.3}
#: A parameter's own prior width, as a part of the width of its bounds: at least this, whatever the sources say.
_LEAST_WIDTH = 0.02
#: What a prediction of the right parameters is still off by.
_MODEL_ERROR = 0.12
#: Prior width of how the host's overhead changes over a recording, microseconds between neighbouring coefficients.
_DRIFT_US = 100.0
_ROUNDS = 40
_STEP = 1e-3
#: Fewer usable measurements than this refine nothing.
FEWEST_SAMPLES = 3


def neutral(profile: DeviceProfile) -> DeviceProfile:
    """The profile with parameters that know no device."""
    low, high = GPU_SPACE.bounds()
    middle = GPU_SPACE.values((low + high) / 2)
    # No throttling: that of any board is not known yet.
    caps = dict.fromkeys(CAPS, facts_of(profile).peak_gflops_per_watt)
    chosen = {name: NEUTRAL.get(name, caps.get(name, value)) for name, value in middle.items()}
    return with_values(profile, chosen)


def facts_of(profile: DeviceProfile) -> BoardFacts:
    """The facts that a transfer looks at."""
    sheet = profile.datasheet
    return BoardFacts(
        profile.compute_capability,
        1e3 * profile.fp32_tflops / profile.board_power_w,
        sheet.fp32_lanes_per_sm.value,
    )


def source_device(
    profile: DeviceProfile, boards: Sequence[str] = (), fitted: Mapping[str, float] | None = None
) -> SourceDevice:
    """A calibrated profile as a source; ``fitted`` are other values than its own."""
    own = fitted if fitted is not None else GPU_SPACE.values(GPU_SPACE.to_vector(profile.parameter_values))
    return SourceDevice(
        boards=list(boards) or [profile.name],
        compute_capability=profile.compute_capability,
        peak_gflops_per_watt=facts_of(profile).peak_gflops_per_watt,
        values=dict(own),
    )


def transferred(profile: DeviceProfile, sources: Sequence[SourceDevice]) -> DeviceProfile:
    """The profile with the parameters that sources suggest; its provenance stays."""
    return with_values(profile, transferred_values(facts_of(profile), sources))


def source_spread(sources: Sequence[SourceDevice]) -> Floats:
    """Prior width of each parameter of a vector: how far sources lie apart, bounded to what is worth considering."""
    width = GPU_SPACE.scales()
    least = _LEAST_WIDTH * width
    if len(sources) < 2:
        return 0.1 * width
    result = []
    for parameter, whole in zip(GPU_SPACE.parameters, width.tolist(), strict=True):
        own = [parameter.to_vector(one.values[parameter.name]) for one in sources if parameter.name in one.values]
        result.append(float(np.std(own, ddof=1)) if len(own) > 1 else 0.1 * whole)
    return np.asarray(np.clip(np.array(result), least, 0.25 * width))


def refine(
    profile: DeviceProfile, samples: MeasurementSet, sources: Sequence[SourceDevice] | None = None
) -> DeviceProfile:
    """The profile, moved from its transferred parameters as far as a few measurements of the device justify.

    ``sources`` are those of the transfer, by default those that ship. Raises MeasurementError if the measurements are too
    few, or cannot be of the device.
    """
    table = transfer_table() if sources is None else TransferTable(sources=list(sources))
    usable = check_plausible(samples, profile)
    rows = [row for row in usable.measurements if not row.is_cold]
    if len(rows) < FEWEST_SAMPLES:
        raise MeasurementError(
            f"measurements {samples.name}: {len(rows)} usable operators, at least {FEWEST_SAMPLES} are needed to refine "
            "a profile; measure about 20 of different sizes"
        )
    found = refined_values(profile, OperatorSamples.of(usable, rows, profile, float(len(rows))), table.sources)
    return with_values(profile, {name: float(f"{value:.4g}") for name, value in found.items()}).model_copy(
        update={"provenance": transferred_provenance(table if sources is None else transfer_table(), len(rows))}
    )


def refined_values(
    profile: DeviceProfile, samples: OperatorSamples, sources: Sequence[SourceDevice]
) -> dict[str, float]:
    """The fitted parameters most probable after ``samples``; see the module."""
    origin = GPU_SPACE.to_vector(profile.parameter_values)
    low, high = GPU_SPACE.bounds()
    width = source_spread(sources)
    names = GPU_SPACE.names
    factor_of = {
        "arithmetic": np.array([name in ARITHMETIC or name in CAPS for name in names]),
        "memory": np.array([name in MEMORY for name in names]),
        "call": np.array([name in CALL for name in names]),
    }
    logarithmic = np.array([parameter.is_logarithmic for parameter in GPU_SPACE.parameters])
    factor_widths = np.array(list(_FACTOR_WIDTHS.values()))
    count, factors, terms = len(origin), len(factor_widths), samples.basis.shape[1]

    def vector_of(entries: Floats) -> Floats:
        vector = origin + entries[:count] * width
        for entry, is_in in zip(entries[count : count + factors] * factor_widths, factor_of.values(), strict=True):
            vector = np.where(is_in, np.where(logarithmic, vector + entry, vector * np.exp(entry)), vector)
        return np.asarray(np.clip(vector, low, high))

    def residuals(entries: Floats) -> Floats:
        overhead = np.abs(entries[count + factors :])
        candidate = with_values(profile, GPU_SPACE.values(vector_of(entries)))
        parts = relative_errors(samples, candidate, samples.basis @ overhead)
        return np.concatenate(
            [*(part / _MODEL_ERROR for part in parts), entries[: count + factors], np.diff(overhead) / _DRIFT_US]
        )

    device_us, _ = samples.predict(profile)
    start_us = max(1.0, float(np.median(samples.latency_us - device_us))) if terms else 0.0
    start = np.concatenate([np.zeros(count + factors), np.full(terms, start_us)])
    scale = np.concatenate([np.ones(count + factors), np.full(terms, 100.0)])
    found = least_squares(
        residuals,
        start,
        loss="soft_l1",
        f_scale=2 * OUTLIER / _MODEL_ERROR,
        x_scale=scale,
        diff_step=_STEP,
        max_nfev=_ROUNDS,
    )
    return GPU_SPACE.values(vector_of(found.x))
