"""Convolution in another domain, as a batched matrix product: what Winograd and FFT share.

Of the three tensors of a convolution (input, filter, output) two are transformed, multiplied at each point of the
domain, and the product transformed back to the third. The third is the output, or the filter for its gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from iossim.hardware.lowering.convolution_shape import ConvolutionShape
from iossim.hardware.lowering.gpu.matrix_product import Product, Tile, product_kernel, stream_kernel
from iossim.hardware.lowering.kernel import Kernel, WorkClass
from iossim.ir.types import Precision


@dataclass(frozen=True, slots=True)
class Domain:
    """A transform of ``tiles`` tiles, in all images, to ``points`` values each."""

    name: str
    points: int
    tiles: int
    value_bytes: int
    #: Arithmetic of a transformed value, and of a multiply-add of two.
    flops_per_value: int
    flops_per_step: int
    #: Whether transformed filters pass through L2 as weights do, or stay there.
    filters_are_weights: bool
    #: The kind of kernel that transforms filters, to the domain and back.
    filter_class: WorkClass = WorkClass.FILTER_TRANSFORM


#: From a convolution, a transform and a tile of the product to the kernels.
Direction = Callable[[ConvolutionShape, Domain, Tile], tuple[Kernel, ...]]


def convolved(shape: ConvolutionShape, domain: Domain, tile: Tile) -> tuple[Kernel, ...]:
    """Input and filter to the domain, their product, and that back to the output."""
    data, filters, output = _values(shape, domain)
    weights = filters * domain.value_bytes if domain.filters_are_weights else 0
    moved = (data + filters) * domain.value_bytes - weights, weights, output * domain.value_bytes
    product = _product(shape, domain, (domain.tiles, shape.filters, shape.channels), moved)
    return (
        _to(domain, "data", data, shape.input_bytes),
        _to(domain, "filter", filters, weight_bytes=shape.weight_bytes, work_class=domain.filter_class),
        product_kernel(product, tile, WorkClass.WINOGRAD_GEMM),
        stream_kernel(
            f"{domain.name}_output",
            output,
            domain.flops_per_value * output + shape.epilogue_flops,
            activation_bytes=output * domain.value_bytes,
            bytes_written=shape.output_bytes,
            work_class=WorkClass.TRANSFORM,
        ),
    )


def filter_gradient(shape: ConvolutionShape, domain: Domain, tile: Tile) -> tuple[Kernel, ...]:
    """Input and the output's gradient to the domain, their product over all tiles, and that back to the filter."""
    data, filters, output = _values(shape, domain)
    moved = (data + output) * domain.value_bytes, 0, filters * domain.value_bytes
    product = _product(shape, domain, (shape.filters, shape.channels, domain.tiles), moved)
    return (
        _to(domain, "data", data, shape.input_bytes),
        _to(domain, "gradient", output, shape.output_bytes),
        product_kernel(product, tile, WorkClass.WINOGRAD_GEMM),
        stream_kernel(
            f"{domain.name}_filter_gradient",
            filters,
            domain.flops_per_value * filters + shape.epilogue_flops,
            activation_bytes=filters * domain.value_bytes,
            bytes_written=shape.weight_bytes,
            work_class=domain.filter_class,
        ),
    )


def _values(shape: ConvolutionShape, domain: Domain) -> tuple[int, int, int]:
    """Transformed values of input, filter and output."""
    data, output = domain.tiles * shape.channels, domain.tiles * shape.filters
    return domain.points * data, domain.points * shape.filters * shape.channels, domain.points * output


def _product(
    shape: ConvolutionShape, domain: Domain, sizes: tuple[int, int, int], moved: tuple[int, int, int]
) -> Product:
    """``sizes`` are rows, columns and inner; ``moved`` bytes of activations, weights and output."""
    steps, element_bytes = domain.flops_per_step, shape.element_bytes
    return Product(*sizes, *moved, element_bytes, Precision.FP32, domain.points, flops_per_step=steps)


def _to(
    domain: Domain,
    what: str,
    values: int,
    activation_bytes: int = 0,
    weight_bytes: int = 0,
    work_class: WorkClass = WorkClass.TRANSFORM,
) -> Kernel:
    return stream_kernel(
        f"{domain.name}_{what}",
        values,
        domain.flops_per_value * values,
        activation_bytes=activation_bytes,
        weight_bytes=weight_bytes,
        bytes_written=values * domain.value_bytes,
        work_class=work_class,
    )
