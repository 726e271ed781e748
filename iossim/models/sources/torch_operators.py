"""Operators of PyTorch that torch's ONNX exporter lacks or writes wrongly: as operators of ONNX, or carried.

What ONNX lacks, as operators of other libraries (``torch.library``), is carried: as a node of domain
``torch.LIBRARY``, which PyTorch alone computes, and which is priced by its traffic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from functools import partial
from math import log, prod
from operator import attrgetter, getitem
from typing import TYPE_CHECKING, Any

import numpy as np

from iossim.base.errors import ModelError
from iossim.models.onnx.grouped_products import DOMAIN, call_of

if TYPE_CHECKING:
    from torch._ops import OpOverload
    from torch.fx import Graph, Node

#: Makes what an operator returns; by its annotations, at run time, the exporter tells tensors from constants.
Translation = Callable[..., object]
#: Libraries whose operators the exporter translates, or decomposes.
_TRANSLATED = ("aten", "prim", "prims", "torchvision", "quantized_decomposed", "onnx", "onnx_symbolic")
#: Products of rows that are sorted by experts, each with the weights of its expert.
_GROUPED = ("aten::_grouped_mm", "transformers::grouped_mm_fallback")
#: Operators that the exporter takes apart into what it does not have, or into loops.
_WHOLE = (
    *("aten::embedding_bag", "aten::inverse", "aten::linalg_cholesky", "aten::linalg_inv", "aten::linalg_lu_factor"),
    *("aten::linalg_solve", "aten::logaddexp2", "aten::logcumsumexp"),
)
#: Arguments of an operator that is carried.
_CARRIED = re.compile(r"((Optional|List)\[)*(Tensor|int|float|bool|number|str)\]*")


def translations(graph: Graph, inputs: Collection[object] = ()) -> dict[OpOverload, Translation]:
    """Translations of the operators of a trace (``torch.fx``), as ``torch.onnx.export`` takes them.

    ``inputs`` are the names of what calls give. Raises ModelError for an operator of another library that cannot be
    carried.
    """
    import torch
    from onnxscript.function_libs.torch_lib.ops.core import aten_conv3d, aten_index_put
    from onnxscript.function_libs.torch_lib.ops.nn import aten_scaled_dot_product_attention

    aten = torch.ops.aten
    found: dict[OpOverload, Translation] = dict.fromkeys((aten.squeeze.dim, aten.squeeze.dims), _squeezed)
    found[aten.conv3d.default] = _biased(aten_conv3d)
    found |= _arithmetic()
    attention = aten.scaled_dot_product_attention.default
    found[attention] = _of_four_axes(aten_scaled_dot_product_attention, attention, inputs)
    puts = [node for node in graph.nodes if node.target in (aten.index_put.default, aten.index_put_.default)]
    found[aten.index_put.default] = _inverse if puts and all(map(_inverts, puts)) else _masked(aten_index_put)
    if all(_is_ranged(node) for node in graph.nodes if node.target is aten.histc.default):
        found[aten.histc.default] = _counted
    whole = {node.target for node in graph.nodes if _loses(node)}
    for operator in {node.target for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)}:
        if operator.name() in _GROUPED:
            found[operator] = _by_experts
        elif operator.namespace not in _TRANSLATED or operator.name().startswith(_WHOLE) or operator in whole:
            found[operator] = carried(operator)
    return found


def _cast_differences(graph: Graph) -> None:
    """Cast whole numbers that a fraction is less by, as in ``1.0 - mask``, which the exporter does not itself."""
    import torch

    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.rsub.Scalar):
        if (made := node.meta["val"].dtype) != node.args[0].meta["val"].dtype:
            with graph.inserting_before(node):
                cast = graph.call_function(torch.ops.aten.to.dtype, (node.args[0], made))
            cast.meta["val"] = node.args[0].meta["val"].to(made)
            node.args = (cast, *node.args[1:])


def respell(graph: Graph) -> None:
    """Write what the exporter lacks, or gets wrong, by other operators of PyTorch; raises as :func:`_order_as_stored`.

    Shifts by a number are products and quotients, RReLU is a leaky ReLU in inference, and images with corners aligned
    have a size for a scale: PyTorch aligns the whole size, ONNX the size before it is rounded down.
    """
    import torch

    aten = torch.ops.aten
    left = (aten.__lshift__.Scalar, aten.bitwise_left_shift.Tensor_Scalar)
    right = (aten.__rshift__.Scalar, aten.bitwise_right_shift.Tensor_Scalar)
    for node in graph.nodes:
        if node.target in left + right:
            x, by = node.args
            if 0 <= by < torch.iinfo(x.meta["val"].dtype).max.bit_length():
                node.target = aten.mul.Tensor if node.target in left else aten.floor_divide.default
                node.args = (x, 2**by)
        elif node.target is aten.rrelu.default and not any(node.args[3:4]):
            x, low, high = list(node.args[:3]) + [1 / 8, 1 / 3][len(node.args) - 1 :]
            node.target, node.args = aten.leaky_relu.default, (x, (low + high) / 2)
        elif getattr(node.target, "__name__", "").startswith("upsample_") and node.args[2:3] == (True,):
            node.args = (node.args[0], list(node.meta["val"].shape[2:]), True, None)[: len(node.args)]
    _cast_differences(graph)
    _order_as_stored(graph)


def _order_as_stored(graph: Graph) -> None:
    """Turn what ``as_strided`` reads into the order in which it lies, which the exporter takes for that of its axes.

    Raises ModelError for one that reads outside of a dense tensor.
    """
    import torch

    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.as_strided.default):
        source, size, stride, *rest = node.args
        value = source.meta["val"]
        order = np.argsort([-step for step in value.stride()], kind="stable").tolist()
        begin = (rest[0] if rest else value.storage_offset()) - value.storage_offset()
        last = begin + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
        if not value.permute(order).is_contiguous() or begin < 0 or last >= value.numel():
            raise ModelError(f"{node.name} reads outside of its tensor; index the tensor that it is part of")
        if order != sorted(order):
            with graph.inserting_before(node):
                turned = graph.call_function(torch.ops.aten.permute.default, (source, order))
            turned.meta["val"] = value.permute(order)
            source = turned
        node.args = (source, size, stride, begin)


def untranslated(error: BaseException | None) -> OpOverload | None:
    """The operator that the exporter could not translate, by its error; None if it failed for another reason."""
    while error is not None:
        if found := re.search(r"call_function\[target=torch\.ops\.([\w.]+)\]", str(error)):
            return named(found[1])
        error = error.__cause__
    return None


def named(path: str) -> OpOverload | None:
    """The operator of PyTorch ``LIBRARY.NAME.OVERLOAD``; None if there is none."""
    import torch

    try:
        found = attrgetter(path)(torch.ops)
    except AttributeError:
        return None
    return found if isinstance(found, torch._ops.OpOverload) else None


def reason_against(operator: OpOverload) -> str:
    """Why an operator cannot be carried, in a few words; empty if it can.

    A file may name any operator: those that read or write files take no tensor first, or return none.
    """
    schema = operator._schema
    if schema.is_mutable:
        return "changes its arguments; let it return new tensors"
    taken, returned = ([str(each.type) for each in some] for some in (schema.arguments, schema.returns))
    if taken[:1] not in (["Tensor"], ["List[Tensor]"]) or {*returned} != {"Tensor"}:
        return "is none from tensors to tensors; leave it out of the module"
    others = [each for each in taken if not _CARRIED.fullmatch(each)]
    return f"takes a {others[0]}; leave it out of the module" if others else ""


def carried(operator: OpOverload) -> Translation:
    """The translation that carries an operator: to a node whose attribute ``call`` is, in JSON, the arguments of the
    call, names of keywords, and values of these, with ``{}`` for the next tensor.

    Raises ModelError for one that changes its arguments, or is of more than tensors, numbers and strings.
    """
    from onnxscript import ir

    if reason := reason_against(operator):
        raise ModelError(f"operator {operator} {reason}")
    made = operator._schema
    node = _node(
        f"torch.{operator.namespace}", f"{made.name.rpartition('::')[2]}.{operator._overloadname}", len(made.returns)
    )

    def translated(*arguments: Any, **keywords: Any) -> Any:
        tensors: list[ir.Value] = []

        def told(value: object) -> object:
            if isinstance(value, ir.Value):
                tensors.append(value)
                return {}
            return [told(each) for each in value] if isinstance(value, list | tuple) else value

        call = [told(arguments), [*keywords], told([*keywords.values()])]
        return node(*tensors, call=json.dumps(call))

    return translated


def _node(domain: str, name: str, outputs: int) -> Translation:
    """Makes a node of another domain than ONNX's, of any tensors, and maybe of a string ``call``."""
    from onnx.defs import OpSchema
    from onnxscript import values

    any_number = OpSchema.FormalParameterOption.Variadic
    schema = OpSchema(
        name,
        domain,
        1,
        inputs=[OpSchema.FormalParameter("x", "T", param_option=any_number, is_homogeneous=False)],
        outputs=[OpSchema.FormalParameter(f"y{place}", "T") for place in range(outputs)],
        type_constraints=[("T", ["tensor(float)"], "")],
        attributes=[OpSchema.Attribute("call", OpSchema.AttrType.STRING, required=False)],
    )
    made: Translation = values.Op(values.Opset(domain, 1), name, schema)
    return made


