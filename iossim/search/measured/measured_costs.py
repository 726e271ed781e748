"""What was measured: prices by the truth's signature, and what they say about classes of stages.

The truth may tell stages of one class apart (what has to be copied behind a merged convolution, say). So a stage counts as
measured only if its own signature is: until then it is taken to cost what the first of its class did.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from iossim.cost.model import FREE, IMPOSSIBLE, MeasuringCostModel
from iossim.search.measured.planner import PathStep
from iossim.search.measured.space import MeasuredSpace

Floats = NDArray[np.float64]


#: A stage: the number of a distinct problem, and that of one of its distinct stages.
StageKey = tuple[int, int]


class MeasuredCosts:
    """Measures stages, each signature once, and keeps the prices.

    ``class_us[c]`` (NaN while unknown) is the price of the first stage of class ``c`` that was measured.
    """

    def __init__(self, space: MeasuredSpace, truth: MeasuringCostModel) -> None:
        self._space = space
        self._truth = truth
        #: What launches nothing takes no time, what does not merge cannot run: neither has to be measured.
        self._prices: dict[Hashable, float] = {FREE: 0.0, IMPOSSIBLE: np.inf}
        self._signatures: dict[StageKey, Hashable] = {}
        self.class_us = np.full(len(space.classes), np.nan)
        #: Stages that cost something else than the first of their class.
        self._apart: dict[StageKey, float] = {}

    def __len__(self) -> int:
        """How many measurements were made."""
        return len(self._prices) - 2

    def price(self, step: PathStep) -> float:
        """The measured price of a step's stage."""
        return self._prices[self._signature(self._key(step))]

    def unmeasured(self, steps: Sequence[PathStep]) -> list[StageKey]:
        """One stage for each signature on a path that is not measured yet, in the path's order."""
        return self.without_repeats([self._key(step) for step in steps])

    def without_repeats(self, keys: Sequence[StageKey]) -> list[StageKey]:
        """The stages among these whose signatures are not measured yet, each signature once."""
        self._sign(keys)
        found: dict[Hashable, StageKey] = {}
        for key in keys:
            if self._signatures[key] in self._prices:
                self._enter(key, self._prices[self._signatures[key]])
            else:
                found.setdefault(self._signatures[key], key)
        return list(found.values())

    def measure(self, keys: Sequence[StageKey]) -> list[int]:
        """Measure stages of distinct signatures; returns the classes of which these are the first."""
        first: list[int] = []
        for problem in sorted({problem for problem, _ in keys}):
            stages = np.array([stage for other, stage in keys if other == problem], dtype=np.int64)
            prices = self._truth.price_stages(self._space.transitions[problem].batch(stages)).tolist()
            for stage, price in zip(stages.tolist(), prices, strict=True):
                self._prices[self._signature((problem, stage))] = price
                if self._enter((problem, stage), price):
                    first.append(int(self._space.classes.of_stage[problem][stage]))
        return first

    def prices_us(self, class_us: Floats) -> list[Floats]:
        """The price of each stage of each problem, from prices of classes; measured stages count as measured."""
        known = np.where(np.isnan(self.class_us), class_us, self.class_us)
        prices = [known[classes] for classes in self._space.classes.of_stage]
        for (problem, stage), price in self._apart.items():
            prices[problem][stage] = price
        return prices

    def _enter(self, key: StageKey, price: float) -> bool:
        """Take over the price of a stage; whether it is the first of its class."""
        problem, stage = key
        one = int(self._space.classes.of_stage[problem][stage])
        if np.isnan(self.class_us[one]):
            self.class_us[one] = price
            return True
        if self.class_us[one] != price:
            self._apart[key] = price
        return False

    def _key(self, step: PathStep) -> StageKey:
        return self._space.order[step.position], step.stage

    def _signature(self, key: StageKey) -> Hashable:
        self._sign([key])
        return self._signatures[key]

    def _sign(self, keys: Sequence[StageKey]) -> None:
        missing = sorted({key for key in keys if key not in self._signatures})
        for problem in sorted({problem for problem, _ in missing}):
            stages = [stage for other, stage in missing if other == problem]
            batch = self._space.transitions[problem].batch(np.array(stages, dtype=np.int64))
            for stage, signature in zip(stages, self._truth.signatures(batch), strict=True):
                self._signatures[problem, stage] = signature
