"""Products and convolutions on tensor cores: tiles, splits; and the layouts that kernels read, with what turns one to the other."""

from dataclasses import replace

import pytest

from iossim.hardware.compute_capability import LIMITS, SINCE_HOPPER, TENSOR_CORES, Architecture
from iossim.hardware.load import device
from iossim.hardware.lowering import cpu, gpu
from iossim.hardware.lowering.gpu import TARGET
from iossim.hardware.lowering.gpu.matrix_product import Product
from iossim.hardware.lowering.gpu.tensor_core_convolution import PASSED_OVER_US
from iossim.hardware.lowering.gpu.tensor_core_families import (
    MMA_SM80,
    MMA_SM80_K32,
    NVJET,
    S884,
    SM80,
    TENSOR_TILES,
    XMMA_SM90,
    Family,
)
from iossim.hardware.lowering.gpu.tensor_core_product import passed_over_us, tensor_products, without_tensor_cores
from iossim.hardware.lowering.kernel import (
    OF_FRAMEWORKS,
    Candidate,
    Kernel,
    Libraries,
    WorkClass,
    ceil_div,
    resident_blocks,
)
from iossim.hardware.lowering.step import Operand, Step
from iossim.ir.ops.channels_last import ConvNhwc, MaxPoolNhwc
from iossim.ir.ops.reshape import Transpose
from iossim.ir.types import TO_FIRST, TO_LAST, Precision, TensorType, permuted
from iossim.measurements.operator_kinds import read_record


def product(rows: int, columns: int, inner: int, count: int = 1) -> Product:
    moved = (2 * size * count for size in (inner * columns, inner * rows, rows * columns))
    return Product(rows, columns, inner, *moved, 2, Precision.FP16, count)


def test_the_padded_product_of_each_tile_is_counted() -> None:
    (kernel,) = next(tensor_products(product(300, 100, 70), SM80))
    assert (kernel.tile, kernel.blocks) == ("sm80_256x128", 2)
    # Three steps of 32 halves.
    assert kernel.steps == 3
    assert kernel.flops == 2 * 2 * 256 * 128 * 96
    assert kernel.shared_bytes_per_block == (256 + 128) * 64 * 4


def test_a_split_walks_its_part_and_writes_fp32_sums() -> None:
    whole, split = (
        next(kernels for kernels in tensor_products(product(64, 64, 4096), SM80) if kernels[0].name == name)
        for name in ("sm80_64x64", "sm80_64x64_split4")
    )
    assert [kernel.name for kernel in split] == ["sm80_64x64_split4", "split_reduction"]
    assert split[0].steps * 4 == whole[0].steps
    assert split[0].bytes_written == split[1].activation_bytes == 4 * 64 * 64 * 4
    assert split[1].bytes_written == whole[0].bytes_written
    # A product that fills the device is not split.
    assert all(len(kernels) == 1 for kernels in tensor_products(product(32_768, 8192, 8192), SM80))


@pytest.mark.parametrize(
    ("capability", "family"),
    [
        *(("7.0", S884), ("7.5", S884), ("8.0", SM80), ("8.6", SM80), ("8.9", SM80), ("12.0", SM80)),
        *(
            (capability, family)
            for capability in ("9.0", "10.0")
            for family in (NVJET, XMMA_SM90, MMA_SM80, MMA_SM80_K32)
        ),
    ],
)
def test_most_tiles_fit_an_sm(capability: str, family: Family) -> None:
    assert LIMITS[capability].architecture in family.architectures
    for kernels in tensor_products(product(4096, 4096, 4096), family, splits=(1,)):
        (kernel,) = kernels
        resident = resident_blocks(
            LIMITS[capability], kernel.threads_per_block, kernel.registers_per_thread, kernel.shared_bytes_per_block
        )
        assert 1 <= resident <= (1 if family.is_persistent else 8), kernel.name


@pytest.mark.parametrize(
    ("tile", "shared_bytes"), [((64, 8), 164_308), ((24, 64), 197_076), ((64, 96), 221_508), ((56, 64), 231_844)]
)
def test_persistent_blocks_hold_the_shared_memory_that_was_recorded(tile: tuple[int, int], shared_bytes: int) -> None:
    """As many stages as fit: within 0.2 KB of the launches of ``nvjet`` kernels on an H100, or a stage of a tile."""
    found = NVJET.tile(*tile, 384, 168).shared_bytes
    assert abs(found - shared_bytes) <= 200 or abs(found + sum(tile) * 128 - shared_bytes) <= 200


