"""The event-driven simulator as a backend: a plan takes what it takes in the simulation, and computes no values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from iossim._version import __version__
from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.unit_prices import UnitPrices
from iossim.base.errors import OptionError, Progress, did_you_mean, ignore
from iossim.execution.backend import BackendError, Choice, Choices, Context, Divided, Samples, Timing
from iossim.execution.engine import Engine
from iossim.execution.plan import Plan
from iossim.hardware.load import device as load_device
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.types import Precision
from iossim.schedule.batch import FASTEST, Strategy

ENGINES = tuple(Engine)
TAKES_DEVICE = True


def missing() -> str:
    """Nothing: a simulation needs no device."""
    return ""


def create(precision: Precision, engine: Engine, options: Mapping[str, str]) -> SimulatorBackend:
    """``options``: ``device``, a name or a profile file. Raises OptionError where it is left out."""
    for name in options:
        if name != "device":
            raise OptionError(f"backend simulator has no option {name!r}; {did_you_mean(name, ['device'])}")
    if "device" not in options:
        raise OptionError("backend simulator needs a device; give `device` NAME")
    return SimulatorBackend(load_device(options["device"]), precision, engine)


class SimulatorBackend:
    """Simulates plans block by block on ``profile``, with concats, splits and layouts as backends of GPUs have them."""

    def __init__(self, profile: DeviceProfile, precision: Precision, engine: Engine) -> None:
        self.profile, self.engine = profile, engine
        self._prices = SimulatorCostModel(profile, precision, engine, of_backend=True)
        libraries = (("iossim", f"{__version__}+{profile.fingerprint}"),)
        self.context = Context("simulator", profile.name, str(precision), str(engine), libraries=libraries)

    def choices(self, network: Network) -> Choices:
        """The candidates' workspaces, so that a plan's arena holds them; a variant is a choice of candidates."""
        prices = UnitPrices(self.profile, None, self.engine, False, libraries=self._prices.units.whole.libraries)

        @cache
        def choose(units: tuple[str, ...], strategy: Strategy, variant: str = FASTEST) -> Choice:
            own = [network.unit_index[name] for name in units]
            merged = strategy is Strategy.MERGE
            steps = prices.merged_steps(network, own) if merged else prices.steps(network, own[0])
            return Choice(variant, prices.workspace_bytes(steps, variant))

        return choose

    def divided(self, network: Network) -> Divided:
        """The SMs that the price of a stage gives its groups."""
        return self._prices.divided(network)

    def execute(self, network: Network, plan: Plan, inputs: Mapping[str, Array]) -> dict[str, Array]:
        raise BackendError("backend simulator computes no values; use `backend` numpy_reference to check a schedule's")

    def measure(
        self, network: Network, plans: Sequence[Plan], timing: Timing, progress: Progress = ignore
    ) -> list[Samples]:
        """One sample a plan: the simulation is deterministic."""
        found = []
        for done, plan in enumerate(plans, 1):
            found.append(Samples((self._prices.simulated_plan_us(network, plan),)))
            progress(done, len(plans))
        return found
