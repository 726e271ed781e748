"""Which waits of a plan nothing needs: neither memory, nor the capture of a graph."""

from dataclasses import dataclass, replace

from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend
from iossim.backends.cupy_cudnn.capture import captured
from iossim.backends.cupy_cudnn.prepared_plan import PreparedPlan
from iossim.backends.cupy_cudnn.weights import Weights
from iossim.base.errors import ScheduleError
from iossim.execution.memory import check_happens_before
from iossim.execution.plan import MAIN, Plan, Wait, segments
from iossim.ir.network import Network

#: What the device says of work that no fork brought into a capture, or that ends outside.
_OUTSIDE = (
    "never joins its first stream",
    "waits for an event from outside",
    "joins a capture with work of its own before it",
)


@dataclass
class Needed:
    """Waits by what fails without each: a race, a capture, or nothing."""

    waits: int
    races: int = 0
    captures: int = 0

    @property
    def nothing(self) -> int:
        return self.waits - self.races - self.captures


def needed_waits(network: Network, plan: Plan, backend: CupyCudnnBackend) -> Needed:
    """Of a plan of one segment with its memory planned, for a backend on the host's device."""
    found = Needed(0)
    weights = Weights(network.graph, backend.driver)
    for index, command in enumerate(plan.commands):
        if not isinstance(command, Wait):
            continue
        found.waits += 1
        without = replace(plan, commands=plan.commands[:index] + plan.commands[index + 1 :])
        try:
            check_happens_before(without)
        except ScheduleError:
            found.races += 1
            continue
        prepared = PreparedPlan(backend.lane, backend.chooser, network, weights, without)
        (segment,) = segments(without)
        try:
            captured(backend.driver, backend.lane(MAIN).stream, prepared.issues(segment))
        except AssertionError as error:
            found.captures += any(reason in str(error) for reason in _OUTSIDE)
        backend.driver.synchronize()  # some of it may have run outside of the capture
    return found
