"""Every kind of op has a price on every kind of device; how many blocks an SM holds, and where kernels find what they read."""

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from case_files import cases
from cpus import cpu
from graph_builders import builder_with
from operators import parse_description

from iossim.api import cost_model, optimize
from iossim.base.errors import DeviceError
from iossim.hardware.compute_capability import LIMITS, Architecture
from iossim.hardware.kind import DEVICE_KINDS, device_kind
from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Candidate, Libraries, WorkClass, resident_blocks
from iossim.hardware.lowering.residence import Residence, Weights, residences
from iossim.hardware.lowering.target import step_candidates, target_of
from iossim.hardware.lowering.unit import lower_unit, unit_steps
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.ir.constants import SeededConstant
from iossim.ir.graph import Graph, Node
from iossim.ir.network import Network
from iossim.ir.op import OPS, Op
from iossim.ir.ops.conv_transpose import ConvTranspose
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.gather import Gather, GatherND
from iossim.ir.ops.grid_sample import GridSample
from iossim.ir.ops.nary import Add
from iossim.ir.ops.normalization import LayerNorm
from iossim.ir.ops.quantize import IntegerConv, IntegerMatMul, QuantizedConv
from iossim.ir.ops.recurrent import Lstm
from iossim.ir.ops.reduce import CumSum, Reduce, TopK
from iossim.ir.ops.reshape import DepthToSpace, Expand, Pad
from iossim.ir.ops.resize import Resize
from iossim.ir.ops.unary import Cast, Relu
from iossim.ir.types import DType, Precision, TensorType
from iossim.measurements.operator_kinds import read_record
from iossim.models.partition import network_of

CASES = cases(__file__, "kernels.yaml")
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
    (GridSample(), [IMAGE, TensorType((IMAGE.shape[0], 4, 4, 2))], 2),
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
    found = next(network(op, types, 2) for op, types, _ in PRICED if isinstance(op, Gather))
    (candidates,) = lower_unit(found, found.units[0], V100)
    gathered = 16 * 64 * 4
    assert candidates[0].kernels[0].activation_bytes == gathered + 16 * 8
    assert found.graph.work(found.graph.nodes[0]).bytes == 2 * gathered + 16 * 8


def test_a_recurrent_layer_is_a_product_and_two_kernels_for_each_step() -> None:
    found = next(network(*each) for each in PRICED if isinstance(each[0], Lstm))
    (candidates,) = lower_unit(found, found.units[0], V100)
    made = [candidate.kernels for candidate in candidates if candidate.algorithm.startswith("recurrent")]
    assert {len(kernels) for kernels in made} == {21}
    state_bytes = 4 * 64 * 4
    assert {(kernels[2].activation_bytes, kernels[2].bytes_written) for kernels in made} == {
        (2 * 4 * state_bytes + state_bytes, 2 * state_bytes)
    }


@pytest.mark.parametrize("made", [DType.FLOAT16, DType.INT8])
@pytest.mark.parametrize("kind", [IntegerConv, IntegerMatMul])
def test_what_a_product_writes_is_not_what_it_loads(kind: type[Op], made: DType) -> None:
    """An epilogue turns sums of bytes into another type: as many steps of the products, other bytes written."""
    found = next(network(*each) for each in PRICED if isinstance(each[0], kind))
    (step,) = unit_steps(found, found.units[0])
    other = replace(step, outputs=(replace(step.outputs[0], dtype=made),))
    (own, *_), (candidate, *_) = (
        [
            one
            for one in step_candidates(each, device("a100-sxm-40gb"))
            if one.kernels[0].steps and len(one.kernels) == 1
        ]
        for each in (step, other)
    )
    assert own.kernels[0].steps == candidate.kernels[0].steps
    assert candidate.kernels[0].bytes_written == other.bytes_written


STEP = parse_description(
    "conv batch=1 in_channels=32 out_channels=32 kernel=3 in_size=8 stride=1 padding=1 groups=1"
).step()


@pytest.mark.parametrize("kind", DEVICE_KINDS.names())
def test_every_op_kind_has_a_family_and_every_architecture_defaults_and_ranges(kind: str) -> None:
    families = target_of(V100.model_copy(update={"kind": kind})).families
    assert set(families) == set(OPS.own())
    assert all(callable(each) for each in families.values())
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
    with pytest.raises(DeviceError, match=r"op kind 'unlisted' has no lowering .*, or give its class priced_as"):
        step_candidates(replace(STEP, op=unlisted), profile)  # type: ignore[arg-type]
    object.__setattr__(unlisted, "priced_as", "conv")
    with pytest.raises(DeviceError, match=r"'unlisted' cannot be priced as 'conv': .*Error.*, or 'foreign'"):
        step_candidates(replace(STEP, op=unlisted), profile)  # type: ignore[arg-type]
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


@pytest.mark.parametrize(("capability", "threads", "registers", "shared", "blocks"), CASES["resident"])
def test_resident_blocks(capability: str, threads: int, registers: int, shared: int, blocks: int) -> None:
    limits = LIMITS[capability]
    assert resident_blocks(limits, threads, registers, shared) == blocks