def _squeezed(x: Any, dim: Any) -> Any:
    """``aten::squeeze`` of axes: those longer than one stay, which ONNX's Squeeze refuses."""
    from onnxscript import opset18 as op

    axes = [each for each in (dim if isinstance(dim, list | tuple) else [dim]) if len(x.shape) and x.shape[each] == 1]
    return op.Squeeze(x, op.Constant(value_ints=axes)) if axes else op.Identity(x)


def _biased(convolution: Translation) -> Translation:
    """``aten::conv3d`` by the exporter's translation, which makes a bias of a wrong shape where there is none."""
    from onnxscript import opset18 as op

    def translated(x: Any, weight: Any, bias: Any = None, *sizes: Any) -> Any:
        zeros = op.Constant(value_floats=[0.0] * weight.shape[0])
        return convolution(x, weight, op.CastLike(zeros, x) if bias is None else bias, *sizes)

    return translated


def _arithmetic() -> dict[OpOverload, Translation]:
    """Translations of arithmetic in which the exporter's overflow, lose digits, or are off by one where they round."""
    import torch
    from onnxscript import ir
    from onnxscript import opset18 as op
    from onnxscript.function_libs.torch_lib.ops.core import aten_div_mode, aten_floor_divide

    def number(value: Any, like: Any) -> Any:
        """A number as a tensor of the type of another; a tensor as it is."""
        if not isinstance(value, int | float):
            return value
        made = op.Constant(value=ir.tensor(value, dtype=like.dtype))
        made.dtype = like.dtype
        return made

    def logaddexp(x: Any, y: Any) -> Any:
        """Overflows only where its result does."""
        larger = op.Add(op.Max(x, y), op.Softplus(op.Neg(op.Abs(op.Sub(x, y)))))
        return op.Where(op.Equal(x, y), op.Add(x, number(log(2), x)), larger)

    def log1p(x: Any) -> Any:
        """Near zero not of ``1 + x``, which has lost the digits of ``x``."""
        near = op.Mul(number(2.0, x), op.Atanh(op.Div(x, op.Add(number(2.0, x), x))))
        return op.Where(op.Less(op.Abs(x), number(0.5, x)), near, op.Log(op.Add(x, number(1.0, x))))

    def is_below(x: Any) -> Any:
        zero = number(0.0, x)
        return op.Less(op.Where(op.Equal(x, zero), op.Reciprocal(x), x), zero)

    def atan2(y: Any, x: Any) -> Any:
        """Pi for ``y`` of zero and ``x`` below it, and -pi for -0."""
        zero, pi = number(0.0, y), number(np.pi, y)
        slope = op.Where(op.And(op.Equal(y, zero), op.Equal(x, zero)), y, op.Atan(op.Div(y, x)))
        return op.Where(is_below(x), op.Where(is_below(y), op.Sub(slope, pi), op.Add(slope, pi)), slope)

    def floored(x: Any, y: Any) -> tuple[Any, Any]:
        """Quotient, rounded down, and remainder of fractions, of the exact one (PyTorch's ``div_floor_floating``).

        ``1 // 0.1`` is 9, as binary 0.1 is more than a tenth, and ``1 / 0.1`` is rounded to 10.
        """
        zero, one, rest = number(0.0, x), number(1.0, x), op.Mod(x, y, fmod=1)
        is_other = op.And(op.Not(op.Equal(rest, zero)), op.Xor(op.Less(rest, zero), op.Less(y, zero)))
        quotient = op.Div(op.Sub(x, rest), y)
        whole = op.Round(op.Where(is_other, op.Sub(quotient, one), quotient))
        return op.Where(op.Equal(y, zero), op.Div(x, y), whole), op.Where(is_other, op.Add(rest, y), rest)

    def div(x: Any, y: Any, rounding_mode: str | None = None) -> Any:
        """Of whole numbers without a detour by fp32, which does not hold them all."""
        if isinstance(y, float) and x.dtype.is_integer():
            x = op.Cast(x, to=1)
        x, y = number(x, y), number(y, x)
        if rounding_mode and x.dtype.is_integer():
            return aten_floor_divide(x, y) if rounding_mode == "floor" else op.Div(x, y)
        return floored(x, y)[0] if rounding_mode == "floor" else aten_div_mode(x, y, rounding_mode=rounding_mode)

    def remainder(x: Any, y: Any) -> Any:
        x, y = number(x, y), number(y, x)
        return op.Mod(x, y) if x.dtype.is_integer() else floored(x, y)[1]

    aten = torch.ops.aten
    return {
        # Neither is of a number that is zero, or has lost the digits of ``x``.
        aten.log_sigmoid.default: lambda x: op.Neg(op.Softplus(op.Neg(x))),
        aten.expm1.default: lambda x: op.Mul(op.Tanh(op.Mul(x, number(0.5, x))), op.Add(op.Exp(x), number(1.0, x))),
        **{getattr(aten, each.__name__).default: each for each in (log1p, atan2, logaddexp)},
        **dict.fromkeys((aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor), remainder),
        **dict.fromkeys((aten.div.Tensor_mode, aten.div.Scalar_mode), div),
        aten.floor_divide.default: partial(div, rounding_mode="floor"),
    }


