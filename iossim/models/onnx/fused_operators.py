"""ONNX Runtime's fused operators, decomposed: what its graph and transformer optimisers make of ONNX's own.

They are of its domain ``com.microsoft``, or, for one that ONNX did not have, of ONNX's (`ContribOperators.md`,
microsoft/onnxruntime). Weights of a few bits become constants of whole numbers, which are dequantised; those of 2 bits
are kept in 4.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iossim.ir.constants import FilledConstant
from iossim.ir.onnx_spelling import NotCoveredError
from iossim.ir.types import DType, TensorType
from iossim.models.onnx.bodies import Call, Written, counted, number

_CONVOLUTION = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def _activation(kind: str, given: Sequence[float], x: str) -> str:
    """Text that makes ``Y``; none if the activation is of another kind."""
    match kind, [*given]:
        case "", _:
            return f"Y = Identity({x})"
        case (("Relu" | "Sigmoid" | "Tanh"), _):
            return f"Y = {kind}({x})"
        case "LeakyRelu", [alpha, *_]:
            return f"Y = LeakyRelu <alpha = {alpha}> ({x})"
        case "HardSigmoid", [alpha, beta, *_]:
            return f"Y = HardSigmoid <alpha = {alpha}, beta = {beta}> ({x})"
        case "Clip", [low, high, *_]:
            return f"{number('low', low, x)} {number('high', high, x)} Y = Clip({x}, low, high)"
    return ""


def _reversed(call: Call) -> str:
    """The slice of whole sequences backwards (Keras' Bidirectional); none if some are shorter."""
    axis, lengths = call.get("time_axis"), call.operands["sequence_lens"]
    if lengths not in call.node.constants or (call.node.load(lengths) != call.shape("input")[axis]).any():
        return ""
    return f"Y = Slice(input, [-1], [{-(1 << 31)}], [{axis}], [-1])"


def _looked_up(call: Call) -> str:
    """A lookup of rows by places of one number each, as exporters write ``x[places]``; none of other places."""
    *places, numbers = call.shape("indices")
    if numbers != 1 or not places or call.get("batch_dims"):
        return ""
    return f"places = Reshape (indices, {places}) output = Gather (data, places)"


def _convolution(call: Call) -> str:
    activation = _activation(call.get("activation", ""), call.get("activation_params", ()), "S")
    term = "S = Add(C, Z)" if call.has("Z") else "S = Identity(C)"
    return activation and f"C = Conv {call.attributes(*_CONVOLUTION)} (X, W, B) {term} {activation}"


def _gemm(call: Call) -> str:
    given = [call.get(f"activation_{name}", 0.0) for name in ("alpha", "beta", "gamma")]
    activation = _activation(call.get("activation", ""), given, "S")
    return activation and f"S = Gemm {call.attributes('alpha', 'beta', 'transA', 'transB')} (A, B, C) {activation}"


def _product(call: Call) -> str:
    """A product of transposed operands; ``transBatch`` puts the first axis before the last one."""
    text, factors = "", list[str]()
    for name in "AB":
        rank = len(call.shape(name))
        order = [*range(rank)]
        if call.get(f"transBatch{name}") and rank > 2:
            order = [*order[1:-1], order[0], order[-1]]
        if call.get(f"trans{name}") and rank > 1:
            order[-2:] = order[-1], order[-2]
        turns = order != sorted(order)
        factors.append(f"{name}_t" if turns else name)
        text += f"{name}_t = Transpose <perm = {order}> ({name}) " if turns else ""
    product = f"MatMul({', '.join(factors)})"
    alpha = call.get("alpha", 1.0)
    if alpha == 1.0:
        return f"{text} Y = {product}"
    return f"{text} P = {product} {number('alpha', alpha, 'P')} Y = Mul(P, alpha)"


def _gelu(call: Call) -> str:
    x, text = ("S", "S = Add(X, bias)") if call.has("bias") else ("X", "")
    return f'{text} Y = Gelu <approximate = "tanh"> ({x})'


def _split_gelu(call: Call) -> str:
    half = call.shape("X")[-1] // 2
    return f"S = Add(X, bias) L, R = Split <axis = -1> (S, [{half}, {half}]) G = Gelu(R) Y = Mul(L, G)"


def _norm_of_sum(norm: str) -> Written:
    """A norm after the sum of two values, and maybe of a bias; the sum is a result, too."""

    def body(call: Call) -> str:
        if call.makes("mean", "inv_std_var"):
            return ""
        total, wide = call.results.get("input_skip_bias_sum"), "skip" if not call.has("bias") else "biased"
        text = "" if wide == "skip" else "biased = Add(skip, bias)"
        term = "input_skip_bias_sum" if total else "total"
        rest = ", beta" if norm == "LayerNormalization" else ""
        epsilon = call.get("epsilon", 1e-12)
        return (
            f"{text} {term} = Add(input, {wide}) output = {norm} <axis = -1, epsilon = {epsilon}> ({term}, gamma{rest})"
        )

    beta = " beta" if norm == "LayerNormalization" else ""
    return f"input skip gamma{beta} bias -> output mean inv_std_var input_skip_bias_sum", body


def _embedding_norm(call: Call) -> str:
    """Sum of looked up words, positions and segments, and its norm; the number of words that a mask shows."""
    batch, tokens = call.shape("input_ids")
    text = "words = Gather(word_embedding, input_ids) "
    places = "position_ids"
    if not call.has(places):
        places, text = "places", text + counted("places", 0, tokens)
    text += f" positions = Gather(position_embedding, {places}) "
    total = "embedding_sum" if call.makes("embedding_sum") else "total"
    if call.has("segment_ids"):
        text += "both = Add(words, positions) segments = Gather(segment_embedding, segment_ids) "
        text += f"{total} = Add(both, segments) "
    else:
        text += f"{total} = Add(words, positions) "
    if call.makes("mask_index") and call.has("mask"):
        text += "mask_index = ReduceSum <keepdims = 0> (mask, [1]) "
    elif call.makes("mask_index"):
        text += f"mask_index = ConstantOfShape <value = int32[1] {{0}}> ([{batch}]) "
    return (
        f"{text} output = LayerNormalization <axis = -1, epsilon = {call.get('epsilon', 1e-12)}> ({total}, gamma, beta)"
    )


def _group_norm(call: Call) -> str:
    """A group norm of images, channels last by default, and maybe a SiLU; ``S`` is the sum before it."""
    text, x = "", "X"
    if call.has("skip"):
        skip = "skip"
        if len(call.shape("skip")) == 2:
            axes = [1, 2] if call.get("channels_last", 1) else [2, 3]
            text, skip = f"wide = Unsqueeze(skip, {axes}) ", "wide"
        if call.has("bias"):
            if not call.get("channels_last", 1):
                return ""
            text, skip = f"{text} biased = Add({skip}, bias) ", "biased"
        text, x = f"{text} S = Add(X, {skip}) ", "S"
    norm = f"GroupNormalization <num_groups = {call.get('groups')}, epsilon = {call.get('epsilon', 1e-5)}>"
    first, last = ("T", "N") if call.get("channels_last", 1) else (x, "Y")
    text += f"T = Transpose <perm = [0, 3, 1, 2]> ({x}) " if first == "T" else ""
    normed = "normed" if call.get("activation") else last
    text += f"{normed} = {norm} ({first}, gamma, beta) "
    text += f"gate = Sigmoid(normed) {last} = Mul(normed, gate) " if call.get("activation") else ""
    return text + ("Y = Transpose <perm = [0, 2, 3, 1]> (N)" if last == "N" else "")


def _dequantised(call: Call, packed: str, bits: int, block: int, rows: int, columns: int) -> str:
    """Text that makes ``D``, ``[rows, columns]``, of packed blocks with scales and zero points; none for others."""
    if bits not in (2, 4, 8) or min(block, rows, columns) < 1:
        return ""
    signed, unsigned = (DType.INT8, DType.UINT8) if bits == 8 else (DType.INT4, DType.UINT4)
    has_zeros, blocks = call.has("zero_points"), -(-columns // block)
    are_whole = has_zeros and not call.type("zero_points").dtype.is_floating
    is_known = call.unpacked("W", packed, bits, rows, columns, unsigned if has_zeros else signed)
    if not is_known or (are_whole and not call.unpacked("Z", "zero_points", bits, rows, blocks, unsigned)):
        return ""
    each = [rows, blocks]
    text = f"S = Reshape(scales, {each}) "
    in_blocks = f"DequantizeLinear <axis = 1, block_size = {block}>"
    if not has_zeros or are_whole:
        return f"{text} D = {in_blocks} (W, S{', Z' if has_zeros else ''})"
    call.hold("ones", FilledConstant(TensorType((rows, columns), unsigned), 1))
    text += f"zeros = CastLike(zero_points, S) Z = Reshape(zeros, {each}) low = Mul(S, Z) "
    return f"{text} E = {in_blocks} (W, S) R = {in_blocks} (ones, low) D = Sub(E, R)"


def _product_with_few_bits(call: Call) -> str:
    """The product with a dequantised weight. Raises NotCoveredError for columns in groups of another order."""
    bits, block, k, n = (call.get(name) for name in ("bits", "block_size", "K", "N"))
    order = call.node.constant(4, "g_idx") if call.has("g_idx") else np.zeros(0)
    if order.size and (order.size != k or (order != np.arange(k) // max(1, block)).any()):
        raise NotCoveredError("its g_idx orders columns by their activation; quantise without (desc_act=False)")
    text = _dequantised(call, "B", bits, block, n, k)
    rest = "P = MatMul(A, weight) Y = Add(P, bias)" if call.has("bias") else "Y = MatMul(A, weight)"
    return text and f"{text} T = Transpose <perm = [1, 0]> (D) weight = CastLike(T, A) {rest}"


def _rows_with_few_bits(call: Call) -> str:
    """Rows of a table in blocks along its last axis; a table of 4 bits an element is dequantised as it is."""
    rows, *rest = call.shape("data")
    bits, block, axis = call.get("bits", 4), call.get("block_size", 128), call.get("quantize_axis", 1)
    if call.type("data").dtype in (DType.INT4, DType.UINT4):
        read = ", ".join(name for name in call.operands if name != "indices")
        text = f"D = DequantizeLinear <axis = {axis}, block_size = {block}> ({read})"
        return f"{text} output = Gather <axis = {call.get('gather_axis')}> (D, indices)"
    is_packed = call.type("data").dtype is DType.UINT8
    if not is_packed or call.get("gather_axis") or len(rest) != 1 or axis not in (1, -1) or rest[0] * 8 // bits % block:
        return ""
    text = _dequantised(call, "data", bits, block, rows, rest[0] * 8 // bits)
    return text and f"{text} output = Gather(D, indices)"


#: Functions of experts, of their inner values ``h``.
_OF_EXPERTS = {
    **{"relu": "Relu (h)", "gelu": 'Gelu <approximate = "tanh"> (h)', "silu": "Swish (h)", "identity": "Identity (h)"},
    "swiglu": "",
}


def _grouped(made: str, rows: str, name: str, call: Call) -> str:
    """Text that makes the products of rows with the weights of their experts, and adds the bias of these."""
    text = f"{made}_w = Transpose <perm = [0, 2, 1]> ({name}_weights) "
    if not call.has(f"{name}_bias"):
        return f"{text} {made} = iossim.GroupedMatMul ({rows}, {made}_w, ends) "
    text += f"{made}_p = iossim.GroupedMatMul ({rows}, {made}_w, ends) {made}_b = Gather ({name}_bias, expert) "
    return f"{text} {made} = Add ({made}_p, {made}_b) "


def _inside_experts(call: Call, kind: str, fusion: int) -> str:
    """Text that makes ``inside`` of ``h``, and of the other half ``up`` where the activation has a gate."""
    if kind != "swiglu":
        text = f"active = {_OF_EXPERTS[kind]} inside = "
        return text + ("Mul (active, up)" if call.has("fc3_experts_weights") else "Identity (active)")
    text = ""
    if fusion:  # halves beside each other, or (1) interleaved
        width = call.shape("fc1_experts_weights")[1]
        end, step, following = (width, 2, 1) if fusion == 1 else (width // 2, 1, width // 2)
        text += f"gate = Slice (h, [0], [{end}], [-1], [{step}]) "
        text += f"up = Slice (h, [{following}], [{width}], [-1], [{step}]) "
    gate, up, limit = "gate" if fusion else "h", "up", call.get("swiglu_limit", None)
    if limit is not None:
        text += f"{number('most', limit, 'h')} {number('least', -limit, 'h')} "
        text += f"low = Min ({gate}, most) near = Clip ({up}, least, most) "
        gate, up = "low", "near"
    text += f"{number('beta', call.get('activation_beta'), 'h')} more = Add ({up}, beta) "
    return f"{text} active = Swish <alpha = {call.get('activation_alpha', 1.0)}> ({gate}) inside = Mul (active, more)"


def _mixture(call: Call) -> str:
    """Experts of each token: its rows, sorted by expert, through the products of groups, and back in their order."""
    (tokens, experts), width = call.shape("router_probs"), call.shape("input")[-1]
    chosen, kind, fusion = call.get("k", 1), call.get("activation_type", "relu"), call.get("swiglu_fusion")
    differs = call.get("use_sparse_mixer") or call.get("swiglu_limit_after_activation") or kind not in _OF_EXPERTS
    if (
        differs
        or not 0 < chosen <= experts
        or (kind == "swiglu" and not fusion and not call.has("fc3_experts_weights"))
    ):
        return ""
    every = tokens * chosen
    text = f"some = Constant <value_ints = [{chosen}]> () x = Reshape (input, [-1, {width}]) "
    text += "shares = Softmax (router_probs) best, choice = TopK (shares, some) "
    normal = "total = ReduceSum (best, [1]) weights = Div (best, total) "
    text += normal if call.get("normalize_routing_weights") else "weights = Identity (best) "
    text += f"experts = Reshape (choice, [-1]) expert, order = TopK <axis = 0, largest = 0> (experts, [{every}]) "
    text += f"{counted('number', 0, experts)} numbers = Unsqueeze (number, [1]) below = LessOrEqual (expert, numbers) "
    text += "ones = Cast <to = 1> (below) count = ReduceSum <keepdims = 0> (ones, [1]) ends = Cast <to = 7> (count) "
    text += f"token = Div (order, some) sent = Gather (x, token) {_grouped('h', 'sent', 'fc1_experts', call)}"
    text += _grouped("up", "sent", "fc3_experts", call) if call.has("fc3_experts_weights") else ""
    return (
        f"{text} {_inside_experts(call, kind, fusion)} {_grouped('made', 'inside', 'fc2_experts', call)}"
        "weight = Reshape (weights, [-1]) own = Gather (weight, order) share = Unsqueeze (own, [1]) "
        f"weighed = Mul (made, share) again, place = TopK <axis = 0, largest = 0> (order, [{every}]) "
        f"back = Gather (weighed, place) parts = Reshape (back, [{tokens}, {chosen}, {width}]) "
        f"sum = ReduceSum <keepdims = 0> (parts, [1]) output = Reshape (sum, {[*call.shape('input')]})"
    )


#: By operator: of ONNX Runtime's domain, and of ONNX's own.
RUNTIME: dict[str, Written] = {
    "FusedConv": ("X W B Z -> Y", _convolution),
    "NhwcConv": (
        "X W B -> Y",
        lambda call: (
            "x = Transpose <perm = [0, 3, 1, 2]> (X) w = Transpose <perm = [0, 3, 1, 2]> (W) "
            f"y = Conv {call.attributes(*_CONVOLUTION)} (x, w, B) Y = Transpose <perm = [0, 2, 3, 1]> (y)"
        ),
    ),
    "FusedGemm": ("A B C -> Y", _gemm),
    "FusedMatMul": ("A B -> Y", _product),
    "TransposeMatMul": ("A B -> Y", _product),
    "MatMulNBits": ("A B scales zero_points g_idx bias -> Y", _product_with_few_bits),
    "GatherBlockQuantized": ("data indices scales zero_points -> output", _rows_with_few_bits),
    "Gelu": ("X -> Y", "Y = Gelu(X)"),
    "BiasGelu": ("A B -> C", "S = Add(A, B) C = Gelu(S)"),
    "FastGelu": ("X bias -> Y", _gelu),
    "QuickGelu": ("X -> Y", lambda call: f"Y = Swish <alpha = {call.get('alpha', 1.702)}> (X)"),
    "BiasSplitGelu": ("X bias -> Y", _split_gelu),
    "BiasAdd": ("X bias skip -> Y", "S = Add(X, bias) Y = Add(S, skip)"),
    "SkipLayerNormalization": _norm_of_sum("LayerNormalization"),
    "SkipSimplifiedLayerNormalization": _norm_of_sum("RMSNormalization"),
    "EmbedLayerNormalization": (
        "input_ids segment_ids word_embedding position_embedding segment_embedding gamma beta mask position_ids "
        "-> output mask_index embedding_sum",
        _embedding_norm,
    ),
    "MoE": (
        "input router_probs fc1_experts_weights fc1_experts_bias fc2_experts_weights fc2_experts_bias "
        "fc3_experts_weights fc3_experts_bias -> output",
        _mixture,
    ),
    "GroupNorm": ("X gamma beta -> Y", _group_norm),
    "SkipGroupNorm": ("X gamma beta skip bias -> Y S", _group_norm),
    "SimplifiedLayerNormalization": (
        "X scale -> Y",
        lambda call: f"Y = RMSNormalization {call.attributes('axis', 'epsilon')} (X, scale)",
    ),
}
STANDARD = {
    "SimplifiedLayerNormalization": RUNTIME["SimplifiedLayerNormalization"],
    "GatherND": ("data indices -> output", _looked_up),
    "ReverseSequence": ("input sequence_lens -> Y", _reversed),
}
