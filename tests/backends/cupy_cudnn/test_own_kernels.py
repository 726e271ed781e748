"""Kernels of ours: CUDA's compiler takes every one, and they compute what NumPy does wherever their operands lie, 16 bytes at once."""

import ctypes
import importlib.util
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from host_backend import HostBackend, programs
from host_kernels import host_kernel
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from precisions import stored_in
from quantised_networks import QUANTISED, dequantised, of_fp8
from small_networks import OPS, UNITS, of_op

from iossim.backends.cupy_cudnn import kernel_text
from iossim.backends.cupy_cudnn.candidate_timing import randomise
from iossim.backends.cupy_cudnn.clock import FLUSH, SENTINEL, SPIN
from iossim.backends.cupy_cudnn.element_kernels import COPY, Computed, as_it_is, chain, copy, looked_up
from iossim.backends.cupy_cudnn.image_kernels import pool
from iossim.backends.cupy_cudnn.product_kernels import product
from iossim.backends.cupy_cudnn.reduction_kernels import norm, reduction, softmax
from iossim.backends.cupy_cudnn.views import KernelCall, Memory, View, dense
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.execution.backend import BackendError
from iossim.hardware.lowering.unit import unit_steps
from iossim.ir.builder import GraphBuilder
from iossim.ir.op import Array, Op
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.gather import Gather
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.pool import AveragePool, GlobalMaxPool, MaxPool
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.softmax import LogSoftmax, Softmax
from iossim.ir.ops.unary import Clip, Relu
from iossim.ir.types import DType, Precision


def kernels(precision: Precision) -> list[str]:
    """The text of each kernel that small networks of all ops need, and of those of our own."""
    view = dense(Memory("storage"), (4,), dtype=precision.storage)
    sources = {randomise(view, 0).source, SENTINEL, SPIN, FLUSH}
    built = [stored_in(build(), precision) for build in (*OPS.values(), *UNITS.values())]
    stored = [dequantised(DType(name), (2,), (64, 9), 32, True, precision) for name in ("int4", "uint8")]
    for network in [*built, *stored, of_fp8(precision), *(build() for build in QUANTISED.values())]:
        for program in programs(network, channels_last=precision is not Precision.FP32).values():
            for call in program.calls:
                sources |= {one.source for one in ([call] if isinstance(call, KernelCall) else call.kernels)}
    assert len(sources) > 20
    return sorted(sources)


@pytest.fixture(scope="module")
def nvrtc() -> ctypes.CDLL:
    """CUDA's run-time compiler, of its wheel or of the system; it needs neither a GPU nor a driver."""
    found = importlib.util.find_spec("nvidia")
    folders = [] if found is None else [Path(place) for place in found.submodule_search_locations or ()]
    files = [str(file) for folder in folders for file in sorted(folder.glob("*/lib/libnvrtc.so.1?"))]
    for name in (*files, "libnvrtc.so.13", "libnvrtc.so.12"):
        with suppress(OSError):
            return ctypes.CDLL(name)
    pytest.skip("NVRTC is not installed; pip install nvidia-cuda-nvrtc")


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.BF16])
def test_every_kernel_compiles_at_run_time(precision: Precision, nvrtc: ctypes.CDLL) -> None:
    """By NVRTC, as CuPy does it: for Ampere, Hopper and Blackwell, without any header."""
    whole = together(kernels(precision))
    for architecture in ("compute_80", "compute_90", "compute_100"):
        compiled(nvrtc, whole, architecture)


