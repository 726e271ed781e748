"""How one kind of device runs ops: ``iossim/hardware/lowering/KIND`` (a module or a package) holds it as ``TARGET``, or
the module of a kind that another package adds (:mod:`iossim.hardware.kind`).

A profile's ``kind`` selects its target; nothing else of iossim asks which kinds there are. All kinds fuse the same
ops into one step (:mod:`iossim.hardware.lowering.unit`), since networks are cut into units before a device is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from iossim.base.errors import DeviceError
from iossim.hardware.kind import DEVICE_KINDS
from iossim.hardware.lowering.kernel import Candidate, Kernel
from iossim.hardware.lowering.step import Step
from iossim.hardware.profile import DeviceProfile
from iossim.ir.op import Op
from iossim.ir.types import TensorType

#: What a step of an op kind may run as; each target has a :class:`~iossim.ir.op.KindTable` of these.
Lower = Callable[[Step], list[Candidate]]
#: The same by the algorithms that a library can be told to use, by its names for them.
Sort = Callable[[Step], Mapping[str, Sequence[Candidate]]]


@dataclass(frozen=True)
class Target:
    """What lowering asks of a kind of device.

    ``families`` says for each op kind what its steps may run as, on any architecture of the kind (an op without a row
    runs as the kind that it is :attr:`~iossim.ir.op.Op.priced_as`), and ``copy`` what copies a tensor. ``algorithms``
    sorts, for op kinds of which a library names its algorithms, what it can be told to run by those names; no library
    would choose some of that by itself, and no family has it.
    ``runs_one_kernel_per_sm``: further kernels queue while each SM (or core) has one; otherwise only registers,
    shared memory, warps and slots limit them. ``records_graphs``: measured stages were replayed as CUDA graphs, not
    issued call by call. ``has_warps``: it makes sense to count resident warps. ``split_copies``: so often a runtime
    without views copies the output of a merged convolution until its parts are tensors.
    """

    families: Mapping[str, Lower]
    copy: Callable[[TensorType], Candidate]
    algorithms: Mapping[str, Sort] = field(default_factory=dict)
    runs_one_kernel_per_sm: bool = False
    records_graphs: bool = True
    has_warps: bool = True
    split_copies: int = 1

    def family(self, op: Op) -> Lower | None:
        """What the steps of an op run as: the row of its kind, or of the one that it is priced as."""
        return self.families.get(op.kind) or self.families.get(op.priced_as)


def target_of(profile: DeviceProfile) -> Target:
    """The target of a device; raises DeviceError where its kind has none."""
    return _target(profile.kind)


@cache
def _target(kind: str) -> Target:
    name = f"iossim.hardware.lowering.{kind}"
    module = import_module(name) if find_spec(name) else None if kind in DEVICE_KINDS.own() else DEVICE_KINDS.get(kind)
    if module is None:
        raise DeviceError(f"no lowering for devices of kind {kind!r}; add a module {name} with a TARGET")
    target = module.TARGET
    assert isinstance(target, Target)
    return target


def step_candidates(step: Step, profile: DeviceProfile) -> tuple[Candidate, ...]:
    """All that a step may run as on a device; which is fastest is chosen later.

    What fused ops read besides counts to the last kernel, which computes them. Raises DeviceError for unknown kinds.
    """
    lower = target_of(profile).family(step.op)
    if lower is None:
        raise DeviceError(
            f"op kind {step.op.kind!r} has no lowering for devices of kind {profile.kind!r}; list it in a family of "
            f"iossim.hardware.lowering.{profile.kind}"
        )
    return _of_device(lower(step), step, profile)


def step_algorithms(step: Step, profile: DeviceProfile) -> dict[str, tuple[Candidate, ...]]:
    """What a step runs as by each algorithm that a library can be told to use on the device.

    Where the library has no names of its own, each candidate is an algorithm. Raises as :func:`step_candidates`.
    """
    sort = target_of(profile).algorithms.get(step.op.kind)
    if sort is None:
        return {one.algorithm: (one,) for one in step_candidates(step, profile)}
    found = {str(name): _of_device(candidates, step, profile) for name, candidates in sort(step).items()}
    return {name: candidates for name, candidates in found.items() if candidates}


def _of_device(candidates: Sequence[Candidate], step: Step, profile: DeviceProfile) -> tuple[Candidate, ...]:
    """Those that the device's architecture has, with what fused ops read besides."""
    found = [one for one in candidates if one.runs_on(profile.architecture)]
    if not step.fused_reads:
        return tuple(found)
    activation_bytes = sum(operand.type.bytes for operand in step.fused_reads if not operand.is_weight)
    weight_bytes = sum(operand.type.bytes for operand in step.fused_reads if operand.is_weight)

    def reading_more(last: Kernel) -> Kernel:
        return replace(
            last,
            activation_bytes=last.activation_bytes + activation_bytes,
            weight_bytes=last.weight_bytes + weight_bytes,
            l2_bytes=last.l2_bytes + activation_bytes + weight_bytes,
        )

    return tuple(replace(one, kernels=(*one.kernels[:-1], reading_more(one.kernels[-1]))) for one in found)


def copy_candidates(moved: TensorType, profile: DeviceProfile) -> tuple[Candidate, ...]:
    """What a copy of a tensor may run as on a device."""
    return (target_of(profile).copy(moved),)
