"""Products by cuBLASLt: what it is asked for, on a stand-in that multiplies as BLAS does, by columns; and errors."""

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from host_backend import programs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from precisions import stored_in

from iossim.backends.cupy_cudnn import cublas
from iossim.backends.cupy_cudnn.convolution import Asked, Convolution, Product, TensorLayout
from iossim.backends.cupy_cudnn.cublas import PLANS, WORKSPACE_BYTES, CublasError, Gemm, WithCublas, gemm_of
from iossim.backends.cupy_cudnn.cudnn_graphs import EnginePlan, Executable
from iossim.backends.cupy_cudnn.cudnn_library import load_package
from iossim.ir.op import Array
from iossim.ir.ops.functions import UNARY
from iossim.ir.types import DType, Precision
from iossim.models.load import load

NUMBERS = 4096
#: By element type as cuBLAS numbers them.
NUMPY = {0: np.float32, 3: np.int8, 10: np.int32}
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "": lambda x: x, "relu": lambda x: np.maximum(x, 0), "gelu_tanh": UNARY["gelu_tanh"].compute
}  # fmt: skip


def of(memory: Array, layout: TensorLayout) -> Array:
    return as_strided(memory, layout.shape, [memory.itemsize * stride for stride in layout.strides])


class Named:
    """A library whose functions are found by a function."""

    def __init__(self, find: Callable[[str], Any]) -> None:
        self.find = find

    def __getattr__(self, name: str) -> Any:
        return self.find(name)


class Lt:
    """cuBLASLt as its manual has it: descriptions with attributes by number, and products in the host's memory."""

    def __init__(self) -> None:
        self.described: dict[int, dict[Any, Any]] = {}
        self.names: list[str] = []
        self.fails, self.kernels = "", 2
        self.cublasLtGetVersion = lambda: 131_002

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.names.append(name)
            if name == self.fails:
                return 15
            if name.endswith("SetAttribute"):
                described, attribute, value, size = arguments
                assert size.value == ctypes.sizeof(value._obj)
                self.described[described.value][attribute] = value._obj.value
            elif name.endswith("Create"):
                made, *facts = arguments
                made._obj.value = len(self.described) + 1
                facts = [fact.value if isinstance(fact, ctypes._SimpleCData) else fact for fact in facts]
                self.described[made._obj.value] = {"of": facts}
            elif name == "cublasLtMatmulAlgoGetHeuristic":
                arguments[-1]._obj.value = self.kernels
            elif name == "cublasLtMatmul":
                self.multiply(*arguments)
            return 0

        return call

    def multiply(self, handle: Any, product: Any, one: Any, *arguments: Any) -> None:
        asked = self.described[product.value]

        def matrix(pointer: Any, layout: Any, index: int) -> Array:
            described = self.described[layout.value]
            kind, rows, columns, step = described["of"]
            assert step >= rows
            dtype = np.dtype(NUMPY[kind])
            whole = (ctypes.c_char * (NUMBERS * dtype.itemsize)).from_address(pointer.value)
            memory = np.frombuffer(whole, dtype)[index * described.get(6, 0) :]
            return as_strided(memory, (rows, columns), (dtype.itemsize, dtype.itemsize * step), writeable=True)

        a, of_a, b, of_b, added, c, of_c, d, of_d, *_ = arguments
        for index in range(self.described[of_d.value].get(5, 1)):
            left, right = matrix(a, of_a, index), matrix(b, of_b, index)
            exact = np.float32 if asked["of"][1] == 0 else np.int32
            left, right = (left.T if asked[3] else left).astype(exact), (right.T if asked[4] else right).astype(exact)
            made = one._obj.value * (left @ right) + added._obj.value * matrix(c, of_c, index)
            if asked[7] & 4:
                made = made + np.frombuffer((ctypes.c_float * len(made)).from_address(asked[8]), np.float32)[:, None]
            made = ACTIVATIONS["relu"](made) if asked[7] & 2 else made
            matrix(d, of_d, index)[...] = ACTIVATIONS["gelu_tanh"](made) if asked[7] & 32 else made


