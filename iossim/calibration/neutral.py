"""A starting point for fits that is independent of any device."""

from __future__ import annotations

from iossim.hardware.kinds.gpu import GPU_SPACE
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.hardware.transfer import CAPS, BoardFacts

#: Round values that are plausible for any GPU. Other parameters start from the middle of their bounds.
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
    "l2_resident_fraction": 0.5,
    "reuse_l2_fraction": 1.0,
    "drift_inner": 3000.0,
    "translation_penalty": 0.2,
    "translation_reach_bytes": 3e7,
    "kernel_gap_us": 2.0,
    "transform_ramp_us": 2.0,
    "stream_ramp_us": 1.0,
    "dispatch_us": 6.0,
    "dispatch_kernel_us": 2.0,
}


def neutral(profile: DeviceProfile) -> DeviceProfile:
    """The profile with parameters that are independent of any device."""
    low, high = GPU_SPACE.bounds()
    middle = GPU_SPACE.values((low + high) / 2)
    # No throttling is assumed: that of a board is not known yet.
    caps = dict.fromkeys(CAPS, facts_of(profile).peak_gflops_per_watt)
    chosen = {name: NEUTRAL.get(name, caps.get(name, value)) for name, value in middle.items()}
    return with_values(profile, chosen)


def facts_of(profile: DeviceProfile) -> BoardFacts:
    """Facts that a transfer considers."""
    sheet = profile.datasheet
    return BoardFacts(
        profile.compute_capability, 1e3 * profile.fp32_tflops / profile.board_power_w, sheet.fp32_lanes_per_sm.value
    )
