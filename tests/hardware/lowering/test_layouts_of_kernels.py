"""Kernels run in the layout that they read: NHWC on tensor cores, NCHW on lanes; what turns one to the other is one kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iossim.hardware.compute_capability import Architecture
from iossim.hardware.lowering import cpu, gpu
from iossim.hardware.lowering.kernel import Candidate, Kernel, Libraries, WorkClass
from iossim.hardware.lowering.step import Operand, Step
from iossim.ir.ops.channels_last import ConvNhwc, MaxPoolNhwc
from iossim.ir.ops.reshape import Transpose
from iossim.ir.types import TO_FIRST, TO_LAST, Precision, TensorType, permuted
from iossim.measurements.operator_kinds import read_record

SIZES = {"batch": 2, "in_channels": 64, "out_channels": 32, "in_size": 28, "kernel": 3, "stride": 1, "padding": 1}


def in_nhwc(step: Step, op: ConvNhwc | MaxPoolNhwc) -> Step:
    x, *rest = step.operands
    return replace(
        step,
        op=op,
        operands=(replace(x, type=permuted(x.type, TO_LAST)), *rest),
        outputs=(permuted(step.outputs[0], TO_LAST),),
    )


def convolutions(precision: Precision, **changed: int) -> tuple[Step, Step]:
    """The same one in NCHW and in NHWC."""
    step = read_record({"op": "conv", **SIZES, **changed}, precision).step()
    return step, in_nhwc(step, ConvNhwc(**step.op.attributes()))


def candidates(step: Step, libraries: Libraries, architecture: Architecture = Architecture.AMPERE) -> list[Candidate]:
    found = gpu.TARGET.families[step.op.kind](step)
    return [one for one in found if one.runs_on(architecture) and one.is_in(libraries)]


def on_tensor_cores(found: list[Candidate]) -> list[Candidate]:
    return [one for one in found if any(k.work_class is WorkClass.TENSOR_CONVOLUTION for k in one.kernels)]


def transposing(candidate: Candidate) -> list[str]:
    return [k.name for k in candidate.kernels if k.work_class is WorkClass.LAYOUT and k.bytes_written]


def test_tf32_in_nhwc_needs_no_transforms_in_the_libraries_of_today() -> None:
    nchw, nhwc = (on_tensor_cores(candidates(step, Libraries.CURRENT)) for step in convolutions(Precision.TF32))
    assert len(nchw) == len(nhwc) > 0
    for before, after in zip(nchw, nhwc, strict=True):
        assert transposing(before) == ["nchw_to_nhwc", "filters_to_nhwc", "nhwc_to_nchw"]
        assert transposing(after) == []
        kept = [k for k in before.kernels if not (k.work_class is WorkClass.LAYOUT and k.bytes_written)]
        assert list(after.kernels) == kept
        assert after.workspace_bytes < before.workspace_bytes


def test_channels_that_fill_no_load_are_padded() -> None:
    (_, nhwc) = convolutions(Precision.TF32, in_channels=3)
    assert all(transposing(one) == ["nchw_to_nhwc"] for one in on_tensor_cores(candidates(nhwc, Libraries.CURRENT)))


def test_the_library_of_the_published_engine_transforms_fp32_in_either_layout() -> None:
    nchw, nhwc = (on_tensor_cores(candidates(step, Libraries.CUDNN_8)) for step in convolutions(Precision.TF32))
    assert [one.kernels for one in nchw] == [one.kernels for one in nhwc]


def test_half_precision_is_transformed_in_neither_layout() -> None:
    nchw, nhwc = (on_tensor_cores(candidates(step, Libraries.CURRENT)) for step in convolutions(Precision.FP16))
    assert [one.kernels for one in nchw] == [one.kernels for one in nhwc]
    assert not any(map(transposing, nhwc))


@pytest.mark.parametrize("groups", [1, 64])
def test_lanes_multiply_in_nchw(groups: int) -> None:
    nchw, nhwc = convolutions(Precision.FP32, out_channels=64, groups=groups)
    architecture = Architecture.VOLTA
    inside, around = (candidates(step, Libraries.CUDNN_7, architecture) for step in (nchw, nhwc))
    assert len(inside) == len(around) > 0
    image = 2 * 64 * 28 * 28 * 4
    for one, between in zip(inside, around, strict=True):
        before, *kernels, after = between.kernels
        assert tuple(kernels) == one.kernels
        assert before == as_kernel(Transpose(TO_FIRST), (2, 28, 28, 64), before.name)
        assert after == as_kernel(Transpose(TO_LAST), (2, 64, 28, 28), after.name)
        assert between.workspace_bytes == one.workspace_bytes + 2 * image


def as_kernel(op: Transpose, shape: tuple[int, ...], name: str) -> Kernel:
    """What an op of the graph runs as, called ``name``."""
    x = TensorType(shape)
    ((kernel,),) = [
        one.kernels
        for one in gpu.TARGET.families["transpose"](Step(op, (Operand(x),), op.infer([x]), 0, Precision.FP32))
    ]
    assert kernel.work_class is WorkClass.LAYOUT
    return replace(kernel, name=name)


def test_other_permutations_are_copies() -> None:
    x, op = TensorType((2, 3, 4, 5)), Transpose((0, 2, 1, 3))
    (one,) = gpu.TARGET.families["transpose"](Step(op, (Operand(x),), op.infer([x]), 0, Precision.FP32))
    assert one.kernels[0].work_class is WorkClass.STREAM


def test_pooling_takes_either_layout() -> None:
    record = {"op": "max_pool", "batch": 1, "channels": 8, "in_size": 9, "kernel": 3, "stride": 2, "padding": 1}
    step = read_record(record, Precision.FP32).step()
    families = gpu.TARGET.families
    assert families["max_pool_nhwc"](in_nhwc(step, MaxPoolNhwc(**step.op.attributes()))) == families["max_pool"](step)


def test_a_processor_reorders_nhwc_before_and_after() -> None:
    nchw, nhwc = convolutions(Precision.FP32)
    inside, around = (cpu.TARGET.families[step.op.kind](step) for step in (nchw, nhwc))
    assert [one.kernels[1:-1] for one in around] == [one.kernels for one in inside]
