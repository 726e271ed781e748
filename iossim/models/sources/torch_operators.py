"""Operators of PyTorch that torch's ONNX exporter lacks or writes wrongly: as operators of ONNX, or carried.

What ONNX lacks, as operators of other libraries (``torch.library``), is carried: as a node of domain
``torch.LIBRARY``, which PyTorch alone computes, and which is priced by its traffic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from iossim.base.errors import ModelError

#: Libraries whose operators the exporter translates, or decomposes.
_TRANSLATED = ("aten", "prim", "prims", "torchvision", "quantized_decomposed", "onnx", "onnx_symbolic")
#: Products of rows that are sorted by experts, each with the weights of its expert.
_GROUPED = ("aten::_grouped_mm", "transformers::grouped_mm_fallback")
#: Arguments of an operator that is carried.
_CARRIED = re.compile(r"((Optional|List)\[)*(Tensor|int|float|bool|str)\]*")
#: From so many times fewer rows than experts on, a row's own weights are read for it.
_FEW_ROWS = 3


def translations(graph: Any) -> dict[Any, Callable[..., Any]]:
    """Translations of the operators of a trace (``torch.fx``), as ``torch.onnx.export`` takes them.

    Raises ModelError for an operator of another library that cannot be carried.
    """
    import torch
    from onnxscript.function_libs.torch_lib.ops.core import aten_conv3d

    aten = torch.ops.aten
    found: dict[Any, Callable[..., Any]] = dict.fromkeys((aten.squeeze.dim, aten.squeeze.dims), _squeezed)
    found[aten.conv3d.default] = _biased(aten_conv3d)
    for operator in {node.target for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)}:
        if operator.name() in _GROUPED:
            found[operator] = _by_experts
        elif operator.namespace not in _TRANSLATED:
            found[operator] = carried(operator)
    return found


def untranslated(error: BaseException | None) -> Any:
    """The operator that the exporter could not translate, by its error; None if it failed for another reason."""
    while error is not None:
        if found := re.search(r"call_function\[target=torch\.ops\.([\w.]+)\]", str(error)):
            return named(found[1])
        error = error.__cause__
    return None


def named(path: str) -> Any:
    """The operator of PyTorch ``LIBRARY.NAME.OVERLOAD``; None if there is none."""
    import torch

    try:
        found = attrgetter(path)(torch.ops)
    except AttributeError:
        return None
    return found if isinstance(found, torch._ops.OpOverload) else None


def reason_against(operator: Any) -> str:
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


def carried(operator: Any) -> Callable[..., Any]:
    """The translation that carries an operator: to a node whose attribute ``call`` is, in JSON, the arguments of the
    call, names of keywords, and values of these, with ``{}`` for the next tensor.

    Raises ModelError for one that changes its arguments, or is of more than tensors, numbers and strings.
    """
    from onnx.defs import OpSchema
    from onnxscript import ir, values

    if reason := reason_against(operator):
        raise ModelError(f"operator {operator} {reason}")
    made = operator._schema
    space, name = f"torch.{operator.namespace}", f"{made.name.rpartition('::')[2]}.{operator._overloadname}"
    any_number = OpSchema.FormalParameterOption.Variadic
    schema = OpSchema(
        name,
        space,
        1,
        inputs=[OpSchema.FormalParameter("x", "T", param_option=any_number, is_homogeneous=False)],
        outputs=[OpSchema.FormalParameter(f"y{place}", "T") for place in range(len(made.returns))],
        type_constraints=[("T", ["tensor(float)"], "")],
        attributes=[OpSchema.Attribute("call", OpSchema.AttrType.STRING, required=True)],
    )

    def translated(*arguments: Any, **keywords: Any) -> Any:
        tensors: list[Any] = []

        def told(value: Any) -> Any:
            if isinstance(value, ir.Value):
                tensors.append(value)
                return {}
            return [told(each) for each in value] if isinstance(value, list | tuple) else value

        call = [told(arguments), [*keywords], told([*keywords.values()])]
        return values.Op(values.Opset(space, 1), name, schema)(*tensors, call=json.dumps(call))

    return translated


def _squeezed(x: Any, dim: Any) -> Any:
    """``aten::squeeze`` of axes: those longer than one stay, which ONNX's Squeeze refuses."""
    from onnxscript import opset18 as op

    axes = [each for each in (dim if isinstance(dim, list | tuple) else [dim]) if len(x.shape) and x.shape[each] == 1]
    return op.Squeeze(x, op.Constant(value_ints=axes)) if axes else op.Identity(x)


def _biased(convolution: Any) -> Callable[..., Any]:
    """``aten::conv3d`` by the exporter's translation, which makes a bias of a wrong shape where there is none."""
    from onnxscript import opset18 as op

    def translated(x: Any, weight: Any, bias: Any = None, *sizes: Any) -> Any:
        zeros = op.Constant(value_floats=[0.0] * weight.shape[0])
        return convolution(x, weight, op.CastLike(zeros, x) if bias is None else bias, *sizes)

    return translated


def _by_experts(x: Any, weight: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """A grouped product: rows ``x [rows, inner]``, ``weight [experts, inner, width]``, the end ``offs`` of each group.

    Each expert multiplies all rows, and its own are taken: experts are branches, whatever the routing. Far fewer rows
    than experts are multiplied each by the weights that are looked up for it. Rows after the last group are zero.
    """
    from onnxscript import opset18 as op

    if len(x.shape) != 2 or len(weight.shape) != 3 or bias is not None or out_dtype is not None:
        raise ModelError(f"a grouped product of {x.shape} and {weight.shape} has no form in ONNX; leave it out")
    rows, experts = x.shape[0], weight.shape[0]
    second = op.Constant(value_ints=[1])
    ended = op.LessOrEqual(op.Cast(offs, to=7), op.Unsqueeze(op.Constant(value_ints=[*range(rows)]), second))
    expert = op.ReduceSum(op.Cast(ended, to=7), second, keepdims=1)
    zero = op.CastLike(op.Constant(value_float=0.0), x)
    if rows * _FEW_ROWS < experts:
        last = op.Constant(value_int=experts - 1)
        own = op.Gather(weight, op.Squeeze(op.Min(expert, last), second))
        product = op.Squeeze(op.MatMul(op.Unsqueeze(x, second), own), second)
        return op.Where(op.LessOrEqual(expert, last), product, zero)
    terms = []
    for place in range(experts):
        number = op.Constant(value_int=place)
        terms.append(op.Where(op.Equal(expert, number), op.MatMul(x, op.Gather(weight, number, axis=0)), zero))
    return op.Sum(*terms)
