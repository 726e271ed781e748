"""Convolutions on tensor cores, implicit products of pixels by filters in NHWC, and the kernels that change the layout.

An engine whose tensors are fp32 and NCHW, and whose library multiplies in tf32 by default, transforms the input and the
filters to NHWC before every call and the output back after it, and runs bias and activation as a separate kernel (a 1x1
filter is the same in both layouts). On an A100 and an RTX 3070 a convolution whose product takes 5 us takes 30 us with
a 1x1 filter and 55 us with a larger one: five and seven kernels of 5 to 7 us each. That library also transforms NHWC
tensors of fp32; today's have kernels that read and write NHWC (``families/channels_last.py``), compute no offsets
first, and write NCHW if they are Ampere's (PyTorch on an RTX A5000 and an H200). Hopper's own read tf32 along the inner
dimension alone (PTX ISA: ``wgmma`` transposes operands of 16 bits only): of 13 products of NCHW images by 1x1 filters
on an H200's tensor cores 11 ran as Ampere's, split like cuBLAS's, and two as Hopper's between transforms. Tensors of 16
bits are assumed to be in NHWC already: fp16 convolutions on a V100 and a T4 take as long as their products.

On Volta and Turing a step along the inner dimension stays within one position of the window: few channels are padded
to a whole step, as the first layers of networks show there (17 to 24 TFLOP/s). Ampere's kernels there pad to one load.
On Hopper steps stay within a position as well, those of ``xmma_sm90`` with 64 or 128 bytes (``tilesize256x64x32`` for
16 and 32 channels), those of ``mma_sm80`` with either: 3x3 windows of 48 channels take longer than those of 64 there.

A transform between layouts transposes tiles of positions by channels in shared memory, one block each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from iossim.hardware.compute_capability import SINCE_HOPPER, TENSOR_CORES
from iossim.hardware.lowering.gpu.convolution.gemm import implicit_product
from iossim.hardware.lowering.gpu.convolution.grouped import FEW_CHANNELS, is_first_layer, is_half, is_quantised
from iossim.hardware.lowering.gpu.matrix_product import stream_kernel
from iossim.hardware.lowering.gpu.tensor_core_families import (
    CONVOLUTIONS,
    GROUPED_MMA_SM80,
    MMA_SM80,
    NVJET,
    OF_AMPERE,
    PIECEWISE_MMA_SM80,
    SM80,
    XMMA_SM90,
    Family,
)
from iossim.hardware.lowering.gpu.tensor_core_product import (
    SPLITS,
    UNSPLIT,
    on_tensor_cores,
    passed_over_us,
    tensor_products,
)
from iossim.hardware.lowering.kernel import Candidate, Kernel, WorkClass, ceil_div
from iossim.hardware.lowering.step import FP32_STORED, ConvolutionShape
from iossim.ir.types import Precision

#: PyTorch times the ten plans that cuDNN ranks first. Lead below which ``mma_sm80`` then ran rather than ``xmma_sm90``
#: for recorded windows. ``nvjet`` is among the ten for 1x1 convolutions of many pixels, channels and filters: above the
#: second number for ``pixels * (channels * filters) ** 2``, with filters counted up to the third. Chosen by 151
#: recordings on an H100; ``python -m evidence hopper`` counts predicted families and those that ran.
PASSED_OVER_US, OFFERED, MOST_FILTERS = 1.0, 7.5e11, 128
#: The lead below which wider tiles of Ampere's then ran rather than the narrowest, and its name.
NARROW_US, NARROW = 0.6, "mma_sm80_64x32"
#: Bytes of channels in one load.
_LOAD_BYTES = 16


def tensor_core_convolution(
    shape: ConvolutionShape,
    *,
    is_called_by_engine: bool = True,
    has_epilogue: bool = False,
    lies_as_wanted: bool = False,
    is_compiled: bool = False,
    is_by_image: bool = False,
) -> Iterator[Candidate]:
    """Candidates with every tile of every generation that supports the precision; none for several groups.

    The published engine always launches bias and activation. Tensors in the required layout (``lies_as_wanted``) are
    not transformed. A compiler's tensors are, and its products compute bias, activation and residual in their epilogues
    (TensorRT's layers on an A100 in tf32 are one kernel each). NCHW images that are multiplied one by one fill separate
    tiles, and a step loads along their positions. With ``has_epilogue`` the product of a framework has one, too.
    """
    having = TENSOR_CORES.get(shape.precision)
    if having is None or shape.groups > 1:
        return
    transforms_apart = shape.precision in FP32_STORED and not is_compiled
    for family in _families(shape, transforms_apart):
        architectures = family.architectures & having
        if not architectures or (is_by_image and family is NVJET):
            continue
        by_image = is_by_image and not family.is_persistent
        lies, of = lies_as_wanted or by_image, None if is_called_by_engine else family
        before, after = _around(shape, lies, of) if transforms_apart else ((), ())
        if has_epilogue or not (is_called_by_engine or shape.epilogue_flops):
            after = after[:-1]
        product = replace(implicit_product(shape), inner=_channels(shape, family) * math.prod(shape.kernel))
        if family in OF_AMPERE and is_first_layer(shape):
            before = padding_kernels(shape, _channels(shape, family))
            product = replace(product, activation_bytes=before[0].bytes_written)
        transforms = [kernel for kernel in (*before, *after) if kernel.work_class is WorkClass.LAYOUT]
        # cuDNN 7 splits no inner dimension of a convolution; Ampere's kernels of version 8 do, Hopper's do not.
        splits = SPLITS if family is SM80 or by_image else UNSPLIT
        if by_image:
            positions = math.prod(shape.output_size)
            product = replace(product, rows=positions, count=shape.batch, contiguous=positions)
            splits = splits if shape.batch == 1 else UNSPLIT
        extra_flops = 0 if after and not has_epilogue else shape.epilogue_flops
        ways = tensor_products(product, family, WorkClass.TENSOR_CONVOLUTION, extra_flops=extra_flops, splits=splits)
        for place, kernels in enumerate(ways):
            workspace = sum(kernel.bytes_written for kernel in (*transforms, *kernels[:-1]))
            name, around = f"implicit_gemm_{kernels[0].name}", (*before, *kernels, *after)
            lead_us = passed_over_us(family, place)
            if _is_ranked(shape):
                lead_us += PASSED_OVER_US * (family is XMMA_SM90) + NARROW_US * (kernels[0].tile == NARROW)
            yield Candidate(name, around, workspace, architectures=architectures, passed_over_us=lead_us)


def _families(shape: ConvolutionShape, transforms_apart: bool) -> Iterator[Family]:
    """The families for a convolution: on Hopper only Ampere's kernels take channels that do not fill 16 bytes."""
    is_whole = transforms_apart or is_quantised(shape)  # compilers store 8 bits with channels padded
    is_whole |= all(channels * shape.element_bytes % _LOAD_BYTES == 0 for channels in (shape.channels, shape.filters))
    for family in (*CONVOLUTIONS, NVJET) if _is_offered_as_product(shape) else CONVOLUTIONS:
        is_padded = is_first_layer(shape) and family in OF_AMPERE
        if is_whole or is_padded or not family.architectures <= SINCE_HOPPER:
            yield family
        elif family is MMA_SM80:
            yield PIECEWISE_MMA_SM80


def _is_ranked(shape: ConvolutionShape) -> bool:
    """True where only the plans are timed that cuDNN ranks first: for a bare convolution, as PyTorch calls it.

    With its bias or activation a convolution of halves runs by ``cupy_cudnn``, which times a plan of each engine: of
    145 dense 1x1 convolutions of six networks that it ran on an H100 144 were ``nvjet``. Compilers time all kernels.
    """
    return not (is_quantised(shape) or (shape.epilogue_flops and is_half(shape)))


def _is_offered_as_product(shape: ConvolutionShape) -> bool:
    """True if the kernels of products, ``nvjet``, are among the plans that are timed."""
    is_large = shape.pixels * (shape.channels * min(shape.filters, MOST_FILTERS)) ** 2 > OFFERED
    return (is_large or not _is_ranked(shape)) and shape.is_dense_unit_stride and math.prod(shape.kernel) == 1


def padded_convolution(shape: ConvolutionShape) -> Iterator[Candidate]:
    """Candidates for halves on Hopper whose channels and filters ``cupy_cudnn`` pads to whole loads, if they fill none.

    Kernels copy its input before it, and its own filters' output after it; weights are padded when they are uploaded.
    """
    channels, filters = (ceil_div(count, FEW_CHANNELS) * FEW_CHANNELS for count in (shape.channels, shape.filters))
    wide = replace(shape, channels=channels, filters=filters)
    if wide == shape or _is_ranked(shape) or not is_half(shape) or shape.groups > 1:
        return
    before, after = tuple[Kernel, ...](), tuple[Kernel, ...]()
    if channels != shape.channels:
        elements, read = wide.input_bytes // shape.element_bytes, shape.input_bytes
        before = (stream_kernel("pad_channels", elements, 0, read=read, written=wide.input_bytes),)
    if filters != shape.filters:
        elements, moved = shape.pixels * shape.filters, shape.output_bytes
        after = (stream_kernel("copy", elements, 0, read=moved, written=moved),)
    for one in tensor_core_convolution(wide):
        workspace_bytes = len(before) * wide.input_bytes + len(after) * wide.output_bytes + one.workspace_bytes
        kernels, on_hopper = (*before, *one.kernels, *after), one.among(SINCE_HOPPER)
        yield replace(on_hopper, algorithm=f"padded_{one.algorithm}", kernels=kernels, workspace_bytes=workspace_bytes)


def grouped_on_tensor_cores(shape: ConvolutionShape) -> Iterator[Candidate]:
    """Candidates of Hopper's libraries: a tile's filters by all channels that any of their groups reads, with zeros."""
    if shape.groups == 1 or shape.is_depthwise:
        return
    filters, channels = shape.filters // shape.groups, shape.channels // shape.groups
    ((_, columns, _, _),) = GROUPED_MMA_SM80.shapes
    groups = min(shape.groups, max(1, ceil_div(columns, filters)))
    inner = groups * channels * math.prod(shape.kernel)
    product = replace(implicit_product(replace(shape, groups=1)), inner=inner, weight_bytes=shape.weight_bytes)
    of_family, extra_flops = (product, [GROUPED_MMA_SM80], WorkClass.TENSOR_CONVOLUTION), shape.epilogue_flops
    yield from on_tensor_cores(*of_family, extra_flops=extra_flops, splits=UNSPLIT)


#: Arithmetic per padded element: cuDNN's kernel places each separately, some 22 billion per second on an H100 (a first
#: layer of 8 and of 32 images, called repeatedly; right after L2 was emptied it took half as long, unexplained).
_PADDING_FLOPS = 1_500


def padding_kernels(shape: ConvolutionShape, padded: int) -> tuple[Kernel, ...]:
    """Copies of input and filters with ``padded`` channels, which cuDNN 9 makes before the product."""
    elements = shape.batch * math.prod(shape.input_size) * padded
    window = math.prod(shape.kernel) * shape.filters * padded
    return tuple(
        stream_kernel(name, count, _PADDING_FLOPS * count, read=read, written=count * shape.element_bytes)
        for name, count, read in (
            ("pad_input", elements, shape.input_bytes),
            ("pad_filters", window, shape.weight_bytes),
        )
    )


def _channels(shape: ConvolutionShape, family: Family | None) -> int:
    """Channels including their padding for a ``family``; without one, for transformed tensors."""
    # CUTLASS has kernels for channels of one load, whose steps cover several positions.
    is_one_load = family in OF_AMPERE and shape.channels * shape.element_bytes <= _LOAD_BYTES
    piece_bytes = (family.piece_bytes or family.step_bytes) if family and not is_one_load else _LOAD_BYTES
    piece = piece_bytes // shape.element_bytes
    return ceil_div(shape.channels, piece) * piece


def _around(shape: ConvolutionShape, lies_as_wanted: bool, family: Family | None) -> tuple[tuple[Kernel, ...], ...]:
    """Kernels before and after a product of fp32 tensors, by a family or the published engine; NHWC is only padded."""
    padded = _channels(shape, None)
    window = math.prod(shape.kernel)
    positions = math.prod(shape.input_size)
    before, after = [], []
    if not lies_as_wanted or padded > shape.channels:
        whole = shape.batch * shape.channels * positions * shape.element_bytes
        before.append(layout_kernel("nchw_to_nhwc", shape.batch, padded, positions, whole))
    if window > 1:
        if family is None:
            before.append(layout_kernel("compute_offsets", 1, 1, 1))
        if not lies_as_wanted:
            before.append(layout_kernel("filters_to_nhwc", shape.filters, padded, window, 0, shape.weight_bytes))
    if not lies_as_wanted and (family is None or family.is_persistent):
        made = math.prod(shape.output_size)
        after.append(layout_kernel("nhwc_to_nchw", shape.batch, shape.filters, made, shape.output_bytes))
    outputs = shape.pixels * shape.filters
    epilogue = stream_kernel(
        "bias_activation", outputs, outputs + shape.epilogue_flops, read=shape.output_bytes, written=shape.output_bytes
    )
    return tuple(before), (*after, epilogue)


#: Side of a tile of positions by channels, which one block transforms; a partial tile costs as much as a full one.
#: Filters are transformed one by one, so that a 3x3 window fills nine of 32 positions of its tiles: on an RTX A5000 the
#: 8,192 tiles of 512 by 512 filters take 30 us, and the 3,136 full ones of an image, limited by DRAM, 38. The second
#: number is the traffic with L2 per byte of a tile.
_TRANSPOSED, _TILE_TRAFFIC = 32, 3


def layout_kernel(
    name: str,
    images: int,
    channels: int,
    positions: int,
    activation_bytes: int = 0,
    weight_bytes: int = 0,
    element_bytes: int = Precision.FP32.storage.bytes,
) -> Kernel:
    """A transposition of ``positions`` by ``channels`` in each image or filter."""
    tiles = images * ceil_div(channels, _TRANSPOSED) * ceil_div(positions, _TRANSPOSED)
    written = (activation_bytes + weight_bytes) and images * channels * positions * element_bytes
    tile_bytes = _TRANSPOSED * _TRANSPOSED * element_bytes
    moved = activation_bytes, weight_bytes, written, tiles * tile_bytes * _TILE_TRAFFIC
    return Kernel(name, WorkClass.LAYOUT, tiles, 256, 32, 2 * tile_bytes, 0, *moved)
