"""Proposals for an op: shapes of operands and values of attributes, drawn so that it probably takes them.

A proposal need not fit: the op's own inference of shapes judges it. Kinds that are not named here get operands of one
shape and attributes by their names and types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any

from iossim.ir.op import op_class
from iossim.ir.ops import functions, reduce
from iossim.ir.types import TO_FIRST, TO_LAST

ShapeOf = tuple[int, ...]
#: Shapes of an op's operands, None where still free.
Known = Sequence[ShapeOf | None]


@dataclass(frozen=True)
class DrawStyle:
    """Style of one draw: its sizes, its number of dimensions, and whether attributes may be other than plain."""

    random: Random
    sizes: tuple[int, ...]
    rank: int
    wild: bool

    def size(self) -> int:
        return self.random.choice(self.sizes)

    def chance(self, part: float) -> bool:
        return self.random.random() < part

    def shape(self, rank: int | None = None) -> ShapeOf:
        return tuple(self.size() for _ in range(self.rank if rank is None else rank))

    def image(self, channels: int | None = None, rank: int = 2) -> ShapeOf:
        """A few images, a little larger than most kernels."""
        space = tuple(self.random.choice((*self.sizes, 4, 5, 6)) for _ in range(rank))
        return (self.random.choice((1, 1, 2)), self.size() if channels is None else channels, *space)

    def divisor(self, number: int) -> int:
        divisors = [each for each in range(1, number + 1) if number % each == 0]
        return self.random.choice(divisors) if self.wild else 1


@dataclass
class Request:
    """An op whose free operands and unbound attributes are to be proposed; ``given`` attributes have a value."""

    kind: str
    outputs: int
    known: Known
    given: dict[str, Any]
    unbound: tuple[str, ...]
    others: Sequence[ShapeOf]

    def attribute(self, name: str, style: DrawStyle) -> Any:
        """The attribute's value, drawn now where it has none."""
        if name not in self.given:
            self.given[name] = _attribute(self, name, style)
        return self.given[name]


def propose(request: Request, style: DrawStyle) -> list[ShapeOf]:
    """Shapes of all operands; the values of unbound attributes are added to ``given``."""
    shapes = _OPERANDS.get(request.kind, _alike)(request, style)
    request.known = shapes
    for name in request.unbound:
        request.attribute(name, style)
    return shapes


# --- shapes of operands -----------------------------------------------------------------------------------------------


def _alike(request: Request, style: DrawStyle) -> list[ShapeOf]:
    """All of one shape."""
    base = _base(request, style)
    return [base if shape is None else shape for shape in request.known]


def _base(request: Request, style: DrawStyle, rank: int | None = None) -> ShapeOf:
    """A shape that is there, of an operand or at times of another tensor, or a new one."""
    for shape in request.known:
        if shape is not None:
            return shape
    alike = [shape for shape in request.others if len(shape) == (style.rank if rank is None else rank)]
    if alike and style.chance(0.6):
        return _varied(style.random.choice(alike), style)
    return style.shape(rank)


def _varied(shape: ShapeOf, style: DrawStyle) -> ShapeOf:
    """The shape, at times with another size along one axis."""
    if not shape or style.chance(0.5):
        return shape
    axis = style.random.randrange(len(shape))
    return (*shape[:axis], style.size(), *shape[axis + 1 :])


def _broadcast(request: Request, style: DrawStyle) -> list[ShapeOf]:
    base = _base(request, style)
    made = []
    for shape in request.known:
        if shape is not None:
            made.append(shape)
            continue
        draw = style.random.random() if style.wild else 0.0
        new = tuple(1 if draw > 0.6 and style.chance(0.4) else size for size in base)
        new = tuple(style.size() if size == 1 and draw > 0.6 else size for size in new)
        made.append(new[style.random.randrange(len(new) + 1) :] if draw > 0.9 else new)
    return made


def _one_base(request: Request, style: DrawStyle) -> list[ShapeOf]:
    """The first operand as wide as any, the others such that they broadcast to it."""
    first, *rest = request.known
    base = first or _base(request, style)
    made = [base]
    for shape in rest:
        made.append(shape or tuple(1 if style.wild and style.chance(0.3) else size for size in base))
    return made