def compiled(nvrtc: ctypes.CDLL, source: str, architecture: str, *more: str) -> tuple[str, str]:
    """PTX (of a virtual architecture) and the compiler's log."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None) == 0
    given = [option.encode() for option in (f"--gpu-architecture={architecture}", "-std=c++17", *more)]
    failed = nvrtc.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given))
    texts = []
    for what in ("PTX", "ProgramLog"):
        getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(max(1, size.value))
        getattr(nvrtc, f"nvrtcGet{what}")(program, text)
        texts.append(text.value.decode())
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    assert not failed, texts[1][:2000]
    return texts[0], texts[1]


def together(sources: list[str]) -> str:
    """One file: names that several kernels have are told apart by namespaces, as C++ names."""
    parts = [source.replace('extern "C" ', "") for source in sources]
    return "\n".join(f"namespace kernel{index} {{\n{part}}}" for index, part in enumerate(parts))


TYPES = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


class Room:
    """Memories by name, each of 64 Ki elements at a multiple of 256 bytes, and views as NumPy's."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.bytes: dict[Memory, Array] = {}

    def _memory(self, view: View) -> Array:
        if view.memory not in self.bytes:
            whole = np.zeros((1 << 18) + 256, np.uint8)
            begin = -whole.ctypes.data % 256
            self.bytes[view.memory] = whole[begin : begin + (1 << 18)]
            noise = self.random.integers(-8, 9, (1 << 18) // view.dtype.bytes)
            self.bytes[view.memory].view(view.dtype.numpy)[:] = noise.astype(view.dtype.numpy)
        return self.bytes[view.memory]

    def array(self, view: View) -> Array:
        flat = self._memory(view).view(view.dtype.numpy)[view.offset :]
        return as_strided(flat, view.shape, [view.dtype.bytes * stride for stride in view.strides])

    def run(self, call: KernelCall) -> None:
        arguments = call.bound(lambda view: self._memory(view).ctypes.data + view.offset_bytes)
        host_kernel(call.source, call.name)(call.blocks, call.threads, arguments)

    def made(self, call: KernelCall, y: View) -> Array:
        """What a call writes to ``y``; it writes nothing else."""
        unsigned = f"u{y.dtype.bytes}"
        before = self._memory(y).view(unsigned).copy()
        self.run(call)
        others = np.ones(len(before), bool)
        as_strided(others[y.offset :], y.shape, y.strides)[...] = False
        np.testing.assert_array_equal(self._memory(y).view(unsigned)[others], before[others])
        return self.array(y).astype(np.float32)


def lying(draw: st.DrawFn, name: str, shape: tuple[int, ...], dtype: DType) -> View:
    """A view of a shape: with channels innermost or not, as a part of a wider tensor, aligned or not."""
    last = len(shape) > 2 and draw(st.booleans())
    axis = draw(st.integers(0, len(shape) - 1))
    begin, behind = draw(st.sampled_from([(0, 0), (8, 8), (2, 4), (1, 0)]))
    wide = tuple(size + (begin + behind) * (index == axis) for index, size in enumerate(shape))
    return dense(Memory("storage", name), wide, 0, dtype, last).part(axis, begin, shape[axis])


@settings(max_examples=12)
@given(st.data())
def test_chains_of_any_layouts_types_and_broadcasts(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(2, 16, 3, 5), (1, 24, 4, 4), (3, 10, 2, 2), (5, 64), (77,), (2, 3, 40)]))
    narrow = tuple(size if data.draw(st.booleans()) else 1 for size in shape)
    x, z, y = (
        lying(data.draw, name, own, data.draw(st.sampled_from(TYPES)))
        for name, own in (("x", shape), ("z", narrow), ("y", shape))
    )
    room = Room()
    wanted = room.array(x).astype(np.float32) * 2 + room.array(z).astype(np.float32)
    np.testing.assert_array_equal(room.made(chain("a0 * 2.0f + a1", [x, z], y), y), wanted)