def _of_four_axes(attention: Translation, operator: OpOverload, inputs: Collection[object]) -> Translation:
    """``aten::scaled_dot_product_attention`` by the exporter's translation, which takes four axes, no more or fewer.

    A query whose mask excludes all keys has 0 in PyTorch, and in that translation the mean of the values.
    """
    from onnxscript import ir
    from onnxscript import opset18 as op

    def attended(*given: Any, **named: Any) -> Any:
        made, (mask, *_) = attention(*given, **named), given[3:] or (None,)
        if mask is None or mask.dtype != ir.DataType.BOOL or not (mask.producer() or mask.name in inputs):
            return made
        return op.Mul(made, op.ReduceMax(op.Cast(mask, to=given[0].dtype), op.Constant(value_ints=[-1])))

    def translated(*given: Any, **named: Any) -> Any:
        (query, key, value), before = given[:3], [*map(int, given[0].shape[:-3])]
        if len(before) == 1:
            return attended(*given, **named)
        is_repeated = any([*each.shape[:-3]] != before for each in (key, value))
        if is_repeated or any(len(mask.shape) > 3 for mask in given[3:4] if mask is not None):
            return carried(operator)(*given, **named)
        four = []
        for each in (query, key, value):
            sizes = [prod(before), *[1] * (3 - len(each.shape)), *map(int, each.shape[-3:])]
            four.append(op.Reshape(each, op.Constant(value_ints=sizes)))
            four[-1].shape, four[-1].type = ir.Shape(sizes), each.type
        made = attended(*four, *given[3:], **named)
        return op.Reshape(made, op.Constant(value_ints=[*query.shape[:-1], value.shape[-1]]))

    return translated