def _matmul(request: Request, style: DrawStyle) -> list[ShapeOf]:
    a, b = (*request.known, None, None)[:2]
    stack = style.shape(style.rank - 2) if style.rank > 2 else ()
    if a is None and b is None:
        a = _base(request, style, max(2, style.rank))
    if a is None:
        assert b is not None
        inner = b[-2] if len(b) > 1 else b[0]
        a = (*(b[:-2] or stack), style.size(), inner)
    elif b is None:
        lead = a[:-2] if style.chance(0.7) else ()
        b = (*lead, a[-1], style.size())
    if style.wild and style.chance(0.1):
        a = a if request.known[0] is not None else a[-1:]
    assert b is not None
    return [a, b]


def _gemm(request: Request, style: DrawStyle) -> list[ShapeOf]:
    a, b, *c = request.known
    turned_a, turned_b = request.attribute("trans_a", style), request.attribute("trans_b", style)
    a = a[::-1] if a is not None and turned_a else a
    b = b[::-1] if b is not None and turned_b else b
    inner = a[1] if a is not None else b[0] if b is not None else style.size()
    a, b = a or (style.size(), inner), b or (inner, style.size())
    bias: list[ShapeOf] = [
        shape or style.random.choice([(b[1],), (1, b[1]), (a[0], b[1]), (a[0], 1)][: 4 if style.wild else 1])
        for shape in c
    ]
    return [a[::-1] if turned_a else a, b[::-1] if turned_b else b, *bias]


