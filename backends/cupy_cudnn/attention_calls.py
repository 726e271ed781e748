"""An attention as one call of cuDNN, which reads queries, keys and values where they lie, transposed by strides.

The ops of an attention that is spelt out (:mod:`iossim.ir.attention`) are lowered one by one, and run *apart*; the
fused call reads the same values, and includes scales and a mask. The op
:class:`~iossim.ir.ops.attention.Attention` runs apart as two products with a softmax between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iossim.backends.cupy_cudnn import element_kernels, reduction_kernels
from iossim.backends.cupy_cudnn.convolution import ConvolutionCall, FusedAttention, TensorLayout, fused_or_apart
from iossim.backends.cupy_cudnn.op_calls import OP_CALLS
from iossim.backends.cupy_cudnn.unit_calls import HostCall
from iossim.backends.cupy_cudnn.unit_chains import UnitChains
from iossim.backends.cupy_cudnn.views import CUDNN_ALIGNMENT_BYTES, KernelCall, View
from iossim.ir.attention import SpeltAttention, repetition
from iossim.ir.graph import Node
from iossim.ir.ops.attention import Attention
from iossim.ir.ops.functions import Unary
from iossim.ir.ops.nary import Add, Mul, Where
from iossim.ir.ops.reshape import Expand, Reshape, Transpose
from iossim.ir.ops.unary import Cast
from iossim.ir.types import DType


def fused_attention(
    calls: UnitChains, attention: SpeltAttention, apart: Sequence[KernelCall | ConvolutionCall]
) -> ConvolutionCall | None:
    """An attention as one call of cuDNN or as the calls of its ops, as is faster; None if cuDNN has none.

    cuDNN computes in 16 bits, reads and writes rows of a head's features without gaps, caps no scores, and scales
    neither masks nor values. Where a check follows the softmax, a kernel after cuDNN's puts zeros in place of NaN.
    """
    scale = 1.0
    if attention.softcap:
        return None
    for node in attention.softened:
        if isinstance(node.op, Add) and scale != 1.0:
            return None
        scale *= _factor(calls, node)
    views: dict[str, View] = {}
    for name, (source, path) in zip("qkv", attention.operands, strict=True):
        view: View | None = calls.view(source)
        shared = 1
        for node in reversed(path):
            if isinstance(node.op, Transpose):
                view = view and view.permuted(node.op.permutation)
            elif isinstance(node.op, Expand):
                shared *= repetition(calls.graph, [node])
            elif isinstance(node.op, Reshape):
                shape = calls.graph.types[node.outputs[0]].shape
                if shared > 1:
                    shape = (*shape[:-3], shape[-3] // shared, *shape[-2:])
                view = view and view.reshaped(shape)
            else:
                view = None if name == "v" else view
                scale *= _factor(calls, node)
        if view is None:
            return None
        views[name] = view.permuted((*range(len(view.shape) - 2), -1, -2)) if name == "k" else view
    product = next(node for node in attention.nodes if not isinstance(node.op, Transpose))
    views["y"] = y = calls.values[product.outputs[0]]
    if y.dtype.bytes != 2 or any(len(view.shape) not in (3, 4) for view in views.values()):
        return None
    mask = None if attention.mask is None else calls.view(attention.mask)
    is_nan = element_kernels.op_expression(Unary("is_nan"), ["a0"])
    text = element_kernels.op_expression(Where(), [is_nan, "0.0f", "a0"])
    checks = [element_kernels.chain(text, [y], y)] * attention.checks
    wide = {name: _with_four_axes(view) for name, view in views.items()}
    return _fused(wide, mask, scale, apart, after=checks)


def _factor(calls: UnitChains, node: Node) -> float:
    """The number by which an op between the products multiplies."""
    if isinstance(node.op, Add | Cast | Reshape):
        return 1.0
    number = calls.weights.number(next(each for each in node.inputs if calls.weights.knows(each)))
    return number if isinstance(node.op, Mul) else 1.0 / number


@OP_CALLS.register(Attention)
def attention_op(calls: UnitChains, node: Node, op: Attention) -> None:
    """The op as one call of cuDNN, where cuDNN may have one, or as two products with a softmax between them.

    Raises BackendError for a Boolean mask that hides all keys from a query, or is not constant.
    """
    shape = op.shape(calls.graph.input_types(node))
    heads = {"q": shape.heads, "k": shape.kv_heads, "v": shape.kv_heads, "y": shape.heads}
    places = [*map(calls.view, node.inputs[:3]), calls.written(node)]
    views = {name: _split(view, own) for (name, own), view in zip(heads.items(), places, strict=True)}
    dtype, scale = views["q"].dtype, op.scale or shape.features**-0.5
    masks = [
        calls.weights.seen(name, dtype) if calls.graph.types[name].dtype is DType.BOOL else calls.view(name)
        for name in node.inputs[3:]
    ]
    before, calls.calls = calls.calls, []
    _apart(calls, views, op, [*masks, *([calls.weights.causal(*shape.scores[2:], dtype)] * op.is_causal)], scale)
    apart = [call for call in calls.calls if not isinstance(call, HostCall)]
    calls.calls = before
    fused = None
    if not op.softcap and dtype.bytes == 2:
        fused = _fused(views, masks[0] if masks else None, scale, apart, op.is_causal)
    calls.calls += apart if fused is None else [fused]


def _apart(calls: UnitChains, views: Mapping[str, View], op: Attention, masks: Sequence[View], scale: float) -> None:
    """Query heads that share a key head are rows of one product, so that no key is read twice."""
    (batch, heads, queries, features), (_, kv_heads, keys, _) = views["q"].shape, views["k"].shape
    scores = calls.scratch((batch, heads, queries, keys), views["q"].dtype)
    grouped = (batch, kv_heads, heads // kv_heads * queries)
    rows = scores.with_ones((*grouped, keys))
    calls.multiply(calls.flat(views["q"], (*grouped, features)), views["k"].permuted((0, 1, 3, 2)), rows)
    text = f"a0 * {element_kernels.literal(scale)}"
    if op.softcap:
        cap = element_kernels.literal(op.softcap)
        text = f"{cap} * {element_kernels.op_expression(Unary('tanh'), [f'({text}) / {cap}'])}"
    terms = " + ".join([text, *(f"a{index}" for index in range(1, 1 + len(masks)))])
    masked = element_kernels.Computed(terms, (scores, *masks))
    calls.calls.append(reduction_kernels.softmax(masked, scores, [3]))
    with calls.written_as(views["y"], (*grouped, views["y"].shape[3])) as y:
        calls.multiply(rows, views["v"], y)


def _split(view: View, heads: int) -> View:
    """``[batch, tokens, heads * features]`` as ``[batch, heads, tokens, features]``; four axes unchanged."""
    if len(view.shape) == 4:
        return view
    return view.split(2, (heads, view.shape[2] // heads)).permuted((0, 2, 1, 3))


def _fused(
    views: Mapping[str, View],
    mask: View | None,
    scale: float,
    apart: Sequence[KernelCall | ConvolutionCall],
    is_causal: bool = False,
    after: Sequence[KernelCall] = (),
) -> ConvolutionCall | None:
    """The call of cuDNN for views of four axes each, or those ``apart``; None if one does not suit it."""
    known = dict(views)
    if not all(_suits(view, views["y"]) for view in views.values()):
        return None
    if mask is not None:
        of_scores = _of_scores(mask, views["q"], views["k"])
        if of_scores is None:
            return None
        known["m"] = of_scores
    layouts = {name: TensorLayout(view.shape, view.image_strides()) for name, view in known.items()}
    q, k, v, y = (layouts[name] for name in "qkvy")
    asked = FusedAttention(q, k, v, y, scale, views["y"].dtype, layouts.get("m"), is_causal)
    return fused_or_apart(asked, known, apart, after)


def _with_four_axes(view: View) -> View:
    """A view of fewer axes, as it broadcasts."""
    return view.with_ones((*(1,) * (4 - len(view.shape)), *view.shape))


def _suits(view: View, y: View) -> bool:
    """True where rows of features are contiguous and aligned, as cuDNN requires."""
    aligned = CUDNN_ALIGNMENT_BYTES // view.dtype.bytes
    steps = [stride for size, stride in zip(view.shape[:3], view.strides[:3], strict=True) if size > 1]
    starts = [*steps, view.offset, view.shape[3]]
    return (
        view.dtype == y.dtype and view.strides[3] == 1 and min([1, *steps]) > 0 and not any(s % aligned for s in starts)
    )


def _of_scores(mask: View, q: View, k: View) -> View | None:
    """A mask that broadcasts to the scores and has a whole row of keys; None for others."""
    if mask.dtype != q.dtype or len(mask.shape) > 4:
        return None
    wide = _with_four_axes(mask)
    scores = (*q.shape[:3], k.shape[2])
    fits = (
        all(size in (1, whole) for size, whole in zip(wide.shape, scores, strict=True)) and wide.shape[3] == scores[3]
    )
    return wide if fits and wide.strides[3] == 1 and wide.offset_bytes % CUDNN_ALIGNMENT_BYTES == 0 else None