class Cudnn:
    refusals = (KeyError,)
    versions = (("cudnn", "9.19.0"),)
    built = 3

    def handle(self, stream: object) -> str:
        return "of cuDNN"

    def plans(self, asked: Asked, sms: int = 0) -> Iterator[EnginePlan]:
        yield from () if sms else (EnginePlan("eng0", 0),)

    def named(self, asked: Asked, name: str) -> EnginePlan | None:
        return EnginePlan(name, 0) if name == "eng0" else None

    def bind(self, asked: Asked, plan: str) -> Executable:
        def execute(addresses: object, workspace: int, handle: object) -> None:
            assert (plan, handle) == ("eng0", "of cuDNN")

        return execute


@pytest.fixture
def lt(monkeypatch: pytest.MonkeyPatch) -> Lt:
    made = Lt()
    monkeypatch.setattr(cublas, "load_package", {"libcublasLt.so.13": made}.get)
    return made


def library(cuda: str = "13") -> WithCublas:
    return WithCublas(Cudnn(), tf32=False, cuda=cuda)  # type: ignore[arg-type]


def multiplied(asked: Asked, memory: dict[str, Array], both: WithCublas) -> None:
    """The product by the second kernel of the ranking; nothing but ``y`` is written."""
    before = memory["y"].copy()
    addresses = {name: memory[name].ctypes.data for name in asked.operands}
    both.bind(asked, PLANS[1])(addresses, 4096, both.handle(SimpleNamespace(ptr=77)))
    of(before, asked.y)[...] = of(memory["y"], asked.y)
    np.testing.assert_array_equal(before, memory["y"])


def noise(names: tuple[str, ...], seed: int = 5) -> dict[str, Array]:
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal(NUMBERS).astype(np.float32) for name in names}


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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=products(), seed=st.integers(0, 10**6))
@pytest.mark.usefixtures("lt")
def test_stacks_of_products_however_they_lie(asked: Product, seed: int) -> None:
    if gemm_of(asked) is None:  # what is written by columns
        assert asked.y.strides[2] != 1
        return
    memory = noise(asked.operands, seed)
    multiplied(asked, memory, library())
    expected = of(memory["x"], asked.x) @ of(memory["w"], asked.w)
    np.testing.assert_allclose(of(memory["y"], asked.y), expected, rtol=1e-5, atol=1e-5)


def pointwise(shape: tuple[int, ...], filters: int, gap: int = 0, **more: Any) -> Convolution:
    """Of images with channels last, a gap behind those of each pixel of what is written."""
    count, channels, height, width = shape

    def image(own: int, step: int) -> TensorLayout:
        return TensorLayout((count, own, height, width), (height * width * step, 1, width * step, step))

    x, y, w = image(channels, channels), image(filters, filters + gap), (filters, channels, 1, 1)
    z = image(filters, filters) if more.pop("residual", False) else None
    no, one, by = (0, 0), (1, 1), TensorLayout(w, (channels, 1, channels, channels))
    return Convolution(x, by, y, no, no, one, one, z=z, last=True, **more)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("bias", "residual", "gap"), [(False, False, 1), (True, False, 3), (True, True, 0), (False, True, 5)]
)
@pytest.mark.parametrize("shape", [(2, 6, 3, 5), (7, 4, 1, 1)])
def test_a_pointwise_convolution_is_a_product_with_what_follows(
    shape: tuple[int, ...], bias: bool, residual: bool, gap: int, activation: str, lt: Lt
) -> None:
    asked = pointwise(shape, 9, gap, bias=bias, activation=activation, residual=residual)
    memory, both = noise(asked.operands), library()
    for _ in range(2):
        multiplied(asked, memory, both)
    expected = np.einsum("nchw,fc->nfhw", of(memory["x"], asked.x), of(memory["w"], asked.w)[..., 0, 0])
    expected = expected + (of(memory["z"], asked.z) if asked.z else 0)
    expected = ACTIVATIONS[activation](expected + (memory["b"][:9].reshape(9, 1, 1) if bias else 0))
    np.testing.assert_allclose(of(memory["y"], asked.y), expected, rtol=1e-4, atol=1e-4)
    assert [lt.names.count(f"cublasLt{name}") for name in ("Create", "MatmulAlgoGetHeuristic", "Matmul")] == [1, 1, 2]