def _conv(request: Request, style: DrawStyle) -> list[ShapeOf]:
    x, weight, *bias = request.known
    transposed = request.kind == "conv_transpose"
    ranks = [len(shape) - 2 for shape in (x, weight) if shape is not None]
    rank = ranks[0] if ranks else len(request.given.get("strides", (1, 1)))
    groups = request.given.get("groups")
    if x is None and weight is None:
        x = _image_like(request, style, rank)
        if groups is not None and x[1] % groups:
            x = (x[0], x[1] * groups, *x[2:])
    if weight is None:
        assert x is not None
        groups = groups or style.divisor(x[1])
        kernel = _kernel(style, rank, request.others)
        filters = [shape[0] for shape in request.others if len(shape) == rank + 2 and shape[0] % groups == 0]
        count = style.random.choice(filters) if filters and style.chance(0.5) else style.size() * groups
        per_group = max(1, x[1] // groups)
        weight = (x[1], max(1, count // groups), *kernel) if transposed else (count, per_group, *kernel)
    elif x is None:
        groups = groups or style.divisor(weight[1] if transposed else weight[0])
        x = _image_like(request, style, rank)
        x = (x[0], weight[0] if transposed else weight[1] * groups, *x[2:])
    elif groups is None:
        groups = 1 if transposed else max(1, x[1] // weight[1])
    request.given.setdefault("groups", groups or 1)
    filters_made = weight[1] * request.given["groups"] if transposed else weight[0]
    return [x, weight, *(shape or (filters_made,) for shape in bias)]


def _image_like(request: Request, style: DrawStyle, rank: int) -> ShapeOf:
    """Images, as another tensor has them or new."""
    alike = [shape for shape in request.others if len(shape) == rank + 2]
    return _varied(style.random.choice(alike), style) if alike and style.chance(0.5) else style.image(rank=rank)


def _kernel(style: DrawStyle, rank: int, others: Sequence[ShapeOf] = ()) -> ShapeOf:
    """The window of a filter: square and odd, that of another tensor, or any."""
    alike = [shape[2:] for shape in others if len(shape) == rank + 2 and max(shape[2:]) < 4]
    if alike and style.chance(0.4):
        return style.random.choice(alike)
    if not style.wild or style.chance(0.5):
        return (style.random.choice((1, 3, 3)),) * rank
    return tuple(style.random.choice((1, 2, 3)) for _ in range(rank))


def _concat(request: Request, style: DrawStyle) -> list[ShapeOf]:
    base = _base(request, style)
    request.known = [base if shape is None and index == 0 else shape for index, shape in enumerate(request.known)]
    axis = request.attribute("axis", style)
    made = []
    for shape in request.known:
        new = list(base)
        if -len(new) <= axis < len(new) and not style.chance(0.3):
            new[axis] = style.size()
        made.append(tuple(new) if shape is None else shape)
    return made


def _images(request: Request, style: DrawStyle) -> list[ShapeOf]:
    """Images for the first operand of an op that slides a window."""
    rank = len(request.given.get("kernel", (1, 1)))
    return [_image_like(request, style, rank) if shape is None else shape for shape in request.known]


def _per_channel(request: Request, style: DrawStyle) -> list[ShapeOf]:
    """The first operand has channels, the others a number for each."""
    first, *rest = request.known
    if first is None:
        channels = next((shape[0] for shape in rest if shape), None)
        first = style.image(channels) if style.chance(0.7) else (style.size(), channels or style.size())
    return [first, *(first[1:2] if shape is None else shape for shape in rest)]


def _last_axes(request: Request, style: DrawStyle) -> list[ShapeOf]:
    """The first operand is normalised over its last axes, of which the others have the shape."""
    first = request.known[0] or _base(request, style)
    axis = request.attribute("axis", style)
    return [first, *(first[axis:] if shape is None else shape for shape in request.known[1:])]


def _channels_last(request: Request, style: DrawStyle) -> list[ShapeOf]:
    """Operands of the op on NCHW, with the channels last."""
    x, *rest = request.known
    kind = request.kind.removesuffix("_nhwc")
    first = replace(request, kind=kind, known=[x and tuple(x[axis] for axis in TO_FIRST), *rest])
    images, *others = _OPERANDS[kind](first, style)
    return [tuple(images[axis] for axis in TO_LAST), *others]


_OPERANDS: dict[str, Callable[[Request, DrawStyle], list[ShapeOf]]] = {
    **dict.fromkeys(("add", "mul", "nary", "where"), _broadcast),
    "prelu": _one_base,
    "matmul": _matmul,
    "gemm": _gemm,
    **dict.fromkeys(("conv", "conv_transpose"), _conv),
    "concat": _concat,
    **dict.fromkeys(("max_pool", "average_pool", "global_average_pool", "global_max_pool"), _images),
    **dict.fromkeys(("depth_to_space", "space_to_depth", "local_response_norm"), _images),
    **dict.fromkeys(
        ("conv_nhwc", "max_pool_nhwc", "average_pool_nhwc", "global_average_pool_nhwc", "global_max_pool_nhwc"),
        _channels_last,
    ),
    **dict.fromkeys(("batch_norm", "instance_norm", "group_norm"), _per_channel),
    **dict.fromkeys(("layer_norm", "rms_norm"), _last_axes),
}

# --- attributes -------------------------------------------------------------------------------------------------------


def _attribute(request: Request, name: str, style: DrawStyle) -> Any:
    """A value for an attribute of a known name, else one of its type, else its default."""
    first = next((shape for shape in request.known if shape is not None), style.shape())
    if (request.kind, name) in _BY_KIND:
        return _BY_KIND[request.kind, name](request, style, first)
    if name in _BY_NAME:
        return _BY_NAME[name](request, style, first)
    (field,) = (each for each in fields(op_class(request.kind)) if each.name == name)
    kind = str(field.type)
    if kind.startswith("bool"):
        return style.chance(0.5)
    if kind.startswith("float"):
        return style.random.choice((1.0, 2.0, 0.5, -1.0))
    if kind.startswith("int"):
        return style.random.choice((0, 1, 2))
    return field.default


def _window(request: Request, style: DrawStyle, first: ShapeOf, most: int) -> ShapeOf:
    rank = max(0, len(first) - 2)
    if not style.wild or style.chance(0.4):
        return (1,) * rank
    if style.chance(0.5):
        return (style.random.randint(1, most),) * rank
    return tuple(style.random.randint(1, most) for _ in range(rank))


def _pads(request: Request, style: DrawStyle, first: ShapeOf) -> ShapeOf:
    rank = max(0, len(first) - 2)
    kernel = request.given.get("kernel") or (request.known[1] or first)[2:] if len(request.known) > 1 else None
    kernel = request.given.get("kernel", kernel) or (1,) * rank
    most = [1 if "pool" in request.kind and size < 3 else 2 for size in kernel]
    if not style.wild or style.chance(0.4):
        return tuple(size // 2 for size in kernel) * 2 if style.chance(0.7) else (0,) * (2 * rank)
    if style.chance(0.5):
        return (style.random.randint(0, min(most, default=1)),) * (2 * rank)
    return tuple(style.random.randint(0, limit) for limit in (*most, *most))


def _sizes(request: Request, style: DrawStyle, first: ShapeOf) -> ShapeOf:
    axis = request.attribute("axis", style)
    whole = first[axis] if -len(first) <= axis < len(first) else 1
    if whole < request.outputs:
        return (1,) * request.outputs
    cuts = sorted(style.random.sample(range(1, whole), request.outputs - 1))
    return tuple(after - before for before, after in zip([0, *cuts], [*cuts, whole], strict=True))


def _reshaped(request: Request, style: DrawStyle, first: ShapeOf) -> ShapeOf:
    """The elements in other rows: some neighbours joined, or all in another order of sizes."""
    if len(first) > 1 and style.chance(0.6):
        axis = style.random.randrange(len(first) - 1)
        return (*first[:axis], first[axis] * first[axis + 1], *first[axis + 2 :])
    if style.chance(0.5):
        return (math.prod(first),)
    return tuple(style.random.sample(first, len(first)))


def _slices(request: Request, style: DrawStyle, first: ShapeOf, name: str) -> ShapeOf:
    axes = request.given.get("axes") or tuple(range(len(request.given.get("starts", (0,)))))
    sizes = [first[axis] if -len(first) <= axis < len(first) else 1 for axis in axes]
    if name == "starts":
        return tuple(style.random.randrange(size) for size in sizes)
    if name == "ends":
        return tuple(style.random.randint(1, size) for size in sizes)
    return tuple(1 if not style.wild else style.random.choice((1, 2)) for _ in sizes)


def _function(request: Request, style: DrawStyle, first: ShapeOf) -> str:
    tables: dict[str, Sequence[str]] = {
        "unary": ("tanh", "neg", "abs", "leaky_relu", "exp", "gelu", "hard_swish", "elu", "erf"),
        "nary": ("sub", "div", "min", "max", "mean"),
        "reduce": tuple(reduce.FUNCTIONS),
    }
    return style.random.choice(tables[request.kind])


def _axes(request: Request, style: DrawStyle, first: ShapeOf) -> ShapeOf:
    count = style.random.randint(1, max(1, len(first)))
    return tuple(sorted(style.random.sample(range(len(first)), min(count, len(first)))))


_BY_NAME: dict[str, Callable[[Request, DrawStyle, ShapeOf], Any]] = {
    "axis": lambda request, style, first: style.random.randrange(max(1, len(first))),
    "axes": _axes,
    "strides": lambda request, style, first: _window(request, style, first, 2),
    "dilations": lambda request, style, first: _window(request, style, first, 2),
    "pads": _pads,
    "kernel": lambda request, style, first: _kernel(style, max(0, len(first) - 2)),
    "output_padding": lambda request, style, first: (0,) * max(0, len(first) - 2),
    "groups": lambda request, style, first: style.divisor(first[1]) if len(first) > 1 else 1,
    "sizes": _sizes,
    "permutation": lambda request, style, first: tuple(style.random.sample(range(len(first)), len(first))),
    "shape": _reshaped,
    "repeats": lambda request, style, first: tuple(style.random.choice((1, 2)) for _ in first),
    "function": _function,
    "epsilon": lambda request, style, first: style.random.choice((1e-5, 1e-3, 0.1)),
    "minimum": lambda request, style, first: style.random.choice((0.0, -1.0, 0.5)),
    "maximum": lambda request, style, first: style.random.choice((6.0, 1.0, 2.0)),
    "block": lambda request, style, first: 2,
    "size": lambda request, style, first: style.random.choice((1, 3, 5)),
    "dtype": lambda request, style, first: "fp64",
}
_BY_KIND: dict[tuple[str, str], Callable[[Request, DrawStyle, ShapeOf], Any]] = {
    ("unary", "parameters"): lambda request, style, first: tuple(
        default for _, default in functions.UNARY[request.attribute("function", style)].parameters
    ),
    ("pad", "pads"): lambda request, style, first: tuple(style.random.choice((0, 0, 1, 2)) for _ in first * 2),
    ("pad", "mode"): lambda request, style, first: style.random.choice(("constant", "edge", "reflect")),
    ("pad", "value"): lambda request, style, first: style.random.choice((0.0, 0.0, 1.0)),
    ("expand", "shape"): lambda request, style, first: tuple(style.size() if size == 1 else size for size in first),
    **{
        ("slice", name): lambda request, style, first, name=name: _slices(request, style, first, name)  # type: ignore[misc]
        for name in ("starts", "ends", "steps")
    },
    ("slice", "axes"): lambda request, style, first: (style.random.randrange(max(1, len(first))),),
}
