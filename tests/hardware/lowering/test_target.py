"""What selects how ops run: the kind of a device, whose target lists every kind of op."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from cpus import cpu

from iossim.base.errors import DeviceError
from iossim.hardware.compute_capability import Architecture
from iossim.hardware.kind import DEVICE_KINDS, device_kind
from iossim.hardware.load import device
from iossim.hardware.lowering.target import step_candidates, target_of
from iossim.ir.op import OPS, Op
from iossim.ir.ops.unary import Relu
from iossim.measurements.operator_kinds import parse_description

V100 = device("v100-sxm2")
STEP = parse_description(
    "conv batch=1 in_channels=32 out_channels=32 kernel=3 in_size=8 stride=1 padding=1 groups=1"
).step()


@pytest.mark.parametrize("kind", DEVICE_KINDS.names())
def test_every_op_kind_has_a_family_and_every_family_an_op(kind: str) -> None:
    families = target_of(V100.model_copy(update={"kind": kind})).families
    assert set(families) == set(OPS.own())
    assert all(callable(each) for each in families.values())


@pytest.mark.parametrize("kind", DEVICE_KINDS.names())
def test_limits_name_an_architecture_with_defaults_and_ranges(kind: str) -> None:
    found = device_kind(kind)
    architectures = {limits.architecture for limits in found.limits.values()}
    assert architectures <= set(found.parameters)
    assert architectures <= set(found.ranges)


@pytest.mark.parametrize("profile", [V100, cpu()], ids=str)
def test_an_op_kind_that_no_family_lists_is_an_error_that_names_it(
    profile: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Op, "registry", dict(Op.registry))  # a subclass is entered under its kind

    @dataclass(frozen=True)
    class Unlisted(Relu):
        pass

    object.__setattr__(unlisted := Unlisted(), "kind", "unlisted")
    with pytest.raises(DeviceError, match="op kind 'unlisted' has no lowering for devices of kind"):
        step_candidates(replace(STEP, op=unlisted), profile)  # type: ignore[arg-type]


def test_a_kind_without_a_target_is_an_error_that_names_it() -> None:
    with pytest.raises(DeviceError, match="no lowering for devices of kind 'abacus'"):
        target_of(V100.model_copy(update={"kind": "abacus"}))


@pytest.mark.parametrize("capability", ["3.5", "6.1", "7.0", "8.0"])
def test_a_gpu_takes_what_the_libraries_for_its_architecture_have(capability: str) -> None:
    limits = device_kind("gpu").limits[capability]
    fact = V100.datasheet.compute_capability
    assert fact is not None
    sheet = V100.datasheet.model_copy(update={"compute_capability": fact.model_copy(update={"value": capability})})
    found = step_candidates(STEP, V100.model_copy(update={"datasheet": sheet}))
    old = limits.architecture in (Architecture.KEPLER, Architecture.PASCAL)
    assert all(one.architectures is None or limits.architecture in one.architectures for one in found)
    assert ("winograd_fused_2x4x4" in {one.algorithm for one in found}) is old
