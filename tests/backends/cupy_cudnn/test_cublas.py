"""Products by cuBLAS: what it is asked for, on a stand-in that multiplies matrices as BLAS does, by columns; and errors."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from host_device import HostDriver
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from precisions import stored_in
from random_networks import sequential_schedule

from iossim.backends.cupy_cudnn import cublas
from iossim.backends.cupy_cudnn.convolution import Asked, Convolution, Product, TensorLayout
from iossim.backends.cupy_cudnn.cublas import PLAN, WORKSPACE_BYTES, CublasError, Gemm, WithCublas, gemm_of
from iossim.backends.cupy_cudnn.driver import EnginePlan
from iossim.backends.cupy_cudnn.prepared_plan import launch_program
from iossim.backends.cupy_cudnn.weights import Weights
from iossim.execution.lower import lower_schedule
from iossim.ir.op import Array
from iossim.ir.types import DType, Precision
from iossim.models.load import load


def of(memory: Array, layout: TensorLayout) -> Array:
    return as_strided(memory, layout.shape, [4 * stride for stride in layout.strides])


def by_columns(memory: Array, rows: int, columns: int, step: int) -> Array:
    """A matrix as BLAS has it: columns one after the other, ``step`` apart."""
    assert step >= rows
    return as_strided(memory, (rows, columns), (4, 4 * step))


def multiply(gemm: Gemm, b: Array, a: Array, y: Array) -> None:
    """What ``cublasGemmStridedBatchedEx`` is documented to do with these arguments."""
    for index in range(gemm.stack):
        operands = []
        for (transposed, step, apart), memory, shape in ((gemm.b, b, (gemm.m, gemm.k)), (gemm.a, a, (gemm.k, gemm.n))):
            stored = by_columns(memory[index * apart :], *(reversed(shape) if transposed else shape), step)
            operands.append(stored.T if transposed else stored)
        by_columns(y[index * gemm.y[1] :], gemm.m, gemm.n, gemm.y[0])[...] = operands[0] @ operands[1]


@st.composite
def products(draw: st.DrawFn) -> Product:
    """Stacks of matrices, each by rows or by columns, with gaps, one that is the same for all others."""
    count, rows, columns, depth = (draw(st.integers(1, 5)) for _ in range(4))

    def layout(own: int, height: int, width: int) -> TensorLayout:
        gap, far = draw(st.integers(0, 3)), draw(st.integers(0, 5))
        down, across = (width + gap, 1) if draw(st.booleans()) else (1, height + gap)
        return TensorLayout((own, height, width), (down * height + across * width + far, down, across))

    counts = draw(st.sampled_from([(count, count), (1, count), (count, 1)]))
    return Product(
        layout(counts[0], rows, depth),
        layout(counts[1], depth, columns),
        layout(max(counts), rows, columns),
        DType.FLOAT32,
    )


@given(asked=products(), seed=st.integers(0, 10**6))
def test_stacks_of_products_however_they_lie(asked: Product, seed: int) -> None:
    generator = np.random.default_rng(seed)
    x, w, y = (generator.standard_normal(400).astype(np.float32) for _ in range(3))
    gemm = gemm_of(asked)
    if gemm is None:  # what is written by columns
        assert asked.y.strides[2] != 1
        return
    expected = of(x, asked.x) @ of(w, asked.w)
    before = y.copy()
    multiply(gemm, w, x, y)
    np.testing.assert_allclose(of(y, asked.y), expected, rtol=1e-5, atol=1e-5)
    of(before, asked.y)[...] = of(y, asked.y)
    np.testing.assert_array_equal(before, y)  # nothing else is written


def layers_of_bert() -> Iterator[Asked]:
    network = stored_in(load("bert_layer"), Precision.BF16)
    plan = lower_schedule(sequential_schedule(network), network, in_place=True)
    weights = Weights(network.graph, HostDriver(), channels_last=True)
    for launch in plan.launches:
        for call in launch_program(network, plan, launch, weights).convolutions:
            yield call.convolution


def test_layers_of_a_transformer_are_products_without_what_follows() -> None:
    asked = [each for each in layers_of_bert() if isinstance(each, Convolution)]
    assert len(asked) == 6
    assert all(gemm_of(each) is None for each in asked if each.bias)
    shapes = {(gemm.m, gemm.n, gemm.k, gemm.stack) for each in asked if (gemm := gemm_of(each.plain))}
    assert shapes == {(768, 128, 768, 1), (3072, 128, 768, 1), (768, 128, 3072, 1)}
    for each in asked:
        generator, layouts = np.random.default_rng(3), (each.w, each.x, each.y)
        w, x, y = (generator.standard_normal(int(np.prod(each.shape))).astype(np.float32) for each in layouts)
        gemm = gemm_of(each.plain)
        assert gemm is not None
        multiply(gemm, w, x, y)
        matrix, rows = of(w, each.w)[..., 0, 0], of(x, each.x)[..., 0, 0]
        np.testing.assert_allclose(of(y, each.y)[..., 0, 0], rows @ matrix.T, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("spatial", [(1, 2), (3, 3)])
def test_a_convolution_of_larger_images_is_no_product(spatial: tuple[int, int]) -> None:
    image = TensorLayout((1, 8, *spatial), (8 * spatial[0] * spatial[1], 1, 8 * spatial[1], 8))
    filters = TensorLayout((8, 8, 1, 1), (8, 1, 8, 8))
    none, one = (0, 0), (1, 1)
    assert gemm_of(Convolution(image, filters, image, none, none, one, one, dtype=DType.FLOAT16, last=True)) is None


class _Cudnn:
    refusals = (KeyError,)
    versions = (("cudnn", "9.19.0"),)
    built = 3

    def handle(self, stream: object) -> str:
        return "of cuDNN"

    def plans(self, asked: Asked, sms: int = 0) -> Iterator[EnginePlan]:
        yield from () if sms else (EnginePlan("eng0", 0),)

    def named(self, asked: Asked, name: str) -> EnginePlan | None:
        return EnginePlan(name, 0) if name == "eng0" else None

    def refusal(self, asked: Asked) -> str:
        return "none"

    def bind(self, asked: Asked, plan: str) -> str:
        return plan

    def execute(self, executable: object, addresses: object, workspace: int, handle: object) -> None:
        assert (executable, handle) == ("eng0", "of cuDNN")


class _Library:
    """cuBLAS as ctypes has it: functions by their names, which say that all went well, but for the one that ``fails``."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.fails = ""

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append((name, arguments))
            return 13 if name == self.fails else 0

        return call


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> _Library:
    made = _Library()
    monkeypatch.setattr(cublas, "load_package", lambda name: made if name == "libcublas.so.13" else None)
    return made


