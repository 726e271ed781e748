"""Every kind of op has a price on every kind of device, which a device's target selects, and counts what it moves."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from cpus import cpu

from iossim.api import cost_model, optimize
from iossim.base.errors import DeviceError
from iossim.hardware.compute_capability import Architecture
from iossim.hardware.kind import DEVICE_KINDS, device_kind
from iossim.hardware.load import device
from iossim.hardware.lowering.target import step_candidates, target_of
from iossim.hardware.lowering.unit import lower_unit
from iossim.ir.constants import SeededConstant
from iossim.ir.graph import Graph, Node
from iossim.ir.network import Network
from iossim.ir.op import OPS, Op
from iossim.ir.ops.conv_transpose import ConvTranspose
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.gather import Gather, GatherND
from iossim.ir.ops.normalization import LayerNorm
from iossim.ir.ops.quantize import IntegerConv, IntegerMatMul, QuantizedConv
from iossim.ir.ops.recurrent import Lstm
from iossim.ir.ops.reduce import CumSum, Reduce, TopK
from iossim.ir.ops.reshape import DepthToSpace, Expand, Pad
from iossim.ir.ops.resize import Resize
from iossim.ir.ops.unary import Cast, Relu
from iossim.ir.types import DType, TensorType
from iossim.measurements.operator_kinds import parse_description
from iossim.models.partition import network_of

V100 = device("v100-sxm2")

IMAGE = TensorType((1, 8, 32, 32))
BYTES = TensorType((1, 8, 32, 32), DType.UINT8)
ONE, ONE_BYTE = TensorType(()), TensorType((), DType.UINT8)

#: An op, its inputs, and how many of the first are no weights.
PRICED: list[tuple[Op, list[TensorType], int]] = [
    (Unary("gelu"), [IMAGE], 1),
    (Nary("sub"), [IMAGE, IMAGE], 2),
    (Cast("fp16"), [IMAGE], 1),
    (Reduce("mean", (2, 3)), [IMAGE], 1),
    (LayerNorm(3), [IMAGE, TensorType((32,))], 1),
    (TopK(3), [IMAGE], 1),
    (Pad((0, 0, 1, 1, 0, 0, 1, 1)), [IMAGE], 1),
    (Expand((4, 8, 32, 32)), [IMAGE], 1),
    (DepthToSpace(2), [IMAGE], 1),
    (Resize((1.0, 1.0, 2.0, 2.0), (), "linear"), [IMAGE], 1),
    (Gather(0), [TensorType((1000, 64)), TensorType((1, 16), DType.INT64)], 2),
    (GatherND(1), [TensorType((4, 16, 64)), TensorType((4, 2, 1), DType.INT64)], 2),
    (CumSum(1), [TensorType((4, 128), DType.INT64)], 1),
    (ConvTranspose((2, 2), (1, 1, 1, 1)), [IMAGE, TensorType((8, 16, 4, 4))], 1),
    (Lstm(64), [TensorType((10, 4, 32)), TensorType((1, 256, 32)), TensorType((1, 256, 64))], 1),
    (
        QuantizedConv((1, 1), (1, 1, 1, 1)),
        [BYTES, ONE, ONE_BYTE, TensorType((16, 8, 3, 3), DType.INT8), ONE, TensorType((), DType.INT8), ONE, ONE_BYTE],
        1,
    ),
    (IntegerConv(), [TensorType((1, 64, 8, 8), DType.UINT8), TensorType((32, 64, 1, 1), DType.INT8)], 1),
    (IntegerMatMul(), [TensorType((64, 32), DType.UINT8), TensorType((32, 64), DType.INT8)], 1),
]


def network(op: Op, types: list[TensorType], data: int) -> Network:
    names = [f"x{index}" for index in range(len(types))]
    outputs = tuple(f"y{index}" for index in range(len(op.infer(types))))
    constants = {name: SeededConstant(value, name) for name, value in zip(names[data:], types[data:], strict=True)}
    inputs = dict(zip(names[:data], types[:data], strict=True))
    return network_of(Graph.create(inputs, outputs, [Node("op", op, tuple(names), outputs)], constants), "one_op")


@pytest.mark.parametrize("device", ["v100-sxm2", "t4", "a100-sxm-40gb"])
def test_every_kind_has_a_price(device: str) -> None:
    prices = cost_model("simulator", device)
    for op, types, data in PRICED:
        found = optimize(network(op, types, data), None, scheduler="sequential", cost_model=prices)
        assert 0.1 < found.latency_us < 1e5, (op.kind, found.latency_us)


def test_a_table_is_read_where_it_is_indexed() -> None:
    op, types, data = next(entry for entry in PRICED if isinstance(entry[0], Gather))
    (candidates,) = lower_unit(*_only_unit(network(op, types, 2)), V100)
    gathered = 16 * 64 * 4
    assert candidates[0].kernels[0].activation_bytes == gathered + 16 * 8
    table = network(op, types[:1] + types[1:], data)
    assert table.graph.work(table.graph.nodes[0]).bytes == 2 * gathered + 16 * 8


def test_a_recurrent_layer_is_a_product_and_two_kernels_for_each_step() -> None:
    op, types, data = next(entry for entry in PRICED if isinstance(entry[0], Lstm))
    (candidates,) = lower_unit(*_only_unit(network(op, types, data)), V100)
    assert {len(candidate.kernels) for candidate in candidates if candidate.algorithm.startswith("recurrent")} == {21}


def _only_unit(found: Network) -> tuple[Network, object]:
    return found, found.units[0]


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
