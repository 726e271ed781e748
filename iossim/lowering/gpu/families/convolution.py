"""Convolutions: the candidates of every algorithm that applies."""

from __future__ import annotations

from dataclasses import replace

from iossim.lowering.convolution_shape import ConvolutionShape
from iossim.lowering.gpu.convolution.depthwise import depthwise
from iossim.lowering.gpu.convolution.fft import fft
from iossim.lowering.gpu.convolution.grouped import grouped
from iossim.lowering.gpu.convolution.implicit_gemm import implicit_gemm
from iossim.lowering.gpu.convolution.winograd import winograd
from iossim.lowering.gpu.registry import FAMILIES
from iossim.lowering.gpu.tensor_core_convolution import tensor_core_convolution
from iossim.lowering.gpu.tensor_core_product import without_tensor_cores
from iossim.lowering.kernel import OF_TODAY, Candidate
from iossim.lowering.step import Step


@FAMILIES.lowers("conv")
def convolution(step: Step) -> list[Candidate]:
    """Grouped kernels by the age of the library, Winograd, FFT and implicit GEMM; the fastest is chosen later."""
    shape = ConvolutionShape.of(step)
    if shape.groups > 1:
        # What is not depthwise has no kernel of its own in today's libraries: a product a group.
        current = list(depthwise(shape)) or [
            replace(one, libraries=OF_TODAY) for one in implicit_gemm(shape)
        ]
        return [*current, *grouped(shape)]
    found = [*winograd(shape), *fft(shape), *implicit_gemm(shape)]
    on_tensor_cores = list(tensor_core_convolution(shape))
    if not on_tensor_cores:
        return found
    # Where there are tensor cores, the library's choice is among their kernels.
    others = (replace(one, architectures=without_tensor_cores(shape.precision, one.architectures)) for one in found)
    return [*(one for one in others if one.architectures), *on_tensor_cores]