def test_long_chains_give_each_thread_several_accesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a last access that is cut short, and the output in place of an operand."""
    monkeypatch.setattr(kernel_text, "ENOUGH_THREADS", 4)
    monkeypatch.setattr("iossim.backends.cupy_cudnn.element_kernels.ENOUGH_THREADS", 4)
    x = dense(Memory("storage", "x"), (2003,), dtype=DType.BFLOAT16)
    room = Room()
    wanted = np.abs(room.array(x).astype(np.float32))
    call = chain("fabsf(a0)", [x], x)
    assert "EACH = 4" in call.source
    np.testing.assert_array_equal(room.made(call, x), wanted)


@settings(max_examples=6)
@given(st.data())
def test_entries_are_looked_up_along_any_axis(data: st.DataObject) -> None:
    shape, axis = data.draw(st.sampled_from([((4, 6, 16), 1), ((4, 6, 16), 2), ((9, 16), 0), ((2, 1, 8), 1)]))
    picked = data.draw(st.lists(st.integers(0, shape[axis] - 1), min_size=1, max_size=5))
    x = lying(data.draw, "x", shape, DType.FLOAT16)
    y = lying(data.draw, "y", (*shape[:axis], len(picked), *shape[axis + 1 :]), DType.FLOAT16)
    indices = dense(Memory("weight", "indices"), (len(picked),), dtype=DType.INT32)
    room = Room()
    room.array(indices)[:] = picked
    first, lookup = looked_up(x, indices, axis)
    np.testing.assert_array_equal(room.made(chain(COPY, [first], y, lookup), y), np.take(room.array(x), picked, axis))


@settings(max_examples=8)
@given(st.data())
def test_windows_of_any_layouts_and_types(data: st.DataObject) -> None:
    """A thread makes several outputs below each other, of which the last may not be there."""
    kernel, strides = data.draw(
        st.sampled_from([((3, 3), (1, 1)), ((3, 3), (2, 2)), ((5, 1), (2, 1)), ((2, 2), (2, 2))])
    )
    op = data.draw(st.sampled_from([MaxPool, AveragePool]))(kernel, strides, (1, 0, 1, 0))
    shape = (2, data.draw(st.sampled_from([16, 12, 3])), 9, 7)
    dtype = data.draw(st.sampled_from(TYPES))
    x = lying(data.draw, "x", shape, dtype)
    room = Room()
    wanted = op.evaluate([room.array(x).astype(np.float32)])[0]
    y = lying(data.draw, "y", wanted.shape, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("iossim.backends.cupy_cudnn.image_kernels.ENOUGH_THREADS", data.draw(st.sampled_from([1, 2**16])))
        call = pool(op, x, y)
    np.testing.assert_allclose(room.made(call, y), wanted, rtol=2.0**-8)


ROWS: dict[str, tuple[tuple[int, ...], Callable[[View, View], KernelCall], Callable[[Array], Array]]] = {
    "softmax of warps": ((5, 96), lambda x, y: softmax(as_it_is(x), y, [1]), lambda x: _softmax(x, 1)),
    "softmax of a block": ((2, 1029), lambda x, y: softmax(as_it_is(x), y, [1]), lambda x: _softmax(x, 1)),
    "softmax with gaps": ((2, 40, 3), lambda x, y: softmax(as_it_is(x), y, [1]), lambda x: _softmax(x, 1)),
    "global mean": ((1, 24, 5, 5), lambda x, y: reduction("mean", as_it_is(x), y, [2, 3]), lambda x: x.mean((2, 3))),
    "global maximum": ((1, 24, 5, 5), lambda x, y: reduction("max", as_it_is(x), y, [2, 3]), lambda x: x.max((2, 3))),
    "sum of rows": ((3, 600), lambda x, y: reduction("sum", as_it_is(x), y, [1]), lambda x: x.sum(1)),
    "sum of columns": ((35, 72), lambda x, y: reduction("sum", as_it_is(x), y, [0]), lambda x: x.sum(0)),
}


def _softmax(x: Array, axis: int) -> Array:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis, keepdims=True))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_rows_are_folded_and_normalised(name: str, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warps of a block have a row each, or none."""
    monkeypatch.setattr("iossim.backends.cupy_cudnn.reduction_kernels.ENOUGH_BLOCKS", 1)
    shape, call, wanted = ROWS[name]
    dtype = DType.BFLOAT16 if last else DType.FLOAT32
    room, x = Room(), dense(Memory("storage", "x"), shape, 0, dtype, last and len(shape) > 3)
    expected = wanted(room.array(x).astype(np.float32))
    if expected.shape == shape:
        y = replace(x, memory=Memory("storage", "y"))
    else:
        kept = (
            shape[:2] + (1,) * (len(shape) - 2)
            if len(shape) > 2
            else tuple(size if size == expected.size else 1 for size in shape)
        )
        y = dense(Memory("storage", "y"), kept)
    made = room.made(call(x, y), y)
    np.testing.assert_allclose(made.reshape(expected.shape), expected, rtol=2.0**-7 if last else 1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [48, 1100])
