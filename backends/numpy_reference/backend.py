"""The NumPy executor as a backend: the reference for all other ones, on any machine.

It runs in one thread whatever the plan's queues, so its times show no concurrency.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from time import perf_counter_ns

import numpy as np

from iossim.backends.numpy_reference.execute import execute
from iossim.base.errors import OptionError, Progress, ignore
from iossim.execution.backend import Choices, Context, Samples, Timing, without_variants
from iossim.execution.engine import Engine
from iossim.execution.made_inputs import made_inputs
from iossim.execution.memory import with_memory
from iossim.execution.plan import Plan
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.types import Precision

#: All engines: the SMs of its units do not affect values.
ENGINES = tuple(Engine)


def missing() -> str:
    """Empty: NumPy is always available."""
    return ""


def create(precision: Precision, engine: Engine, options: Mapping[str, str]) -> NumpyBackend:
    """The backend; raises OptionError for any option, as there are none."""
    for name in options:
        raise OptionError(f"backend numpy_reference has no option {name!r}; leave it out")
    return NumpyBackend(precision, engine)


class NumpyBackend:
    """Runs plans with :func:`~iossim.backends.numpy_reference.execute.execute`."""

    def __init__(self, precision: Precision, engine: Engine) -> None:
        libraries = (("numpy", np.__version__),)
        self.context = Context("numpy_reference", "cpu", str(precision), str(engine), libraries=libraries)

    def choices(self, network: Network) -> Choices:
        return without_variants(self.context.backend)

    def execute(self, network: Network, plan: Plan, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return execute(plan, network, inputs)

    def measure(
        self, network: Network, plans: Sequence[Plan], timing: Timing, progress: Progress = ignore
    ) -> list[Samples]:
        """Host times; weights are loaded in each run, and no round is rejected."""
        planned = [with_memory(plan) for plan in plans]
        inputs = [made_inputs(plan, network, timing.seed) for plan in planned]
        generator = random.Random(timing.seed)
        times_us: list[list[float]] = [[] for _ in plans]
        total = timing.warm_up + timing.rounds
        for done in range(total):
            for index in generator.sample(range(len(plans)), len(plans)):
                began = perf_counter_ns()
                execute(planned[index], network, inputs[index])
                if done >= timing.warm_up:
                    times_us[index].append((perf_counter_ns() - began) / 1e3)
            progress(done + 1, total)
        return [Samples(tuple(found)) for found in times_us]
