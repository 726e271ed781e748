"""CPUs: a step runs on one thread, as a library call that is one block on one core.

The candidates are those of ONNX Runtime's own library (MLAS). *nchw* keeps the layout of tensors: a convolution
gathers the windows of the input as columns and multiplies matrices. *nchwc* blocks channels, so that a vector
register holds one block of them: the arithmetic is faster and needs no gathering, but a tensor is reordered before
and after the call. The channels must be divisible: by four for inputs of at least one block, by the block for
pooling.

Weights count like other operands: the last-level cache keeps them, if they fit. Bytes moved are those between core
and caches, so that packed, gathered or reordered data count again. The number of times, and strided windows, are
pinned on 200 measured operators.
"""

from __future__ import annotations

import math
from dataclasses import replace

from iossim.hardware.compute_capability import WARP_THREADS
from iossim.hardware.lowering.attention import unfused
from iossim.hardware.lowering.kernel import Candidate, Kernel, WorkClass, ceil_div
from iossim.hardware.lowering.step import ConvolutionShape, Operand, Step, as_channels_first
from iossim.hardware.lowering.target import Lower, Target
from iossim.ir.op import KindTable
from iossim.ir.ops.attention import Attention
from iossim.ir.ops.grouped_matmul import balanced
from iossim.ir.ops.pool import AveragePool, MaxPool
from iossim.ir.ops.unary import Identity
from iossim.ir.types import Precision, TensorType

#: Channels of a block: the fp32 lanes of an AVX-512 register.
BLOCK = 16
#: Divisor of the input channels of a blocked convolution.
ALIGNMENT = 4
#: A product packs the columns of its input. Number of times they are moved: if they are the input itself, if windows
#: are gathered from contiguous runs, and if they are gathered value by value, with a stride.
PACKED, GATHERED, GATHERED_AT_STRIDE = 2.0, 5.0, 10.0
#: Strided pooling reads no contiguous runs either.
STRIDED_WINDOW = 1.5

FAMILIES = KindTable[Lower]()


@FAMILIES.register("conv")
def convolution(step: Step) -> list[Candidate]:
    """Candidates in blocks of channels if possible, and in the layout of the tensors."""
    shape = ConvolutionShape.of(step)
    plain = _candidate(step, "nchw", WorkClass.CORE_PRODUCT, step.flops, _moved(step) + _column_bytes(shape))
    return [*_blocked_convolution(step, shape), plain]


@FAMILIES.register("max_pool", "average_pool")
def pooling(step: Step[MaxPool | AveragePool]) -> list[Candidate]:
    """Candidates in blocks of channels if they divide evenly, and in the layout of the tensors."""
    slower = STRIDED_WINDOW if any(stride > 1 for stride in step.op.strides) else 1.0
    window = _candidate(step, "nchw", WorkClass.CORE_WINDOW, round(step.flops * slower), _moved(step))
    if step.operands[0].type.shape[1] % BLOCK:
        return [window]
    return [_candidate(step, "nchwc", WorkClass.CORE_BLOCKED_WINDOW, step.flops, 2 * _moved(step)), window]


@FAMILIES.register(
    "conv_nhwc", "max_pool_nhwc", "average_pool_nhwc", "global_average_pool_nhwc", "global_max_pool_nhwc"
)
def channels_last(step: Step) -> list[Candidate]:
    """The NCHW candidates, between a copy of the input and one of the output: fp32 kernels of MLAS take no NHWC."""
    first = as_channels_first(step)
    (before,), (after,) = (_copy(moved).kernels for moved in (first.operands[0].type, first.outputs[0]))
    return [replace(one, kernels=(before, *one.kernels, after)) for one in FAMILIES[first.op.kind](first)]


@FAMILIES.register(
    "gemm", "matmul", "conv_transpose", "conv_backward_data", "conv_backward_filter", "quantized_conv",
    "integer_conv", "quantized_matmul", "integer_matmul", "dequantized_matmul", "scaled_conv", "scaled_matmul",
    "lstm", "gru", "rnn",
)  # fmt: skip
def product(step: Step) -> list[Candidate]:
    """A matrix product of any operands; those of few bits are dequantised on the way, which was not measured."""
    return [_candidate(step, "nchw", WorkClass.CORE_PRODUCT, step.flops, _moved(step))]


@FAMILIES.register("grouped_matmul")
def grouped_product(step: Step) -> list[Candidate]:
    """A product that reads the weights of the experts which have rows where routing is balanced."""
    x, weight, ends = step.operands
    read = replace(weight, type=balanced(x.type, weight.type)[1])
    return product(replace(step, operands=(x, read, ends)))


