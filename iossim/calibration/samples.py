"""Samples of a fit: measured operators and sequences of operators, ready to be priced with any parameters, and their
candidates, with the algorithm that was recorded for each, and with cold caches.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from iossim.backends.simulator.device_rates import device_rates
from iossim.backends.simulator.kernel_rows import TENSOR
from iossim.base.compiled import Floats, Integers
from iossim.calibration import nuisances
from iossim.calibration.nuisances import neutral
from iossim.hardware.lowering.kernel import Candidate, Issue, Libraries
from iossim.hardware.lowering.residence import lost_part
from iossim.hardware.lowering.target import step_candidates
from iossim.hardware.lowering.unit import lower_unit
from iossim.hardware.override import overridden
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.measurements.measurement import Measurement, MeasurementSet
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


#: Relative weight of a row of a slowed board's recording: it hardly determines the speed of its board.
SLOWED_WEIGHT = 0.25


@dataclass(frozen=True, eq=False, kw_only=True)
class Samples(ABC):
    """Measured times beside the predictions of a profile.

    ``basis`` is that of the recording's nuisances, shape ``[samples, terms]``: the host's overhead, ``host_terms``, and
    then the delay by a slowed board. ``has_floor`` says whether a last coefficient is the device time below which the
    host hides it. Errors are relative to at least ``least_us``; ``weight`` is the total weight of all samples.
    """

    name: str
    profile: DeviceProfile
    table: RecordedTable
    latency_us: Floats
    basis: Floats
    host_terms: int = 0
    has_floor: bool = False
    least_us: float = 0.5
    weight: float

    @abstractmethod
    def predict(self, profile: DeviceProfile) -> tuple[Floats, Floats]:
        """Device times ``[samples]``, and those of the recorded algorithms, nan if unknown."""

    @property
    def coefficients(self) -> int:
        """Number of coefficients of the recording's nuisances."""
        return int(self.basis.shape[1]) + self.has_floor

    def fit_nuisances(self, device_us: Floats) -> Floats:
        """Coefficients of the nuisances given predicted device times, ``[coefficients]``."""
        return nuisances.fit_overhead(self.basis, self.latency_us, device_us, self.least_us, self.has_floor)

    def nuisances_us(self, coefficients: Floats) -> tuple[Floats, Floats]:
        """Overhead of the host, and delay of each row by the slowed board, ``[samples]`` both."""
        host, terms = self.host_terms, self.basis.shape[1]
        return self.basis[:, :host] @ coefficients[:host], self.basis[:, host:] @ coefficients[host:terms]

    def floor_us(self, coefficients: Floats) -> float:
        """Device time below which the host hides it."""
        return float(coefficients[-1]) if self.has_floor else 0.0

    def hidden(self, predicted_us: Floats, coefficients: Floats) -> NDArray[np.bool_]:
        """Rows that the recording only shows to be short, as predicted, ``[samples]``."""
        host_us, slowed_us = self.nuisances_us(coefficients)
        floor_us = self.floor_us(coefficients)
        return nuisances.is_hidden(self.latency_us - host_us, predicted_us + slowed_us, floor_us)

    def device_us(self, predicted_us: Floats, coefficients: Floats) -> Floats:
        """Measured device times, ``[samples]``: latencies without the nuisances, on a slowed board in proportion to the
        prediction. Beside the host's overhead, times below ``least_us`` are indistinguishable: they count as that.
        """
        host_us, slowed_us = self.nuisances_us(coefficients)
        share = predicted_us / (predicted_us + slowed_us)
        return np.maximum((self.latency_us - host_us) * share, self.least_us)


