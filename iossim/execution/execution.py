"""One run of a plan: the time of each kernel, and the device's state meanwhile.

An event-driven simulator computes it; reports draw it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import Floats, Integers
from iossim.base.display import Printed


@dataclass(frozen=True, slots=True)
class Span:
    """Kernel ``name`` of unit ``unit`` runs on ``stream`` from ``start_us`` to ``end_us``, in stage number ``stage``.

    Stages are numbered over the whole schedule, from 0; times are microseconds since the first command was issued.
    ``sms`` are the SMs available to it, None for all.
    """

    name: str
    unit: str
    stage: int
    stream: int
    start_us: float
    end_us: float
    sms: range | None = None


@dataclass(frozen=True, eq=False)
class Execution(Printed):
    """One run of a plan. Times are microseconds since the host issued the first command.

    ``spans`` are the kernels in the order of their starts, each from its first block's start to its last block's end.
    The device's state is a step function: state ``i`` holds from ``time_us[i]`` to ``time_us[i + 1]``, so ``time_us``
    has one entry more than the states, and the last is ``latency_us``, the end of the last kernel.
    """

    latency_us: float
    spans: tuple[Span, ...]
    time_us: Floats
    #: Resident warps over the whole device, shape ``[states]``.
    active_warps: Integers
    #: SMs that hold ``w`` resident warps, shape ``[states, most warps of an SM + 1]``.
    sms_by_warps: Integers
    #: Utilisation, 0 to 1, shape ``[states]``: of the device's issue capacity, of all L2 ports, of DRAM bandwidth,
    #: and of the arithmetic that the board's power sustains.
    issue: Floats
    l2: Floats
    dram: Floats
    power: Floats

    def __repr__(self) -> str:
        return f"<Execution: {self.latency_us / 1e3:.3f} ms, {len(self.spans)} kernels>"

    @property
    def of_cores(self) -> bool:
        """True for a processor, whose cores hold one thread each: its active warps are its busy cores."""
        return bool(self.sms_by_warps.shape[1] == 2)

    @property
    def mean_active_warps(self) -> float:
        """Resident warps averaged over the whole run, including gaps and synchronisations."""
        return self._mean(self.active_warps)

    @property
    def mean_issue(self) -> float:
        return self._mean(self.issue)

    @property
    def mean_l2(self) -> float:
        return self._mean(self.l2)

    @property
    def mean_dram(self) -> float:
        return self._mean(self.dram)

    @property
    def mean_power(self) -> float:
        return self._mean(self.power)

    @property
    def occupied_sms(self) -> Floats:
        """Fraction of the SMs with at least one block, shape ``[states]``."""
        return np.asarray(1.0 - self.sms_by_warps[:, 0] / self.sms_by_warps.sum(axis=1))

    def _mean(self, values: NDArray[np.generic]) -> float:
        if not self.latency_us:
            return 0.0
        return float(np.diff(self.time_us) @ values.astype(np.float64) / self.latency_us)
