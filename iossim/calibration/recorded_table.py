"""Candidates of measured operators: with the algorithm that was recorded for each, and with cold caches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from iossim.backends.simulator.kernel_rows import TENSOR
from iossim.base.compiled import Floats
from iossim.hardware.lowering.kernel import Candidate, Libraries
from iossim.hardware.lowering.residence import lost_part
from iossim.hardware.profile import DeviceProfile
from iossim.measurements.measurement import Measurement
from iossim.prediction.candidate_table import CandidateTable, begins


@dataclass(frozen=True, eq=False)
class RecordedTable(CandidateTable):
    """Masks of the candidates that are library calls, and of those of the recorded algorithm (none if unknown)."""

    is_library_call: NDArray[np.bool_]
    is_recorded: NDArray[np.bool_]

    @staticmethod
    def recorded(
        profile: DeviceProfile,
        alternatives: Iterable[Sequence[Candidate]],
        patterns: Sequence[re.Pattern[str] | None] = (),
        libraries: Libraries = Libraries.CURRENT,
    ) -> RecordedTable:
        """Candidates of each operator on ``profile`` in ``libraries``, with the recorded algorithm of each."""
        known = [[one for one in candidates if one.is_in(libraries)] for candidates in alternatives]
        matches = [
            pattern is not None and pattern.fullmatch(one.algorithm) is not None
            for several, pattern in zip(known, patterns or [None] * len(known), strict=True)
            for one in several
        ]
        calls = [one.is_library_call for several in known for one in several]
        table = CandidateTable.of(profile, known, libraries)
        return RecordedTable(
            **vars(table), is_library_call=np.array(calls, dtype=bool), is_recorded=np.array(matches, dtype=bool)
        )

    def where(self, chosen: NDArray[np.bool_]) -> RecordedTable:
        """Operators where ``chosen``, shape ``[operators]``, is True, without lowering them again."""
        candidates = np.diff(self.operator_begin)
        keeps_candidate = np.repeat(chosen, candidates)
        keeps_kernel = np.repeat(keeps_candidate, np.diff(self.candidate_begin))
        return RecordedTable(
            self.kernels[keeps_kernel],
            begins(np.diff(self.candidate_begin)[keeps_candidate]),
            begins(candidates[chosen]),
            self.kernel_count[keeps_candidate],
            self.passed_over_us[keeps_candidate],
            self.is_library_call[keeps_candidate],
            self.is_recorded[keeps_candidate],
        )

    def from_flushed_caches(self, profile: DeviceProfile) -> RecordedTable:
        """The same kernels with cold caches before each: all reads come from DRAM.

        Writes of a kernel stay in L2 as far as they fit there, and are written back after the kernel has ended.
        """
        kernels = self.kernels.copy()
        l2_bytes = float(profile.datasheet.l2_bytes.value)
        lost = np.array([lost_part(float(written), l2_bytes) for written in kernels["bytes_written"]])
        kernels["weight_bytes"] += kernels["activation_bytes"] + lost * kernels["bytes_written"]
        kernels["activation_bytes"] = kernels["bytes_written"] = 0.0
        return replace(self, kernels=kernels)

    @cached_property
    def is_tensor_product(self) -> NDArray[np.bool_]:
        """Mask of the candidates that are matrix products on tensor cores, shape ``[candidates]``."""
        first: NDArray[np.bool_] = self.kernels["work_class"][self.candidate_begin[:-1]] == TENSOR
        return first

    def recorded_us(self, candidate_us: Floats) -> Floats:
        """Least ``candidate_us`` among the recorded candidates of each operator; nan where none is known."""
        known = np.where(self.is_recorded, candidate_us, np.inf)
        least = np.minimum.reduceat(known, self.operator_begin[:-1])
        return np.where(np.isfinite(least), least, np.nan)


def recorded_pattern(measurement: Measurement) -> re.Pattern[str] | None:
    """Pattern for the names of the candidates that ran when an operator was measured; None if unknown.

    It is derived from the recorded kernels, or from the name of the algorithm, cuDNN's or that of a CPU.
    """
    if measurement.kernels:
        return _from_kernels(measurement.kernels, measurement.operator.op.kind)
    pattern = _ALGORITHMS.get(measurement.algorithm)
    return re.compile(pattern) if pattern else None


_ALGORITHMS = {
    "IMPLICIT_GEMM": r"implicit_convolve.*",
    "IMPLICIT_PRECOMP_GEMM": r"implicit_gemm_.*",
    "FFT": r"fft_tiled",
    "FFT_TILING": r"fft_tiled",
    "WINOGRAD": r"winograd_fused.*",
    "WINOGRAD_NONFUSED": r"winograd_nonfused.*",
    "nchw": "nchw",
    "nchwc": "nchwc",
}


#: Patterns for names of Hopper's kernels, and for the candidates of their family.
_HOPPER_FAMILIES = {
    "^nvjet_": r"(implicit_gemm_)?nvjet_.*",
    "^sm90_xmma_": r"implicit_gemm_xmma_sm90_.*",
    "^sm80_xmma_fprop_implicit_gemm.*(bf16bf16|f16f16)|cutlass__5x_cudnn|cutlass_80_": (
        r"(implicit_gemm|grouped)_(piecewise_)?mma_sm80_.*"
    ),
}


def _from_kernels(kernels: Sequence[str], kind: str) -> re.Pattern[str] | None:
    """Candidates that the short names of a convolution's kernels identify; None if they match none."""
    names = " ".join(kernels)
    for family, pattern in _HOPPER_FAMILIES.items():
        if re.search(family, kernels[0]):
            return re.compile(pattern)
    tile = re.search(r"(?:gemm|scudnn)_(\d+x\d+)", names)
    if kind != "conv":
        return re.compile(rf"gemm_{tile[1]}(_split\d+)?") if tile else None
    fused = re.search(r"winograd_\d+x\d+_.*tile(\d)(\d)(\d)", names)
    if fused:
        return re.compile("winograd_fused_" + "x".join(fused.groups()))
    if "winogradforwarddata" in names and tile:
        return re.compile(f"winograd_nonfused_{tile[1]}")
    if kernels[0].startswith("fft2d") and len(kernels) <= 5:
        return re.compile("fft_tiled")
    if kernels[0] == "computeoffsetskernel" and tile and len(kernels) == 2:
        return re.compile(f"implicit_gemm_{tile[1]}")
    if tuple(kernels) == ("implicit_convolve_sgemm",):
        return re.compile("implicit_convolve.*")
    return None
