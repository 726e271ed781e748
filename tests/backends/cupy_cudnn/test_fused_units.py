"""Units that the simulator prices as one kernel are one call here, whose results are NumPy's in every precision."""

from dataclasses import dataclass

import numpy as np
import pytest
from host_backend import HostBackend, programs
from host_device import HostDriver
from precisions import stored_in

from iossim.backends.cupy_cudnn.convolution import Convolution, ConvolutionCall, Product
from iossim.backends.cupy_cudnn.unit_calls import Call
from iossim.backends.cupy_cudnn.views import KernelCall
from iossim.hardware.lowering.unit import unit_steps
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.op import Op
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.gather import Gather
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.normalization import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RmsNorm
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.reshape import Reshape
from iossim.ir.ops.softmax import LogSoftmax, Softmax
from iossim.ir.ops.unary import Cast, Relu
from iossim.ir.types import Precision

Shape = tuple[int, ...]
ROWS, IMAGE, STACK = (2, 5, 48), (2, 8, 6, 7), (2, 3, 16, 8)


@dataclass(frozen=True)
class Given:
    """An operand: an input of the network, or a constant."""

    shape: Shape
    is_constant: bool = False


def weight(*shape: int) -> Given:
    return Given(shape, is_constant=True)


#: Units: an op and its operands, each an operand of the unit or the result of an earlier op, by its number.
Spelt = list[tuple[Op, list[Given | int]]]
SWISH, GELU = Unary("swish", (1.0,)), Unary("gelu")
FULL, PER_IMAGE, CHANNELS = Given(IMAGE), Given((2, 8, 1, 1)), weight(8)
OF_ROW, OF_BATCH, ROW = Given(ROWS), Given((2, 1, 48)), weight(48)
NORMS: dict[str, Spelt] = {
    "residual, layer norm": [(Add(), [OF_ROW, OF_ROW]), (LayerNorm(), [0, ROW, ROW])],
    "layer norm, modulated": [
        (LayerNorm(), [OF_ROW, ROW, ROW]),
        (Mul(), [0, OF_BATCH]),
        (Reshape((2, 1, 48)), [Given((2, 48))]),
        (Add(), [1, 2]),
    ],
    "sum of many, layer norm, gate": [
        (Add(), [OF_ROW, ROW]),
        (Add(), [0, OF_BATCH]),
        (LayerNorm(), [1, ROW]),
        (Mul(), [2, Given((2, 5, 1))]),
    ],
    "root mean square, residual": [(RmsNorm(), [OF_ROW, ROW]), (Add(), [0, OF_ROW])],
    "a scale of one number": [(RmsNorm(), [OF_ROW, weight(1)])],
    "group norm, swish": [(GroupNorm(2), [FULL, CHANNELS, CHANNELS]), (SWISH, [0])],
    "group norm, modulated by image": [
        (Add(), [FULL, PER_IMAGE]),
        (GroupNorm(4), [0, CHANNELS, CHANNELS]),
        (Mul(), [1, PER_IMAGE]),
        (Add(), [2, FULL]),
    ],
    "instance norm, sum, relu": [(InstanceNorm(), [FULL, CHANNELS, CHANNELS]), (Add(), [0, FULL]), (Relu(), [1])],
    "mask, softmax": [(Add(), [OF_ROW, Given((1, 5, 48))]), (Softmax(-1), [0])],
    "scale, log softmax": [(Mul(), [OF_ROW, weight(1)]), (LogSoftmax(1), [0])],
    "square, sum": [(Mul(), [OF_ROW, OF_ROW]), (Reduce("sum", (2,)), [0])],
    "batch norm, relu, mean": [
        (BatchNorm(), [FULL, CHANNELS, CHANNELS, CHANNELS, weight(8)]),
        (Relu(), [0]),
        (Reduce("mean", (2, 3)), [1]),
    ],
    **{
        f"{function} over places": [(Reduce(function, (2, 3)), [FULL])]
        for function in ("l1", "l2", "min", "log_sum_exp")
    },
    "sum over axes apart": [(Mul(), [FULL, PER_IMAGE]), (Reduce("sum", (0, 2)), [0])],
}
CONV = (Conv((1, 1), (1, 1, 1, 1)), [Given(IMAGE), weight(8, 8, 3, 3), CHANNELS])
DENSE = (MatMul(), [OF_ROW, weight(48, 48)])
PRODUCTS: dict[str, Spelt] = {
    "gate": [DENSE, (Mul(), [0, OF_ROW])],
    "bias, gate, residual": [DENSE, (Add(), [0, ROW]), (Mul(), [1, OF_BATCH]), (Add(), [2, OF_ROW])],
    "capped": [DENSE, (Nary("div"), [0, weight(1)]), (Unary("tanh"), [1]), (Mul(), [2, weight(1)])],
    "gemm, bias, gate": [(Gemm(), [Given((5, 48)), weight(48, 16), weight(16)]), (Mul(), [0, Given((5, 16))])],
    "convolution, sum by image": [CONV, (Add(), [0, PER_IMAGE])],
    "convolution, relu, batch norm": [CONV, (Relu(), [0]), (BatchNorm(), [1, CHANNELS, CHANNELS, CHANNELS, weight(8)])],
    "convolution, two sums, gelu": [CONV, (Add(), [0, FULL]), (Add(), [1, FULL]), (GELU, [2])],
    "stack, scale and mask": [
        (MatMul(), [Given(STACK), Given((2, 3, 8, 12))]),
        (Mul(), [0, weight(1)]),
        (Add(), [1, Given((16, 12))]),
    ],
}
#: Results that several ops of a chain read, or of another type than the product's; a kernel behind the product.
BEHIND: dict[str, Spelt] = {
    "read twice": [DENSE, (GELU, [0]), (Mul(), [0, 1])],
    "to fp32": [DENSE, (Cast("fp32"), [0]), (SWISH, [1])],
}
#: A value that several ops read is computed once, in one kernel.
CHAINS: dict[str, Spelt] = {
    "diamond": [(GELU, [OF_ROW]), (SWISH, [0]), (Mul(), [0, 1]), (Add(), [2, 0])],
    "depthwise, hard swish, sum": [
        (Conv((1, 1), (1, 1, 1, 1), (1, 1), 8), [FULL, weight(8, 1, 3, 3), CHANNELS]),
        (Unary("hard_swish"), [0]),
        (Add(), [1, FULL]),
    ],
}


