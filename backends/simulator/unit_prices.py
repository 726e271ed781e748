"""The units of networks as kernels with prices: each distinct unit is lowered and priced once.

On the partition engine a unit has a price for each number of SMs that a part of the device may have, besides that on
all of them. A unit runs as what is fastest alone, or as a variant: a kernel candidate for each of its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import fsum
from weakref import WeakKeyDictionary

from iossim.backends.simulator.kernel_model import KernelModel, KernelPrice
from iossim.base.errors import OptionError, ScheduleError
from iossim.execution.engine import Engine
from iossim.execution.in_place import in_place_buffers
from iossim.hardware.lowering.kernel import Candidate, Kernel, Libraries, WorkClass
from iossim.hardware.lowering.residence import residences
from iossim.hardware.lowering.target import copy_candidates
from iossim.hardware.lowering.unit import StepCandidates, lower_merged, lower_unit
from iossim.hardware.parameters import EngineOverheads
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.ir.types import Precision, TensorType
from iossim.schedule.batch import FASTEST, UnitVariant
from iossim.schedule.problem import ScheduleProblem

#: The arguments of the simulator for concats and splits in place or as copies, and for all as in backends.
IN_PLACE, COPIES, BACKEND = "in-place", "copies", "backend"
#: The signature of a unit, and what its placement changes of its work; the price depends on it and on the variant.
UnitKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class UnitPrice:
    """The kernels of a unit (or of a merged convolution), each step run as the candidate that was chosen.

    One entry a kernel in every tuple. ``host_us`` is what the host needs to issue the kernel; ``kernels`` have these
    prices, empty for made-up ones.
    """

    names: tuple[str, ...]
    prices: tuple[KernelPrice, ...]
    host_us: tuple[float, ...]
    kernels: tuple[Kernel, ...] = ()

    @property
    def device_us(self) -> float:
        """All kernels one after another on an idle device."""
        return fsum(price.alone_us for price in self.prices)

    @property
    def single_us(self) -> float:
        """The unit in a stage of one group: the longer of host and device time."""
        return max(self.device_us, fsum(self.host_us))


def host_issue_us(candidate: Candidate, position: int, costs: EngineOverheads) -> float:
    """Host time to issue the kernel at ``position`` of a candidate."""
    if not candidate.is_library_call:
        return costs.bare_launch_us
    if position == 0:
        return costs.library_call_us
    is_layout = candidate.kernels[position].work_class is WorkClass.LAYOUT
    return costs.layout_launch_us if is_layout else costs.library_kernel_us


class UnitPrices:
    """Prices the units of networks on a device under an engine.

    ``whole`` prices kernels on all SMs; ``sizes`` are those of parts, in SMs, which only the partition engine has. With
    ``in_place``, concats and splits launch only what cannot be in place. An ``error`` changes the price of a unit by
    its signature. Problems must compute in ``precision``, if one is given. ``libraries`` are the engine's by default.
    """

    def __init__(
        self,
        profile: DeviceProfile,
        precision: Precision | None,
        engine: Engine,
        in_place: bool,
        error: Callable[[UnitPrice, str], UnitPrice] | None = None,
        libraries: Libraries | None = None,
    ) -> None:
        self._precision, self._error, self._is_usual_in_place = precision, error, engine.facts.in_place
        self._profile, self._splits_merged, self.in_place = profile, engine.facts.splits_merged, in_place
        self._keys: WeakKeyDictionary[Network, tuple[UnitKey, ...]] = WeakKeyDictionary()
        self.sizes: tuple[int, ...] = ()
        if engine.facts.divides_sms:
            from iossim.hardware.green_contexts import part_sizes

            self.sizes = part_sizes(profile)
        #: The kernel model of a number of SMs, None for all.
        libraries = libraries or engine.libraries_on(profile.architecture)
        self.model = cache(partial(KernelModel, engine.on(profile), engine.issue, libraries))
        self.whole = self.model(None)
        #: A graph was issued before it runs: its kernels cost the host nothing.
        self._issue_costs = None if engine.is_recorded else profile.engine
        self._prices: dict[tuple[UnitKey, str, int | None], UnitPrice] = {}
        #: The variants of units, as :mod:`iossim.backends.simulator.variants` finds them.
        self.variants: dict[UnitKey, tuple[UnitVariant, ...]] = {}

    def __len__(self) -> int:
        """Number of distinct priced units, each on all SMs or a part, and as a variant."""
        return len(self._prices)

    def remarks(self, network: Network) -> list[str]:
        """Want of memory, products of fp8 on a device without it, layout in TF32 and place of concats and splits."""
        kinds, capacity_bytes = network.graph.of_kind, self._profile.datasheet.dram_bytes.value
        told: list[str] = []
        if sum(value.bytes for value in network.graph.types.values()) > capacity_bytes:
            from iossim.execution.memory import memory_remarks  # few networks come near

            told += memory_remarks(network, capacity_bytes, self._profile.name)
        if {"scaled_matmul", "scaled_conv"} & kinds.keys() and not self._profile.reduced_precision_tflops(
            Precision.FP8
        ):
            told.append(f"{self._profile.name} has no fp8: products are of {self._precision}, after dequantisation")
        if self._precision is Precision.TF32 and self.whole.libraries is Libraries.COMPILED and "conv" in kinds:
            other = f"channels first, as in backends: `cost_model` simulator:{BACKEND}"
            told.append(f"Images in tf32 lie channels last; {other}")
        if (self.in_place or self._is_usual_in_place) and (place := in_place_buffers(network)).moves:
            copies = sum(len(place.copies([unit])) for unit in range(len(network.units)))
            placed = "lie in place" + (f", but for {copies} copied parts" if copies else "")
            said, other = (placed, COPIES) if self.in_place else ("launch a kernel a term", IN_PLACE)
            told.append(f"Concats and splits {said}; other prices: `cost_model` simulator:{other}")
        return told

    def keys_of(self, network: Network) -> tuple[UnitKey, ...]:
        """For each unit its work, and what its placement changes of that: equal for equal candidates."""
        if network not in self._keys:
            placed = in_place_buffers(network).signature if self.in_place else lambda unit: ""
            found = zip(network.signatures, residences(network, self._profile), strict=True)
            self._keys[network] = tuple((work, placed(unit) + at.key) for unit, (work, at) in enumerate(found))
        return self._keys[network]

    def keys(self, problem: ScheduleProblem) -> list[UnitKey]:
        """The key of each unit of a problem."""
        keys = self.keys_of(self.network(problem))
        return [keys[unit] for unit in problem.units]

    def steps(self, network: Network, unit: int) -> StepCandidates:
        """The candidates of each step of a unit; none of a concat or split in place."""
        if self.in_place and unit in in_place_buffers(network).moves:
            return ()
        return residences(network, self._profile)[unit].of(lower_unit(network, network.units[unit], self._profile))

    def merged_steps(self, network: Network, units: Sequence[int]) -> StepCandidates:
        """The candidates of units as one stacked convolution; raises ScheduleError where they do not merge."""
        steps = lower_merged(network, units, self._profile, self._splits_merged)
        return residences(network, self._profile)[units[0]].of(steps)

    def _copies(self, network: Network, units: Sequence[int]) -> StepCandidates:
        """The copies that a unit takes, or several as one stacked convolution: they are in no variant."""
        moved = in_place_buffers(network).copies(units) if self.in_place else ()
        return tuple(copy_candidates(each, self._profile) for each in moved)

    def price(self, problem: ScheduleProblem, variants: Sequence[str] = (), sms: int | None = None) -> list[UnitPrice]:
        """The price of each unit as its variant (or the fastest alone), on a part of ``sms`` SMs or on all.

        Raises PlanError for a variant that is not known.
        """
        network, names = self.network(problem), variants or (FASTEST,) * len(problem)
        return [self.price_unit(network, unit, name, sms) for unit, name in zip(problem.units, names, strict=True)]

    def of_launch(self, network: Network, units: Sequence[int], variant: str = FASTEST) -> UnitPrice:
        """The price of a unit as a variant, or of several as one stacked convolution.

        Raises ScheduleError for units that do not merge, PlanError for a variant that is not known.
        """
        if len(units) == 1:
            return self.price_unit(network, units[0], variant)
        merged = self.price_merged(network, units)
        if merged is None:
            names = ", ".join(network.units[unit].name for unit in units)
            raise ScheduleError(f"units {names} do not merge; give each a launch of its own")
        return merged

    def price_merged(self, network: Network, units: Sequence[int]) -> UnitPrice | None:
        """The price of the stacked convolution of some units, None where they do not merge."""
        try:
            return self.merged(network, units)
        except ScheduleError:
            return None

    def merged(self, network: Network, units: Sequence[int], copies: bool = True) -> UnitPrice:
        """The same, with the ``copies`` after it or without; raises ScheduleError where they do not merge."""
        signature = "merged " + " ".join(network.signatures[unit] for unit in units)
        after = self._copies(network, units) if copies else ()
        return self._priced(self.whole, self.merged_steps(network, units), after, signature)

    def copy(self, moved: TensorType, sms: int | None) -> UnitPrice:
        """The price of the kernel that copies a tensor."""
        return self._priced(self.model(sms), (copy_candidates(moved, self._profile),), (), "copy")

    def workspace_bytes(self, steps: StepCandidates, variant: str = FASTEST) -> int:
        """The workspace of steps that run one after another."""
        return max((one.workspace_bytes for one, _ in self.whole.chosen(steps, variant)), default=0)

    def issue_us(self, candidate: Candidate) -> list[float]:
        """Host time to issue each kernel of a candidate."""
        if self._issue_costs is None:
            return [0.0] * len(candidate.kernels)
        return [host_issue_us(candidate, position, self._issue_costs) for position in range(len(candidate.kernels))]

    def price_unit(self, network: Network, unit: int, variant: str = FASTEST, sms: int | None = None) -> UnitPrice:
        """The price of a unit as a variant, on a part of ``sms`` SMs or on all."""
        key = self.keys_of(network)[unit], variant, sms
        if key not in self._prices:
            steps, copies = self.steps(network, unit), self._copies(network, [unit])
            self._prices[key] = self._priced(self.model(sms), steps, copies, network.signatures[unit], variant)
        return self._prices[key]

    def _priced(
        self, model: KernelModel, steps: StepCandidates, copies: StepCandidates, signature: str, variant: str = FASTEST
    ) -> UnitPrice:
        chosen = [*model.chosen(steps, variant), *model.chosen(copies)]
        kernels = tuple(kernel for candidate, _ in chosen for kernel in candidate.kernels)
        price = UnitPrice(
            tuple(kernel.name for kernel in kernels),
            tuple(price for _, own in chosen for price in own),
            tuple(us for candidate, _ in chosen for us in self.issue_us(candidate)),
            kernels,
        )
        return price if self._error is None else self._error(price, signature)

    def network(self, problem: ScheduleProblem) -> Network:
        """The network of a problem; raises an error where it has none, or computes in another precision."""
        if problem.network is None:
            raise ScheduleError(f"problem {problem.name!r} has no network; the simulator prices units of a network")
        if self._precision is not None and problem.network.precision is not self._precision:
            raise OptionError(
                f"network {problem.network.name!r} computes in {problem.network.precision}, the simulator was made "
                f"for {self._precision}; make both with the same dtype"
            )
        return problem.network
