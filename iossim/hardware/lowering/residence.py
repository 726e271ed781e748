"""Residence of operands: whether kernels in a network read them from L2 or from DRAM.

It follows from the *reuse distance*, as in a cache that evicts the least recently used data: a value is lost to the
extent that the data touched since, in the network's order, and that of the unit itself exceed the part of L2 that keeps
operands. Inputs of the network are written right before it. A weight was last touched a whole run ago: it is in L2 only
if all weights fit there beside the peak of live activations.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate

from iossim.base.compiled import jit
from iossim.base.errors import OptionError, did_you_mean
from iossim.hardware.lowering.kernel import Candidate, Kernel
from iossim.hardware.lowering.target import target_of
from iossim.hardware.lowering.unit import StepCandidates
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network, once_a_network

#: Operands up to the first fraction of a cache (a GPU's L2, that of a CPU's core) are all found there; from the second
#: on none are.
_FITS, _LOST = 0.85, 1.25
#: Steps to which lost fractions are rounded, so that equal units in similar places are priced once.
_PARTS = 8


class Weights(StrEnum):
    """Residence of weights. ``AUTO``: by the sizes of the network. ``WARM``: in L2, if the kernel's operands fit there,
    as in repeated runs of one operator. ``COLD``: in DRAM.
    """

    AUTO = "auto"
    WARM = "warm"
    COLD = "cold"

    @staticmethod
    def named(name: str) -> Weights:
        """Raises OptionError for an unknown name."""
        if name not in list(Weights):
            raise OptionError(f"unknown `weights` {name!r}; {did_you_mean(name, list(Weights))}")
        return Weights(name)


@dataclass(frozen=True, slots=True)
class Residence:
    """Residence of a unit's operands: ``weights`` is ``WARM`` or ``COLD``, or ``AUTO`` for candidates as profiles were
    fitted; ``lost_bytes`` of its input activations come from DRAM, ``lost_parts`` of :data:`_PARTS`.
    """

    weights: Weights = Weights.COLD
    lost_parts: int = 0
    lost_bytes: int = 0

    @property
    def key(self) -> str:
        """Key of its effect on the unit's price; empty if only weights come from DRAM."""
        return f"{self.weights} {self.lost_parts}" if self != Residence() else ""

    def of(self, steps: StepCandidates) -> StepCandidates:
        """Candidates of the unit's steps with this residence; the first step to read a value pays for its loss."""
        if self.weights is Weights.AUTO:
            return steps
        left = self.lost_bytes
        found = []
        for candidates in steps:
            reads = [sum(kernel.activation_bytes for kernel in one.kernels) for one in candidates]
            lost = min(left, min(reads, default=0))
            left -= lost
            found.append(tuple(self._candidate(one, lost) for one in candidates))
        return tuple(found)

    def _candidate(self, candidate: Candidate, lost_bytes: int) -> Candidate:
        kernels: list[Kernel] = []
        for kernel in candidate.kernels:
            lost = min(lost_bytes, kernel.activation_bytes)
            lost_bytes -= lost
            kept = kernel.activation_bytes - lost
            in_l2, in_dram = (kernel.weight_bytes, 0) if self.weights is Weights.WARM else (0, kernel.weight_bytes)
            read = kept + in_l2, lost + in_dram
            kernels.append(replace(kernel, activation_bytes=read[0], weight_bytes=read[1], waits_for_dram=read[1] > 0))
        return replace(candidate, kernels=tuple(kernels))


@jit
def lost_part(operand_bytes: float, cache_bytes: float) -> float:
    """Fraction of operands that a cache has lost by the time they are read again."""
    if operand_bytes <= _FITS * cache_bytes:
        return 0.0
    if operand_bytes >= _LOST * cache_bytes:
        return 1.0
    return (operand_bytes / cache_bytes - _FITS) / (_LOST - _FITS)


def residences(network: Network, profile: DeviceProfile, weights: Weights = Weights.AUTO) -> tuple[Residence, ...]:
    """Residence of each unit's operands when the network runs repeatedly in its own order.

    On devices other than GPUs, whose cores have their own caches, it is that of a kernel alone.
    """
    l2_bytes = profile.parameters.l2_resident_fraction * profile.datasheet.l2_bytes.value
    return _found(network, l2_bytes if target_of(profile).has_warps else 0.0, weights)


@once_a_network
def _found(network: Network, l2_bytes: float, weights: Weights) -> tuple[Residence, ...]:
    types = network.graph.types
    touched = [(network.constants_of(unit), (*unit.inputs, *unit.outputs)) for unit in network.units]
    weight_bytes = sum(types[name].bytes for name in {name for filters, _ in touched for name in filters})
    arena_bytes = _arena_bytes(network, [values for _, values in touched])
    fits = l2_bytes > 0.0 and weight_bytes + arena_bytes <= _FITS * l2_bytes
    told = weights if weights is not Weights.AUTO else Weights.WARM if fits else Weights.COLD
    if fits or l2_bytes == 0.0:
        return (Residence(told),) * len(network.units)
    found: list[Residence] = []
    last: OrderedDict[str, bool] = OrderedDict.fromkeys(network.graph.inputs, False)  #: the latest at the end
    for unit, (filters, values) in zip(network.units, touched, strict=True):
        own = dict.fromkeys(filters, True) | dict.fromkeys(values, False)

        def since(value: str, own: dict[str, bool] = own) -> float:
            """Bytes touched since a value was, with the unit's own: activations take turns in one arena."""
            passed = {True: 0, False: 0}
            for name, is_weight in own.items():
                passed[is_weight] += types[name].bytes
            for name in reversed(last):
                total = passed[True] + min(passed[False], arena_bytes)
                if name == value or total >= _LOST * l2_bytes:
                    break
                passed[last[name]] += 0 if name in own else types[name].bytes
            return float(passed[True] + min(passed[False], arena_bytes))

        lost = sum(types[name].bytes * lost_part(since(name), l2_bytes) for name in unit.inputs)
        read = sum(types[name].bytes for name in unit.inputs)
        parts = round(_PARTS * lost / read) if read else 0
        found.append(Residence(told, parts, parts * read // _PARTS))
        for name, is_weight in own.items():
            last[name] = is_weight
            last.move_to_end(name)
    return tuple(found)


def _arena_bytes(network: Network, touched: Sequence[Sequence[str]]) -> int:
    """Peak bytes of live activations, from the values that each unit touches."""
    ends = {name: index for index, values in enumerate(touched) for name in values}
    ends |= dict.fromkeys(network.graph.returned, len(touched))
    begins = {name: index for index, values in reversed(list(enumerate(touched))) for name in values}
    changes = [0] * (len(touched) + 2)
    for name, begin in begins.items():
        size = network.graph.types[name].bytes
        changes[begin] += size
        changes[ends[name] + 1] -= size
    return max(accumulate(changes))
