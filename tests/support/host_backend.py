"""The backend on the device of the host, with its driver and library at hand; and its outputs held to NumPy's."""

from types import SimpleNamespace
from typing import Any

from host_device import HostDriver
from host_library import HostLibrary
from random_networks import sequential_schedule

from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend
from iossim.backends.cupy_cudnn.options import CudnnOptions
from iossim.backends.cupy_cudnn.prepared_plan import launch_program
from iossim.backends.cupy_cudnn.unit_calls import UnitProgram
from iossim.backends.cupy_cudnn.weights import Weights
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.execution.backend import Choice, Choices
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule
from iossim.execution.made_inputs import made_arrays
from iossim.execution.measured_run import largest_difference, tolerance
from iossim.execution.plan import Plan
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import AnySchedule

#: Largest difference of fp32 from NumPy's, over the largest value: that of another order of sums.
OF_FP32 = 1e-5


class HostBackend(CupyCudnnBackend):
    """``plans_of`` are the library's plans of a request; ``options`` those of :class:`CudnnOptions`."""

    def __init__(
        self,
        precision: Precision = Precision.FP32,
        engine: Engine = Engine.GRAPH,
        driver: HostDriver | None = None,
        plans_of: Any = None,
        versions: tuple[tuple[str, str], ...] = (),
        **options: Any,
    ) -> None:
        self.driver = driver or HostDriver()
        self.library = HostLibrary(self.driver, plans_of)
        self.library.versions = versions
        super().__init__(precision, engine, CudnnOptions(**options), self.driver, self.library)  # type: ignore[arg-type]

    @property
    def planning(self) -> SimpleNamespace:
        """Counts of what choosing algorithms took so far, and the time for which the device was warmed up."""
        chosen, timing = self.chooser, self.chooser.timing
        counts = {"convolutions": len(chosen.known), "recalled": chosen.recalled, "candidates_timed": timing.timed}
        more = {"plans_built": self.library.built, "warm_up_us": self._clock.spent_us}
        return SimpleNamespace(**counts, **more, refusals=timing.refusals)

    @property
    def heard(self) -> list[object]:
        """The plans of the library that were issued, in order."""
        return [call.about for call in self.driver.calls if call.verb == "convolution"]

    def algorithm(self, network: Network, *units: str) -> str:
        """The algorithm that is chosen for a unit, by default for the first."""
        return self.choices(network)(units or (network.units[0].name,), Strategy.CONCURRENT).algorithm

    def lowered(
        self, network: Network, schedule: AnySchedule | None = None, choices: Choices | None = None, **more: bool
    ) -> Plan:
        """The plan of a schedule, by default of one unit after another, in place."""
        given = {"in_place": True, **more}
        return lower_schedule(
            schedule or sequential_schedule(network), network, self.context.engine, choices=choices, **given
        )

    def agree(self, network: Network, plan: Plan | None = None) -> None:
        """Run a plan, by default that of one unit after another as is fastest; its outputs are NumPy's."""
        plan = self.lowered(network, choices=self.choices(network)) if plan is None else plan
        inputs = made_arrays(network.graph.inputs, network.graph.types)
        outputs, expected = self.execute(network, plan, inputs), evaluate_graph(network.graph, inputs)
        assert {name: array.dtype for name, array in outputs.items()} == {n: a.dtype for n, a in expected.items()}
        found = largest_difference(outputs, expected)
        limit = OF_FP32 if self._precision is Precision.FP32 else tolerance(network)
        assert found.relative <= limit, found


def programs(network: Network, channels_last: bool = False) -> dict[str, UnitProgram]:
    """The calls of each unit, as the sequential plan in place runs them."""
    plan = lower_schedule(sequential_schedule(network), network, Engine.GRAPH, in_place=True)
    weights = Weights(network.graph, HostDriver(), channels_last)
    return {launch.units[0]: launch_program(network, plan, launch, weights) for launch in plan.launches}


def always(algorithm: str) -> Choices:
    """Every launch by one algorithm."""
    return lambda *_: Choice(algorithm)
