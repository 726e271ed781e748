"""cuDNN itself, without a GPU: its execution plans for a described H100, enumerated as they would be on one.

Runs where ``nvidia-cudnn-frontend`` and cuDNN are installed.
"""

import importlib.util
import os
import re
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from described_gpus import DEVICES, RUNTIME_VARIABLE, describe, stand_in
from host_backend import programs
from precisions import stored_in
from quantised_networks import QUANTISED
from small_networks import OPS, UNITS
from test_fused_units import PRODUCTS, built

from iossim.backends.cupy_cudnn.convolution import Convolution, ConvolutionCall, FusedAttention, Product, TensorLayout
from iossim.backends.cupy_cudnn.cudnn_graphs import offers_in_words
from iossim.backends.cupy_cudnn.options import DEFAULT_PLANS, PRECISIONS, CudnnOptions
from iossim.backends.cupy_cudnn.views import channels_last, row_major
from iossim.execution.backend import BackendError
from iossim.ir.network import Network
from iossim.ir.types import DType, Precision
from iossim.models.load import load

if importlib.util.find_spec("cudnn") is None:
    pytest.skip("nvidia-cudnn-frontend is not installed; pip install 'iossim[gpu]'", allow_module_level=True)

from iossim.backends.cupy_cudnn.cudnn_graphs import MOST_COMPILED, CudnnGraphs
from iossim.backends.cupy_cudnn.cudnn_library import the_only


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> CudnnGraphs:
    if reason := stand_in(tmp_path_factory.mktemp("driver")):
        pytest.skip(reason)
    try:
        return CudnnGraphs(CudnnOptions(), describe("H100"))
    except RuntimeError as error:
        pytest.skip(f"this cuDNN does not plan without a device: {str(error).splitlines()[0]}")


def convolutions(network: Network, channels_last: bool = False) -> set[Convolution]:
    """All that a network's sequential plan asks cuDNN for, plain and fused."""
    calls = [call for program in programs(network, channels_last).values() for call in program.convolutions]
    return {call.convolution for call in calls} | {call.convolution.plain for call in calls}


def dense(*shape: int) -> TensorLayout:
    return TensorLayout(shape, row_major(shape))


LAYOUTS = {"x": dense(1, 64, 56, 56), "w": dense(96, 64, 3, 3), "y": dense(1, 96, 56, 56)}
CONVOLUTION = Convolution(*LAYOUTS.values(), (1, 1), (1, 1), (1, 1), (1, 1), True, "relu")


def test_a_target_of_sms_is_part_of_a_plans_name_and_few_engines_take_it(graphs: CudnnGraphs) -> None:
    """On an H100 targets of up to 16 are planned, the same in another process; where none is, there are no plans."""
    layouts = {name: replace(layout, strides=channels_last(layout.shape)) for name, layout in LAYOUTS.items()}
    asked = replace(CONVOLUTION, **layouts, dtype=DType.BFLOAT16, last=True)
    found = [plan.name for plan in graphs.plans(asked, 16)]
    assert found
    assert all(name.endswith("@16") and name.startswith("eng") for name in found)
    assert CudnnGraphs(CudnnOptions(), describe("H100")).named(asked, found[0]) is not None
    assert graphs.bind(asked, found[0]).args != graphs.bind(asked, next(graphs.plans(asked)).name).args
    assert list(graphs.plans(asked, 66)) == []


@pytest.mark.parametrize("device", ["A100", "H100"])
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.usefixtures("graphs")
def test_what_follows_on_products_is_planned_with_them(name: str, device: str) -> None:
    """With channels last; the device's own driver compiles it, as it does an activation."""
    described = CudnnGraphs(CudnnOptions(), describe(device))
    for precision in (Precision.FP16, Precision.BF16):
        (call,) = programs(built(PRODUCTS[name], precision), channels_last=True)["unit"].calls
        assert isinstance(call, ConvolutionCall)
        assert call.convolution.compiles_activation == isinstance(call.convolution, Convolution)
        assert described.planned_names(call.convolution), described.refusal(call.convolution)