@pytest.mark.parametrize(
    ("sizes", "tile", "cluster", "blocks"),
    [
        ((1, 2048, 2048), "8x64", 4, 32),
        ((128, 768, 768), "64x24", 8, 64),
        ((1764, 168, 336), "64x56", 4, 84),
        ((441, 336, 1344), "64x32", 8, 96),
        ((64, 4096, 4096), "32x64", 1, 128),
    ],
)
def test_small_grids_are_in_clusters_as_recorded(
    sizes: tuple[int, int, int], tile: str, cluster: int, blocks: int
) -> None:
    """Grids of an H100, whose 30 clusters of four blocks or 15 of eight have 120 of its SMs; pairs fit anywhere."""
    kernels = [one for (one,) in tensor_products(product(*sizes), NVJET, splits=(1,))]
    (found,) = (one for one in kernels if one.name == f"nvjet_{tile}")
    assert (found.cluster, found.blocks) == (cluster, blocks)
    assert [device("h100-sxm").sms_for_clusters(size) for size in (1, 4, 8)] == [132, 120, 120]
    assert device("b200").sms_for_clusters(8) == 148  # unknown


@pytest.mark.parametrize(
    ("rows", "columns", "sides"),
    [(1, 4096, {8}), (32, 1408, {16, 24, 32, 40, 48, 56}), (49, 512, {*range(32, 81, 8), 96})],
)
def test_few_rows_are_cut_into_two_pieces_at_most(rows: int, columns: int, sides: set[int]) -> None:
    kernels = [one for (one,) in tensor_products(product(rows, columns, 2048), NVJET, splits=(1,))]
    assert {int(kernel.tile.split("_")[1].split("x")[0]) for kernel in kernels} <= sides


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [
        ((1, 2048, 2048), "8x64"),  # no part of a split would be long enough
        ((1, 1536, 4096), "8x64_split3"),
        ((16, 2048, 8192), "16x64_split4"),
        ((32, 1408, 2048), "16x64"),
        ((128, 1024, 512), "24x64"),  # 96 blocks in clusters rather than 128 without
    ],
)
def test_the_tile_of_a_product_is_the_one_that_an_h100_ran(sizes: tuple[int, int, int], taken: str) -> None:
    first, *others = (kernels[0].name for kernels in tensor_products(product(*sizes), NVJET))
    assert first == f"nvjet_{taken}"
    assert len(others) < 8
    assert 0.0 == passed_over_us(NVJET, 0) < passed_over_us(NVJET, 1)


@pytest.mark.parametrize(
    ("precision", "architecture", "has"),
    [
        (Precision.FP16, Architecture.PASCAL, False),
        (Precision.FP16, Architecture.VOLTA, True),
        (Precision.INT8, Architecture.VOLTA, False),
        (Precision.TF32, Architecture.TURING, False),
        (Precision.TF32, Architecture.ADA, True),
        (Precision.FP32, Architecture.HOPPER, False),
    ],
)
def test_a_device_multiplies_on_the_units_that_it_has(
    precision: Precision, architecture: Architecture, has: bool
) -> None:
    step = read_record({"op": "linear", "batch": 1, "m": 256, "n": 512, "k": 512}, precision).step()
    found = [one for one in TARGET.families[step.op.kind](step) if one.runs_on(architecture)]
    assert {one.kernels[0].work_class for one in found} == ({WorkClass.TENSOR} if has else {WorkClass.GEMM})
    assert (architecture in TENSOR_CORES.get(precision, ())) is has


def test_architectures_without_tensor_cores_are_what_is_left() -> None:
    assert without_tensor_cores(Precision.FP32, None) is None
    left = without_tensor_cores(Precision.FP16, None)
    assert left is not None
    assert Architecture.PASCAL in left
    assert not left & TENSOR_CORES[Precision.FP16]


