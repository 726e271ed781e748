"""Shapes of outputs of ops at unknown shapes of inputs, and when an op takes its inputs.

The rules of each op's ``infer`` are repeated here over symbols, for the kinds that axioms are about. The two are not
one function: ``infer`` takes tuples of ints and branches on their lengths and sizes, while a rule is proved
for tensors of any rank, whose shape is an array of unknown length for the solver, and what ``infer`` refuses has to
become a claim instead of an error. A test compares the two at random shapes. Dimensions are positive, as iossim takes
no empty tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import z3

from iossim.ir.op import KindTable
from iossim.ir.types import TO_FIRST, TO_LAST
from iossim.proving.symbolic import (
    Arithmetic,
    Claim,
    Tuple,
    distinct,
    everywhere,
    integer,
    is_inside,
    is_opaque,
    plus,
    same,
)


@dataclass(frozen=True)
class Typed:
    """The shapes that an op makes, and the claims without which it refuses its inputs."""

    needs: tuple[Claim, ...]
    outputs: tuple[Tuple, ...]


#: Attributes by name, shapes of the inputs; None where symbols do not carry the op.
_Typing = Callable[[Mapping[str, Any], Sequence[Tuple], Arithmetic], Typed | None]
TYPINGS = KindTable[_Typing]()


def typed(kind: str, attributes: Mapping[str, Any], inputs: Sequence[Tuple], arithmetic: Arithmetic) -> Typed | None:
    """Outputs and needs of an op for inputs of these shapes; None for a kind, or a use of one, that is not modelled."""
    typing = TYPINGS.get(kind)
    return None if typing is None else typing(attributes, inputs, arithmetic)


def always(kind: str, attributes: Mapping[str, Any], x: Tuple, outputs: int) -> list[Claim]:
    """Claims true of any op with a first input ``x`` that takes its inputs, whether its shapes are modelled or not."""
    match kind:
        case "split":
            return [Claim(integer(attributes["sizes"].length) == outputs)]
        case "slice":
            lengths = [integer(attributes[name].length) for name in ("starts", "ends", "axes", "steps")]
            inside = [Claim(is_inside(axis, x.length)) for axis in attributes["axes"].items or ()]
            return [*(Claim(length == lengths[0]) for length in lengths[1:]), *inside]
    return []


def _is_known(value: Any, wanted: Any, arithmetic: Arithmetic) -> bool:
    """True if an attribute, neither a whole number nor a tuple, is known to have a value."""
    return arithmetic.knows(value == arithmetic.literal(wanted)) if is_opaque(value) else bool(value == wanted)


@TYPINGS.register("relu", "sigmoid", "clip", "identity", "unary")
def _elementwise(attributes: Mapping[str, Any], inputs: Sequence[Tuple], arithmetic: Arithmetic) -> Typed | None:
    return Typed((), (inputs[0],)) if len(inputs) == 1 else None


@TYPINGS.register("add", "mul")
def _broadcast(attributes: Mapping[str, Any], inputs: Sequence[Tuple], arithmetic: Arithmetic) -> Typed | None:
    if len(inputs) != 2:
        return None
    fits, shape = broadcast(inputs[0], inputs[1], arithmetic)
    return Typed((fits,), (shape,))


def broadcast(a: Tuple, b: Tuple, arithmetic: Arithmetic) -> tuple[Claim, Tuple]:
    """Claim that two shapes broadcast, and the result."""
    if a is b or arithmetic.knows(same(a, b)):
        return Claim(True), a
    if arithmetic.knows(integer(b.length) == 0):
        return Claim(True), a
    if arithmetic.knows(integer(a.length) == 0):
        return Claim(True), b
    if isinstance(a.length, int) and isinstance(b.length, int):
        length: Any = max(a.length, b.length)
    else:
        length = z3.If(integer(a.length) >= b.length, integer(a.length), integer(b.length))
    missing_a, missing_b = length - a.length, length - b.length

    def sizes(place: Any) -> tuple[Any, Any]:
        return tuple(
            z3.If(integer(place) < missing, 1, each.at(plus(place, -missing)))
            for each, missing in ((a, missing_a), (b, missing_b))
        )

    def at(place: Any) -> Any:
        x, y = sizes(place)
        return z3.simplify(z3.If(x == 1, y, x))

    def fits(place: Any) -> Any:
        x, y = sizes(place)
        return z3.Or(x == y, x == 1, y == 1)

    shape = Tuple.made(length, at)
    return everywhere(shape, fits), shape


@TYPINGS.register("concat")
def _concat(attributes: Mapping[str, Any], inputs: Sequence[Tuple], arithmetic: Arithmetic) -> Typed | None:
    """Concatenation of two inputs along an axis that is counted from the front."""
    a, b = inputs
    axis = attributes["axis"]

    def fits(place: Any) -> Any:
        return z3.Or(integer(place) == axis, a.at(place) == b.at(place))

    needs = [Claim(integer(a.length) == b.length), Claim(is_inside(axis, a.length)), everywhere(a, fits)]
    return Typed(tuple(needs), (_with(a, axis, integer(a.at(axis)) + b.at(axis)),))


def _with(shape: Tuple, axis: Any, size: Any) -> Tuple:
    """A shape with another size along one axis."""
    return Tuple.made(shape.length, lambda place: z3.simplify(z3.If(integer(place) == axis, size, shape.at(place))))


@TYPINGS.register("split")
def _split(attributes: Mapping[str, Any], inputs: Sequence[Tuple], arithmetic: Arithmetic) -> Typed | None:
    (x,), axis, sizes = inputs, attributes["axis"], attributes["sizes"]
    if sizes.items is None:
        return None
    needs = [Claim(is_inside(axis, x.length)), Claim(z3.Sum(sizes.items) == x.at(axis))]
    needs += [Claim(size >= 1) for size in sizes.items]
    return Typed(tuple(needs), tuple(_with(x, axis, size) for size in sizes.items))


@TYPINGS.register("slice")
def _slice(attributes: Mapping[str, Any], inputs: Sequence[Tuple], arithmetic: Arithmetic) -> Typed | None:
    """Slice of one axis, from one place to a later one, if these are known to lie inside."""
    (x,) = inputs
    held = [attributes[name].items for name in ("starts", "ends", "axes", "steps")]
    if any(items is None or len(items) != 1 for items in held):
        return None
    start, end, axis, step = (items[0] for items in held)
    inside = Claim(z3.And(is_inside(axis, x.length), start >= 0, start < end, end <= x.at(axis), step == 1))
    return Typed((inside,), (_with(x, axis, end - start),)) if arithmetic.knows(inside) else None


@TYPINGS.register("matmul")
def _matmul(attributes: Mapping[str, Any], inputs: Sequence[Tuple], arithmetic: Arithmetic) -> Typed | None:
    a, b = inputs
    if not isinstance(a.length, int) or not isinstance(b.length, int):
        rank = integer(a.length)
        if isinstance(b.length, int) and b.length == 2:
            needs = (Claim(rank >= 1), Claim(a.at(rank - 1) == b.at(0)))
            return Typed(needs, (_with(a, rank - 1, b.at(1)),))
        if not arithmetic.knows(z3.And(rank == b.length, rank >= 2)):
            return None

        def at(place: Any) -> Any:
            leading = z3.If(a.at(place) == 1, b.at(place), a.at(place))
            return z3.If(place == rank - 1, b.at(place), z3.If(place == rank - 2, a.at(place), leading))

        def fits(place: Any) -> Any:
            return z3.Or(place >= rank - 2, a.at(place) == b.at(place), a.at(place) == 1, b.at(place) == 1)

        return Typed((Claim(a.at(rank - 1) == b.at(rank - 2)), everywhere(a, fits)), (Tuple(rank, at),))
    if not a.length or not b.length:
        return Typed((Claim(False),), (Tuple.of([]),))
    x, y = a.items or [], b.items or []
    inner = y[-2] if len(y) > 1 else y[0]
    fit, leading = broadcast(Tuple.of(x[:-2]), Tuple.of(y[:-2]), arithmetic)
    shape = [*(leading.items or []), *x[-2:-1], *(y[-1:] if len(y) > 1 else [])]
    return Typed((Claim(x[-1] == inner), fit), (Tuple.of(shape),))


@TYPINGS.register("transpose")
def _transpose(attributes: Mapping[str, Any], inputs: Sequence[Tuple], arithmetic: Arithmetic) -> Typed | None:
    (x,), order = inputs, attributes["permutation"]
    needs = [Claim(integer(order.length) == x.length)]
    if order.items is None:
        needs += [
            arithmetic.statement("is a permutation", order),
            everywhere(order, lambda place: is_inside(order.at(place), x.length)),
        ]
    else:
        needs += [Claim(is_inside(axis, x.length)) for axis in order.items] + [Claim(distinct(order.items))]
    return Typed(tuple(needs), (Tuple.made(order.length, lambda place: x.at(order.at(place))),))


@TYPINGS.register("pad")
def _pad(attributes: Mapping[str, Any], inputs: Sequence[Tuple], arithmetic: Arithmetic) -> Typed | None:
    """With constants; the other modes ask more of the sizes."""
    (x,), pads, mode = inputs, attributes["pads"], attributes["mode"]
    if not _is_known(mode, "constant", arithmetic):
        return None

    def size(place: Any) -> Any:
        return x.at(place) + pads.at(place) + pads.at(place + x.length)

    shape = Tuple.made(x.length, size)
    needs = (Claim(pads.length == 2 * integer(x.length)), everywhere(shape, lambda place: shape.at(place) >= 1))
    return Typed(needs, (shape,))


@TYPINGS.register("conv")
def _conv(attributes: Mapping[str, Any], inputs: Sequence[Tuple], arithmetic: Arithmetic) -> Typed | None:
    x, w = inputs[:2]
    strides, pads, dilations, groups = (attributes[name] for name in ("strides", "pads", "dilations", "groups"))
    groups = integer(groups)
    rank = strides.length

    def spans(place: Any) -> Any:
        window = arithmetic.times(dilations.at(place), w.at(place + 2) - 1, cancels=False)
        return x.at(place + 2) + pads.at(place) + pads.at(place + rank) - window - 1

    needs = [
        Claim(integer(x.length) == rank + 2),
        Claim(integer(w.length) == rank + 2),
        Claim(integer(pads.length) == 2 * integer(rank)),
        Claim(integer(dilations.length) == rank),
        Claim(groups >= 1),
        Claim(integer(x.at(1)) == arithmetic.times(w.at(1), groups)),
        arithmetic.is_divisible(w.at(0), groups),
        everywhere(strides, lambda place: z3.And(integer(strides.at(place)) >= 1, dilations.at(place) >= 1)),
        everywhere(pads, lambda place: integer(pads.at(place)) >= 0),
        everywhere(strides, lambda place: spans(place) >= 0),
    ]
    if len(inputs) == 3:
        needs += [Claim(integer(inputs[2].length) == 1), Claim(inputs[2].at(0) == w.at(0))]

    def spatial(place: Any) -> Any:
        return arithmetic.quotient(spans(place), strides.at(place), cancels=False) + 1

    return Typed(tuple(needs), (_images(x, w.at(0), rank, spatial),))


def _images(x: Tuple, channels: Any, rank: Any, spatial: Callable[[Any], Any]) -> Tuple:
    """The shape of as many images, with other channels and ``rank`` other sizes."""

    def at(place: Any) -> Any:
        if isinstance(place, int):
            return x.at(0) if place == 0 else channels if place == 1 else spatial(place - 2)
        return z3.If(place == 0, x.at(0), z3.If(place == 1, channels, spatial(place - 2)))

    return Tuple.made(plus(rank, 2), at)


_pooled = z3.Function("pooled", *[z3.IntSort()] * 6, z3.DeclareSort("Value"), z3.IntSort())


@TYPINGS.register("max_pool", "average_pool")
def _pool(attributes: Mapping[str, Any], inputs: Sequence[Tuple], arithmetic: Arithmetic) -> Typed | None:
    """The count of windows is an unknown function of all that it depends on."""
    (x,) = inputs
    kernel, strides, pads, dilations = (attributes[name] for name in ("kernel", "strides", "pads", "dilations"))
    ceil_mode = attributes["ceil_mode"]
    ceil_mode = ceil_mode if is_opaque(ceil_mode) else arithmetic.literal(ceil_mode)
    rank = kernel.length

    def positive(place: Any) -> Any:
        return z3.And([integer(each.at(place)) >= 1 for each in (kernel, strides, dilations)])

    def padding(place: Any) -> Any:
        extent = arithmetic.times(dilations.at(place), kernel.at(place) - 1, cancels=False) + 1
        sides = [integer(pads.at(place)), integer(pads.at(place + rank))]
        return z3.And([z3.And(side >= 0, side < extent) for side in sides])

    def count(place: Any) -> Any:
        before, after = pads.at(place), pads.at(place + rank)
        return _pooled(
            x.at(place + 2), kernel.at(place), strides.at(place), before, after, dilations.at(place), ceil_mode
        )

    needs = (
        Claim(integer(x.length) == rank + 2),
        Claim(z3.And(integer(strides.length) == rank, integer(dilations.length) == rank)),
        Claim(integer(pads.length) == 2 * integer(rank)),
        everywhere(kernel, positive),
        everywhere(kernel, padding),
        everywhere(kernel, lambda place: count(place) >= 1),
    )
    return Typed(needs, (_images(x, x.at(1), rank, count),))


@TYPINGS.register("global_average_pool", "global_max_pool")
def _global_pool(attributes: Mapping[str, Any], inputs: Sequence[Tuple], arithmetic: Arithmetic) -> Typed | None:
    (x,) = inputs
    return Typed(
        (Claim(integer(x.length) > 2),), (_images(x, x.at(1), plus(x.length, -2), lambda place: z3.IntVal(1)),)
    )


def _channels_last(kind: str) -> None:
    """Register the typing of the op on NCHW for NHWC, with its input and output transposed."""

    @TYPINGS.register(f"{kind}_nhwc")
    def typing(attributes: Mapping[str, Any], inputs: Sequence[Tuple], arithmetic: Arithmetic) -> Typed | None:
        x, *rest = inputs
        first = Tuple.of([x.at(axis) for axis in TO_FIRST])
        found = TYPINGS[kind](attributes, [first, *rest], arithmetic)
        if found is None:
            return None
        (y,) = found.outputs
        return Typed((Claim(integer(x.length) == 4), *found.needs), (Tuple.of([y.at(axis) for axis in TO_LAST]),))


for _kind in ("conv", "max_pool", "average_pool", "global_average_pool", "global_max_pool"):
    _channels_last(_kind)


@TYPINGS.register("batch_norm")
def _batch_norm(attributes: Mapping[str, Any], inputs: Sequence[Tuple], arithmetic: Arithmetic) -> Typed | None:
    x, *each = inputs
    needs = [Claim(integer(x.length) > 1)]
    needs += [Claim(z3.And(integer(value.length) == 1, value.at(0) == x.at(1))) for value in each]
    return Typed(tuple(needs), (x,))


@TYPINGS.register("reshape")
def _reshape(attributes: Mapping[str, Any], inputs: Sequence[Tuple], arithmetic: Arithmetic) -> Typed | None:
    """To a shape without a 0 or -1, of a tensor of known rank."""
    (x,), shape = inputs, attributes["shape"]
    if x.items is None or shape.items is None or not all(arithmetic.knows(size >= 1) for size in shape.items):
        return None
    elements = [reduce(arithmetic.times, each.items or (), z3.IntVal(1)) for each in (x, shape)]
    return Typed((Claim(elements[0] == elements[1]),), (shape,))


@TYPINGS.register("gemm")
def _gemm(attributes: Mapping[str, Any], inputs: Sequence[Tuple], arithmetic: Arithmetic) -> Typed | None:
    """Product for which it is known which operands are transposed."""
    sides = []
    for shape, name in zip(inputs[:2], ("trans_a", "trans_b"), strict=True):
        transposed = _is_known(attributes[name], True, arithmetic)
        if not transposed and not _is_known(attributes[name], False, arithmetic):
            return None
        sides.append((shape.at(1), shape.at(0)) if transposed else (shape.at(0), shape.at(1)))
    (rows, inner), (inner_b, columns) = sides
    y = Tuple.of([integer(rows), integer(columns)])
    needs = [Claim(integer(each.length) == 2) for each in inputs[:2]] + [Claim(integer(inner) == inner_b)]
    if len(inputs) == 3:
        fits, whole = broadcast(y, inputs[2], arithmetic)
        needs += [fits, same(whole, y)]
    return Typed(tuple(needs), (y,))