def test_norms_scale_each_element(size: int) -> None:
    x, y = (dense(Memory("storage", name), (3, size)) for name in "xy")
    scale, shift = (dense(Memory("weight", name), (size,), offset) for name, offset in (("scale", 0), ("shift", 2)))
    room = Room()
    values, factor, term = (room.array(view) for view in (x, scale, shift))
    centred = values - values.mean(1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-3) * factor + term
    made = room.made(norm(as_it_is(x), y, Computed("a0 * a1 + a2", (scale, shift)), [1], 1e-3), y)
    np.testing.assert_allclose(made, wanted, rtol=1e-3, atol=1e-4)
    wanted = values / np.sqrt((values**2).mean(1, keepdims=True) + 1e-3) * factor
    np.testing.assert_allclose(
        room.made(norm(as_it_is(x), y, Computed("a0 * a1", (scale,)), [1], 1e-3, is_centred=False), y),
        wanted,
        rtol=1e-4,
    )


SIGMOIDS = [Unary("hard_swish"), Unary("hard_sigmoid", (0.2, 0.5)), Unary("celu", (1.0,)), Relu(), Clip(0.0, 6.0)]
FOLDS: list[Op] = [MaxPool((2, 2), (2, 2), (0,) * 4), GlobalMaxPool(), Softmax(3), LogSoftmax(3)]
REDUCED = [Reduce(name, (3,), True) for name in ("max", "min", "sum", "log_sum_exp")]


@pytest.mark.parametrize("op", [*SIGMOIDS, *FOLDS, *REDUCED, Nary("max"), Nary("min")], ids=repr)
def test_what_is_no_number_stays_so_and_infinities_are_those_of_numpy(op: Op) -> None:
    network = of_op(op, *[(1, 2, 4, 4)] * (2 if isinstance(op, Nary) else 1))
    x = np.linspace(-2, 9, 32, dtype=np.float32).reshape(1, 2, 4, 4)
    x[0, 0, 0, 0], x[0, 0, 1], x[0, 1, 2, 3] = np.nan, -np.inf, np.inf
    backend = HostBackend()
    inputs = dict(zip(network.graph.inputs, (x, x[:, ::-1].copy()), strict=False))
    with np.errstate(all="ignore"):
        expected = evaluate_graph(network.graph, inputs)
    for name, array in backend.execute(network, backend.lowered(network), inputs).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5)


def test_operands_that_are_repeated_count_as_often_as_they_lie_in_memory() -> None:
    b, wide = (dense(Memory("storage"), shape) for shape in ((8192, 8192), (2, 2**30 + 1)))
    rows = dense(Memory("storage"), (64, 1, 8192))
    assert product(rows, b, rows).blocks == 64 * 8192 // 256
    with pytest.raises(BackendError, match="of 2147483650 elements is larger than the 2147483647 that kernels count"):
        copy(wide, wide)
    assert dense(Memory("storage"), (3, 5)).part(1, 4, 5, -1).extent == 3 * 5


