"""Convolutions: the candidates of every algorithm that applies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from iossim.devices.compute_capability import TENSOR_CORES
from iossim.ir.types import Precision
from iossim.lowering.convolution_shape import FP32_STORED, ConvolutionShape
from iossim.lowering.gpu.convolution.depthwise import depthwise
from iossim.lowering.gpu.convolution.fft import fft
from iossim.lowering.gpu.convolution.grouped import grouped
from iossim.lowering.gpu.convolution.implicit_gemm import implicit_gemm
from iossim.lowering.gpu.convolution.winograd import winograd
from iossim.lowering.gpu.cudnn_algorithms import Algorithms, of_data, of_filter
from iossim.lowering.gpu.registry import FAMILIES
from iossim.lowering.gpu.tensor_core_convolution import tensor_core_convolution
from iossim.lowering.gpu.tensor_core_product import without_tensor_cores
from iossim.lowering.kernel import OF_TODAY, Candidate, Libraries, WorkClass
from iossim.lowering.step import Step


@FAMILIES.lowers("conv")
def convolution(step: Step) -> list[Candidate]:
    """Grouped kernels by the age of the library, Winograd, FFT and implicit GEMM; the fastest is chosen later."""
    shape = ConvolutionShape.of(step)
    if shape.groups > 1:
        # What is not depthwise has no kernel of its own in today's libraries: a product a group.
        current = list(depthwise(shape)) or [replace(one, libraries=OF_TODAY) for one in implicit_gemm(shape)]
        return [*current, *grouped(shape)]
    on_lanes = _on_lanes(shape)
    found = [*winograd(on_lanes), *fft(on_lanes), *implicit_gemm(on_lanes)]
    return _with_tensor_cores(found, list(tensor_core_convolution(shape)), shape.precision)


@FAMILIES.lowers("conv_backward_data")
def gradient_of_data(step: Step) -> list[Candidate]:
    """Whatever algorithm is fastest."""
    return _of_any(of_data(step), step.precision)


@FAMILIES.lowers("conv_backward_filter")
def gradient_of_filter(step: Step) -> list[Candidate]:
    """Whatever algorithm is fastest."""
    return _of_any(of_filter(step), step.precision)


def _of_any(algorithms: Algorithms, precision: Precision) -> list[Candidate]:
    found = [one for candidates in algorithms.values() for one in candidates]
    by_unit: dict[bool, list[Candidate]] = {False: [], True: []}
    for one in found:
        by_unit[any(kernel.work_class is WorkClass.TENSOR_CONVOLUTION for kernel in one.kernels)].append(one)
    return _with_tensor_cores(by_unit[False], by_unit[True], precision)


def _with_tensor_cores(
    on_lanes: list[Candidate], on_tensor_cores: list[Candidate], precision: Precision
) -> list[Candidate]:
    """Kernels on FP32 lanes where there are no tensor cores for the precision, and those on tensor cores where there are."""
    if precision not in TENSOR_CORES:
        return on_lanes
    # Where there are tensor cores, the library's choice is among their kernels.
    others = (replace(one, architectures=without_tensor_cores(precision, one.architectures)) for one in on_lanes)
    elsewhere = [one for one in others if one.architectures]
    return [*elsewhere, *on_tensor_cores, *_beside_tensor_cores(on_lanes, precision)]


def _on_lanes(shape: ConvolutionShape) -> ConvolutionShape:
    return replace(shape, precision=Precision.FP32) if shape.precision in FP32_STORED else shape


def _beside_tensor_cores(on_lanes: list[Candidate], precision: Precision) -> Iterator[Candidate]:
    """What a framework's heuristics choose among besides: kernels on FP32 lanes read tensors as they lie.

    They serve tf32 on an A100 and an RTX A6000 where images have few channels, and are two to five times as fast there as
    products with transforms around them. The published engine never takes them.
    """
    if precision not in FP32_STORED:
        return
    having = TENSOR_CORES[precision]
    for one in on_lanes:
        architectures = having if one.architectures is None else one.architectures & having
        if architectures:
            yield replace(one, architectures=architectures, libraries=frozenset({Libraries.CURRENT}))
