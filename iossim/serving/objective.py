"""Objectives of schedules of several models: the makespan, or a weighted sum of the models' latencies.

Each model may have a latency limit: the most requests per second while one model answers in time come from the least
makespan within the limit of that model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from iossim.base.compiled import Floats
from iossim.base.errors import OptionError
from iossim.cost.facts import StreamPrices
from iossim.schedule.streams import StreamProblem
from iossim.search.streams.search import Values, latencies
from iossim.serving.union import label_of

#: Weight of a microsecond over a limit: larger than any other.
_OVER = 1e3


@dataclass(frozen=True)
class Objective:
    """Limits on the latencies of models by label, and ``weights`` of them, or none for the makespan."""

    weights: Mapping[str, float] = field(default_factory=dict)
    limits_us: Mapping[str, float] = field(default_factory=dict)

    def check(self, labels: Collection[str]) -> None:
        """Raise OptionError for an unknown model."""
        for label in (*self.weights, *self.limits_us):
            if label not in labels:
                raise OptionError(f"a weight or limit is of {label!r}, no model here; models: {', '.join(labels)}")

    @property
    def name(self) -> str:
        return "weighted latency" if self.weights else "all"

    @property
    def is_plain(self) -> bool:
        return not self.weights and not self.limits_us

    def weight(self, label: str) -> float:
        """Weight of a model: 0 if only others have one."""
        return self.weights.get(label, 0.0)

    def value_us(self, ends_us: Mapping[str, float]) -> float:
        """Value to minimise, limits aside."""
        if self.weights:
            return sum(self.weight(label) * end_us for label, end_us in ends_us.items())
        return max(ends_us.values(), default=0.0)

    def over_us(self, ends_us: Mapping[str, float]) -> float:
        """Total excess of models over their limits, us."""
        return sum(max(0.0, ends_us.get(label, 0.0) - limit_us) for label, limit_us in self.limits_us.items())

    def order(self, ends_us: Mapping[str, float]) -> tuple[float, float]:
        """Sort key, the less the better: limits first."""
        return self.over_us(ends_us), self.value_us(ends_us)

    def of(self, problem: StreamProblem) -> Values:
        """The objective for schedules of launches whose units are those of the models' union."""
        if self.is_plain:
            return latencies
        members: dict[str, list[int]] = {}
        for launch, units in enumerate(problem.launches):
            members.setdefault(label_of(problem.network.units[units[0]].name), []).append(launch)

        def values(prices: StreamPrices) -> Floats:
            ends_us = {label: prices.ends_us[:, own].max(axis=1) for label, own in members.items()}
            found = np.zeros(len(prices.latency_us)) if self.weights else prices.latency_us.copy()
            for label, end_us in ends_us.items():
                found += self.weight(label) * end_us
                if label in self.limits_us:
                    found += _OVER * np.maximum(0.0, end_us - self.limits_us[label])
            return found

        return values

    def to_json(self) -> dict[str, object]:
        return {"name": self.name, "weights": dict(self.weights), "limits_us": dict(self.limits_us)}
