"""Parts of a unit's program: places of its values, copies where these must lie otherwise, and calls of cuDNN.

A convolution is asked for in the layout that most of its operands have, that of the network where it does not matter;
what lies otherwise is copied, in scratch. Filters that are constant are laid out once, when they are uploaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from iossim.backends.cupy_cudnn import element_kernels, image_kernels, product_kernels
from iossim.backends.cupy_cudnn.convolution import (
    NOTHING,
    PRECOMPILED,
    ConvolutionCall,
    Epilogue,
    Step,
    convolution_of,
    fused_or_apart,
    operands_of,
    product_of,
)
from iossim.backends.cupy_cudnn.driver import Driver
from iossim.backends.cupy_cudnn.views import KernelCall, Memory, View, dense
from iossim.backends.cupy_cudnn.weights import Weights
from iossim.execution.backend import BackendError
from iossim.execution.plan import ALIGNMENT_BYTES
from iossim.ir.graph import Graph, Node
from iossim.ir.op import Array, Op, normal_axis
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvTranspose
from iossim.ir.ops.gather import Gather
from iossim.ir.ops.reshape import Reshape
from iossim.ir.types import DType

SCRATCH = Memory("scratch")
#: A product as a convolution of images of one pixel.
POINTWISE = Conv((1, 1), (0, 0, 0, 0), (1, 1), 1)


@dataclass(frozen=True, eq=False)
class HostCall:
    """An op that neither a library nor a kernel of ours computes: NumPy computes it on the host, inside the run.

    It is from and to dense views; what it reads of constants is named instead. ``reason``: why it runs there. The host
    waits for the device, copies the operands to the host and the results back. A capture allows no such wait, so the
    graphs of a run end before the op and begin again after it.
    """

    node: Node
    reason: str
    reads: tuple[View | str, ...]
    writes: tuple[View, ...]

    def run(self, driver: Driver, load: Callable[[str], Array], address: Callable[[View], int]) -> None:
        """Compute it after all that was issued; returns when its results are on the device."""
        arrays = []
        for read in self.reads:
            arrays.append(load(read) if isinstance(read, str) else np.empty(read.shape, read.dtype.numpy))
            if isinstance(read, View):
                driver.read(address(read), arrays[-1])
        for view, array in zip(self.writes, self.node.op.evaluate(arrays), strict=True):
            driver.write(address(view), np.ascontiguousarray(array, view.dtype.numpy))


Call = KernelCall | ConvolutionCall | HostCall


@dataclass(frozen=True, eq=False)
class UnitProgram:
    """Calls in the order that they are issued to one stream; ``scratch_bytes`` hold what they pass on."""

    calls: tuple[Call, ...]
    scratch_bytes: int

    @property
    def fallbacks(self) -> list[tuple[str, str, str]]:
        """Name, kind and reason of each op that runs on the host."""
        calls = (call for call in self.calls if isinstance(call, HostCall))
        return [(call.node.name, kind_of(call.node.op), call.reason) for call in calls]

    @property
    def convolutions(self) -> tuple[ConvolutionCall, ...]:
        return tuple(call for call in self.calls if isinstance(call, ConvolutionCall))


class Prologue(NamedTuple):
    """An ``expression`` before a convolution, in ``a0``, an element of ``x``; and the kernel of that alone."""

    expression: str
    x: View
    kernel: KernelCall | None = None


@dataclass(frozen=True)
class _Asked:
    """A convolution as requested from cuDNN: it writes ``inner``, which is copied to ``y`` where the two differ.

    ``inner`` may have more filters than ``y``: the rest are dropped. With ``last``, channels lie innermost.
    """

    op: Conv | ConvTranspose
    x: View
    w: View
    inner: View
    y: View
    epilogue: Epilogue
    last: bool


class UnitCalls:
    """The calls of a unit so far. ``places`` say where values must be written, ``values`` where values are."""

    def __init__(self, graph: Graph, weights: Weights) -> None:
        self.graph, self.weights = graph, weights
        self.places: dict[str, View] = {}
        self.values: dict[str, View] = {}
        self.calls: list[Call] = []
        self.scratch_bytes = 0

    @property
    def program(self) -> UnitProgram:
        return UnitProgram(tuple(self.calls), self.scratch_bytes)

    def read(self, node: Node, index: int = 0) -> View:
        return self.view(node.inputs[index])

    def looked_up(self, node: Node) -> tuple[View, View, int]:
        """Data, indices and axis of a lookup."""
        assert isinstance(node.op, Gather)
        x = self.read(node)
        return x, self.read(node, 1), normal_axis(node.op.axis, len(x.shape))

    def written(self, node: Node) -> View:
        return self.target(node.outputs[0])

    def view(self, value: str) -> View:
        return self.values[value] if value in self.values else self.weights.value(value)

    def target(self, value: str) -> View:
        """Place at which a value is written: its own, that of a reshape which alone reads it, or scratch."""
        if value not in self.values:
            of_type, place = self.graph.types[value], self.places.get(value)
            last, readers = value in self.weights.layout.values, self.graph.consumers[value]
            if place is None and not last and len(readers) == 1 and isinstance(readers[0].op, Reshape):
                reshaped = self.places.get(readers[0].outputs[0])
                place = reshaped and reshaped.reshaped(of_type.shape)
            self.values[value] = self.scratch(of_type.shape, of_type.dtype, last) if place is None else place
        return self.values[value]

    def scratch(self, shape: Sequence[int], dtype: DType, last: bool = False) -> View:
        view = dense(SCRATCH, shape, self.scratch_bytes // dtype.bytes, dtype, last)
        size_bytes = view.elements * dtype.bytes
        self.scratch_bytes += -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return view

    def pass_on(self, value: str, view: View) -> None:
        """A value that is there already: copied if it must be elsewhere."""
        if value in self.places:
            self.copy(view, self.target(value))
        else:
            self.values[value] = view

    def copy(self, source: View, target: View) -> None:
        self.calls.append(element_kernels.copy(source, target))

    def dense_copy(self, view: View, last: bool = False) -> View:
        target = self.scratch(view.shape, view.dtype, last)
        self.copy(view, target)
        return target

    def flat(self, view: View, shape: Sequence[int]) -> View:
        """The elements of a view under another shape, copied where its strides do not allow that."""
        return view.reshaped(shape) or dense(SCRATCH, shape, self.dense_copy(view).offset, view.dtype)

    @contextmanager
    def written_as(self, y: View, shape: Sequence[int]) -> Iterator[View]:
        """``y`` under another shape for calls issued here; scratch, copied afterwards, where strides forbid that."""
        target = y.reshaped(shape)
        made = self.scratch(shape, y.dtype) if target is None else target
        yield made
        if target is None:
            self.copy(dense(SCRATCH, y.shape, made.offset, y.dtype), y)

    def convolve(
        self, op: Conv | ConvTranspose, x: View, w: View, y: View, epilogue: Epilogue, prologue: Prologue | None = None
    ) -> None:
        """One convolution with its epilogue; operands that cuDNN does not take as they lie are copied.

        ``x`` is what the prologue makes, if there is one. Kernels of ours for groups of channels, and cuDNN with
        channels padded, read what is before it.

        Raises BackendError where they are of different types.
        """
        _check_one_type(x, w, y, epilogue)
        if not x.dtype.is_floating:
            raise BackendError(f"no kernel multiplies {x.dtype} without scales; use `backend` onnxruntime_cpu")
        usual = self.weights.layout.wanted
        last = max((usual, not usual), key=lambda tried: x.suits_cudnn(tried) + y.suits_cudnn(tried))
        first = prologue or Prologue(element_kernels.COPY, x)
        before = () if first.kernel is None else (first.kernel,)
        if not x.suits_cudnn(last):
            moved = self.scratch(x.shape, x.dtype, last)
            x, before = moved, (*before, element_kernels.copy(x, moved))
        epilogue = epilogue.moved(lambda view: view.broadcast(y.shape))
        suits = y.dtype == x.dtype and y.suits_cudnn(last)
        in_place = y if suits else self.scratch(y.shape, x.dtype, last)
        others: dict[str, tuple[Step, ...]] = {}
        is_known = w.memory.kind == "weight"
        if is_known and isinstance(op, Conv) and op.groups > 1:
            taps = self.weights.taps(w)
            ours = product_kernels.convolutions(op, first.expression, first.x, taps, y, epilogue.computed)
            others = {way: (kernel,) for way, kernel in ours.items()}
        elif is_known and isinstance(op, Conv) and last and x.dtype.bytes == 2:
            others = self._padded(_Asked(op, x, w, in_place, y, epilogue, last), first, before)
        if not others:
            self.calls += before
            before = ()
        asked = _Asked(op, x, self._filters(w, last), in_place, y, epilogue, last)
        if last and in_place is y and not y.is_packed(last):
            # A slice of channels. cuDNN's fastest kernels write no gaps: on an H200 a pointwise convolution takes 3 us
            # without and 6 to 10 into a slice.
            packed = replace(asked, inner=self.scratch(y.shape, y.dtype, last))
            others = {**others, "packed": (*before, self._convolution_call(packed))}
        call = self._convolution_call(asked, before)
        self.calls.append(replace(call, ways={**others, **call.ways}))

    def _padded(self, asked: _Asked, first: Prologue, before: tuple[Step, ...]) -> dict[str, tuple[Step, ...]]:
        """The same by channels and filters in numbers that fit, by name; none where they fit as they are."""
        found: dict[str, tuple[Step, ...]] = {}
        (count, own, *size), filters, epilogue = asked.x.shape, asked.y.shape[1], asked.epilogue
        operands, *_ = epilogue.in_call()
        widens = all(name == "b" and view.memory.kind == "weight" for name, view in operands.items())
        most = image_kernels.fitting(filters)[-1] if widens else filters
        for channels in image_kernels.fitting(own):
            if (channels, most) == (own, filters):
                continue
            wide, made, inner = asked.x, before, asked.inner
            if channels != own:
                wide = self.scratch((count, channels, *size), wide.dtype, last=True)
                made = (image_kernels.padded(first.x, wide, first.expression),)
            if most != filters:
                inner = self.scratch((count, most, *asked.y.shape[2:]), inner.dtype, last=True)
            taps = self._filters(self.weights.padded(asked.w, (most, channels, *asked.w.shape[2:])), last=True)
            call = self._convolution_call(replace(asked, x=wide, w=taps, inner=inner))
            found[f"padded{channels}"] = (*made, call)
        return found

    def _convolution_call(self, asked: _Asked, before: tuple[Step, ...] = ()) -> ConvolutionCall:
        """The convolution fused with its epilogue, and apart from it, after the kernels that make ``x``."""
        op, inner, y, epilogue, last = asked.op, asked.inner, asked.y, asked.epilogue, asked.last
        filters, (operands, activation, then) = inner.shape[1], epilogue.in_call()
        result = inner if filters == y.shape[1] else inner.part(1, 0, y.shape[1])
        is_compiled = activation not in PRECOMPILED or bool(then)
        fused = (
            epilogue.steps is not None
            and inner.dtype == y.dtype
            and (isinstance(op, Conv) or epilogue.is_none)
            and (not is_compiled or y.dtype.bytes == 2 or self.weights.tf32)
            and all(view.suits_cudnn(last) for view in operands.values())
            and all(view.dtype == y.dtype for name, view in operands.items() if name in ("b", "z"))
        )
        views = {"x": asked.x, "w": asked.w, "y": inner}
        if fused and not epilogue.is_none:
            views |= operands
            if "b" in views:
                views["b"] = views["b"] if filters == y.shape[1] else self.weights.padded(views["b"], (filters,))
            elif not then:  # cuDNN's own fused convolutions always have a bias
                views["b"] = self.weights.zeros(filters, y.dtype)
        activation, then = (activation, then) if fused else ("", ())
        convolution = convolution_of(op, views, activation=activation, then=then, last=last)
        ways: dict[str, tuple[Step, ...]] = {}
        if fused:
            ways["fused"] = (*before, convolution, *([] if inner is y else [element_kernels.copy(result, y)]))
        if not fused or convolution != convolution.plain:
            after = [] if inner is y and epilogue.is_none else [_following(epilogue, result, y)]
            ways["apart"] = (*before, convolution.plain, *after)
        return ConvolutionCall(convolution, views, ways)

    def sum_products(self, op: Conv, x: View, w: View, y: View) -> None:
        """One convolution of int8 to sums of int32, with channels last; by cuDNN, or by a kernel of ours.

        Raises BackendError for more than two spatial dimensions.
        """
        x = x if x.suits_cudnn(last=True) else self.dense_copy(x, last=True)
        views = {"x": x, "w": self._filters(w, last=True), "y": y}
        ours = product_kernels.convolutions(op, element_kernels.COPY, x, self.weights.taps(w), y, NOTHING.computed)
        if not ours:
            raise BackendError(f"no kernel convolves whole numbers over {len(op.strides)} dimensions; only over two")
        asked = convolution_of(op, views, last=True)
        self.calls.append(fused_or_apart(asked, views, [next(iter(ours.values()))]))

    def multiply(self, a: View, b: View, y: View, epilogue: Epilogue = NOTHING) -> None:
        """A stack of products with its epilogue, by a library; operands that it does not take as they lie are copied.

        In plain fp32 a kernel of ours is what runs apart, since cuDNN has no such product. Where several of a stack
        share a matrix of ``b``, they are rows of one product, so that no matrix is copied for each.
        """
        _check_one_type(a, b, y, epilogue)
        stack, epilogue = y.shape[:-2], epilogue.moved(lambda view: view.broadcast(y.shape))
        wide = b.broadcast((*stack, *b.shape[-2:]))
        shared = [axis for axis, size in enumerate(stack) if size > 1 and not wide.strides[axis]]
        own = [axis for axis in range(len(stack)) if axis not in shared]
        if shared and b.elements > math.prod(b.shape[-2:]):
            sizes = (*(stack[axis] for axis in own), math.prod(stack[axis] for axis in shared) * y.shape[-2])

            def rows(view: View) -> View:
                return view.broadcast((*stack, *view.shape[-2:])).permuted((*own, *shared, -2, -1))

            with self.written_as(rows(y), (*sizes, y.shape[-1])) as flat:
                epilogue = epilogue.moved(lambda view: self.flat(rows(view), flat.shape))
                self.multiply(self.flat(rows(a), (*sizes, a.shape[-1])), wide.permuted((*own, -2, -1)), flat, epilogue)
            return
        if a.dtype is DType.FLOAT32 and not self.weights.tf32:
            kernel = product_kernels.product(a, b, y, epilogue.computed)
            whole = ((name, self._one_stack(view, stack)) for name, view in (("x", a), ("w", b), ("y", y)))
            found = {name: view for name, view in whole if view is not None}
            after = [] if epilogue.is_none else [_following(epilogue, y, y)]
            is_asked = len(found) == 3 and y.dtype == a.dtype
            self.calls.append(fused_or_apart(product_of(found), found, [kernel], after) if is_asked else kernel)
            return
        a, b = (view if view.suits_product else self.dense_copy(view) for view in (a, b))
        made = y.as_stack(stack) if y.suits_product and y.dtype == a.dtype else None
        inner = self.scratch(y.shape, a.dtype) if made is None else y
        views = {"x": self._stacked(a, stack), "w": self._stacked(b, stack), "y": self._stacked(inner, stack)}
        after = [] if inner is y and epilogue.is_none else [_following(epilogue, inner, y)]
        asked = plain = product_of(views)
        ways: dict[str, tuple[Step, ...]] = {"fused" if epilogue.is_none else "apart": (plain, *after)}
        steps = epilogue.stacked(stack) if inner is y else ()
        if steps:
            asked = product_of(views, steps)
            views |= operands_of(steps)
            ways["fused"] = (asked,)
        self.calls.append(ConvolutionCall(asked, views, ways))

    def _stacked(self, view: View, stack: Sequence[int]) -> View:
        """Matrices in one stack, the only form of them that cuDNN multiplies; copied where steps between them differ.

        A single matrix stays one: it is multiplied by each of the others.
        """
        found = self._one_stack(view, stack)
        if found is None:
            found = self.dense_copy(view.broadcast((*stack, *view.shape[-2:]))).as_stack(stack)
        assert found is not None, "a dense stack has one step"
        return found

    def _one_stack(self, view: View, stack: Sequence[int]) -> View | None:
        """The matrices as they lie; None where that is no one stack."""
        if not view.suits_product:
            return None
        return view.as_stack(() if view.elements == math.prod(view.shape[-2:]) else stack)

    def _filters(self, w: View, last: bool) -> View:
        if w.suits_cudnn(last) and w.is_packed(last):
            return w
        return self.weights.laid_out(w) if last and w.memory.kind == "weight" else self.dense_copy(w, last)


def _check_one_type(x: View, w: View, y: View, epilogue: Epilogue) -> None:
    """Raises BackendError for a product of two types, or one to another type that no epilogue turns it into."""
    if x.dtype != w.dtype or (epilogue.is_none and y.dtype != x.dtype):
        raise BackendError(f"multiplies {x.dtype} by {w.dtype} to {y.dtype}; load the model in one `dtype`")


def _following(epilogue: Epilogue, result: View, y: View) -> KernelCall:
    """An epilogue as a kernel of ours."""
    return element_kernels.chain(epilogue.computed.expression, [result, *epilogue.computed.operands], y)


def kind_of(op: Op) -> str:
    """Its function, where the kind has several; ONNX's name of one that iossim has no class of its own for."""
    return str(getattr(op, "op_type", getattr(op, "function", op.kind)))