def candidates(
    name: str, precision: Precision, libraries: Libraries = Libraries.CURRENT, **sizes: int
) -> dict[str, Candidate]:
    record = {"op": "conv_transpose", "batch": 2, "in_channels": 64, "out_channels": 64, "in_size": 16}
    record |= {"kernel": 4, "stride": 1, "padding": 0} | sizes
    found = step_candidates(read_record(record, precision).step(), device(name))
    return {one.algorithm: one for one in found if one.is_in(libraries)}


def test_tf32_tensors_are_transformed_around_the_product_except_by_compilers() -> None:
    name = "transposed_implicit_gemm_sm80_128x64"
    names = [kernel.name for kernel in candidates("a100-sxm-40gb", Precision.TF32)[name].kernels]
    assert names == ["nchw_to_nhwc", "filters_to_nhwc", "sm80_128x64"]
    assert len(candidates("a100-sxm-40gb", Precision.TF32, Libraries.COMPILED)[name].kernels) == 1
    (half,) = candidates("a100-sxm-40gb", Precision.FP16)[name].kernels
    assert half.work_class is WorkClass.TENSOR_CONVOLUTION


def test_of_a_stride_the_taps_that_meet_a_pixel_are_multiplied() -> None:
    found = (candidates("v100-sxm2", Precision.FP16, stride=stride) for stride in (1, 2, 4))
    one, two, four = (each["transposed_implicit_gemm_s884_64x64"].kernels[0].steps for each in found)
    assert one == 4 * two == 16 * four


def test_groups_are_multiplied_on_fp32_lanes_tap_by_tap_and_one_group_computes_its_offsets() -> None:
    found = candidates("a100-sxm-40gb", Precision.TF32, groups=4, stride=2)
    kernels = [one.kernels[0] for one in found.values()]
    assert {kernel.precision for kernel in kernels} == {Precision.FP32}
    # 34 x 34 output pixels of 16 channels by all 16 taps.
    assert all(kernel.flops >= 2 * 2 * 64 * 34 * 34 * 16 * 16 for kernel in kernels if "split" not in kernel.name)
    alone = candidates("v100-sxm2", Precision.FP32)
    assert {one.kernels[0].work_class for one in alone.values()} == {WorkClass.IMPLICIT_GEMM}


#: 3 MiB of L2 keep operands.
HALF_RESIDENT = with_values(device("v100-sxm2"), {"l2_resident_fraction": 0.5})


def skipping(between: int, channels: int = 256) -> Network:
    """Pointwise convolutions in a row, values of 64 KiB and filters of 256 if there are 256 channels; the sum of the
    first and the last ends it.
    """
    b, x = builder_with("skip", x=(1, channels, 8, 8))
    first = made = b.conv(x, channels, 1, name="first")
    for index in range(between):
        made = b.conv(made, channels, 1, name=f"between{index}")
    return b.network([b.add(Add(), made, first, name="sum")])


def read_from_dram(network: Network, unit: int, profile: DeviceProfile, weights: Weights = Weights.AUTO) -> int:
    ((candidate, *_),) = residences(network, profile, weights)[unit].of(
        lower_unit(network, network.units[unit], profile)
    )
    return sum(kernel.weight_bytes for kernel in candidate.kernels)


def test_a_value_is_lost_to_what_was_touched_since() -> None:
    lost = [read_from_dram(network := skipping(n), len(network.units) - 1, HALF_RESIDENT) for n in range(2, 20)]
    # Activations take turns in 192 KiB; with filters of up to 8 convolutions between they fit.
    assert lost[:7] == [0] * 7
    assert all(less <= more for less, more in pairwise(lost))
    assert lost[-1] == 64 << 10, "all of the first, nothing of the last"


def test_weights_are_found_where_a_whole_run_fits() -> None:
    small, large = skipping(6), skipping(30)
    assert {one.weights for one in residences(small, HALF_RESIDENT)} == {Weights.WARM}
    assert {one.weights for one in residences(large, HALF_RESIDENT)} == {Weights.COLD}
    # Weights that fit a larger cache are warm there.
    assert {one.weights for one in residences(large, device("rtx-5090"))} == {Weights.WARM}
    assert read_from_dram(small, 1, HALF_RESIDENT) == 0
    assert read_from_dram(large, 1, HALF_RESIDENT) >= 256 << 10


@pytest.mark.parametrize("weights", [Weights.WARM, Weights.COLD])
def test_weights_are_where_they_are_said_to_be(weights: Weights) -> None:
    network = skipping(30)
    (plain,) = lower_unit(network, network.units[1], HALF_RESIDENT)
    (found,) = residences(network, HALF_RESIDENT, weights)[1].of((plain,))
    for one, other in zip(plain, found, strict=True):
        for kernel, moved in zip(one.kernels, other.kernels, strict=True):
            # Only where bytes come from changes.
            assert kernel.weight_bytes + kernel.activation_bytes == moved.weight_bytes + moved.activation_bytes
            assert moved.weight_bytes == (0 if weights is Weights.WARM else kernel.weight_bytes)
            assert (kernel.waits_for_dram, moved.waits_for_dram) == (False, moved.weight_bytes > 0)


def test_equal_units_in_equal_places_have_equal_keys() -> None:
    found = residences(skipping(30), HALF_RESIDENT)
    assert {one.key for one in found[1:-1]} == {""}
    assert found[-1].key == "cold 4"
    assert Residence().key == ""