def test_places_are_divided_without_a_division() -> None:
    """By every divisor, at the ends of what dividends may be: the factors are Granlund's and Montgomery's."""
    x = dense(Memory("storage"), (1, 1))
    for size in (1, 2, 3, 5, 7, 255, 256, 257, 35 * 35, 2**16 - 1, 2**30 + 1, 2**31 - 1):
        arguments = kernel_text.kernel("k", "", {"x": x}, {}, {"a": 1, "b": size}).arguments
        divisor, factor, shift = (int(argument.item()) for argument in arguments[1:4] if not isinstance(argument, View))
        for number in {0, 1, size - 1, size, 2 * size - 1, 2**31 - 1, 2**31 // size * size - 1}:
            if 0 <= number < 2**31:
                high = (number * factor >> 32) + number
                assert high < 2**32
                assert (divisor, high >> shift) == (size, number // size)


def image(*shape: int, name: str = "x", dtype: DType = DType.BFLOAT16) -> View:
    return dense(Memory("storage", name), shape, 0, dtype, last=len(shape) > 3)


LARGE, SMALL = image(32, 288, 35, 35), image(1, 64, 35, 35)
#: Calls whose operands are aligned, and how many accesses of 16 bytes their text reads and writes with.
ALIGNED: dict[str, tuple[KernelCall, int, int]] = {
    "copy": (copy(LARGE, replace(LARGE, memory=Memory("other"))), 4, 4),
    "slice": (copy(SMALL, image(1, 288, 35, 35).part(1, 32, 64)), 1, 1),
    "sum with a bias": (chain("fmaxf(a0 + a1, 0.0f)", [LARGE, image(1, 288, 1, 1)], LARGE), 4, 2),
    "average pool": (pool(AveragePool((3, 3), (1, 1), (1, 1, 1, 1)), LARGE, LARGE), 18, 4),
    "small average pool": (pool(AveragePool((3, 3), (1, 1), (1, 1, 1, 1)), SMALL, SMALL), 9, 1),
    "max pool": (pool(MaxPool((3, 3), (2, 2), (0, 0, 0, 0)), image(32, 64, 147, 147), image(32, 64, 73, 73)), 27, 4),
    "softmax": (softmax(as_it_is(image(384, 768)), image(384, 768), [1]), 3, 3),
    "layer norm": (
        norm(
            as_it_is(image(384, 768)),
            image(384, 768),
            Computed("a0 * a1 + a2", (image(768), image(768, name="z"))),
            [1],
            1e-5,
        ),
        9,
        3,
    ),
}


@pytest.mark.parametrize(
    "version", [pytest.param("80", marks=pytest.mark.slow), "90", pytest.param("100", marks=pytest.mark.slow)]
)
def test_aligned_accesses_are_of_16_bytes_and_nothing_is_in_local_memory(version: str, nvrtc: ctypes.CDLL) -> None:
    """In PTX, in which each access of a text stands once; and, by the assembler's own account, in the device's code."""
    for name, (call, reads, writes) in ALIGNED.items():
        ptx = compiled(nvrtc, call.source, f"compute_{version}")[0]
        accesses = re.findall(r"\b(?:ld|st)\.(?:global|local)[.\w]*", ptx)
        accesses = [each.replace(".b32", ".u32") for each in accesses]  # the compilers' choice, of the same bits
        assert sorted(accesses) == ["ld.global.v4.u32"] * reads + ["st.global.v4.u32"] * writes, name
        if version == "90":
            continue
        log = compiled(nvrtc, call.source, f"sm_{version}", "--ptxas-options=-v")[1]
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log, (name, log)


def test_the_table_of_accesses_counts_what_texts_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3] / "benchmarks"))
    from own_kernels import Moved, moved

    elements = LARGE.elements
    assert moved(ALIGNED["copy"][0]) == Moved(4 * elements, elements // 4, 2 * elements)
    small, rows = SMALL.elements, 384 * 768
    assert moved(ALIGNED["small average pool"][0]) == Moved(4 * small, 10 * small // 8, 10 * small)
    assert moved(ALIGNED["softmax"][0]) == Moved(4 * rows, 2 * rows // 8, 4 * rows)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_rotary_positions_are_one_kernel(precision: Precision) -> None:
    """One lookup is part of the chain that reads it; of two, each is a kernel of its own."""
    for count, kernels in (1, 1), (2, 3):
        b = GraphBuilder("rotary", precision)
        x = b.input("x", (2, 6, 32))
        with b.block("only"), b.unit("rotary", "Rotary"):
            turned = [b.add(Gather(-1), x, b.numbers(f"at {n}", np.roll(np.arange(32), 16 + n))) for n in range(count)]
            y = b.add(Add(), b.add(Mul(), x, b.constant("cosine", (6, 32))), *turned)
        network = b.network([y])
        backend = HostBackend(precision)
        backend.agree(network)
        assert len(unit_steps(network, network.units[0])) == kernels
        assert (
            Counter(call.verb for call in backend.driver.calls)["launch"] == 2 * kernels
        )  # captured after a first run