@FAMILIES.register(
    "global_average_pool", "global_max_pool", "max_pool_backward", "average_pool_backward", "local_response_norm",
    "reduce", "cumsum", "arg_extreme", "top_k", "resize", "grid_sample",
)  # fmt: skip
def reduction(step: Step) -> list[Candidate]:
    """Arithmetic over windows or rows of the input."""
    return [_candidate(step, "nchw", WorkClass.CORE_WINDOW, step.flops, _moved(step))]


@FAMILIES.register("attention")
def attention(step: Step[Attention]) -> list[Candidate]:
    """No candidates: the library does not fuse an attention from its parts."""
    return unfused(step, FAMILIES)


@FAMILIES.register("gather", "gather_elements", "gather_nd", "gather_backward")
def pick(step: Step) -> list[Candidate]:
    """A lookup reads as much of the data as it selects."""
    return _stream(replace(step, operands=(Operand(step.outputs[0]), *step.operands[1:])))


@FAMILIES.register("softmax", "log_softmax", "layer_norm", "rms_norm", "instance_norm", "group_norm")
def normalisation(step: Step) -> list[Candidate]:
    """Three passes over the input."""
    return _stream(step, passes=3)


@FAMILIES.register(
    "add", "mul", "nary", "where", "cast", "prelu", "quantize", "dequantize", "dynamic_quantize", "batch_norm",
    "relu", "clip", "sigmoid", "unary", "hardmax", "concat", "slice", "split", "transpose", "pad", "expand", "tile",
    "depth_to_space", "space_to_depth", "identity", "reshape", "flatten", "foreign",
)  # fmt: skip
def stream(step: Step) -> list[Candidate]:
    """Element-wise chains and copies, and ops known only to ONNX: each byte moved once."""
    return _stream(step)


def _copy(moved: TensorType) -> Candidate:
    step = Step(Identity(), (Operand(moved),), (moved,), 0, Precision.FP32)
    return _candidate(step, "nchw", WorkClass.CORE_STREAM, 0, 2 * moved.bytes)


#: The thread of a stream calls the library itself: recorded stages are calls; a core runs one at a time. Only tensors
#: in plain layout are split: one copy out of the blocks of channels, one into parts, one into blocks again.
TARGET = Target(FAMILIES, _copy, runs_one_kernel_per_sm=True, records_graphs=False, has_warps=False, split_copies=3)


def _stream(step: Step, passes: int = 1) -> list[Candidate]:
    moved = _moved(step) + (passes - 1) * step.activation_bytes
    return [_candidate(step, "nchw", WorkClass.CORE_STREAM, 0, moved)]


def _candidate(step: Step, algorithm: str, work_class: WorkClass, flops: int, moved_bytes: int) -> Candidate:
    read_bytes = step.activation_bytes + step.weight_bytes
    kernel = Kernel(
        f"{algorithm}_{step.op.kind}", work_class, 1, WARP_THREADS, 0, 0,
        flops, read_bytes, 0, step.bytes_written, moved_bytes, step.precision,
    )  # fmt: skip
    return Candidate(algorithm, (kernel,))


def _moved(step: Step) -> int:
    return step.activation_bytes + step.weight_bytes + step.bytes_written


def _column_bytes(shape: ConvolutionShape) -> int:
    """Bytes moved to make columns of the input's windows."""
    columns = shape.channels * math.prod(shape.kernel) * shape.pixels * shape.element_bytes
    if any(stride > 1 for stride in shape.strides):
        return round(GATHERED_AT_STRIDE * columns)
    return round((PACKED if math.prod(shape.kernel) == 1 else GATHERED) * columns)


def _blocked_convolution(step: Step, shape: ConvolutionShape) -> list[Candidate]:
    if len(shape.kernel) != 2:
        return []
    reads_blocks = shape.channels >= BLOCK
    if reads_blocks and shape.channels % ALIGNMENT:
        return []
    if shape.groups > 1 and not (shape.is_depthwise and reads_blocks):
        return []
    # Partial blocks cost as much as full ones.
    padding = ceil_div(shape.filters, BLOCK) * BLOCK / shape.filters
    reordered = step.bytes_written + (step.operands[0].type.bytes if reads_blocks else 0)
    work_class = WorkClass.CORE_BLOCKED_WINDOW if shape.groups > 1 else WorkClass.CORE_BLOCKED
    return [_candidate(step, "nchwc", work_class, round(step.flops * padding), _moved(step) + reordered)]
