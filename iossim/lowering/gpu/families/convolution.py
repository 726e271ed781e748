"""Convolutions: the candidates of every algorithm that applies."""

from __future__ import annotations

from iossim.lowering.convolution_shape import ConvolutionShape
from iossim.lowering.gpu.convolution.depthwise import depthwise
from iossim.lowering.gpu.convolution.fft import fft
from iossim.lowering.gpu.convolution.implicit_gemm import implicit_gemm
from iossim.lowering.gpu.convolution.winograd import winograd
from iossim.lowering.gpu.registry import FAMILIES
from iossim.lowering.kernel import Candidate
from iossim.lowering.step import Step


@FAMILIES.lowers("conv")
def convolution(step: Step) -> list[Candidate]:
    """Depthwise, Winograd, FFT and implicit GEMM, in this order; the fastest is chosen later."""
    shape = ConvolutionShape.of(step)
    # cuDNN has a kernel of its own for depthwise convolution, and its grouped products are far slower there.
    return list(depthwise(shape)) or [*winograd(shape), *fft(shape), *implicit_gemm(shape)]
