"""Convolutions: the candidates of every algorithm that applies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from iossim.hardware.compute_capability import SINCE_HOPPER, TENSOR_CORES, Architecture
from iossim.hardware.lowering.gpu.convolution.gemm import implicit_gemm
from iossim.hardware.lowering.gpu.convolution.transformed import fft, fused, non_fused
from iossim.hardware.lowering.kernel import ALL_OF_CUDNN, OF_FRAMEWORKS, OF_TODAY, Candidate, Libraries
from iossim.hardware.lowering.step import FP32_STORED, ConvolutionShape, Step
from iossim.ir.types import Precision

#: Channels of an image in tf32 that fill a load of 16 bytes: for fewer no library of today has kernels on tensor cores.
_LEAST_CHANNELS = 4
#: Lead that convolutions padded by our kernel need over the direct one of a single image, which ran whenever recorded.
_DIRECT_LEAD_US = 16.0


def convolution(step: Step) -> list[Candidate]:
    """Candidates of all algorithms: grouped kernels by library, Winograd, FFT and implicit GEMM."""
    shape = ConvolutionShape.of(step)
    elsewhere, beside = _without_tensor_cores(shape)
    return [*elsewhere, *by_layout(shape, lies_as_wanted=False), *beside]


def by_layout(shape: ConvolutionShape, *, lies_as_wanted: bool) -> Iterator[Candidate]:
    """Kernels of tensor cores, with transforms of fp32 tensors around them unless these have the required layout.

    A compiler stores tensors in the layout of its kernels, iossim's backends keep those of fp32 as the model has them.
    Today's libraries multiply the NCHW images of a 1x1 filter one by one (an RTX A5000's trace shows no transforms).
    """
    if shape.precision not in TENSOR_CORES:
        return
    from iossim.hardware.lowering.gpu.convolution.grouped import direct_nhwc
    from iossim.hardware.lowering.gpu.tensor_core_convolution import padded_convolution, tensor_core_convolution

    if shape.precision not in FP32_STORED:
        direct = list(direct_nhwc(shape))
        # For a single image cuDNN chooses no padded product if it has a direct kernel.
        lead_us = _DIRECT_LEAD_US if direct and shape.batch == 1 else 0.0
        elsewhere = frozenset(Architecture) - (SINCE_HOPPER if lead_us else frozenset())
        yield from (one.among(elsewhere) for one in tensor_core_convolution(shape))
        yield from (replace(one, passed_over_us=one.passed_over_us + lead_us) for one in padded_convolution(shape))
        yield from direct
        return
    is_product = shape.is_dense_unit_stride and math.prod(shape.kernel) == 1
    unchanged = {"lies_as_wanted": lies_as_wanted, "is_by_image": is_product and not lies_as_wanted}
    for libraries, how in (
        (ALL_OF_CUDNN, {}),
        (frozenset({Libraries.CURRENT}), {"is_called_by_engine": False, **unchanged}),
        (frozenset({Libraries.CHANNELS_FIRST}), {"is_called_by_engine": False, "has_epilogue": True, **unchanged}),
        (frozenset({Libraries.COMPILED}), {"is_compiled": True}),
    ):
        if libraries is ALL_OF_CUDNN or lies_as_wanted or shape.channels >= _LEAST_CHANNELS:
            yield from (replace(one, libraries=libraries) for one in tensor_core_convolution(shape, **how))


def on_lanes(step: Step) -> list[Candidate]:
    """Candidates without tensor cores, which read and write NCHW."""
    return [one for part in _without_tensor_cores(ConvolutionShape.of(step), True) for one in part]


def _without_tensor_cores(shape: ConvolutionShape, in_nhwc: bool = False) -> tuple[list[Candidate], list[Candidate]]:
    """Candidates of GPUs that lack tensor cores for the precision; then those of other GPUs that use none."""
    if shape.groups > 1:
        from iossim.hardware.lowering.gpu.convolution.grouped import depthwise, depthwise_nhwc, grouped, is_quantised
        from iossim.hardware.lowering.gpu.tensor_core_convolution import grouped_on_tensor_cores

        # Today's libraries have kernels for depthwise convolutions only, and run one product per group for others.
        current = list(depthwise(shape)) or [replace(one, libraries=OF_TODAY) for one in implicit_gemm(shape)]
        hopper = [*depthwise_nhwc(shape), *grouped_on_tensor_cores(shape)]
        if hopper and not is_quantised(shape):
            own = {Libraries.CURRENT} if shape.is_depthwise and not in_nhwc else set[Libraries]()
            # Frameworks called with NCHW run depthwise halves by their own kernel: 8 of an H200 are 28% off, not 65.
            hopper = [replace(one, libraries=frozenset(Libraries) - own) for one in hopper]
            hopper += [replace(one, libraries=frozenset(own)) for one in current[-1:] if own]
            current = [one.among(frozenset(Architecture) - SINCE_HOPPER) for one in current]
        return [*current, *hopper, *grouped(shape)], []
    lanes, before = shape.on_lanes, frozenset(Architecture) - SINCE_HOPPER
    # No recorded fp32 convolution on an H200, of 308, ran by Winograd, and three by FFT (bare 5x5 windows).
    transformed = [one.among(before) for one in (*fused(lanes), *non_fused(lanes), *fft(lanes))]
    return lanes_and_beside([*transformed, *implicit_gemm(lanes)], shape.precision)


def lanes_and_beside(found: list[Candidate], precision: Precision) -> tuple[list[Candidate], list[Candidate]]:
    """Kernels on FP32 lanes for GPUs without tensor cores for the precision, and those that GPUs with them use too.

    Frameworks and compilers consider them, since they read tensors untransformed: an A100 (TensorRT, too), RTX A5000,
    RTX A6000 and H200 run tf32 convolutions of images with few channels on them, two to five times as fast as
    products with transforms around them. The published engine never uses them.
    """
    if precision not in TENSOR_CORES:
        return found, []
    having = TENSOR_CORES[precision]
    # If there are tensor cores, the library chooses among their kernels.
    elsewhere = [one.among(frozenset(Architecture) - having) for one in found]
    beside = [one.among(having) for one in found] if precision in FP32_STORED else []
    return (
        [one for one in elsewhere if one.architectures],
        [replace(one, libraries=OF_FRAMEWORKS) for one in beside if one.architectures],
    )