ASKED = Product(
    TensorLayout((4, 8, 16), (128, 16, 1)), TensorLayout((1, 16, 24), (384, 24, 1)), TensorLayout((4, 8, 24), (192, 24, 1)),
    DType.BFLOAT16,
)  # fmt: skip


def test_its_plan_is_beside_those_of_cudnn_and_works_in_memory_that_it_is_given(library: _Library) -> None:
    both = WithCublas(_Cudnn(), tf32=False, cuda="13")  # type: ignore[arg-type]
    assert list(both.plans(ASKED)) == [EnginePlan(PLAN, WORKSPACE_BYTES), EnginePlan("eng0", 0)]
    assert both.named(ASKED, "eng0") == EnginePlan("eng0", 0)
    assert both.versions[-1] == ("cudnn", "9.19.0")
    handle = both.handle(SimpleNamespace(ptr=77))
    addresses = {"x": 256, "w": 512, "y": 768}
    both.execute(both.bind(ASKED, "eng0"), addresses, 0, handle)
    library.calls.clear()
    for _ in range(2):
        both.execute(both.bind(ASKED, PLAN), addresses, 4096, handle)
    names = [name for name, _ in library.calls]
    begun = ["cublasCreate_v2", "cublasSetStream_v2", "cublasSetMathMode"]
    assert names == [*begun, *["cublasSetWorkspace_v2", "cublasGemmStridedBatchedEx"] * 2]
    stream, workspace = library.calls[1][1], library.calls[3][1]
    assert stream[1].value == 77
    assert (workspace[1].value, workspace[2].value) == (4096, WORKSPACE_BYTES)
    plain = [each.value if isinstance(each, ctypes._SimpleCData) else each for each in library.calls[4][1][1:]]
    assert plain[:5] == [0, 0, 24, 8, 16]
    assert plain[6:10] == [512, 14, 24, 0]
    assert plain[10:14] == [256, 14, 16, 128]
    assert plain[15:] == [768, 14, 24, 192, 4, 68, -1]


