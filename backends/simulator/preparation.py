"""A problem's kernels, chosen, priced and laid out flat, as the compiled stage model reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum

import numpy as np
from numpy.typing import NDArray

from iossim.backends.simulator.kernel_model import KernelModel, KernelPrice
from iossim.backends.simulator.stage_model import HOST, ISSUE_DEMAND, SLOT_KINDS, SLOTS, SPREAD, StageKernels
from iossim.hardware.lowering.kernel import Candidate, Kernel
from iossim.hardware.lowering.unit import StepCandidates
from iossim.hardware.parameters import EngineOverheads
from iossim.schedule.batch import FASTEST
from iossim.schedule.problem import Masks
from iossim.schedule.stage_hash import unit_keys


@dataclass(frozen=True, slots=True)
class UnitPrice:
    """The kernels of a unit (or of a merged convolution), each step run as the candidate that was chosen.

    One entry a kernel in every tuple. ``host_us`` is what the host needs to issue the kernel; ``kernels`` are what the
    prices are of, none for prices that were made up.
    """

    names: tuple[str, ...]
    prices: tuple[KernelPrice, ...]
    host_us: tuple[float, ...]
    kernels: tuple[Kernel, ...] = ()

    @property
    def device_us(self) -> float:
        """All kernels one after another on an idle device."""
        return fsum(price.alone_us for price in self.prices)

    @property
    def single_us(self) -> float:
        """The unit in a stage of one group: the longer of host and device time."""
        return max(self.device_us, fsum(self.host_us))


@dataclass(frozen=True, eq=False)
class PreparedProblem:
    """The units' kernels, and the same flat. ``unit_keys``, ``[units]``: equal for units whose kernels are priced alike."""

    units: tuple[UnitPrice, ...]
    kernels: StageKernels
    unit_keys: Masks

    @staticmethod
    def of(units: Sequence[UnitPrice]) -> PreparedProblem:
        begin = np.zeros(len(units) + 1, dtype=np.int64)
        np.cumsum([len(unit.names) for unit in units], out=begin[1:])
        columns = np.array(
            [
                (*price[:-1], *price.slots, host_us)
                for unit in units
                for price, host_us in zip(unit.prices, unit.host_us, strict=True)
            ],
            dtype=np.float64,
        ).reshape(-1, HOST + 1)
        block_load = columns[:, ISSUE_DEMAND] / columns[:, SPREAD]
        held = columns[:, SPREAD] * columns[:, SLOTS : SLOTS + SLOT_KINDS].max(axis=1, initial=0.0)
        single = np.array([unit.single_us for unit in units], dtype=np.float64)
        kernels = StageKernels(begin, np.column_stack([columns, block_load, held]), single)
        rows = [columns[a:b].tobytes().hex() for a, b in pairwise(begin.tolist())]
        return PreparedProblem(tuple(units), kernels, unit_keys(rows))

    def per_unit(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sums of a value of each kernel over each unit, shape ``[units]``, rounded alike under every Python."""
        begin = self.kernels.kernel_begin.tolist()
        return np.array([fsum(values[a:b]) for a, b in pairwise(begin)])


@dataclass(frozen=True, eq=False)
class StageRun:
    """A stage as the fluid ran it. ``spans``, ``[kernels, 3]``: stream, start and end of each kernel of ``prepared``.

    ``labels`` are the units, or the merged one, and ``groups`` of them run side by side, in the order of their issue. ``sms`` are the
    SMs of each group where the device is divided; empty where it is not.
    """

    duration_us: float
    labels: tuple[str, ...]
    prepared: PreparedProblem
    groups: tuple[tuple[int, ...], ...]
    spans: NDArray[np.float64]
    sms: tuple[range, ...] = ()


def price_unit(
    model: KernelModel, steps: StepCandidates, costs: EngineOverheads | None, variant: str = FASTEST
) -> UnitPrice:
    """Price what each step runs as. ``costs`` prices its issue; without, the host issues for nothing."""
    kernels: list[Kernel] = []
    prices: list[KernelPrice] = []
    host: list[float] = []
    for candidate, own in model.chosen(steps, variant):
        kernels += candidate.kernels
        prices += own
        for position in range(len(candidate.kernels)):
            host.append(0.0 if costs is None else host_issue_us(candidate, position, costs))
    return UnitPrice(
        tuple(kernel.name for kernel in kernels),
        tuple(prices),
        tuple(host),
        tuple(kernels),
    )


def host_issue_us(candidate: Candidate, position: int, costs: EngineOverheads) -> float:
    """What the host needs for the kernel at ``position`` of a candidate."""
    if not candidate.is_library_call:
        return costs.bare_launch_us
    return costs.library_kernel_us if position else costs.library_call_us
