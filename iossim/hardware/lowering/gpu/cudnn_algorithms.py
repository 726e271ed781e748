"""cuDNN's algorithms of a convolution in its three directions, and the kernels that each may launch.

A library that chooses for itself takes the fastest of a family's candidates (``families.convolution``, set against
measurements). One that is told an algorithm runs that, also if it would never choose it: so explicit GEMM and the
transform of whole images are here alone. An algorithm's fastest candidate runs; those of other workspace (ALGO_1) can
be asked for.

By cuDNN's manual transforms want stride and dilation 1 and two dimensions; Winograd fused 3x3, non-fused 3x3 or 5x5;
FFT a padded image of up to 256 and tiled FFT a window of up to 16 (32 by the manual); DIRECT is not implemented;
fused Winograd has no gradient of filters. All are in every cuDNN since 6. Before cuDNN 7 frameworks call groups one
by one, in one workspace; so they may be here, beside the kernels of later libraries that take all groups in a launch.

Gradients of the input at stride 1 run as convolutions with the filter turned round: ALGO_1 as IMPLICIT_PRECOMP_GEMM.
With a stride ALGO_1 is what runs a transposed convolution (``families.transposed_convolution``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

from iossim.hardware.lowering.convolution_shape import ConvolutionShape
from iossim.hardware.lowering.gpu.convolution import backward
from iossim.hardware.lowering.gpu.convolution.fft import fft, whole_fft
from iossim.hardware.lowering.gpu.convolution.gemm import by_table, explicit_gemm, without_table
from iossim.hardware.lowering.gpu.convolution.grouped import depthwise, grouped
from iossim.hardware.lowering.gpu.convolution.transformed import filter_gradient
from iossim.hardware.lowering.gpu.convolution.winograd import fused, non_fused
from iossim.hardware.lowering.gpu.families.convolution import lanes_and_beside
from iossim.hardware.lowering.gpu.families.transposed_convolution import transposed_convolution
from iossim.hardware.lowering.gpu.tensor_core_convolution import tensor_core_convolution
from iossim.hardware.lowering.kernel import Candidate, WorkClass
from iossim.hardware.lowering.step import Step
from iossim.ir.types import Precision


class Algorithm(StrEnum):
    """By cuDNN's names."""

    IMPLICIT_GEMM = "implicit_gemm"
    IMPLICIT_PRECOMP_GEMM = "implicit_precomp_gemm"
    GEMM = "gemm"
    DIRECT = "direct"
    FFT = "fft"
    FFT_TILING = "fft_tiling"
    WINOGRAD = "winograd"
    WINOGRAD_NONFUSED = "winograd_nonfused"
    ALGO_0 = "algo_0"
    ALGO_1 = "algo_1"
    ALGO_3 = "algo_3"


Algorithms = Mapping[str, list[Candidate]]

#: More groups than these are not called one by one.
_MOST_CALLS = 32


def forward(step: Step) -> Algorithms:
    """The eight forward algorithms; no candidates of DIRECT."""
    shape = ConvolutionShape.of(step)
    found = _by_group(shape, _forward(shape.of_a_group))
    if shape.groups > 1:
        lanes = shape.on_lanes
        found[Algorithm.IMPLICIT_GEMM] += [*depthwise(shape), *grouped(shape), *without_table(lanes)]
        found[Algorithm.IMPLICIT_PRECOMP_GEMM] += by_table(lanes)
    return found


def of_data(step: Step) -> Algorithms:
    """The six algorithms of backward data."""
    shape = ConvolutionShape.of(step)
    scattered = [*backward.scattered(shape)]
    if set(shape.strides) | set(shape.dilations) != {1}:
        return {Algorithm.ALGO_0: scattered, Algorithm.ALGO_1: transposed_convolution(step)}
    turned = shape.turned
    in_order = [*by_table(turned.on_lanes), *tensor_core_convolution(turned, is_called_by_engine=False)]
    return {
        Algorithm.ALGO_0: scattered,
        Algorithm.ALGO_1: [*in_order, *depthwise(turned)],
        **_by_group(turned, _transforms(turned.of_a_group)),
    }


def of_filter(step: Step) -> Algorithms:
    """The six algorithms of backward filter."""
    shape = ConvolutionShape.of(step)
    one = shape.of_a_group.on_lanes
    transforms: dict[str, list[Candidate]] = {
        Algorithm.FFT: [*whole_fft(one, filter_gradient)],
        Algorithm.WINOGRAD_NONFUSED: [*non_fused(one, filter_gradient)],
        Algorithm.FFT_TILING: [*fft(one, filter_gradient)],
    }
    return {
        Algorithm.ALGO_0: [*backward.atomic(shape, by_table=False)],
        Algorithm.ALGO_1: [*backward.summed(shape), *backward.on_tensor_cores(shape)],
        Algorithm.ALGO_3: [*backward.atomic(shape, by_table=True)],
        **_by_group(shape, transforms),
    }


def _forward(shape: ConvolutionShape) -> dict[str, list[Candidate]]:
    """Of a convolution of one group."""
    lanes = shape.on_lanes
    return {
        Algorithm.IMPLICIT_GEMM: [*without_table(lanes)],
        Algorithm.IMPLICIT_PRECOMP_GEMM: [*by_table(lanes), *tensor_core_convolution(shape)],
        Algorithm.GEMM: [*explicit_gemm(lanes)],
        Algorithm.DIRECT: [],
        **_transforms(shape),
    }


def _transforms(shape: ConvolutionShape) -> dict[str, list[Candidate]]:
    """The algorithms in another domain, of a convolution of one group."""
    lanes = shape.on_lanes
    return {
        Algorithm.FFT: [*whole_fft(lanes)],
        Algorithm.FFT_TILING: [*fft(lanes)],
        Algorithm.WINOGRAD: [*fused(lanes)],
        Algorithm.WINOGRAD_NONFUSED: [*non_fused(lanes)],
    }


def _by_group(shape: ConvolutionShape, of_one: Mapping[str, list[Candidate]]) -> dict[str, list[Candidate]]:
    """What groups that are called one by one run as, from what one of them does; nothing where they are too many."""
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


def gradient_of_data(step: Step) -> list[Candidate]:
    """Whatever algorithm is fastest."""
    return _of_any(of_data(step), step.precision)


def gradient_of_filter(step: Step) -> list[Candidate]:
    """Whatever algorithm is fastest."""
    return _of_any(of_filter(step), step.precision)


def _of_any(algorithms: Algorithms, precision: Precision) -> list[Candidate]:
    by_unit: dict[bool, list[Candidate]] = {False: [], True: []}
    for one in (one for candidates in algorithms.values() for one in candidates):
        by_unit[any(kernel.work_class is WorkClass.TENSOR_CONVOLUTION for kernel in one.kernels)].append(one)
    elsewhere, beside = lanes_and_beside(by_unit[False], precision)
    return [*elsewhere, *by_unit[True], *beside]