def test_a_plan_for_fewer_sms_sets_a_target_and_the_next_plan_takes_it_back(library: _Library) -> None:
    both = WithCublas(_Cudnn(), tf32=False, cuda="13")  # type: ignore[arg-type]
    assert list(both.plans(ASKED, 66)) == [EnginePlan("cublas@66", WORKSPACE_BYTES)]
    assert both.named(ASKED, "cublas@66") == EnginePlan("cublas@66", WORKSPACE_BYTES)
    handle = both.handle(SimpleNamespace(ptr=77))
    for plan in (PLAN, "cublas@66", "cublas@66", PLAN):
        both.execute(both.bind(ASKED, plan), {"x": 256, "w": 512, "y": 768}, 4096, handle)
    called = [(name, *given[1:]) for name, given in library.calls if name.startswith(("cublasSetSm", "cublasGemm"))]
    set_to = [(name, *rest) if name == "cublasSetSmCountTarget" else name for name, *rest in called]
    product = "cublasGemmStridedBatchedEx"
    assert set_to == [
        product, ("cublasSetSmCountTarget", 66), product, product, ("cublasSetSmCountTarget", 0), product,
    ]  # fmt: skip


def test_products_of_int8_are_summed_in_int32(library: _Library) -> None:
    """Where rows, columns and steps are multiples of four; elsewhere cuDNN is alone."""
    both = WithCublas(_Cudnn(), tf32=False, cuda="13")  # type: ignore[arg-type]
    for depth, columns, is_offered in ((16, 24, True), (16, 22, False), (18, 24, False)):
        x, w, y = (
            TensorLayout((*sizes, 1, 1), (sizes[1], 1, sizes[1], sizes[1]))
            for sizes in ((9, depth), (columns, depth), (9, columns))
        )
        one, none = (1, 1), (0, 0)
        asked = Convolution(x, w, y, none, none, one, one, dtype=DType.INT8, last=True)
        assert (both.named(asked, PLAN) is not None) == is_offered
    asked = replace(asked, x=replace(x, shape=(9, 16, 1, 1), strides=(16, 1, 16, 16)))
    asked = replace(asked, w=replace(w, shape=(24, 16, 1, 1), strides=(16, 1, 16, 16)))
    both.execute(both.bind(asked, PLAN), {"x": 256, "w": 512, "y": 768}, 0, both.handle(SimpleNamespace(ptr=1)))
    plain = [each.value if isinstance(each, ctypes._SimpleCData) else each for each in library.calls[-1][1][1:]]
    assert plain[:5] == [1, 0, 24, 9, 16]
    assert plain[6:10] == [512, 3, 16, 0]
    assert plain[10:14] == [256, 3, 16, 0]
    assert plain[15:] == [768, 10, 24, 0, 1, 72, -1]
    assert [pointer._obj.value for pointer in (plain[5], plain[14])] == [1, 0]


def test_where_there_is_no_cublas_cudnn_is_alone(library: _Library) -> None:
    alone = WithCublas(_Cudnn(), tf32=False, cuda="12")  # type: ignore[arg-type]
    assert list(alone.plans(ASKED)) == [EnginePlan("eng0", 0)]
    assert alone.named(ASKED, PLAN) is None
    assert alone.versions == (("cudnn", "9.19.0"),)
    with pytest.raises(KeyError):
        alone.bind(ASKED, PLAN)
    assert not library.calls


def test_a_call_that_fails_is_a_refusal(library: _Library) -> None:
    both = WithCublas(_Cudnn(), tf32=False, cuda="13")  # type: ignore[arg-type]
    library.fails = "cublasGemmStridedBatchedEx"
    with pytest.raises(CublasError, match="cublasGemmStridedBatchedEx says CUBLAS_STATUS 13") as error:
        both.execute(both.bind(ASKED, PLAN), {"x": 0, "w": 0, "y": 0}, 0, both.handle(SimpleNamespace(ptr=1)))
    assert isinstance(error.value, both.refusals)
