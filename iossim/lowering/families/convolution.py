"""Convolutions: the candidates of every algorithm that applies."""

from __future__ import annotations

from dataclasses import replace

from iossim.ir.ops.conv import Conv
from iossim.lowering.convolution.depthwise import depthwise
from iossim.lowering.convolution.fft import fft
from iossim.lowering.convolution.grouped import grouped
from iossim.lowering.convolution.implicit_gemm import implicit_gemm
from iossim.lowering.convolution.shape import ConvolutionShape
from iossim.lowering.convolution.winograd import winograd
from iossim.lowering.kernel import Candidate, Libraries
from iossim.lowering.step import Step, lowers


@lowers("conv", has_epilogue=True)
def convolution(step: Step) -> list[Candidate]:
    """Grouped kernels by the age of the library, Winograd, FFT and implicit GEMM; the fastest is chosen later."""
    assert isinstance(step.op, Conv)
    shape = ConvolutionShape.of(
        step.op, step.operands[0].type, step.operands[1].type, step.outputs[0], step.flops, step.precision
    )
    if shape.groups > 1:
        # What is not depthwise has no kernel of its own in today's libraries: a product a group.
        current = list(depthwise(shape)) or [
            replace(one, libraries=Libraries.CURRENT) for one in implicit_gemm(shape)
        ]
        return [*current, *grouped(shape)]
    return [*winograd(shape), *fft(shape), *implicit_gemm(shape)]