def built(spelt: Spelt, precision: Precision) -> Network:
    b = GraphBuilder("fused")
    made: list[str] = []
    with b.block("only"), b.unit("unit", "Unit"):
        for op, operands in spelt:
            names = []
            for at, operand in enumerate(operands):
                if isinstance(operand, int):
                    names.append(made[operand])
                elif operand.is_constant:
                    variance = {"value": 1.5} if isinstance(op, BatchNorm) and at == 4 else {}
                    names.append(b.constant(f"w{len(made)}_{at}", operand.shape, **variance))
                else:
                    names.append(b.input(f"x{len(made)}_{at}", operand.shape))
            made.append(b.add(op, *names))
    return stored_in(b.network(made[-1:]), precision)


def kernels(call: Call) -> int:
    """The launches of a call in the way with fewest."""
    return min(map(len, call.ways.values())) if isinstance(call, ConvolutionCall) else 1


def counted(network: Network, last: bool = False) -> int:
    return sum(kernels(call) for program in programs(network, last).values() for call in program.calls)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.BF16])
@pytest.mark.parametrize("name", [*NORMS, *CHAINS])
def test_what_is_before_and_after_rows_is_in_their_kernel(name: str, precision: Precision) -> None:
    network = built({**NORMS, **CHAINS}[name], precision)
    assert len(unit_steps(network, network.units[0])) == 1
    for last in (False, True):
        assert counted(network, last) == 1
    HostBackend(precision, driver=HostDriver(seed=1)).agree(network)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.BF16])