@pytest.mark.parametrize("device", ["A100", "H100", "H200"])
@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
@pytest.mark.parametrize("shapes", [((12, 128, 64), (12, 64, 128)), ((6, 8, 16), (1, 16, 8))], ids=["stack", "one"])
def test_products_of_stacks_are_planned_as_they_are_asked_for(
    shapes: tuple[tuple[int, ...], ...], precision: Precision, device: str, graphs: CudnnGraphs
) -> None:
    """Their plans are built by the device's own driver only; of stacks of stacks cuDNN has none."""
    described = CudnnGraphs(CudnnOptions(), describe(device))
    a, b = shapes
    views = [dense(*a), dense(*b), dense(*a[:2], b[2])]
    assert described.planned_names(Product(*views, precision.storage))
    wide = [dense(2, *a), dense(2, *b), dense(2, *a[:2], b[2])]
    assert not described.planned_names(Product(*wide, precision.storage))


HEADS = TensorLayout((2, 12, 128, 64), (128 * 768, 64, 768, 1))


def heads(count: int, tokens: int) -> TensorLayout:
    """Layout of a decoder's queries, keys or values, which are read where they lie in its tokens."""
    return TensorLayout((1, count, tokens, 64), (tokens * count * 64, 64, count * 64, 1))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
@pytest.mark.parametrize(
    ("q", "k", "mask", "is_causal"),
    [
        (HEADS, HEADS, None, False),
        (HEADS, HEADS, (1, 1, 1, 128), False),
        (HEADS, HEADS, (2, 12, 128, 128), False),
        (heads(32, 1), heads(8, 128), None, False),
        (heads(32, 128), heads(8, 128), None, True),
        (heads(32, 16), heads(8, 128), (1, 1, 16, 128), False),
    ],
    ids=["bare", "row", "full", "a step behind a past", "prefill", "several tokens behind a past"],
)
@pytest.mark.usefixtures("graphs")
def test_attentions_are_planned_as_they_are_asked_for(
    q: TensorLayout, k: TensorLayout, mask: tuple[int, ...] | None, is_causal: bool, precision: Precision, device: str
) -> None:
    """Heads of BERT, and of decoders with shared keys; only the device's own driver builds their plans."""
    described = CudnnGraphs(CudnnOptions(), describe(device))
    asked = FusedAttention(q, k, k, q, 0.125, precision.storage, mask and dense(*mask), is_causal)
    names = described.planned_names(asked)
    assert names
    assert all(name.startswith("eng") for name in names)
    if RUNTIME_VARIABLE in os.environ:
        assert described.named(asked, names[0]) is None
        assert "cuLibraryLoadData" in described.refusal(asked)


def test_an_attention_that_cudnn_does_not_take_has_no_plan_and_a_reason(graphs: CudnnGraphs) -> None:
    describe("H100")
    heads = dense(1, 4, 16, 12)
    asked = FusedAttention(heads, heads, heads, heads, 1.0, DType.BFLOAT16)
    assert graphs.planned_names(asked) == ()
    assert "multiple of 8" in graphs.refusal(asked)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.BF16])
@pytest.mark.usefixtures("graphs")
def test_every_kind_of_convolution_has_plans(precision: Precision, device: str) -> None:
    """Fused with bias, residual and activation, and apart; images and slices of their channels, last in 16 bits.

    What is compiled for its activation is planned, and built by the device's own driver only.
    """
    activations, is_short = set(), precision is not Precision.FP32
    described = CudnnGraphs(CudnnOptions(), describe(device))
    for name in [name for name in (*OPS, *UNITS) if "conv" in name or "gemm" in name]:
        for convolution in convolutions(stored_in({**OPS, **UNITS}[name](), precision), channels_last=is_short):
            assert convolution.dtype is precision.storage
            assert convolution.last or not is_short
            activations.add(convolution.activation)
            if convolution.compiles_activation:
                assert 0 < len(described.planned_names(convolution)) <= MOST_COMPILED, (name, convolution)
            else:
                assert next(described.plans(convolution), None), (name, convolution)
    assert activations == {"", "relu", *(["sigmoid", "swish", "gelu"] if is_short else [])}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.usefixtures("graphs")