def test_what_reads_neighbours_or_skips_pixels_is_no_product() -> None:
    asked = pointwise((1, 8, 3, 3), 8)
    assert gemm_of(asked) == Gemm(8, 9, 8, (1, 8, 0), (0, 8, 0), (8, 0), 1)
    wide = TensorLayout((8, 8, 3, 3), (72, 1, 24, 8))
    padded = replace(asked, w=wide, pad_before=(1, 1), pad_after=(1, 1))
    strided = replace(asked, y=pointwise((1, 8, 2, 2), 8).y, strides=(2, 2))
    rows_apart = replace(asked, y=TensorLayout((1, 8, 3, 3), (120, 1, 40, 8)))
    other = [replace(asked, bias=True, activation=name) for name in ("gelu", "swish")]  # which cuBLASLt does not have
    assert [gemm_of(each) for each in (padded, strided, rows_apart, *other)] == [None] * 5


def layers_of_bert() -> Iterator[Asked]:
    for program in programs(stored_in(load("bert_layer"), Precision.BF16), channels_last=True).values():
        for call in program.convolutions:
            yield call.convolution


def test_layers_of_a_transformer_are_products() -> None:
    """But for what is behind one: its GELU is that of the error function, which cuBLASLt does not have."""
    asked = [each for each in layers_of_bert() if isinstance(each, Convolution)]
    assert [each.activation for each in asked].count("gelu") == 1
    found = [gemm_of(each) for each in asked]
    assert [gemm is None for gemm in found] == [each.activation == "gelu" for each in asked]
    shapes = {(gemm.m, gemm.n, gemm.k, gemm.stack) for each in asked if (gemm := gemm_of(each.plain))}
    assert shapes == {(768, 128, 768, 1), (3072, 128, 768, 1), (768, 128, 3072, 1)}


ASKED = Product(
    TensorLayout((4, 8, 16), (128, 16, 1)), TensorLayout((1, 16, 24), (384, 24, 1)), TensorLayout((4, 8, 24), (192, 24, 1)),
    DType.FLOAT32,
)  # fmt: skip


def test_its_plans_are_beside_those_of_cudnn_and_work_in_memory_that_they_are_given(lt: Lt) -> None:
    both = library()
    assert list(both.plans(ASKED)) == [*(EnginePlan(plan, WORKSPACE_BYTES) for plan in PLANS), EnginePlan("eng0", 0)]
    assert both.named(ASKED, "eng0") == EnginePlan("eng0", 0)
    assert both.versions == (("cublas", "13.10.2"), ("cudnn", "9.19.0"))
    handle, memory = both.handle(SimpleNamespace(ptr=77)), noise(ASKED.operands)
    addresses = {name: array.ctypes.data for name, array in memory.items()}
    both.bind(ASKED, "eng0")(addresses, 0, handle)
    assert not lt.names
    issued: list[tuple[Any, ...]] = []
    lt.multiply = lambda *arguments: issued.append(arguments)  # type: ignore[method-assign]
    both.bind(ASKED, PLANS[0])(addresses, 4096, handle)
    assert [each.value for each in issued[0][-3:]] == [4096, WORKSPACE_BYTES, 77]
    wanted = [each for each in lt.described.values() if 1 in each]
    assert wanted == [{"of": [], 1: WORKSPACE_BYTES, 3: 3, 5: 16, 6: 16, 7: 16, 8: 16}]


def test_a_plan_for_fewer_sms_is_ranked_for_them_apart_from_that_for_all(lt: Lt) -> None:
    both = library()
    assert [plan.name for plan in both.plans(ASKED, 66)] == [f"{plan}@66" for plan in PLANS]
    assert both.named(ASKED, "cublas1@66") == EnginePlan("cublas1@66", WORKSPACE_BYTES)
    addresses = dict.fromkeys(ASKED.operands, 256)
    targets: list[int | None] = []
    lt.multiply = lambda _, product, *rest: targets.append(lt.described[product.value].get(15))  # type: ignore[method-assign]
    for plan in ("cublas", "cublas@66", "cublas1@66", "cublas1"):
        both.bind(ASKED, plan)(addresses, 4096, both.handle(SimpleNamespace(ptr=77)))
    assert targets == [None, 66, 66, None]
    assert lt.names.count("cublasLtMatmulAlgoGetHeuristic") == 2