def test_larger_tiles_use_what_they_load_more_often_and_odd_inner_dimensions_are_slower() -> None:
    large, middle, small = (TENSOR_TILES[f"sm80_{tile}"].reuse for tile in ("256x128", "128x128", "64x64"))
    assert large > middle == 64.0 > small
    (odd,), (even,) = (next(tensor_products(product(512, 512, inner), SM80)) for inner in (1023, 1024))
    assert odd.slowdown > even.slowdown == 1.0
    assert (odd.blocks, odd.steps) == (even.blocks, even.steps)


def convolution_step(precision: Precision, **changed: int) -> Step:
    sizes = {"batch": 1, "in_channels": 64, "out_channels": 64, "in_size": 28, "kernel": 3, "stride": 1, "padding": 1}
    return read_record({"op": "conv", **sizes, **changed}, precision).step()


def convolutions(precision: Precision, architecture: Architecture, **changed: int) -> list[Candidate]:
    step = convolution_step(precision, **changed)
    return [one for one in TARGET.families[step.op.kind](step) if one.runs_on(architecture)]


def names(candidate: Candidate) -> list[str]:
    return [kernel.name for kernel in candidate.kernels if kernel.work_class is not WorkClass.TENSOR_CONVOLUTION]


@pytest.mark.parametrize(
    ("precision", "channels", "has_bias", "is_offered", "lead_us"),
    [
        (Precision.BF16, 64, False, False, PASSED_OVER_US),
        (Precision.BF16, 512, False, True, PASSED_OVER_US),
        (Precision.BF16, 64, True, True, 0.0),
        (Precision.FP16, 64, True, True, 0.0),
        (Precision.TF32, 64, True, False, PASSED_OVER_US),
        (Precision.INT8, 64, False, True, 0.0),
    ],
)
def test_only_a_bare_convolution_on_hopper_runs_by_the_plans_that_are_ranked_first(
    precision: Precision, channels: int, has_bias: bool, is_offered: bool, lead_us: float
) -> None:
    step = convolution_step(precision, kernel=1, padding=0, in_channels=channels, out_channels=channels)
    if has_bias:
        step = replace(step, flops=step.flops + step.outputs[0].elements)
    found = [one for one in TARGET.families[step.op.kind](step) if one.runs_on(Architecture.HOPPER)]
    assert any("nvjet" in one.algorithm for one in found) is is_offered
    assert {one.passed_over_us for one in found if "xmma_sm90" in one.algorithm} == {lead_us}


def first_layer(has_bias: bool, **changed: int) -> tuple[Candidate, list[Candidate]]:
    """The direct kernel for three channels on Hopper, and all others."""
    step = convolution_step(Precision.BF16, in_channels=3, **changed)
    step = replace(step, flops=step.flops + has_bias * step.outputs[0].elements)
    found = [one for one in TARGET.families[step.op.kind](step) if one.runs_on(Architecture.HOPPER)]
    (direct,) = (one for one in found if one.algorithm == "direct_nhwc")
    return direct, [one for one in found if one is not direct]


def test_a_first_layer_of_a_single_image_on_hopper_is_padded_only_where_that_saves_much() -> None:
    assert first_layer(has_bias=False)[1] == []
    assert {one.passed_over_us >= 16.0 for one in first_layer(has_bias=True)[1]} == {True}


def test_first_layers_of_several_images_on_hopper_are_padded_by_cudnn_or_with_a_bias_by_our_kernel() -> None:
    bare, padded = first_layer(has_bias=False, batch=2)
    assert bare.passed_over_us > 0.0
    assert {tuple(kernel.name for kernel in one.kernels[:-1]) for one in padded} == {("pad_input", "pad_filters")}
    direct, others = first_layer(has_bias=True, batch=2)
    assert direct.passed_over_us == 0.0
    ours = [one for one in others if one.algorithm.startswith("padded_")]
    assert {tuple(kernel.name for kernel in one.kernels[:-1]) for one in ours} == {("pad_channels",)}
    assert any("xmma_sm90" in one.algorithm for one in ours)
    before, product = ours[0].kernels
    assert before.bytes_written == product.activation_bytes == 2 * 28 * 28 * 8 * 2


