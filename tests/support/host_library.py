"""What stands for cuDNN and cuBLAS on the device of the host: convolutions, products and attentions by NumPy."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
from host_device import HostDriver, HostStream
from numpy.lib.stride_tricks import as_strided

from iossim.backends.cupy_cudnn.convolution import Asked, BackwardData, FusedAttention, Product, TensorLayout
from iossim.backends.cupy_cudnn.cudnn_graphs import EnginePlan, Executable, engines_first, target_of
from iossim.ir.op import Array
from iossim.ir.ops.attention import Attention
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvBackwardData
from iossim.ir.ops.functions import UNARY
from iossim.ir.ops.unary import logistic
from iossim.ir.types import DType

_OF_TWO = {"add": np.add, "mul": np.multiply, "sub": np.subtract, "div": np.divide}


class RefusalError(Exception):
    """How the host's library refuses a plan that it offers."""


class HostLibrary:
    """Convolutions by NumPy; ``plans_of`` says which plans there are, and how long each takes in virtual microseconds.

    Plan ``refused`` cannot be run, ``uncaptured`` not be captured, and ``breaks`` breaks the device. The host takes
    ``planning_us`` to rank the plans of a convolution.
    """

    refusals: tuple[type[Exception], ...] = (RefusalError, RuntimeError)
    versions: tuple[tuple[str, str], ...] = ()

    def __init__(
        self, driver: HostDriver, plans_of: Callable[[Asked], Mapping[EnginePlan, float]] | None = None
    ) -> None:
        self._driver = driver
        self._plans_of = plans_of or default_plans
        self.planning_us = 0.0
        self._built: set[tuple[Asked, str]] = set()
        self.asked: list[Asked] = []
        #: By the name of a plan the blocks of its kernel, and the part of an SM that each holds.
        self.held: dict[str, tuple[int, float]] = {}
        self.workspaces: list[tuple[int, int, int]] = []  #: stream, address and size of those that were used

    @property
    def built(self) -> int:
        return len(self._built)

    def handle(self, stream: HostStream) -> HostStream:
        return stream

    def plans(self, convolution: Asked, sms: int = 0) -> Iterator[EnginePlan]:
        self.asked.append(convolution)
        self._driver.now_us += self.planning_us
        known = {plan.name: plan for plan in self._plans_of(convolution) if target_of(plan.name) == sms}
        for plan in map(known.__getitem__, engines_first(known)):
            self._built.add((convolution, plan.name))
            yield plan

    def named(self, convolution: Asked, name: str) -> EnginePlan | None:
        found = next((plan for plan in self._plans_of(convolution) if plan.name == name), None)
        if found is not None:
            self._built.add((convolution, name))
        return found

    def refusal(self, convolution: Asked) -> str:
        return "" if self._plans_of(convolution) else "CUDNN_STATUS_NOT_SUPPORTED"

    def bind(self, convolution: Asked, plan: str) -> Executable:
        for found, duration_us in self._plans_of(convolution).items():
            if found.name == plan:
                return partial(self._execute, convolution, found, duration_us)
        raise KeyError(plan)

    def _execute(
        self,
        convolution: Asked,
        plan: EnginePlan,
        duration_us: float,
        addresses: Mapping[str, int],
        workspace: int,
        handle: HostStream,
    ) -> None:
        if plan.name == "refused" or (plan.name == "uncaptured" and handle.capture is not None):
            raise RefusalError(f"CUDNN_STATUS_NOT_SUPPORTED: {plan.name}")
        assert set(addresses) == set(convolution.operands)
        assert all(address % 16 == 0 for address in addresses.values()), "cuDNN's pointers are aligned"
        self._driver.say("convolution", handle, plan.name)
        if plan.workspace_bytes:
            self.workspaces.append((handle.ptr, workspace, plan.workspace_bytes))
        held = self.held.get(plan.name, (0, 0.0))
        self._driver.enqueue(handle, lambda: self._run(convolution, plan, addresses, workspace), duration_us, held)

    def _run(self, convolution: Asked, plan: EnginePlan, addresses: Mapping[str, int], workspace: int) -> None:
        if plan.name == "breaks":
            self._driver.fail("cudaErrorIllegalAddress: an illegal memory access was encountered")
            return
        if plan.workspace_bytes:
            self._driver.bytes(workspace, plan.workspace_bytes)[:] = 0xFF
        dtype = convolution.dtype

        def tensors(*names: str) -> list[Array]:
            return [self._tensor(addresses[name], getattr(convolution, name), dtype) for name in names]

        if isinstance(convolution, FusedAttention):
            mask = [] if convolution.mask is None else [self._tensor(addresses["m"], convolution.mask, dtype)]
            op = Attention(scale=convolution.scale, is_causal=convolution.is_causal)
            made = op.compute(*(each.astype(np.float32) for each in (*tensors("q", "k", "v"), *mask)))
            tensors("y")[0][...] = made
            return
        if isinstance(convolution, Product):
            a, b, y = tensors("x", "w", "y")
            y[...] = self._followed(np.matmul(a.astype(np.float32), b.astype(np.float32)), convolution, addresses)
            return
        (x, w), pads = tensors("x", "w"), (*convolution.pad_before, *convolution.pad_after)
        if isinstance(convolution, BackwardData):
            groups, size = convolution.y.shape[1] // w.shape[1], convolution.y.shape[2:]
            backward = ConvBackwardData(convolution.strides, pads, convolution.dilations, groups, size)
            tensors("y")[0][...] = backward.evaluate((x.astype(np.float32), w.astype(np.float32)))[0]
            return
        is_whole = dtype is DType.INT8
        y = self._tensor(addresses["y"], convolution.y, DType.INT32 if is_whole else dtype)
        groups = x.shape[1] // w.shape[1]
        op = Conv(convolution.strides, pads, convolution.dilations, groups)
        if is_whole:
            assert convolution.operands == ("x", "w", "y")
            y[...] = op.compute(x.astype(np.float64), w.astype(np.float64))
            return
        # As the library does it: products of what is stored, sums of fp32, and one rounding at the end.
        y[...] = self._followed(op.compute(x.astype(np.float32), w.astype(np.float32)), convolution, addresses)

    def _followed(self, result: Array, asked: Asked, addresses: Mapping[str, int]) -> Array:
        for at, function, operand, dtype in asked.follows:
            match function:
                case "relu":
                    result = np.maximum(result, 0)
                case "sigmoid":
                    result = logistic(result)
                case "add" | "mul" | "sub" | "div" as name:
                    assert operand is not None
                    other = self._tensor(addresses[at], operand, dtype or asked.dtype).astype(np.float32)
                    result = _OF_TWO[name](result, other)
                case name:
                    unary = UNARY[name]
                    result = unary.compute(result, *(usual for _, usual in unary.parameters))
        return result

    def _tensor(self, address: int, layout: TensorLayout, dtype: DType) -> Array:
        reach = 1 + sum((size - 1) * stride for size, stride in zip(layout.shape, layout.strides, strict=True))
        flat = self._driver.bytes(address, dtype.bytes * reach).view(dtype.numpy)
        return as_strided(flat, layout.shape, [dtype.bytes * stride for stride in layout.strides])


def default_plans(convolution: Asked) -> dict[EnginePlan, float]:
    """Three plans, of which which is fastest depends on the convolution; fused ones save the kernel behind."""
    if isinstance(convolution, FusedAttention):
        return {EnginePlan("eng9", 256): 5.0, EnginePlan("refused", 0): 1.0}
    mixed = sum(convolution.x.shape) + sum(convolution.w.shape)
    return {
        EnginePlan("eng0", 0): 6.0 + mixed % 3,
        EnginePlan("eng7", 4 * sum(convolution.y.shape)): 6.0 + mixed % 2,
        EnginePlan("refused", 0): 1.0,
    }
