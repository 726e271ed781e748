"""A problem's kernels, chosen, priced and laid out flat, as the compiled stage model reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum

import numpy as np
from numpy.typing import NDArray

from iossim.backends.simulator.kernel_model import KernelModel
from iossim.devices.parameters import EngineOverheads
from iossim.lowering.kernel import Candidate
from iossim.lowering.unit import StepCandidates


@dataclass(frozen=True, slots=True)
class UnitPrice:
    """The kernels of a unit (or of a merged convolution), each step run as the candidate that is fastest alone.

    One entry a kernel in every tuple. ``host_us`` is what the host needs to issue the kernel.
    """

    names: tuple[str, ...]
    alone_us: tuple[float, ...]
    issue_demand: tuple[float, ...]
    dram_demand: tuple[float, ...]
    host_us: tuple[float, ...]

    @property
    def device_us(self) -> float:
        """All kernels one after another on an idle device."""
        return fsum(self.alone_us)

    @property
    def single_us(self) -> float:
        """The unit in a stage of one group: the longer of host and device time."""
        return max(self.device_us, fsum(self.host_us))


@dataclass(frozen=True, eq=False)
class PreparedProblem:
    """The units' kernels, flat. ``kernel_begin[u]`` to ``kernel_begin[u + 1]`` are unit ``u``'s."""

    units: tuple[UnitPrice, ...]
    kernel_begin: NDArray[np.int64]
    alone_us: NDArray[np.float64]
    issue_demand: NDArray[np.float64]
    dram_demand: NDArray[np.float64]
    host_us: NDArray[np.float64]
    single_us: NDArray[np.float64]

    @staticmethod
    def of(units: Sequence[UnitPrice]) -> PreparedProblem:
        begin = np.zeros(len(units) + 1, dtype=np.int64)
        np.cumsum([len(unit.names) for unit in units], out=begin[1:])
        alone, issue, dram, host = (
            np.array([value for unit in units for value in getattr(unit, name)], dtype=np.float64)
            for name in ("alone_us", "issue_demand", "dram_demand", "host_us")
        )
        single = np.array([unit.single_us for unit in units], dtype=np.float64)
        return PreparedProblem(tuple(units), begin, alone, issue, dram, host, single)

    def per_unit(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sums of a value of each kernel over each unit, shape ``[units]``, rounded alike under every Python."""
        begin = self.kernel_begin.tolist()
        return np.array([fsum(values[a:b]) for a, b in pairwise(begin)])


def price_unit(model: KernelModel, steps: StepCandidates, costs: EngineOverheads | None) -> UnitPrice:
    """Choose each step's fastest candidate. ``costs`` prices its issue; without, the host issues for nothing."""
    names: list[str] = []
    alone: list[float] = []
    issue: list[float] = []
    dram: list[float] = []
    host: list[float] = []
    for candidates in steps:
        candidate, prices = model.fastest(candidates)
        for position, (kernel, price) in enumerate(zip(candidate.kernels, prices, strict=True)):
            names.append(kernel.name)
            alone.append(price.alone_us)
            issue.append(price.issue_demand)
            dram.append(price.dram_demand)
            host.append(0.0 if costs is None else host_issue_us(candidate, position, costs))
    return UnitPrice(tuple(names), tuple(alone), tuple(issue), tuple(dram), tuple(host))


def host_issue_us(candidate: Candidate, position: int, costs: EngineOverheads) -> float:
    """What the host needs for the kernel at ``position`` of a candidate."""
    if not candidate.is_library_call:
        return costs.bare_launch_us
    return costs.library_kernel_us if position else costs.library_call_us
