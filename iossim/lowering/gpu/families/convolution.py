"""Convolutions: the candidates of every algorithm that applies."""

from __future__ import annotations

from dataclasses import replace

from iossim.lowering.convolution_shape import ConvolutionShape
from iossim.lowering.gpu.convolution.depthwise import depthwise
from iossim.lowering.gpu.convolution.fft import fft
from iossim.lowering.gpu.convolution.implicit_gemm import implicit_gemm
from iossim.lowering.gpu.convolution.winograd import winograd
from iossim.lowering.gpu.registry import FAMILIES
from iossim.lowering.gpu.tensor_core_convolution import tensor_core_convolution
from iossim.lowering.gpu.tensor_core_product import without_tensor_cores
from iossim.lowering.kernel import Candidate
from iossim.lowering.step import Step


@FAMILIES.lowers("conv")
def convolution(step: Step) -> list[Candidate]:
    """Depthwise, Winograd, FFT and implicit GEMM, in this order; the fastest is chosen later."""
    shape = ConvolutionShape.of(step)
    # cuDNN has a kernel of its own for depthwise convolution, and its grouped products are far slower there.
    found = list(depthwise(shape)) or [*winograd(shape), *fft(shape), *implicit_gemm(shape)]
    on_tensor_cores = list(tensor_core_convolution(shape))
    if not on_tensor_cores:
        return found
    # Where there are tensor cores, the library's choice is among their kernels.
    others = (replace(one, architectures=without_tensor_cores(shape.precision, one.architectures)) for one in found)
    return [*(one for one in others if one.architectures), *on_tensor_cores]
