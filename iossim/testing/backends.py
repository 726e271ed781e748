"""Contract of every backend (:class:`iossim.execution.backend.Backend`): subclass, and construct yours.

class TestMine(BackendConformance):
    def backend(self, engine):
        return MyBackend(engine)
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import pytest

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.cost.random import RandomCostModel
from iossim.execution.backend import Backend, Timing
from iossim.execution.lower import lower_schedule
from iossim.execution.made_inputs import made_arrays
from iossim.execution.memory import with_memory
from iossim.execution.plan import Plan
from iossim.ir.network import Network
from iossim.models.random_graphs import seeded_network
from iossim.search.scheduler import schedule


class BackendConformance(ABC):
    """Plans of random schedules compute what the graph does, however often they run, and are timed plan by plan."""

    engines = ("paper", "graph")
    seeds = (1, 2, 3)
    #: Tolerated difference of an output from NumPy's, relative to the largest value.
    tolerance = 1e-4

    @abstractmethod
    def backend(self, engine: str) -> Backend:
        """A backend under that engine."""

    def plans(self, network: Network, backend: Backend) -> list[Plan]:
        """The network's plans by schedulers at random prices, values in place, with their memory planned."""
        prices = RandomCostModel(seed=5)
        found = (schedule(network, prices, name) for name in ("sequential", "greedy", "ios-both"))
        choices, engine = backend.choices(network), backend.context.engine
        return [with_memory(lower_schedule(each, network, engine, in_place=True, choices=choices)) for each in found]

    @pytest.mark.parametrize("seed", seeds)
    def test_outputs_are_those_of_the_graph(self, seed: int) -> None:
        network = seeded_network(seed, units=6, blocks=2)
        inputs = made_arrays(network.graph.inputs, network.graph.types)
        expected = evaluate_graph(network.graph, inputs)
        for engine in self.engines:
            backend = self.backend(engine)
            for plan in self.plans(network, backend):
                for _ in range(2):
                    found = backend.execute(network, plan, inputs)
                    assert found.keys() == expected.keys()
                    for name, value in expected.items():
                        assert np.abs(found[name] - value).max() <= self.tolerance * max(1.0, np.abs(value).max())

    def test_each_plan_is_timed(self) -> None:
        network = seeded_network(1, units=6, blocks=1)
        for engine in self.engines:
            backend = self.backend(engine)
            plans = self.plans(network, backend)
            samples = backend.measure(network, plans, Timing(rounds=2, warm_up=1))
            assert len(samples) == len(plans)
            assert all(time_us > 0 for each in samples for time_us in each.times_us)

    def test_it_says_what_its_times_depend_on(self) -> None:
        for engine in self.engines:
            context = self.backend(engine).context
            assert context.engine == engine
            assert context.backend
            assert context.device
            assert context == self.backend(engine).context
