"""Samples of a fit: measured operators and sequences of operators, ready to be priced with any parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from iossim.backends.simulator.device_rates import device_rates
from iossim.base.compiled import Floats, Integers
from iossim.calibration import nuisances
from iossim.calibration.nuisances import neutral
from iossim.calibration.recorded_table import RecordedTable, recorded_pattern
from iossim.hardware.lowering.kernel import Issue, Libraries
from iossim.hardware.lowering.target import step_candidates
from iossim.hardware.lowering.unit import lower_unit
from iossim.hardware.override import overridden
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.measurements.measurement import Measurement, MeasurementSet
from iossim.prediction.candidate_table import begins

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
