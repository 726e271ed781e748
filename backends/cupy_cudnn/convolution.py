"""Requests to cuDNN and cuBLASLt: a convolution of views, alone or with bias and activation in the same call.

A fully connected layer is asked for as a convolution of 1x1 images: cuDNN's graphs have no matrix product in fp32
with a bias behind it, but they have that convolution in every form.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import ClassVar, Self

from iossim.backends.cupy_cudnn.views import KernelCall, View
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


class _Asked:
    """One call of cuDNN: all that its choice of an algorithm depends on. Equal ones run alike."""

    __slots__ = ()

    @property
    def plain(self) -> Self:
        """Without bias, residual and activation."""
        return self

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of what is read and written."""
        return ("x", "w", "y")

    @property
    def compiles_activation(self) -> bool:
        """Whether cuDNN compiles a kernel for what follows: it has none for activations other than ReLU."""
        return False


def _in_words(text: str, one: TensorLayout, other: TensorLayout, dtype: DType) -> str:
    return text.format(*("x".join(map(str, layout.shape)) for layout in (one, other)), dtype)


@dataclass(frozen=True, slots=True)
class Convolution(_Asked):
    """``y = act(conv(x, w) + z + bias)``.

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

    @property
    def plain(self) -> Self:
        return replace(self, bias=False, activation="", z=None)

    @property
    def compiles_activation(self) -> bool:
        return self.activation not in PRECOMPILED

    @property
    def is_depthwise(self) -> bool:
        """Whether each filter reads a channel of its own."""
        return self.w.shape[1] == 1 and self.w.shape[0] == self.x.shape[1] > 1

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "w", *(["b"] if self.bias else []), *(["z"] if self.z else []), "y")

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
    """``y = x @ w`` of stacks of matrices, ``x [..., M, K]`` by ``w [..., K, N]``, with sums of fp32.

    A stack of one is multiplied by each of the other.
    """

    x: TensorLayout
    w: TensorLayout
    y: TensorLayout
    dtype: DType

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
    """A convolution on views (``x``, ``w``, ``y``; with bias ``b``, with residual ``z``), to be run *fused* or *apart*.

    Fused, cuDNN runs ``convolution`` as it is; then ``after``, if what it wrote must be copied. Apart, it runs the
    plain convolution; then ``epilogue``, a kernel of ours, adds, activates and copies. ``fused``: may cuDNN fuse it?

    ``others`` are ways by other calls, by name: a kernel of ours, the same with channels padded, or with a result
    without gaps that is copied behind it; what is ``apart`` among them are calls for a whole chain of ops, an
    attention. ``before`` makes ``x`` for cuDNN, and none of the other ways needs it.
    """

    convolution: Asked
    views: Mapping[str, View]
    epilogue: KernelCall | None = None
    after: KernelCall | None = None
    fused: bool = True
    others: Mapping[str, tuple[KernelCall | ConvolutionCall, ...]] = field(default_factory=dict)
    before: tuple[KernelCall, ...] = ()

    def parts(self, way: str = "apart") -> tuple[ConvolutionCall, ...]:
        """The calls of cuDNN among those of one of the other ways."""
        return tuple(call for call in self.others.get(way, ()) if isinstance(call, ConvolutionCall))

    @property
    def kernels(self) -> Iterator[KernelCall]:
        """Every kernel of ours that one of the ways launches."""
        yield from (*self.before, *(kernel for kernel in (self.epilogue, self.after) if kernel is not None))
        for call in chain.from_iterable(self.others.values()):
            yield from (call,) if isinstance(call, KernelCall) else call.kernels

    @property
    def operands(self) -> Iterator[View]:
        """Every view that cuDNN reads or writes in one of the ways."""
        yield from self.views.values()
        for call in chain.from_iterable(self.others.values()):
            yield from () if isinstance(call, KernelCall) else call.operands

    @property
    def key(self) -> tuple[Hashable, ...]:
        """Equal for calls that do equal work, wherever their operands lie."""
        kernels = (None if kernel is None else kernel.key for kernel in (self.epilogue, self.after))
        more = [(name, *(call.key for call in calls)) for name, calls in self.others.items()]
        return self.convolution, self.fused, *kernels, *more, *(kernel.key for kernel in self.before)


def product_of(views: Mapping[str, View]) -> Product:
    """The description of a product of views of one rank, three at least."""
    x, w, y = (TensorLayout(views[name].shape, views[name].strides) for name in ("x", "w", "y"))
    return Product(x, w, y, views["y"].dtype)


def activation_name(op: Op | None) -> str | None:
    """Name of an activation that a library may compute in its call: empty for no op, None where none has it."""
    match op:
        case None:
            return ""
        case Relu() | Sigmoid():
            return op.kind
        case Unary("gelu" | "gelu_tanh" | "tanh") | Unary("swish", (1.0,)):
            return op.function
        case _:
            return None


def convolution_of(
    op: Conv | ConvTranspose, views: Mapping[str, View], *, activation: str = "", last: bool
) -> Convolution:
    """The description of an op on views that suit cuDNN; raises BackendError for more than three dimensions."""
    rank = len(op.strides)
    if rank > 3:
        raise BackendError(f"cuDNN convolves over up to 3 spatial dimensions, not {rank}; replace the op")
    one, none = ((1,), (0,)) if rank == 1 else ((), ())  # cuDNN's images have two spatial dimensions at least

    def layout(name: str) -> TensorLayout:
        view = views[name].planar
        return TensorLayout(view.shape, view.image_strides(last))

    return (BackwardData if isinstance(op, ConvTranspose) else Convolution)(
        layout("x"),
        layout("w"),
        layout("y"),
        none + op.pads[:rank],
        none + op.pads[rank:],
        one + op.strides,
        one + op.dilations,
        "b" in views,
        activation,
        layout("z") if "z" in views else None,
        views["x"].dtype,
        last,
    )