def test_sums_of_fp16_are_planned_where_they_are_asked_for(device: str) -> None:
    """Convolutions without an epilogue are; what is fused, and bf16, keeps other plans or none."""
    described = CudnnGraphs(CudnnOptions(sums="fp16"), describe(device))
    for name in [name for name in (*OPS, *UNITS) if "conv" in name or "gemm" in name]:
        for convolution in convolutions(stored_in({**OPS, **UNITS}[name](), Precision.FP16), channels_last=True):
            assert next(described.plans(convolution.plain), None), (name, convolution)
    usual = CudnnGraphs(CudnnOptions(), describe(device))
    asked = replace(CONVOLUTION.plain, dtype=DType.BFLOAT16)
    assert [plan.name for plan in described.plans(asked)] == [plan.name for plan in usual.plans(asked)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.usefixtures("graphs")
def test_every_product_of_whole_numbers_has_plans(device: str) -> None:
    """With any number of channels, in groups, and as a fully connected layer; all sums are of int32."""
    described = CudnnGraphs(CudnnOptions(), describe(device))
    asked = {convolution for build in QUANTISED.values() for convolution in convolutions(build())}
    assert len(asked) > 8
    for convolution in asked:
        assert (convolution.dtype, convolution.last) == (DType.INT8, True)
        assert next(described.plans(convolution), None), convolution


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("device", ["A100", "H100", "H200"])
def test_each_precision_has_both_layouts_and_all_fused_calls(device: str) -> None:
    """An attention is computed apart here, since the driver that is missing compiles it."""
    description = describe(device)
    said = offers_in_words(lambda precision: CudnnGraphs(CudnnOptions(tf32=precision is Precision.TF32), description))
    every = "conv, conv+bias+relu, conv+residual+bias+relu"
    *floating, whole = said
    assert whole == "int8: nchw none; nhwc conv"
    for precision, line in zip(PRECISIONS, floating, strict=True):
        apart = "; attention apart (CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR" * (precision.storage.bytes == 2)
        assert line.startswith(f"{precision}: nchw {every}; nhwc {every}{apart}")


@pytest.mark.usefixtures("graphs")
def test_the_table_of_plans_has_a_row_a_network_and_says_what_has_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3] / "benchmarks"))
    import cudnn_plans

    monkeypatch.setattr(cudnn_plans, "NETWORKS", ("ios_sample", "bert_layer"))
    monkeypatch.setattr(cudnn_plans, "DTYPES", ("bf16",))
    monkeypatch.setattr(cudnn_plans, "DEVICES", ("H200",))
    assert cudnn_plans.main() == 0
    *_, head, line, convolutions, layer, blank, told = capsys.readouterr().out.splitlines()
    assert (head, line) == ("| bf16 | convolutions, products, attentions | H200 |", "|---|---|---|")
    assert re.fullmatch(r"\| ios_sample \| \d+, 0, 0 \| \d+-\d+, \d+-\d+ \|", convolutions)
    assert re.fullmatch(r"\| bert_layer \| 3, 2, 1 \| \d+-\d+, \d+-\d+ \|", layer)
    assert (blank, told) == ("", "0 without a plan")
    heads = TensorLayout((1, 2, 4, 12), row_major((1, 2, 4, 12)))
    odd = FusedAttention(heads, heads, heads, heads, 1.0, DType.BFLOAT16)
    numbers, without = cudnn_plans.counts(CudnnGraphs(CudnnOptions(), describe("H200")), {odd})
    assert numbers == "0-0"
    assert "multiple of 8" in without[0]


def test_plans_without_tf32_are_fewer(graphs: CudnnGraphs) -> None:
    free = CudnnGraphs(CudnnOptions(tf32=True, nondeterministic=True), describe("H100"))
    for convolution in (CONVOLUTION, CONVOLUTION.plain):
        strict, all_plans = tuple(graphs.plans(convolution)), tuple(free.plans(convolution))
        assert {plan.name for plan in strict} < {plan.name for plan in all_plans}
        assert max(plan.workspace_bytes for plan in all_plans) > 0


@pytest.mark.usefixtures("graphs")
def test_plans_are_built_when_they_are_asked_for_and_once() -> None:
    """In the order of cuDNN's ranking; a plan by its name, without those before it."""
    graphs = CudnnGraphs(CudnnOptions(), describe("H100"))
    plans = graphs.plans(CONVOLUTION)
    assert graphs.built == 0
    first, second = next(plans), next(plans)
    assert graphs.built == 2
    everything = tuple(graphs.plans(CONVOLUTION))
    assert everything[:2] == (first, second)
    assert graphs.built == len(everything) > 2
    assert [graphs.named(CONVOLUTION, plan.name) for plan in everything] == list(everything)
    graphs.bind(CONVOLUTION, first.name)
    assert graphs.built == len(everything)
    again = CudnnGraphs(CudnnOptions(), describe("H100"))
    assert again.named(CONVOLUTION, everything[-1].name) == everything[-1]
    assert again.built == 1