def _loses(node: Node) -> bool:
    """True if the exporter leaves an argument out: scales or corners beside an antialias, a divisor, a mean."""
    name, given = str(node.target), node.args
    if name.startswith("aten.scatter_reduce."):
        return bool(given[4] == "mean")
    return any(given[2:] if "2d_aa." in name else given[6:7] if name.startswith("aten.avg_pool") else ())


def _is_ranged(node: Node) -> bool:
    """True if a node of a trace is a histogram of a list of numbers in a range that is given."""
    return len(node.args) == 4 and node.args[2] < node.args[3] and len(node.args[0].meta["val"].shape) == 1


def _inverts(node: Node) -> bool:
    """True if a node of a trace writes the number of each place of a sorted list there: ``y[order] = arange``."""
    import torch

    aten, (y, (places, *others), numbers, *accumulates) = torch.ops.aten, node.args
    if others or accumulates or getattr(places, "target", None) is not getitem or y.meta["val"].dtype != torch.int64:
        return False
    (order, output), sizes = places.args, [tuple(each.meta["val"].shape) for each in (y, places)]
    is_order = order.target is aten.sort.default and output == 1 and numbers.target is aten.arange.default
    return is_order and sizes == [numbers.args] * 2


def _inverse(y: Any, places: Any, numbers: Any) -> Any:
    """The inverse of a permutation: the order that sorts it."""
    from onnxscript import opset18 as op

    return op.TopK(places[0], op.Constant(value_ints=[*numbers.shape]), largest=0)[1]


