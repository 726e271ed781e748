"""A problem's kernels, chosen, priced and laid out flat, as the compiled stage model reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum

import numpy as np

from iossim.backends.simulator.device_sharing import HOST, ISSUE_DEMAND, SLOT_KINDS, SLOTS, SMS, SPREAD, StageKernels
from iossim.backends.simulator.unit_prices import UnitPrice
from iossim.base.compiled import Floats
from iossim.schedule.masks import unit_keys
from iossim.schedule.problem import Masks


@dataclass(frozen=True, eq=False)
class PreparedProblem:
    """The units' kernels, also flat.

    ``unit_keys``, ``[units]``, are equal for units whose kernels are priced alike.
    """

    units: tuple[UnitPrice, ...]
    kernels: StageKernels
    unit_keys: Masks

    @staticmethod
    def of(units: Sequence[UnitPrice]) -> PreparedProblem:
        begin = np.cumsum([0, *(len(unit.names) for unit in units)], dtype=np.int64)
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
        held[columns[:, SMS] > 0.0] = 2.0  # more than there is: room is looked for
        single = np.array([unit.single_us for unit in units], dtype=np.float64)
        rates = [row.tobytes().hex() for row in columns[:, :HOST]]
        keys = np.column_stack([unit_keys(rates, "last wave"), unit_keys(rates, "full waves")])
        kernels = StageKernels(begin, np.column_stack([columns, block_load, held]), single, keys)
        rows = [columns[a:b].tobytes().hex() for a, b in pairwise(begin.tolist())]
        return PreparedProblem(tuple(units), kernels, unit_keys(rows))

    def per_unit(self, values: Floats) -> Floats:
        """Sums of a value of each kernel over each unit, shape ``[units]``, rounded alike under every Python."""
        begin = self.kernels.kernel_begin.tolist()
        return np.array([fsum(values[a:b]) for a, b in pairwise(begin)])
