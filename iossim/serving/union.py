"""Several networks as one, and what a schedule of all is to achieve.

They are disjoint, with every name prefixed by the label of its network. The objective is the makespan, or a weighted
sum of the models' latencies. Each model may have a latency limit: the most requests per second while one model answers
in time come from the least makespan within the limit of that model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from iossim.base.compiled import Floats
from iossim.base.errors import GraphError, OptionError
from iossim.cost.facts import StreamPrices
from iossim.ir.graph import Graph, Node
from iossim.ir.network import Block, ModelSource, Network, Unit
from iossim.schedule.streams import StreamProblem
from iossim.search.streams.search import Values, latencies

#: Separator between the label of a network and the names in it.
BEHIND = "/"


def union(networks: Mapping[str, Network]) -> Network:
    """The disjoint union of networks by label, with one block: the name ``x`` of network ``a`` is ``a/x``.

    Raises GraphError if they compute in different precisions.
    """
    precisions = {network.precision for network in networks.values()}
    if len(precisions) > 1:
        named = ", ".join(f"{label!r} in {network.precision}" for label, network in networks.items())
        raise GraphError(f"the networks compute in different precisions ({named}); load them with the same dtype")
    nodes: list[Node] = []
    units: list[Unit] = []
    for label, network in networks.items():
        first = len(nodes)
        graph = network.graph
        nodes += [
            Node(_of(label, node.name), node.op, _all_of(label, node.inputs), _all_of(label, node.outputs))
            for node in graph.nodes
        ]
        units += [
            Unit(
                _of(label, unit.name),
                unit.kind,
                tuple(first + node for node in unit.nodes),
                _all_of(label, unit.inputs),
                _all_of(label, unit.outputs),
            )
            for unit in network.units
        ]
    graphs = {label: network.graph for label, network in networks.items()}
    whole = Graph(
        tuple(_of(label, name) for label, graph in graphs.items() for name in graph.inputs),
        tuple(_of(label, name) for label, graph in graphs.items() for name in graph.outputs),
        tuple(nodes),
        {_of(label, name): kind for label, graph in graphs.items() for name, kind in graph.types.items()},
        {_of(label, name): constant for label, graph in graphs.items() for name, constant in graph.constants.items()},
    )
    name = " + ".join(networks)
    return Network(name, whole, tuple(units), Block.of_all(units), precisions.pop(), ModelSource(name))


def label_of(name: str) -> str:
    """The label of the network that a name of a union belongs to."""
    return name.partition(BEHIND)[0]


def _of(label: str, name: str) -> str:
    return f"{label}{BEHIND}{name}"


def _all_of(label: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_of(label, name) for name in names)


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
