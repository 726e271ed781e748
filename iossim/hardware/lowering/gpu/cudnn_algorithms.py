"""cuDNN's algorithms of a convolution in its three directions, and the kernels that each may launch.

A library that chooses by itself runs the fastest of a family's candidates (``families.convolution``, compared with
measurements). If an algorithm is requested, it runs that one, even if it would never choose it: explicit GEMM and the
transform of whole images are only here. The fastest candidate of an algorithm runs; those with another workspace
(ALGO_1) can be requested.

According to cuDNN's manual, transforms need stride and dilation 1 and two dimensions; fused Winograd a 3x3 window,
non-fused 3x3 or 5x5; FFT a padded image of up to 256 and tiled FFT a window of up to 16 (32 in the manual); DIRECT is
not implemented; fused Winograd has no gradient of filters. All are in every cuDNN since 6. Before cuDNN 7 frameworks
call groups one by one, in one workspace; they may be run so here, beside the kernels of later libraries that run all
groups in one launch.

Gradients of the input at stride 1 run as convolutions with the flipped filter: ALGO_1 as IMPLICIT_PRECOMP_GEMM. With a
stride ALGO_1 runs like a transposed convolution (``convolution.backward``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

from iossim.hardware.lowering.gpu.convolution import backward
from iossim.hardware.lowering.gpu.convolution.gemm import by_table, without_table
from iossim.hardware.lowering.gpu.convolution.grouped import depthwise, grouped
from iossim.hardware.lowering.gpu.convolution.transformed import (
    COMPLEX_BYTES,
    FFT_TILES,
    fft,
    frequencies,
    frequency_domain,
    fused,
    has_transform,
    kernels_in,
    non_fused,
    tensors,
)
from iossim.hardware.lowering.gpu.families.convolution import lanes_and_beside
from iossim.hardware.lowering.gpu.matrix_product import BATCHED_TILES, Product, product_kernel, stream_kernel
from iossim.hardware.lowering.gpu.tensor_core_convolution import tensor_core_convolution
from iossim.hardware.lowering.kernel import Candidate, Kernel, WorkClass
from iossim.hardware.lowering.step import FP32_STORED, ConvolutionShape, Step
from iossim.ir.ops.conv import ConvAttributes

#: Candidates by the names that cuDNN has for algorithms.
Algorithms = Mapping[str, list[Candidate]]

#: Largest number of groups that are called one by one.
_MOST_CALLS = 32


def forward(step: Step) -> Algorithms:
    """The candidates of the eight forward algorithms; none for DIRECT."""
    shape = ConvolutionShape.of(step)
    found = _by_group(shape, _forward(shape.of_a_group))
    if shape.groups > 1:
        lanes = shape.on_lanes
        found["implicit_gemm"] += [*depthwise(shape), *grouped(shape), *without_table(lanes)]
        found["implicit_precomp_gemm"] += by_table(lanes)
    return found


def of_data(step: Step[ConvAttributes]) -> Algorithms:
    """The candidates of the six algorithms of backward data."""
    shape = ConvolutionShape.of(step)
    scattered = [*backward.scattered(shape)]
    if set(shape.strides) | set(shape.dilations) != {1}:
        return {"algo_0": scattered, "algo_1": backward.transposed_convolution(step)}
    turned = shape.turned
    in_order = [*by_table(turned.on_lanes), *tensor_core_convolution(turned, is_called_by_engine=False)]
    return {
        "algo_0": scattered,
        "algo_1": [*in_order, *depthwise(turned)],
        **_by_group(turned, _transforms(turned.of_a_group)),
    }


def of_filter(step: Step) -> Algorithms:
    """The candidates of the six algorithms of backward filter."""
    shape = ConvolutionShape.of(step)
    return {
        "algo_0": [*backward.atomic(shape, by_table=False)],
        "algo_1": [*backward.summed(shape), *backward.gradient_on_tensor_cores(shape)],
        "algo_3": [*backward.atomic(shape, by_table=True)],
        **_by_group(shape, _transforms(shape.of_a_group, of_filter=True)),
    }


def _forward(shape: ConvolutionShape) -> dict[str, list[Candidate]]:
    """The forward algorithms of a convolution of one group."""
    lanes = shape.on_lanes
    return {
        "implicit_gemm": [*without_table(lanes)],
        "implicit_precomp_gemm": [*by_table(lanes), *tensor_core_convolution(shape)],
        "gemm": [*explicit_gemm(lanes)],
        "direct": [],
        **_transforms(shape),
    }


def _transforms(shape: ConvolutionShape, *, of_filter: bool = False) -> dict[str, list[Candidate]]:
    """The algorithms in another domain, of a convolution of one group, or of its filter's gradient."""
    lanes = shape.on_lanes
    return {
        "fft": [*whole_fft(lanes, of_filter=of_filter)],
        "fft_tiling": [*fft(lanes, of_filter=of_filter)],
        "winograd": [] if of_filter else [*fused(lanes)],
        "winograd_nonfused": [*non_fused(lanes, of_filter=of_filter)],
    }