@dataclass(frozen=True, eq=False, kw_only=True)
class OperatorSamples(Samples):
    """Operators measured alone."""

    includes_gaps: bool
    issue: Issue
    clock_ghz: float | None

    @staticmethod
    def of(
        measured: MeasurementSet, chosen: Sequence[Measurement], profile: DeviceProfile, weight: float
    ) -> OperatorSamples:
        """Samples of ``chosen`` measurements of a set; where its board slowed, they count less."""
        header, basis = measured.header, nuisances.overhead_basis(measured, chosen)
        lowered = (step_candidates(row.operator.step(), profile) for row in chosen)
        table = RecordedTable.recorded(profile, lowered, list(map(recorded_pattern, chosen)), header.called)
        samples = OperatorSamples(
            name=measured.name,
            profile=profile,
            table=table.from_flushed_caches(profile) if header.issue is Issue.PROFILER else table,
            latency_us=np.array([measurement.latency_us for measurement in chosen]),
            basis=basis,
            host_terms=basis.shape[1],
            has_floor=header.includes_host_overhead,  # a part of the host's work overlaps the kernels
            least_us=max(header.resolution_us, nuisances.LEAST_US if basis.shape[1] else 0.5),
            weight=weight,
            includes_gaps=header.includes_gaps,
            issue=header.issue,
            clock_ghz=header.clock_ghz,
        )
        if not (nuisances.may_be_slowed(measured, profile) and samples._is_slowed(measured, chosen)):
            return samples
        slowed = np.column_stack([basis, nuisances.slowed_basis(measured, chosen, profile)])
        return replace(samples, basis=slowed, weight=SLOWED_WEIGHT * weight)

    def _is_slowed(self, measured: MeasurementSet, chosen: Sequence[Measurement]) -> bool:
        """True where rows of equal work take longer after heavier ones; held-out rows are ignored."""
        seen = np.array([not row.operator.is_held_out() for row in chosen], dtype=np.bool_)
        if not seen.any():
            return False
        # A profile that was fitted to a slowed recording may include some of the slowing.
        predicted_us, _ = self.predict(neutral(self.profile))
        asked = self.where(seen)
        host_us, _ = asked.nuisances_us(asked.fit_nuisances(predicted_us[seen]))
        work = nuisances.work_us(measured.measurements, self.profile)
        rows = nuisances.indices(measured, chosen)[seen]
        device_us = asked.latency_us - host_us
        before = nuisances.load_before_us(work)[rows]
        return nuisances.slowing(work[rows], before, device_us, predicted_us[seen]) > nuisances.SLOWING

    @property
    def is_slowed(self) -> bool:
        return bool(self.basis.shape[1] > self.host_terms)

    def where(self, chosen: NDArray[np.bool_]) -> OperatorSamples:
        """Samples where ``chosen``, shape ``[samples]``, is True; their total weight is unchanged."""
        return replace(
            self, table=self.table.where(chosen), latency_us=self.latency_us[chosen], basis=self.basis[chosen]
        )

    def predict(self, profile: DeviceProfile) -> tuple[Floats, Floats]:
        if self.clock_ghz is not None:
            profile = overridden(profile, {"clock_ghz": self.clock_ghz})
        engine = profile.engine
        rates = device_rates(profile, self.issue)
        device_us = self.table.candidate_us(rates)
        benchmark_us = device_us + engine.dispatch_kernel_us * self.table.kernel_count
        fastest = self.table.fastest(benchmark_us)
        if not self.includes_gaps:
            shown_us = device_us - rates.gap_us * self.table.kernel_count
        elif self.issue is Issue.CALLS:
            call_us = np.where(self.table.is_tensor_product, engine.tensor_dispatch_us, engine.dispatch_us)
            shown_us = benchmark_us + (call_us - engine.dispatch_kernel_us)
        else:
            shown_us = device_us
        return shown_us[fastest], self.table.recorded_us(shown_us)


@dataclass(frozen=True, eq=False, kw_only=True)
class SequenceSamples(Samples):
    """Networks, or parts of them, run sequentially by the published engine, the host at most one call ahead."""

    #: Start of the steps of each unit in the table, and of the units of each sequence.
    unit_begin: Integers
    sequence_begin: Integers

    @staticmethod
    def of(
        name: str, profile: DeviceProfile, sequences: Sequence[tuple[Network, Sequence[int], float]], weight: float
    ) -> SequenceSamples:
        """Samples of sequences, each a network, the units of it that run, and the measured time."""
        chosen_units = [(network, network.units[unit]) for network, chosen, _ in sequences for unit in chosen]
        units = [lower_unit(network, unit, profile) for network, unit in chosen_units]
        steps = [step for unit in units for step in unit]
        return SequenceSamples(
            name=name,
            profile=profile,
            table=RecordedTable.recorded(profile, steps, libraries=Libraries.CUDNN_7),
            latency_us=np.array([latency_us for *_, latency_us in sequences]),
            basis=np.zeros((len(sequences), 0)),
            weight=weight,
            unit_begin=begins(list(map(len, units))),
            sequence_begin=begins([len(chosen) for _, chosen, _ in sequences]),
        )

    def predict(self, profile: DeviceProfile) -> tuple[Floats, Floats]:
        engine = profile.engine
        table = self.table
        device_us = table.candidate_us(device_rates(profile, Issue.STREAM))
        fastest = table.fastest(device_us + engine.dispatch_kernel_us * table.kernel_count)
        kernels = table.kernel_count[fastest]
        library_us = engine.library_call_us + engine.library_kernel_us * (kernels - 1)
        host_us = np.where(table.is_library_call[fastest], library_us, engine.bare_launch_us * kernels)
        unit_us = np.maximum(_sums(device_us[fastest], self.unit_begin), _sums(host_us, self.unit_begin))
        total_us = _sums(unit_us, self.sequence_begin)
        return total_us, np.full_like(total_us, np.nan)


def _sums(parts: Floats, begin: Integers) -> Floats:
    """Sums of runs of ``parts``; an empty run sums to 0."""
    total = np.concatenate([[0.0], np.cumsum(parts)])
    sums: Floats = total[begin[1:]] - total[begin[:-1]]
    return sums
