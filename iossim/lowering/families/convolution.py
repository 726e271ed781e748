"""Convolutions: the candidates of every algorithm that applies."""

from __future__ import annotations

from dataclasses import replace

from iossim.ir.ops.conv import Conv
from iossim.lowering.convolution.depthwise import depthwise
from iossim.lowering.convolution.fft import fft
from iossim.lowering.convolution.implicit_gemm import implicit_gemm
from iossim.lowering.convolution.shape import ConvolutionShape
from iossim.lowering.convolution.winograd import winograd
from iossim.lowering.kernel import Candidate
from iossim.lowering.step import Step, lowers
from iossim.lowering.tensor_core_convolution import tensor_core_convolution
from iossim.lowering.tensor_core_product import without_tensor_cores


@lowers("conv", has_epilogue=True)
def convolution(step: Step) -> list[Candidate]:
    """Depthwise, Winograd, FFT and implicit GEMM, in this order; the fastest is chosen later."""
    assert isinstance(step.op, Conv)
    shape = ConvolutionShape.of(
        step.op, step.operands[0].type, step.operands[1].type, step.outputs[0], step.flops, step.precision
    )
    # cuDNN has a kernel of its own for depthwise convolution, and its grouped products are far slower there.
    found = list(depthwise(shape)) or [*winograd(shape), *fft(shape), *implicit_gemm(shape)]
    on_tensor_cores = list(tensor_core_convolution(shape))
    if not on_tensor_cores:
        return found
    # Where there are tensor cores, the library's choice is among their kernels.
    others = (replace(one, architectures=without_tensor_cores(shape.precision, one.architectures)) for one in found)
    return [*(one for one in others if one.architectures), *on_tensor_cores]