@pytest.mark.parametrize("name", PRODUCTS)
def test_what_is_after_a_product_is_in_its_call(name: str, precision: Precision) -> None:
    """In 16 bits, where cuDNN compiles it; in fp32 it compiles nothing, and a kernel follows, but for one of ours."""
    network = built(PRODUCTS[name], precision)
    assert len(unit_steps(network, network.units[0])) == 1
    backend = HostBackend(precision, driver=HostDriver(seed=1))
    backend.agree(network)
    (call,) = programs(network, channels_last=True)["unit"].calls
    assert isinstance(call, ConvolutionCall)
    is_whole = precision is not Precision.FP32
    assert isinstance(call.convolution, Convolution | Product)
    assert bool(call.convolution.then) == is_whole
    assert counted(network, last=True) == (1 if is_whole or name.startswith("stack") else 2)
    assert {len(way) for way in call.ways.values()} == ({1, 2} if is_whole or "stack" in name else {2})


@pytest.mark.parametrize("name", BEHIND)
def test_what_no_library_computes_with_a_product_is_one_kernel_after_it(name: str) -> None:
    network = built(BEHIND[name], Precision.BF16)
    HostBackend(Precision.BF16, driver=HostDriver(seed=1)).agree(network)
    assert counted(network) == 2


def test_a_lookup_whose_entries_are_repeated_is_a_kernel_of_its_own() -> None:
    """It looks up along an axis of its own shape; what the chain makes is larger."""
    b = GraphBuilder("repeated")
    with b.block("only"), b.unit("unit", "Unit"):
        turned = b.add(Gather(-1), b.input("x", (6, 32)), b.numbers("at", np.roll(np.arange(32), 5)))
        made = b.add(Add(), turned, b.input("z", (2, 6, 32)))
    network = b.network([made])
    (first, last) = programs(network)["unit"].calls
    assert isinstance(first, KernelCall)
    assert isinstance(last, KernelCall)
    HostBackend().agree(network)


def test_accesses_of_a_modulated_norm_are_of_16_bytes() -> None:
    """Its input is read once, as its row stays in registers; what is the same for a batch lies along the row, too."""
    network = built(NORMS["layer norm, modulated"], Precision.BF16)
    (call,) = programs(network)["unit"].calls
    assert isinstance(call, KernelCall)
    assert call.name == "layer_norm"
    assert call.source.count("take<8>(v") == 5
    assert "put<Q>(from_y" in call.source
    assert "constexpr int K = 1;" in call.source
    assert "constexpr int Q = 8;" in call.source


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
@pytest.mark.parametrize(
    ("a", "b", "asked"),
    [
        ((3, 4, 6, 16), (4, 16, 24), ((4, 18, 16), (4, 16, 24))),
        ((3, 4, 6, 16), (3, 1, 16, 24), ((3, 24, 16), (3, 16, 24))),
        ((2, 3, 4, 6, 16), (1, 4, 16, 24), ((4, 36, 16), (4, 16, 24))),
        ((3, 4, 6, 16), (1, 1, 16, 24), ((12, 6, 16), (1, 16, 24))),
    ],
)
def test_a_matrix_that_several_of_a_stack_share_is_not_copied(
    a: Shape, b: Shape, asked: tuple[Shape, Shape], precision: Precision
) -> None:
    """As those of experts, in a batch: their rows are rows of one product."""
    network = built([(MatMul(), [Given(a), weight(*b)]), (Add(), [0, Given((24,))]), (Relu(), [1])], precision)
    backend = HostBackend(precision)
    backend.agree(network)
    assert {(each.x.shape, each.w.shape) for each in backend.library.asked if isinstance(each, Product)} == {asked}