@pytest.mark.parametrize(
    ("channels", "filters", "around"),
    [(64, 64, None), (63, 64, ("pad_channels",)), (64, 63, ("copy",)), (63, 63, ("pad_channels", "copy"))],
)
def test_channels_that_fill_no_load_are_padded_on_hopper_and_filters_copied(
    channels: int, filters: int, around: tuple[str, ...] | None
) -> None:
    step = convolution_step(Precision.FP16, in_channels=channels, out_channels=filters)
    for has_bias in (False, True):
        one_step = replace(step, flops=step.flops + has_bias * step.outputs[0].elements)
        found = [one for one in TARGET.families[step.op.kind](one_step) if one.algorithm.startswith("padded_")]
        ours = [one for one in found if one.runs_on(Architecture.HOPPER)]
        assert {tuple(names(one)) for one in ours} == ({around} if has_bias and around else set())
        assert not any(one.runs_on(Architecture.AMPERE) for one in found)
        whole = ceil_div(filters, 8) * 8 * ceil_div(channels, 8) * 8 * 9 * 2
        assert {kernel.weight_bytes for one in ours for kernel in one.kernels} <= {0, whole}


def test_tf32_in_nchw_pays_for_transforms_of_all_tensors() -> None:
    found = convolutions(Precision.TF32, Architecture.AMPERE)
    assert found
    assert names(found[0]) == ["nchw_to_nhwc", "compute_offsets", "filters_to_nhwc", "nhwc_to_nchw", "bias_activation"]
    x, _, weight, *_, y, epilogue = found[0].kernels
    assert (x.activation_bytes, x.bytes_written) == (64 * 28 * 28 * 4,) * 2
    assert (weight.weight_bytes, weight.activation_bytes) == (64 * 64 * 9 * 4, 0)
    assert y.bytes_written == epilogue.bytes_written == 64 * 28 * 28 * 4


def test_a_filter_of_one_pixel_lies_the_same_in_both_layouts() -> None:
    """So today's libraries multiply images as they lie; a compiler's lie as its kernels want them."""
    found = convolutions(Precision.TF32, Architecture.AMPERE, kernel=1, padding=0)
    assert names(found[0]) == ["nchw_to_nhwc", "nhwc_to_nchw", "bias_activation"]
    on_tensors = [one for one in on_tensor_cores(found) if not one.is_in(Libraries.CUDNN_8)]
    assert {tuple(transposing(one)) for one in on_tensors} == {()}
    assert {libraries for libraries in Libraries if any(one.is_in(libraries) for one in on_tensors)} == OF_FRAMEWORKS


@pytest.mark.parametrize("architecture", [Architecture.VOLTA, Architecture.TURING])
def test_half_precision_tensors_lie_as_the_kernels_want_them(architecture: Architecture) -> None:
    assert {tuple(names(one)) for one in convolutions(Precision.FP16, architecture)} == {()}


