"""Execution of ops by one kind of device: the ``TARGET`` of ``iossim/hardware/lowering/KIND`` (a module or a package),
or of the module of a kind from another package (:mod:`iossim.hardware.kind`).

A profile's ``kind`` selects its target; no other part of the core distinguishes kinds. All kinds fuse the same
ops into one step (:mod:`iossim.hardware.lowering.unit`), since networks are cut into units before a device is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec

from iossim.base.errors import DeviceError, last_line
from iossim.hardware.kind import DEVICE_KINDS
from iossim.hardware.lowering.kernel import Candidate, Kernel
from iossim.hardware.lowering.step import Step
from iossim.hardware.profile import DeviceProfile
from iossim.ir.op import Op
from iossim.ir.types import TensorType

#: Candidates of a step of an op kind; a target maps op kinds to these.
Lower = Callable[..., list[Candidate]]
#: Candidates of a step by the algorithms that a library can be told to use, by its names for them.
ByAlgorithm = Callable[[Step], Mapping[str, Sequence[Candidate]]]


@dataclass(frozen=True)
class Target:
    """Lowering rules of a kind of device.

    ``families`` has for each op kind the candidates of its steps, on any architecture of the kind (an op without a row
    runs as the kind that it is :attr:`~iossim.ir.op.Op.priced_as`), and ``copy`` those of a tensor copy. ``algorithms``
    has, for op kinds whose algorithms a library names, the candidates by those names, including some that no library
    would choose by itself and no family contains.
    ``runs_one_kernel_per_sm``: further kernels queue while each SM (or core) has one; otherwise only registers,
    shared memory, warps and slots limit them. ``records_graphs``: measured stages were replayed as CUDA graphs, not
    issued call by call. ``has_warps``: counting resident warps is meaningful. ``split_copies``: number of times that a
    runtime without views copies the output of a merged convolution to separate its parts.
    """

    families: Mapping[str, Lower]
    copy: Callable[[TensorType], Candidate]
    algorithms: Mapping[str, ByAlgorithm] = field(default_factory=dict)
    runs_one_kernel_per_sm: bool = False
    records_graphs: bool = True
    has_warps: bool = True
    split_copies: int = 1

    def family(self, op: Op) -> Lower | None:
        """The candidates of an op's steps: the row of its kind, or of the kind that it is priced as."""
        return self.families.get(op.kind) or self.families.get(op.priced_as)


def target_of(profile: DeviceProfile) -> Target:
    """The target of a device; raises DeviceError if its kind has none."""
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
    """All candidates of a step on a device; the fastest is chosen later.

    Reads of fused ops count in the last kernel, which computes them. Raises DeviceError for what cannot be priced.
    """
    lower = target_of(profile).family(step.op)
    if lower is None:
        raise DeviceError(
            f"op kind {step.op.kind!r} has no lowering for devices of kind {profile.kind!r}; list it in a family of "
            f"iossim.hardware.lowering.{profile.kind}, or give its class priced_as, a kind that has one"
        )
    try:
        candidates = _lowered(lower, step)
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        if not step.op.priced_as:
            raise
        told = f"op kind {step.op.kind!r} cannot be priced as {step.op.priced_as!r}: {last_line(error)}"
        raise DeviceError(f"{told}; let its class be priced_as a kind of the same operands, or 'foreign'") from None
    return tuple(one for one in candidates if one.runs_on(profile.architecture))


def step_algorithms(step: Step, profile: DeviceProfile) -> dict[str, tuple[Candidate, ...]]:
    """The candidates of a step by each algorithm that a library can be told to use on the device.

    If the library does not name its algorithms, each candidate is one. Raises as :func:`step_candidates`.
    """
    by_algorithm = target_of(profile).algorithms.get(step.op.kind)
    if by_algorithm is None:
        return {one.algorithm: (one,) for one in step_candidates(step, profile)}
    known = {
        name: [one for one in some if one.runs_on(profile.architecture)] for name, some in by_algorithm(step).items()
    }
    return {name: with_fused_reads(candidates, step) for name, candidates in known.items() if candidates}


@lru_cache(maxsize=2048)
def _lowered(lower: Lower, step: Step) -> tuple[Candidate, ...]:
    """Candidates on any architecture, kept since a study prices the same step on many devices."""
    return with_fused_reads(lower(step), step)


def with_fused_reads(candidates: Sequence[Candidate], step: Step) -> tuple[Candidate, ...]:
    """The candidates whose last kernels also read what the ops read that are fused into the step."""
    if not step.fused_reads:
        return tuple(candidates)
    activation_bytes = sum(operand.type.bytes for operand in step.fused_reads if not operand.is_weight)
    weight_bytes = sum(operand.type.bytes for operand in step.fused_reads if operand.is_weight)

    def fused(last: Kernel) -> Kernel:
        return replace(
            last,
            activation_bytes=last.activation_bytes + activation_bytes,
            weight_bytes=last.weight_bytes + weight_bytes,
            l2_bytes=last.l2_bytes + activation_bytes + weight_bytes,
        )

    return tuple(replace(one, kernels=(*one.kernels[:-1], fused(one.kernels[-1]))) for one in candidates)


def copy_candidates(moved: TensorType, profile: DeviceProfile) -> tuple[Candidate, ...]:
    """The candidates of a tensor copy on a device."""
    return (target_of(profile).copy(moved),)