def test_a_plan_that_the_options_exclude_is_not_found_by_its_name_either(graphs: CudnnGraphs) -> None:
    free = CudnnGraphs(CudnnOptions(tf32=True, nondeterministic=True), describe("H100"))
    before = graphs.built
    excluded = [plan.name for plan in islice(free.plans(CONVOLUTION), 5)]
    assert any(graphs.named(CONVOLUTION, name) is None for name in excluded)
    assert graphs.built - before < len(excluded)


def images_by(filters: tuple[int, ...]) -> Convolution:
    """A convolution of images with channels last in bf16, by filters of a few channels or of one each."""
    image, ones = (1, 64, 28, 28), (1, 1)
    x, w = (TensorLayout(shape, channels_last(shape)) for shape in (image, filters))
    return Convolution(x, w, x, ones, ones, ones, ones, dtype=DType.BFLOAT16, last=True)


def test_what_is_compiled_when_it_is_built_is_asked_for_of_depthwise_convolutions_alone(graphs: CudnnGraphs) -> None:
    """Without a device what was compiled cannot be loaded, and so is refused, but for that."""
    free = CudnnGraphs(CudnnOptions(runtime_compiled=True), describe("H100"))
    for library, filters, is_compiled in (
        (graphs, (64, 1, 3, 3), True), (graphs, (64, 64, 3, 3), False), (free, (64, 64, 3, 3), True)
    ):  # fmt: skip
        asked = images_by(filters)
        plans = tuple(library.plans(asked))
        assert plans
        assert ("cuLibraryLoadData" in library.refusal(asked)) == is_compiled
        names = library.planned_names(asked)
        assert len({name.partition("_")[0] for name in names}) <= DEFAULT_PLANS  # each engine is timed once
        assert (names[0] != plans[0].name) == (filters[1] == 1)  # cuDNN's first, ``conv2d_c1_k1_nhwc``


def test_the_library_tells_which_cudnn_it_is(graphs: CudnnGraphs) -> None:
    assert dict(graphs.versions)["cudnn"] == the_only().partition(" of ")[0]


def test_a_plan_is_found_by_its_name(graphs: CudnnGraphs) -> None:
    bound = [graphs.bind(CONVOLUTION, plan.name) for plan in graphs.plans(CONVOLUTION)]
    assert len({index for _, index in (each.args for each in bound)}) == len(bound) > 1
    with pytest.raises(KeyError):
        graphs.bind(CONVOLUTION, "eng99999")


def test_execution_gets_as_far_as_the_missing_device(graphs: CudnnGraphs) -> None:
    """The variant pack is taken as it is, plan after plan; what is missing is the handle alone."""
    for plan in graphs.plans(CONVOLUTION):
        bound = graphs.bind(CONVOLUTION, plan.name)
        with pytest.raises(RuntimeError, match="handle"):
            bound({"x": 256, "w": 512, "b": 768, "y": 1024}, 4096, None)
        graph, index = bound.args
        assert graph.get_plan_name_at_index(index) == plan.name
        assert graph.get_workspace_size_plan_at_index(index) == plan.workspace_bytes


def test_what_cudnn_does_not_fuse_has_no_plans(graphs: CudnnGraphs) -> None:
    """Why a ReLU without a bias is given one of zeros."""
    assert tuple(graphs.plans(replace(CONVOLUTION, bias=False))) == ()


def test_what_is_no_convolution_is_refused_in_one_line(graphs: CudnnGraphs) -> None:
    wrong = Convolution(dense(1, 7, 9, 9), dense(4, 3, 3, 3), dense(1, 4, 7, 7), (0, 0), (0, 0), (1, 1), (1, 1))
    with pytest.raises(BackendError, match="cuDNN cannot plan a convolution of 1x7x9x9 by 4x3x3x3 in fp32: "):
        next(graphs.plans(wrong))


@pytest.mark.slow
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.BF16])
@pytest.mark.parametrize("model", ["squeezenet", "inception_v3", "resnet50", "nasnet_a", "randwire"])
def test_every_convolution_of_the_zoo_has_plans(model: str, precision: Precision, graphs: CudnnGraphs) -> None:
    asked = convolutions(stored_in(load(model), precision), channels_last=precision is not Precision.FP32)
    assert asked
    for convolution in asked:
        assert next(graphs.plans(convolution), None), convolution