@pytest.mark.parametrize(
    ("architecture", "channels", "inner"),
    [
        # Before Ampere a step stays within one position of the window; later kernels pad channels to one load.
        *((Architecture.VOLTA, channels, padded * 9) for channels, padded in ((1, 32), (3, 32), (33, 64))),
        (Architecture.AMPERE, 3, 8 * 9),
    ],
)
def test_padding_of_channels(architecture: Architecture, channels: int, inner: int) -> None:
    kernel = convolutions(Precision.FP16, architecture, in_channels=channels)[0].kernels[0]
    assert kernel.steps == -(-inner // 32)


@pytest.mark.parametrize(
    ("precision", "architecture", "groups"),
    [(Precision.FP16, Architecture.AMPERE, 2), (Precision.TF32, Architecture.VOLTA, 1), (Precision.FP32, Architecture.AMPERE, 1)],
)  # fmt: skip
def test_groups_and_devices_without_tensor_cores_keep_their_kernels(
    precision: Precision, architecture: Architecture, groups: int
) -> None:
    found = convolutions(precision, architecture, groups=groups)
    assert found
    classes = {kernel.work_class for one in found for kernel in one.kernels}
    assert not classes & {WorkClass.TENSOR_CONVOLUTION, WorkClass.LAYOUT}


@pytest.mark.parametrize(("channels", "long", "short"), [(32, 9, 9), (48, 9, 18), (64, 9, 18), (80, 18, 27)])
def test_a_step_on_hopper_stays_within_a_position_of_the_window(channels: int, long: int, short: int) -> None:
    steps = {
        one.algorithm.removeprefix("implicit_gemm_"): one.kernels[-1].steps
        for one in convolutions(Precision.BF16, Architecture.HOPPER, in_channels=channels)
    }
    assert (steps["mma_sm80_64x64"], steps["mma_sm80_k32_64x64"]) == (long, short)


def test_a_tile_of_filters_costs_as_much_as_a_full_one() -> None:
    x, _, filters, *_ = convolutions(Precision.TF32, Architecture.AMPERE)[0].kernels
    # 28 x 28 pixels are 25 tiles, by two of channels; each filter has nine positions, by two.
    assert (x.blocks, filters.blocks) == (25 * 2, 64 * 2)
    assert x.l2_bytes / x.blocks == filters.l2_bytes / filters.blocks == 32 * 32 * 12


def test_frameworks_choose_among_kernels_on_fp32_lanes_besides() -> None:
    found = convolutions(Precision.TF32, Architecture.AMPERE, in_channels=3)
    on_lanes = [one for one in found if one.algorithm.startswith(("implicit_gemm_128", "winograd"))]
    assert on_lanes
    assert {one.libraries for one in on_lanes} == {OF_FRAMEWORKS}
    assert all(kernel.precision is Precision.FP32 for one in on_lanes for kernel in one.kernels)
    # Today's libraries have no others for so few channels.
    assert not any(one.libraries and one.libraries & OF_FRAMEWORKS for one in on_tensor_cores(found))
    half = convolutions(Precision.FP16, Architecture.AMPERE, in_channels=3)
    assert {one.libraries for one in half} == {None}


def in_nhwc(step: Step, op: ConvNhwc | MaxPoolNhwc) -> Step:
    x, *rest = step.operands
    operands = replace(x, type=permuted(x.type, TO_LAST)), *rest
    return replace(step, op=op, operands=operands, outputs=(permuted(step.outputs[0], TO_LAST),))


def convolution_of(precision: Precision, **changed: int) -> tuple[Step, Step]:
    """The same one in NCHW and in NHWC."""
    step = convolution_step(precision, **{"batch": 2, "out_channels": 32, **changed})
    return step, in_nhwc(step, ConvNhwc(**step.op.attributes()))


def kernels_of(step: Step, libraries: Libraries, architecture: Architecture = Architecture.AMPERE) -> list[Candidate]:
    found = gpu.TARGET.families[step.op.kind](step)
    return [one for one in found if one.runs_on(architecture) and one.is_in(libraries)]


def on_tensor_cores(found: list[Candidate]) -> list[Candidate]:
    return [one for one in found if any(k.work_class is WorkClass.TENSOR_CONVOLUTION for k in one.kernels)]


def transposing(candidate: Candidate) -> list[str]:
    return [k.name for k in candidate.kernels if k.work_class is WorkClass.LAYOUT and k.bytes_written]


@pytest.mark.parametrize("architecture", [Architecture.AMPERE, Architecture.HOPPER])
def test_tf32_in_nhwc_needs_no_transforms_in_the_libraries_of_today(architecture: Architecture) -> None:
    found = (kernels_of(step, Libraries.CURRENT, architecture) for step in convolution_of(Precision.TF32))
    nchw, nhwc = (on_tensor_cores(each) for each in found)
    assert len(nchw) == len(nhwc) > 0
    for before, after in zip(nchw, nhwc, strict=True):
        back = ["nhwc_to_nchw"] * ("xmma_sm90" in before.algorithm)
        assert transposing(before) == ["nchw_to_nhwc", "filters_to_nhwc", *back]
        assert transposing(after) == []
        kept = [k for k in before.kernels if not (k.work_class is WorkClass.LAYOUT and k.bytes_written)]
        assert list(after.kernels) == kept
        assert after.workspace_bytes < before.workspace_bytes
    # Channels that fill no load are padded.
    (_, nhwc_of_three) = convolution_of(Precision.TF32, in_channels=3)
    found = on_tensor_cores(kernels_of(nhwc_of_three, Libraries.CURRENT))
    assert all(transposing(one) == ["nchw_to_nhwc"] for one in found)


def test_hopper_multiplies_nchw_images_in_tf32_by_split_kernels_of_ampere_or_between_transforms() -> None:
    nchw, _ = convolution_of(Precision.TF32, batch=1, in_channels=2016, out_channels=336, kernel=1, padding=0)
    found = on_tensor_cores(kernels_of(nchw, Libraries.CURRENT, Architecture.HOPPER))
    transforms = {one.algorithm.removeprefix("implicit_gemm_")[:8]: transposing(one) for one in found}
    assert transforms == {"mma_sm80": [], "xmma_sm9": ["nchw_to_nhwc", "nhwc_to_nchw"]}
    assert any(one.algorithm.endswith("_split6") for one in found if "mma_sm80" in one.algorithm)


def test_tf32_channels_first_is_transformed_around_products_that_have_the_epilogue() -> None:
    nchw, _ = convolution_of(Precision.TF32)
    for libraries, is_transformed in ((Libraries.COMPILED, False), (Libraries.CHANNELS_FIRST, True)):
        found = on_tensor_cores(kernels_of(nchw, libraries, Architecture.HOPPER))
        assert {bool(transposing(one)) for one in found} == {is_transformed}
        assert "bias_activation" not in {kernel.name for one in found for kernel in one.kernels}


@pytest.mark.parametrize(
    ("precision", "libraries", "transforms"),
    [(Precision.TF32, Libraries.CUDNN_8, True), (Precision.FP16, Libraries.CURRENT, False)],
)
def test_layouts_that_make_no_difference(precision: Precision, libraries: Libraries, transforms: bool) -> None:
    """The published engine's library transforms fp32 in either, half precision is transformed in neither."""
    nchw, nhwc = (on_tensor_cores(kernels_of(step, libraries)) for step in convolution_of(precision))
    assert [one.kernels for one in nchw] == [one.kernels for one in nhwc]
    assert all(bool(transposing(one)) == transforms for one in nhwc)


@pytest.mark.parametrize("groups", [1, 64])
def test_lanes_multiply_in_nchw(groups: int) -> None:
    nchw, nhwc = convolution_of(Precision.FP32, out_channels=64, groups=groups)
    architecture = Architecture.VOLTA
    inside, around = (kernels_of(step, Libraries.CUDNN_7, architecture) for step in (nchw, nhwc))
    assert len(inside) == len(around) > 0
    image = 2 * 64 * 28 * 28 * 4
    for one, between in zip(inside, around, strict=True):
        before, *kernels, after = between.kernels
        assert tuple(kernels) == one.kernels
        assert before == as_kernel(Transpose(TO_FIRST), (2, 28, 28, 64), before.name)
        assert after == as_kernel(Transpose(TO_LAST), (2, 64, 28, 28), after.name)
        assert between.workspace_bytes == one.workspace_bytes + 2 * image


def as_kernel(op: Transpose, shape: tuple[int, ...], name: str = "copy") -> Kernel:
    """What an op of the graph runs as, called ``name``."""
    x = TensorType(shape)
    (one,) = gpu.TARGET.families["transpose"](Step(op, (Operand(x),), op.infer([x]), 0, Precision.FP32))
    assert not one.is_library_call
    (kernel,) = one.kernels
    return replace(kernel, name=name)


def test_other_permutations_are_copies() -> None:
    assert as_kernel(Transpose((0, 2, 1, 3)), (2, 3, 4, 5)).work_class is WorkClass.STREAM
    assert as_kernel(Transpose(TO_LAST), (2, 3, 4, 5)).work_class is WorkClass.LAYOUT


def test_pooling_takes_either_layout_in_one_time_but_for_maxima_of_a_framework_on_hopper() -> None:
    record = {"op": "max_pool", "batch": 1, "channels": 8, "in_size": 9, "kernel": 3, "stride": 2, "padding": 1}
    step = read_record(record, Precision.FP32).step()
    families = gpu.TARGET.families
    last = families["max_pool_nhwc"](in_nhwc(step, MaxPoolNhwc(**step.op.attributes())))
    (differs,) = (one for one, first in zip(last, families["max_pool"](step), strict=True) if one != first)
    assert (differs.libraries, differs.architectures) == ({Libraries.CURRENT}, SINCE_HOPPER)


def test_a_processor_reorders_nhwc_before_and_after() -> None:
    nchw, nhwc = convolution_of(Precision.FP32)
    inside, around = (cpu.TARGET.families[step.op.kind](step) for step in (nchw, nhwc))
    assert [one.kernels[1:-1] for one in around] == [one.kernels for one in inside]