def _masked(put: Translation) -> Translation:
    """``aten::index_put`` by the exporter's translation, but for ``y[:, mask] = values``, the same at all places: a
    choice, whose shapes do not depend on data.
    """
    from onnxscript import ir
    from onnxscript import opset18 as op

    def translated(y: Any, places: Any, values: Any, accumulate: bool = False) -> Any:
        *before, mask = places
        sizes = None if mask is None or mask.dtype is not ir.DataType.BOOL or accumulate else [*map(int, mask.shape)]
        after = len(y.shape) - len(before) - len(sizes or ())
        is_same = len(values.shape) <= after or set(values.shape) <= {1}
        if sizes is None or not is_same or any(each is not None for each in before):
            return put(y, places, values, accumulate)
        return op.Where(op.Reshape(mask, op.Constant(value_ints=[*sizes, *[1] * after])), values, y)

    return translated


def _counted(x: Any, bins: int, low: float, high: float) -> Any:
    """``aten::histc``: the numbers in each of ``bins`` equal parts of a range, which has both of its ends."""
    from onnxscript import ir
    from onnxscript import opset18 as op

    places, wide = np.arange(bins + 1, dtype=np.float32)[:, None], np.float32(high) - np.float32(low)
    ends = np.float32(low) + wide * places / np.float32(bins)
    for way in [-np.inf] * 4 + [np.inf] * 8:  # to the first number that PyTorch counts there, by its rounded quotient
        near = np.nextafter(ends, np.float32(way))
        reached = ((near if way < 0 else ends) - np.float32(low)) * np.float32(bins) / wide >= places
        ends = np.where(reached == (way < 0), near, ends)
    ends[0], ends[-1] = low, np.nextafter(np.float32(high), np.float32(np.inf))
    begin, end = (op.Constant(value=ir.tensor(part)) for part in (ends[:-1], ends[1:]))
    given, along = op.Cast(x, to=1), op.Constant(value_ints=[1])
    is_inside = op.And(op.GreaterOrEqual(given, begin), op.Less(given, end))
    return op.CastLike(op.ReduceSum(op.Cast(is_inside, to=1), along, keepdims=0), x)


def _by_experts(x: Any, weight: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """A grouped product: rows ``x [rows, inner]``, ``weight [experts, inner, width]``, the end ``offs`` of each group.

    Rows after the last group, which torch leaves as they are, become zero.
    """
    if len(x.shape) != 2 or len(weight.shape) != 3 or bias is not None or out_dtype is not None:
        raise ModelError(f"a grouped product of {x.shape} and {weight.shape} has no form in ONNX; leave it out")
    return _node(DOMAIN, call_of(weight.shape[0]), 1)(x, weight, offs)
