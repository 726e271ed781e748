"""Candidates of operators in flat arrays, which a fit prices repeatedly with other parameters.

Lowering is independent of parameters, so it is done once. ``kernels`` has one row per kernel of each candidate of each
operator; ``candidate_begin`` and ``operator_begin`` are the starts of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from iossim.backends.simulator.device_rates import DeviceRates
from iossim.backends.simulator.kernel_rows import TENSOR, kernel_table
from iossim.backends.simulator.kernel_times import ALONE, time_kernels
from iossim.hardware.lowering.kernel import Candidate, Kernel, Libraries
from iossim.hardware.lowering.residence import lost_part
from iossim.hardware.lowering.target import step_candidates
from iossim.hardware.parameters import Floats
from iossim.hardware.profile import DeviceProfile

if TYPE_CHECKING:
    from iossim.measurements.measurement import Measurement


@dataclass(frozen=True, eq=False)
class CandidateTable:
    """``operators`` operators, each with its candidates; the module describes the arrays.

    ``kernel_count`` is the number of kernels of each candidate, ``is_library_call`` whether it is one, and
    ``is_recorded`` whether it is the recorded algorithm (False if unknown), ``passed_over_us`` that of
    :class:`~iossim.hardware.lowering.kernel.Candidate`.
    """

    kernels: NDArray[np.void]
    candidate_begin: NDArray[np.int64]
    operator_begin: NDArray[np.int64]
    kernel_count: NDArray[np.int64]
    is_library_call: NDArray[np.bool_]
    is_recorded: NDArray[np.bool_]
    passed_over_us: Floats

    @staticmethod
    def of(
        profile: DeviceProfile,
        alternatives: Iterable[Sequence[Candidate]],
        recorded: Sequence[re.Pattern[str] | None] = (),
        libraries: Libraries = Libraries.CURRENT,
    ) -> CandidateTable:
        """Candidates of each operator on ``profile`` in ``libraries``, with the recorded algorithm of each."""
        kernels: list[Kernel] = []
        counts: list[int] = []
        library: list[bool] = []
        matches: list[bool] = []
        passed_over_us: list[float] = []
        per_operator: list[int] = []
        for index, candidates in enumerate(alternatives):
            known = [one for one in candidates if one.is_in(libraries)]
            pattern = recorded[index] if recorded else None
            for candidate in known:
                kernels += candidate.kernels
                counts.append(len(candidate.kernels))
                library.append(candidate.is_library_call)
                passed_over_us.append(candidate.passed_over_us)
                matches.append(pattern is not None and pattern.fullmatch(candidate.algorithm) is not None)
            per_operator.append(len(known))
        return CandidateTable(
            kernel_table(profile.limits, kernels),
            _begins(counts),
            _begins(per_operator),
            np.array(counts, dtype=np.int64),
            np.array(library, dtype=np.bool_),
            np.array(matches, dtype=np.bool_),
            np.array(passed_over_us, dtype=np.float64),
        )

    @staticmethod
    def of_measurements(
        profile: DeviceProfile, measurements: Sequence[Measurement], libraries: Libraries = Libraries.CURRENT
    ) -> CandidateTable:
        """Candidates of operators that were measured alone."""
        lowered = (step_candidates(m.operator.step(), profile) for m in measurements)
        return CandidateTable.of(profile, lowered, [recorded_pattern(m) for m in measurements], libraries)

    def where(self, chosen: NDArray[np.bool_]) -> CandidateTable:
        """Operators where ``chosen``, shape ``[operators]``, is True, without lowering them again."""
        candidates = np.diff(self.operator_begin)
        keeps_candidate = np.repeat(chosen, candidates)
        keeps_kernel = np.repeat(keeps_candidate, np.diff(self.candidate_begin))
        return CandidateTable(
            self.kernels[keeps_kernel],
            _begins(np.diff(self.candidate_begin)[keeps_candidate]),
            _begins(candidates[chosen]),
            self.kernel_count[keeps_candidate],
            self.is_library_call[keeps_candidate],
            self.is_recorded[keeps_candidate],
            self.passed_over_us[keeps_candidate],
        )

    def from_flushed_caches(self, profile: DeviceProfile) -> CandidateTable:
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
        """Whether each candidate is a matrix product on tensor cores, shape ``[candidates]``."""
        first: NDArray[np.bool_] = self.kernels["work_class"][self.candidate_begin[:-1]] == TENSOR
        return first

    @property
    def operators(self) -> int:
        return len(self.operator_begin) - 1

    def candidate_us(self, rates: DeviceRates) -> Floats:
        """Device time of each candidate, its kernels in sequence with their gaps, shape ``[candidates]``."""
        alone_us = time_kernels(self.kernels, rates)[:, ALONE]
        return np.add.reduceat(alone_us, self.candidate_begin[:-1])

    def fastest(self, candidate_us: Floats) -> NDArray[np.int64]:
        """Candidate of each operator with the least sum of ``candidate_us`` and ``passed_over_us``, the first of
        equals, shape ``[operators]``.
        """
        candidate_us = candidate_us + self.passed_over_us
        least = np.minimum.reduceat(candidate_us, self.operator_begin[:-1])
        is_least = candidate_us == np.repeat(least, np.diff(self.operator_begin))
        places = np.flatnonzero(is_least)
        first = np.searchsorted(places, self.operator_begin[:-1])
        return places[first]

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


def _begins(counts: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    begins = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=begins[1:])
    return begins
