"""Requests to cuDNN and cuBLASLt: a convolution of views, alone or with bias and activation in the same call.

A fully connected layer is requested as a convolution of 1x1 images: cuDNN's graphs have no matrix product in fp32
followed by a bias, but they have that convolution in every form.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar, NamedTuple, Self

from iossim.backends.cupy_cudnn.element_kernels import AS_IT_IS, Computed
from iossim.backends.cupy_cudnn.views import CUDNN_ALIGNMENT_BYTES, KernelCall, View, channels_last, row_major
from iossim.execution.backend import BackendError
from iossim.ir.op import Op
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvTranspose
from iossim.ir.ops.functions import Unary
from iossim.ir.ops.unary import Relu, Sigmoid
from iossim.ir.types import DType

#: Activations of cuDNN's own kernels. With others it compiles one, for tensor cores: not in plain fp32.
PRECOMPILED = ("", "relu")


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Sizes, and strides in elements, of a tensor that cuDNN reads or writes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


#: A library's step after a result: a function of it, and maybe of an operand of a type, broadcast to it.
Follows = tuple[str, TensorLayout | None, DType | None]
#: The same of views.
LibraryStep = tuple[str, View | None]


def operands_of(steps: Iterable[LibraryStep]) -> dict[str, View]:
    """The operands of steps, under the names of their places among those."""
    return {f"e{index}": view for index, (_, view) in enumerate(steps) if view is not None}


class Epilogue(NamedTuple):
    """An expression in the sums ``a0`` of a convolution or product and in operands, from ``a1`` on, which are broadcast
    to the result; and the same as steps of a library, None where it has none such.
    """

    computed: Computed
    steps: tuple[LibraryStep, ...] | None

    @property
    def is_none(self) -> bool:
        return self == NOTHING

    def moved(self, move: Callable[[View], View]) -> Epilogue:
        """The same with its operands elsewhere, or under another shape."""
        steps = self.steps and tuple((name, view and move(view)) for name, view in self.steps)
        return Epilogue(Computed(self.computed.expression, tuple(map(move, self.computed.operands))), steps)

    def in_call(self) -> tuple[dict[str, View], str, tuple[LibraryStep, ...]]:
        """Steps of a convolution of images as cuDNN is asked for them: operands by name, an activation, the rest.

        Those that cuDNN ships kernels for come first: a residual and a bias, then the activation.
        """
        left, operands, activation = list(self.steps or ()), dict[str, View](), ""
        while left and left[0][0] == "add" and (view := left[0][1]) is not None:
            if "b" not in operands and view.narrow.elements == view.shape[1] and view.strides[1] == (view.shape[1] > 1):
                operands["b"] = replace(view, shape=view.shape[1:2], strides=(1,))
            elif "z" not in operands and view.narrow.elements == view.elements:
                operands["z"] = view
            else:
                break
            del left[0]
        if left and left[0][1] is None:
            activation = left.pop(0)[0]
        then = tuple((name, view and view.narrow) for name, view in left)
        return operands | operands_of(then), activation, then

    def stacked(self, stack: Sequence[int]) -> list[LibraryStep]:
        """The steps with each operand as one stack of matrices; none where one has no such form."""
        found: list[LibraryStep] = []
        for name, view in self.steps or ():
            one = view and view.as_stack(stack)
            if view is not None and (one is None or one.offset_bytes % CUDNN_ALIGNMENT_BYTES):
                return []
            found.append((name, one and one.narrow))
        return found


NOTHING = Epilogue(AS_IT_IS, ())


def _numbered(steps: Iterable[Follows]) -> Iterator[tuple[str, *Follows]]:
    return ((f"e{index}", *step) for index, step in enumerate(steps))


class _Asked:
    """One call of cuDNN: all that its choice of an algorithm depends on. Equal ones run alike."""

    __slots__ = ()

    @property
    def plain(self) -> Self:
        """Without bias, residual and activation."""
        return self

    @property
    def follows(self) -> Iterator[tuple[str, *Follows]]:
        """Steps after the sums, in order: the name of an operand, a function, and the operand's layout and type."""
        yield from ()

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of what is read and written."""
        return ("x", "w", *(name for name, _, operand, _ in self.follows if operand is not None), "y")

    @property
    def compiles_activation(self) -> bool:
        """True where cuDNN compiles a kernel for what follows on the sums: it ships none for more than ReLU."""
        return False


def _in_words(text: str, one: TensorLayout, other: TensorLayout, dtype: DType) -> str:
    return text.format(*("x".join(map(str, layout.shape)) for layout in (one, other)), dtype)


@dataclass(frozen=True, slots=True)
class Convolution(_Asked):
    """``y = act(conv(x, w) + z + bias)``, and ``then`` what follows on that.

    Padding is given before and after each spatial dimension; the number of groups follows from the channels of ``x``
    and ``w``. The bias has one value a filter; ``z``, if there is one, is a residual of ``y``'s shape. All are of
    ``dtype``, and sums of fp32; of int8, ``y`` and the sums are of int32. Where ``last``, images and filters lie with
    their channels innermost. ``activation`` is a name of :func:`activation_name`, empty for none.
    """

    called: ClassVar[str] = "a convolution of {} by {} in {}"
    x: TensorLayout
    w: TensorLayout
    y: TensorLayout
    pad_before: tuple[int, ...]
    pad_after: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    bias: bool = False
    activation: str = ""
    z: TensorLayout | None = None
    dtype: DType = DType.FLOAT32
    last: bool = False
    then: tuple[Follows, ...] = ()

    @property
    def plain(self) -> Self:
        return replace(self, bias=False, activation="", z=None, then=())

    @property
    def compiles_activation(self) -> bool:
        return self.activation not in PRECOMPILED or bool(self.then)

    @property
    def is_depthwise(self) -> bool:
        """True where each filter reads a channel of its own."""
        return self.w.shape[1] == 1 and self.w.shape[0] == self.x.shape[1] > 1

    @property
    def follows(self) -> Iterator[tuple[str, *Follows]]:
        if self.z is not None:  # before the bias: cuDNN's engines are compiled for that order alone
            yield "z", "add", self.z, None
        if self.bias:
            shape = (1, self.y.shape[1], *(1,) * (len(self.y.shape) - 2))
            yield "b", "add", TensorLayout(shape, channels_last(shape) if self.last else row_major(shape)), None
        if self.activation:
            yield "", self.activation, None, None
        yield from _numbered(self.then)

    def __str__(self) -> str:
        return _in_words(self.called, self.x, self.w, self.dtype)


@dataclass(frozen=True, slots=True)
class BackwardData(Convolution):
    """Transposed convolution, alone: the gradient ``y`` of a convolution by its image, from ``x``, that by its result.

    Padding, strides and dilations are those of the convolution, whose channels ``w`` has second.
    """

    called = "a transposed convolution of {} by {} in {}"

    @property
    def is_depthwise(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Product(_Asked):
    """``y = x @ w`` of stacks of matrices, ``x [..., M, K]`` by ``w [..., K, N]``, and ``then`` what follows on that.

    Sums are of fp32. A stack of one is multiplied by each of the other.
    """

    x: TensorLayout
    w: TensorLayout
    y: TensorLayout
    dtype: DType
    then: tuple[Follows, ...] = ()

    @property
    def plain(self) -> Self:
        return replace(self, then=())

    @property
    def follows(self) -> Iterator[tuple[str, *Follows]]:
        return _numbered(self.then)

    def __str__(self) -> str:
        return _in_words("a product of {} by {} in {}", self.x, self.w, self.dtype)


@dataclass(frozen=True, slots=True)
class FusedAttention(_Asked):
    """``y = softmax(scale * q @ k^T + mask) @ v``, each ``[batch, heads, tokens, features]``, with sums of fp32.

    The mask, if there is one, broadcasts to ``[batch, heads, queries, keys]``; with ``is_causal`` a query sees no later
    keys. Neighbouring heads of queries may share one of keys and values.
    """

    q: TensorLayout
    k: TensorLayout
    v: TensorLayout
    y: TensorLayout
    scale: float
    dtype: DType
    mask: TensorLayout | None = None
    is_causal: bool = False

    @property
    def operands(self) -> tuple[str, ...]:
        return ("q", "k", "v", *(["m"] if self.mask else []), "y")

    def __str__(self) -> str:
        return _in_words(
            f"a{' causal' if self.is_causal else 'n'} attention of {{}} to {{}} in {{}}", self.q, self.k, self.dtype
        )


#: A request to a library.
Asked = Convolution | Product | FusedAttention


@dataclass(frozen=True, eq=False)
class ConvolutionCall:
    """Work on views (``x``, ``w``, ``y``; with bias ``b``, with residual ``z``) in one of several ``ways``, by name.

    A way is a sequence of steps: kernels of ours, at most one request to a library, which reads and writes ``views``,
    or calls that each run in a way of their own. *Fused*, the library computes ``convolution`` as it is. *Apart*, it
    computes the plain convolution, and a kernel of ours adds, activates and copies; or other calls compute a whole
    chain of ops, an attention. Other ways are a kernel of ours, the same with channels padded, or one whose result is
    dense and copied afterwards. A choice is told as ``WAY:PLAN``, the plan a library's, or how each of several calls
    runs, joined by ``+``.
    """

    convolution: Asked
    views: Mapping[str, View]
    ways: Mapping[str, tuple[Step, ...]]

    def asked(self, way: str) -> Asked | None:
        """The request to a library in a way."""
        return next((step for step in self.ways[way] if isinstance(step, Asked)), None)

    def parts(self, way: str = "apart") -> tuple[ConvolutionCall, ...]:
        """The calls of a way that run in ways of their own."""
        return tuple(step for step in self.ways.get(way, ()) if isinstance(step, ConvolutionCall))

    @property
    def kernels(self) -> Iterator[KernelCall]:
        """Every kernel of ours that one of the ways launches."""
        for step in chain.from_iterable(self.ways.values()):
            if isinstance(step, KernelCall | ConvolutionCall):
                yield from (step,) if isinstance(step, KernelCall) else step.kernels

    @property
    def operands(self) -> Iterator[View]:
        """Every view that a library or a kernel of ours reads or writes in one of the ways."""
        yield from self.views.values()
        for part in chain.from_iterable(map(self.parts, self.ways)):
            yield from part.operands
        yield from (item for kernel in self.kernels for item in kernel.arguments if isinstance(item, View))

    @property
    def key(self) -> tuple[Hashable, ...]:
        """Equal for calls that do equal work, wherever their operands lie."""
        steps = (
            (name, *(step if isinstance(step, Asked) else step.key for step in way)) for name, way in self.ways.items()
        )
        return self.convolution, *steps


Step = KernelCall | Asked | ConvolutionCall


def fused_or_apart(
    asked: Asked, views: Mapping[str, View], apart: Iterable[Step], after: Iterable[Step] = ()
) -> ConvolutionCall:
    """A call that one request to a library computes, maybe with kernels after it, or other calls do."""
    return ConvolutionCall(asked, views, {"apart": tuple(apart), "fused": (asked, *after)})


def _following(steps: Iterable[LibraryStep], layout: Callable[[View], TensorLayout]) -> tuple[Follows, ...]:
    return tuple((name, *((None, None) if view is None else (layout(view), view.dtype))) for name, view in steps)


def layout_of(view: View, last: bool) -> TensorLayout:
    """An image, or the filters, as cuDNN is told of them."""
    return TensorLayout(view.planar.shape, view.planar.image_strides(last))


def product_of(views: Mapping[str, View], then: Sequence[LibraryStep] = ()) -> Product:
    """The description of a product of views of one rank, three at least."""
    x, w, y = (TensorLayout(views[name].shape, views[name].strides) for name in ("x", "w", "y"))
    return Product(x, w, y, views["y"].dtype, _following(then, lambda view: TensorLayout(view.shape, view.strides)))


def activation_name(op: Op) -> str | None:
    """Name of an activation that a library may compute in its call; None where none has it."""
    match op:
        case Relu() | Sigmoid():
            return op.kind
        case Unary("gelu" | "gelu_tanh" | "tanh") | Unary("swish", (1.0,)):
            return op.function
        case _:
            return None


def convolution_of(
    op: Conv | ConvTranspose,
    views: Mapping[str, View],
    *,
    activation: str = "",
    then: Sequence[LibraryStep] = (),
    last: bool,
) -> Convolution:
    """The description of an op on views that suit cuDNN; raises BackendError for more than three dimensions."""
    rank = len(op.strides)
    if rank > 3:
        raise BackendError(f"cuDNN convolves over up to 3 spatial dimensions, not {rank}; replace the op")
    one, none = ((1,), (0,)) if rank == 1 else ((), ())  # cuDNN's images have two spatial dimensions at least
    x, w, y = (layout_of(views[name], last) for name in "xwy")
    z = layout_of(views["z"], last) if "z" in views else None
    window = none + op.pads[:rank], none + op.pads[rank:], one + op.strides, one + op.dilations
    follows = _following(then, lambda view: layout_of(view, last))
    kind = BackwardData if isinstance(op, ConvTranspose) else Convolution
    return kind(x, w, y, *window, "b" in views, activation, z, views["x"].dtype, last, follows)