def _by_group(shape: ConvolutionShape, of_one: Mapping[str, list[Candidate]]) -> dict[str, list[Candidate]]:
    """Candidates for calling groups one by one, from those of one group; none if there are too many groups."""
    if shape.groups == 1:
        return dict(of_one)
    calls = shape.groups if shape.groups <= _MOST_CALLS else 0
    return {
        algorithm: [
            replace(one, algorithm=f"group_by_group_{one.algorithm}", kernels=one.kernels * calls)
            for one in candidates
            if calls
        ]
        for algorithm, candidates in of_one.items()
    }


def gradient(step: Step[ConvAttributes]) -> list[Candidate]:
    """The candidates of all algorithms of a gradient, of the data or of the filter."""
    algorithms = of_data(step) if step.op.kind == "conv_backward_data" else of_filter(step)
    by_unit: dict[bool, list[Candidate]] = {False: [], True: []}
    for one in chain.from_iterable(algorithms.values()):
        by_unit[any(kernel.work_class is WorkClass.TENSOR_CONVOLUTION for kernel in one.kernels)].append(one)
    elsewhere, beside = lanes_and_beside(by_unit[False], step.precision)
    return [*elsewhere, *by_unit[True], *beside]


_LARGEST_IMAGE = 256

#: Edge of the largest square for which recordings show no transposition.
_LARGEST_IN_ONE_KERNEL = 32


def explicit_gemm(shape: ConvolutionShape) -> Iterator[Candidate]:
    """Candidates with every tile of a batched product; for one group of tensors stored as fp32 only."""
    if shape.precision not in FP32_STORED or shape.groups > 1:
        return
    inner = shape.channels * math.prod(shape.kernel)
    size = inner * shape.pixels * shape.element_bytes  # the windows of all outputs
    moved = size, shape.weight_bytes, shape.output_bytes
    rows, element_bytes = math.prod(shape.output_size), shape.element_bytes
    product = Product(rows, shape.filters, inner, *moved, element_bytes, shape.precision, shape.batch)
    columns = stream_kernel("windows_to_columns", inner * shape.pixels, 0, read=shape.input_bytes, written=size)
    for tile, architectures in BATCHED_TILES.items():
        gemm = product_kernel(product, tile, WorkClass.GEMM, extra_flops=shape.epilogue_flops)
        yield Candidate(f"explicit_gemm_{tile}", (columns, gemm), size, architectures=architectures)


def whole_fft(shape: ConvolutionShape, *, of_filter: bool = False) -> Iterator[Candidate]:
    """Candidates by the transform of whole images; none if it does not apply."""
    if not has_transform(shape) or fft_edge(shape) > _LARGEST_IMAGE:
        return
    edge = fft_edge(shape)
    data, filters, output = tensors(shape, shape.batch)
    operands, result = (data + output, filters) if of_filter else (data + filters, output)
    # Two buffers for transposing frequencies, of both operands or the result, and the flipped filter.
    workspace_bytes = 2 * COMPLEX_BYTES * frequencies(edge) * max(operands, result) + shape.weight_bytes
    domain = frequency_domain("fft_whole", edge, shape.batch)
    for suffix, (tile, architectures) in FFT_TILES.items():
        first, second, gemm, last = kernels_in(domain, shape, tile, of_filter=of_filter)
        if edge <= _LARGEST_IN_ONE_KERNEL:
            turned = [] if of_filter else [_moved("fft_flip_filter", shape.weight_bytes, shape.element_bytes)]
            kernels = (*turned, first, second, gemm, last)
        else:
            before = _moved("fft_transpose_operands", first.bytes_written + second.bytes_written)
            after = _moved("fft_transpose_result", gemm.bytes_written)
            kernels = (first, second, before, gemm, after, last)
        yield Candidate(f"fft_whole{suffix}", kernels, workspace_bytes, architectures=architectures)


def _moved(name: str, moved_bytes: int, element_bytes: int = COMPLEX_BYTES) -> Kernel:
    moved = {"read": moved_bytes, "written": moved_bytes}
    return stream_kernel(name, moved_bytes // element_bytes, 0, **moved, work_class=WorkClass.TRANSFORM)


def fft_edge(shape: ConvolutionShape) -> int:
    """Edge of the square in which a padded image is transformed, a power of two; stride and dilation are 1."""
    padded = (size + kernel - 1 for size, kernel in zip(shape.output_size, shape.kernel, strict=True))
    return 1 << (max(padded) - 1).bit_length()