def test_products_of_int8_are_summed_in_int32(lt: Lt) -> None:
    """Where rows, columns and steps are multiples of four; elsewhere cuDNN is alone."""
    both = library()
    for depth, columns, is_offered in ((16, 22, False), (18, 24, False), (16, 24, True)):
        asked = pointwise((9, depth, 1, 1), columns, dtype=DType.INT8)
        assert (both.named(asked, PLANS[0]) is not None) == is_offered
    generator = np.random.default_rng(3)
    memory = {name: generator.integers(-128, 128, NUMBERS).astype(np.int8) for name in "xw"}
    multiplied(asked, memory | {"y": (made := np.zeros(NUMBERS, np.int32))}, both)
    rows, filters = (
        of(memory[name], layout)[..., 0, 0].astype(np.int64) for name, layout in (("x", asked.x), ("w", asked.w))
    )
    np.testing.assert_array_equal(of(made, asked.y)[..., 0, 0], rows @ filters.T)
    assert [72, 10] in [each["of"] for each in lt.described.values()]


def test_where_there_is_no_cublas_cudnn_is_alone(lt: Lt) -> None:
    alone = library(cuda="12")
    assert list(alone.plans(ASKED)) == [EnginePlan("eng0", 0)]
    assert alone.named(ASKED, PLANS[0]) is None
    assert alone.versions == (("cudnn", "9.19.0"),)
    with pytest.raises(KeyError):
        alone.bind(ASKED, PLANS[0])
    assert not lt.names


def test_a_call_that_fails_is_a_refusal_and_so_is_a_ranking_that_is_short(lt: Lt) -> None:
    both = library()
    addresses, handle = dict.fromkeys("xwy", 256), both.handle(SimpleNamespace(ptr=1))
    with pytest.raises(CublasError, match="cuBLASLt has 2 kernels for this product") as error:
        both.bind(ASKED, PLANS[2])(addresses, 0, handle)
    assert isinstance(error.value, both.refusals)
    lt.fails = "cublasLtMatmul"
    with pytest.raises(CublasError, match="cublasLtMatmul says CUBLAS_STATUS 15"):
        both.bind(ASKED, PLANS[0])(addresses, 0, handle)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (pointwise((2, 8, 3, 5), 16, bias=True, activation="gelu_tanh", residual=True, dtype=DType.BFLOAT16), 10),
        (pointwise((2, 8, 3, 5), 16, dtype=DType.INT8), 9),
        (ASKED, 17),
    ],
    ids=["epilogue", "int8", "stack"],
)
def test_cublaslt_itself_knows_what_it_is_told(
    asked: Asked, told: int, lt: Lt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Descriptions need no GPU: a number or a size that the library does not know is an error of it."""
    found = [load_package(f"libcublasLt.so.{version}") for version in (13, 12)]
    real = next((each for each in found if each is not None), None)
    if real is None:
        pytest.skip("cuBLAS is not installed; pip install 'iossim[gpu]'")
    asks_device = {f"cublasLt{name}" for name in ("Create", "MatmulAlgoGetHeuristic", "Matmul")}
    set_attributes: list[str] = []

    def find(name: str) -> Any:
        set_attributes.extend([name] * name.endswith("SetAttribute"))
        return getattr(lt if name in asks_device else real, name)

    monkeypatch.setattr(lt, "multiply", lambda *_: None)
    monkeypatch.setattr(cublas, "load_package", lambda _: Named(find))
    both = library()
    both.bind(asked, PLANS[0])(dict.fromkeys(asked.operands, 256), 4096, both.handle(SimpleNamespace(ptr=77)))
    assert len(set_attributes) == told
