"""Attentions and rotary positions that are decomposed into ONNX's own Attention and simpler operators.

ONNX Runtime's transformer optimiser and model builder make Attention, MultiHeadAttention, GroupQueryAttention and
RotaryEmbedding (domain ``com.microsoft``; `ContribOperators.md`, microsoft/onnxruntime). Their masks are integers:
visibility by key, or by query and key, or the number of keys. Caches that are longer than their contents, and quantised
caches, are not covered. ONNX's Attention adds a mask of numbers of any type to the scores: it is cast. Keys and values
after its cache are concatenated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from iossim.ir.onnx_spelling import onnx_code
from iossim.ir.types import DType
from iossim.models.onnx.bodies import Call, Written, counted, number

#: Attributes of ONNX's Attention.
_HEADS = "q_num_heads", "kv_num_heads"
#: The number that ONNX Runtime adds to the scores of masked keys by default.
_MASKED = -10000.0


class _Body:
    """The body of an attention that is being written: its text, and the masks of its scores so far."""

    def __init__(self, call: Call) -> None:
        self.call, self.text, self.masks, self.is_causal = call, "", list[str](), False

    @property
    def like(self) -> str:
        """An operand of the element type of the scores."""
        return next(iter(self.call.operands))

    def add(self, text: str) -> None:
        self.text += f"{text} "

    def split(self, whole: str, sizes: Sequence[int], parts: str, axis: int = -1) -> None:
        self.add(f"{parts} = Split <axis = {axis}> ({whole}, {[*sizes]})")

    def reshaped(self, value: str, shape: Sequence[int], made: str) -> str:
        self.add(f"{made} = Reshape({value}, {[*shape]})")
        return made

    def in_heads(self, value: str, heads: int) -> str:
        """``[batch, tokens, heads, features]`` from ``[batch, tokens, heads * features]``."""
        return self.reshaped(value, (0, 0, heads, -1), f"{value}_heads")

    def turned(self, value: str, made: str) -> str:
        """``[batch, heads, tokens, features]`` from ``[batch, tokens, heads, features]``, or the other way round."""
        self.add(f"{made} = Transpose <perm = [0, 2, 1, 3]> ({value})")
        return made

    def masked(self, mask: str, sizes: tuple[int, int, int]) -> bool:
        """Add a mask of integers for the scores of ``(batch, queries, keys)``; False for one of another kind."""
        batch, queries, keys = sizes
        if not self.call.has(mask):
            return True
        shape = self.call.shape(mask)
        if shape == (batch,):
            self.add(f"{counted('places', 0, keys)} whole_counts = Cast <to = 7> ({mask})")
            self.add(f"seen = Less(places, {self.reshaped('whole_counts', (-1, 1, 1, 1), 'counts')})")
        elif shape in ((batch, keys), (batch, queries, keys)):
            wide = self.reshaped(mask, (batch, 1, 1 if len(shape) == 2 else queries, keys), "wide")
            self.add(f"seen = Cast <to = 9> ({wide})")
        else:
            return False
        low = self.call.get("mask_filter_value", _MASKED)
        self.add(f"{number('none', 0, self.like)} {number('hidden', low, self.like)}")
        self.add("mask_term = Where(seen, none, hidden)")
        self.masks.append("mask_term")
        return True

    def causal(self, queries: int, keys: int, window: int = -1) -> None:
        """Hide later keys from each query, and those before a ``window``, if it is not negative."""
        self.is_causal = window < 0 and queries == keys  # as ONNX's causal attention does
        sides = [(1, keys - queries + 1)] if queries > 1 and not self.is_causal else []
        sides += [(0, keys - queries - window)] if 0 <= window < keys else []
        for upper, diagonal in sides:
            made = f"side_{upper}"
            self.add(number(f"{made}_low", -math.inf, self.like))
            self.add(
                f"{made}_all = Expand({made}_low, [{queries}, {keys}]) {made}_at = Constant <value_int = {diagonal}> ()"
            )
            self.add(f"{made} = Trilu <upper = {upper}> ({made}_all, {made}_at)")
            self.masks.append(made)

    def attended(self, values: Sequence[str], heads: Sequence[int], result: str = "output") -> None:
        """The attention of queries, keys and values: of three dimensions each, or of four."""
        self.masks += ["attention_bias"] if self.call.has("attention_bias") else []
        mask, *others = self.masks or [""]
        for place, other in enumerate(others):
            self.add(f"masks{place} = Add({mask}, {other})")
            mask = f"masks{place}"
        given = {"q_num_heads": heads[0], "kv_num_heads": heads[1], "is_causal": int(self.is_causal)}
        given |= {name: value for name in ("scale", "softcap") if (value := self.call.get(name, 0.0))}
        attributes = ", ".join(f"{name} = {value}" for name, value in given.items())
        self.add(f"{result} = Attention <{attributes}> ({', '.join(filter(None, [*values, mask]))})")

    def attended_by_head(self, values: Sequence[str], heads: Sequence[int]) -> None:
        self.attended(values, heads, "by_head")
        self.reshaped(self.turned("by_head", "by_token"), (0, 0, -1), "output")

    def attended_after(self, pasts: Sequence[str], parts: Sequence[str], heads: Sequence[int]) -> None:
        """The attention of ``[batch, tokens, heads, features]`` each; keys and values after those of a cache, by head,
        are ``all_k`` and ``all_v``.
        """
        for side, part, past in zip("kv", parts[1:], pasts or ["", ""], strict=True):
            now = self.turned(part, f"now_{side}")
            self.add(f"all_{side} = Concat <axis = 2> ({past}, {now})" if past else f"all_{side} = Identity({now})")
        if pasts:
            self.attended_by_head([self.turned(parts[0], "queries"), "all_k", "all_v"], heads)
        else:
            self.attended([self.reshaped(part, (0, 0, -1), f"{part}_joined") for part in parts], heads)

    def rotated(self, value: str, sizes: tuple[int, int], tables: Sequence[str], interleaved: bool) -> str:
        """Rotary positions of the first ``sizes[0]`` of ``sizes[1]`` features; the tables are half as wide."""
        width, features = sizes
        made = f"{value}_rotated"
        if width < features:
            self.split(value, (width, features - width), f"{value}_part, {value}_rest")
            part = self.rotated(f"{value}_part", (width, width), tables, interleaved)
            self.add(f"{made} = Concat <axis = -1> ({part}, {value}_rest)")
            return made
        cos, sin = (self.twice(table, width, f"{value}_wide_{table}", interleaved) for table in tables)
        halves = self.reshaped(value, (0, 0, 0, width // 2, 2), f"{value}_pairs") if interleaved else value
        self.split(halves, (1, 1) if interleaved else (width // 2,) * 2, f"{value}_first, {value}_second")
        turned = f"{value}_turned"
        self.add(f"{value}_minus = Neg({value}_second) {turned} = Concat <axis = -1> ({value}_minus, {value}_first)")
        turned = self.reshaped(turned, (0, 0, 0, width), f"{value}_other") if interleaved else turned
        self.add(f"{value}_cos = Mul({value}, {cos}) {value}_sin = Mul({turned}, {sin})")
        self.add(f"{made} = Add({value}_cos, {value}_sin)")
        return made

    def twice(self, table: str, width: int, made: str, interleaved: bool) -> str:
        """A table with each column twice: as halves, or next to each other."""
        if not interleaved:
            self.add(f"{made} = Concat <axis = -1> ({table}, {table})")
            return made
        self.add(f"{made}_column = Unsqueeze({table}, [-1])")
        self.add(f"{made}_both = Concat <axis = -1> ({made}_column, {made}_column)")
        return self.reshaped(f"{made}_both", (0, 0, 0, width), made)

    def looked_up(self, places: str, axes: Sequence[int]) -> list[str]:
        """Cosines and sines of positions, with further axes."""
        for name in ("cos", "sin"):
            self.add(f"{name}_rows = Gather({name}_cache, {places}) {name} = Unsqueeze({name}_rows, {[*axes]})")
        return ["cos", "sin"]


def _standard(call: Call) -> str:
    """ONNX's own Attention, with a mask of its queries' element type."""
    body, mask, wanted = _Body(call), "", call.type("Q").dtype
    if call.has("mask"):
        mask = "mask" if call.type("mask").dtype in (DType.BOOL, wanted) else "numbers"
        body.add(f"numbers = Cast <to = {onnx_code(wanted)}> (mask)" if mask == "numbers" else "")
    if call.has("past_key"):
        return _after_cache(call, body, mask)
    read = ", ".join(mask if name == "mask" else name for name in call.operands)
    made = f"{', '.join(call.results)} = Attention {call.attributes()} ({read})"
    return f"{body.text} {made}" if mask == "numbers" else ""


def _after_cache(call: Call, body: _Body, mask: str) -> str:
    """ONNX's own Attention of keys and values after those of a cache."""
    by_head, queries = len(call.shape("Q")) == 4, call.shape("Q")[-2]
    keys = call.shape("past_key")[2] + call.shape("K")[-2]
    heads = [call.shape(x)[1] if by_head else call.get(name) for x, name in zip("QK", _HEADS, strict=True)]
    is_other = call.makes("qk") or call.has("nonpad") or not call.has("past_value")
    is_other |= any(call.get(f"{side}_window_size", -1) != -1 for side in ("left", "right"))
    is_other |= call.get("softmax_precision", 1) != 1 or (bool(mask) and call.shape("mask")[-1] not in (1, keys))
    if is_other or not all(heads):
        return ""
    if call.get("is_causal"):
        body.causal(queries, keys)
    if mask and body.masks and call.type("mask").dtype is DType.BOOL:
        return ""
    body.masks += [mask] if mask else []
    counts = heads[0], heads[1], heads[1]
    if by_head:
        body.add("all_k = Concat <axis = 2> (past_key, K) all_v = Concat <axis = 2> (past_value, V)")
        body.attended(["Q", "all_k", "all_v"], heads)
    else:
        parts = [body.in_heads(name, count) for name, count in zip("QKV", counts, strict=True)]
        body.attended_after(["past_key", "past_value"], parts, heads)
    body.add("Y = Identity(output) present_key = Identity(all_k) present_value = Identity(all_v)")
    return body.text


def _self_attention(call: Call) -> str:
    """ONNX Runtime's Attention: one product makes queries, keys and values; its cache holds keys, then values."""
    body, heads = _Body(call), call.get("num_heads")
    if not heads or call.has("past_sequence_length") or call.get("do_rotary") or len(call.shape("input")) != 3:
        return ""
    (batch, tokens, _), width = call.shape("input"), call.shape("weights")[-1]
    keys = tokens + (call.shape("past")[3] if call.has("past") else 0)
    body.add("product = MatMul(input, weights)")
    if call.has("bias"):
        body.add("projected = Add(product, bias)")
    sizes = call.get("qkv_hidden_sizes", None) or (width // 3,) * 3
    body.split("projected" if call.has("bias") else "product", sizes, "q, k, v")
    if not body.masked("mask_index", (batch, tokens, keys)):
        return ""
    if call.get("unidirectional"):
        body.causal(tokens, keys)
    if not call.has("past") and not call.makes("present"):
        body.attended("qkv", (heads, heads))
        return body.text
    pasts = ["past_k", "past_v"] if call.has("past") else []
    if pasts:
        body.split("past", (1, 1), "old_k, old_v", 0)
        body.add("past_k = Squeeze(old_k, [0]) past_v = Squeeze(old_v, [0])")
    body.attended_after(pasts, [body.in_heads(each, heads) for each in "qkv"], (heads, heads))
    body.add("present_k = Unsqueeze(all_k, [0]) present_v = Unsqueeze(all_v, [0])")
    body.add("present = Concat <axis = 0> (present_k, present_v)")
    return body.text


def _packed(body: _Body, given: Sequence[str], heads: int) -> str:
    """The text of an attention whose last operand is ``[batch, tokens, heads, parts, features]``: keys and values, or
    queries, too, as ONNX Runtime's optimiser writes it for Stable Diffusion; none for another one.
    """
    call, shape, parts = body.call, body.call.shape(given[-1]), [f"packed_{each}" for each in "qkv"[len(given) - 1 :]]
    if call.has("bias", "past_key") or call.makes("present_key", "present_value"):
        return ""
    if len(shape) != 5 or shape[2:4] != (heads, len(parts)):
        return ""
    body.split(given[-1], (1,) * len(parts), ", ".join(parts), 3)
    values = [*given[:-1], *(body.reshaped(part, (0, 0, heads * shape[4]), f"{part}_rows") for part in parts)]
    if not body.masked("key_padding_mask", (shape[0], call.shape("query")[1], shape[1])):
        return ""
    if call.get("unidirectional"):
        body.causal(call.shape("query")[1], shape[1])
    body.attended(values, (heads, heads))
    return body.text


def _multi_head(call: Call) -> str:
    """ONNX Runtime's MultiHeadAttention of projected queries, keys and values, packed or not, or of keys and values by
    head.
    """
    body, heads, names = _Body(call), call.get("num_heads"), ["query", "key", "value"]
    if not heads or call.has("past_sequence_length", "cache_indirection") or call.makes("qk"):
        return ""
    if not all(map(call.has, names)):
        return _packed(body, [name for name in names if call.has(name)], heads)
    if len(call.shape("query")) != 3:
        return ""
    ranks = {len(call.shape(name)) for name in names[1:]}
    by_head = ranks == {4}
    if not by_head and ranks != {3}:
        return ""
    (batch, queries, width), keys = call.shape("query"), call.shape("key")[2 if by_head else 1]
    keys += call.shape("past_key")[2] if call.has("past_key") else 0
    if call.has("bias"):
        sizes = (width, width, call.shape("bias")[0] - 2 * width)
        body.split("bias", sizes, "query_bias, key_bias, value_bias")
        biased = names[:1] if by_head else names
        for name in biased:
            body.add(f"{name}_sum = Add({name}, {name}_bias)")
        names = [f"{name}_sum" if name in biased else name for name in names]
    if not body.masked("key_padding_mask", (batch, queries, keys)):
        return ""
    if call.get("unidirectional"):
        body.causal(queries, keys)
    if by_head:
        body.attended_by_head([body.turned(body.in_heads(names[0], heads), "queries"), *names[1:]], (heads, heads))
        body.add("all_k = Identity(key) all_v = Identity(value)")
    elif call.has("past_key") or call.makes("present_key", "present_value"):
        pasts = ["past_key", "past_value"] if call.has("past_key") else []
        body.attended_after(pasts, [body.in_heads(name, heads) for name in names], (heads, heads))
    else:
        body.attended(names, (heads, heads))
        return body.text
    body.add("present_key = Identity(all_k) present_value = Identity(all_v)")
    return body.text


def _grouped_queries(call: Call) -> str:
    """ONNX Runtime's GroupQueryAttention, if every sequence fills its cache: ``seqlens_k`` is its last position."""
    body, heads, kv_heads = _Body(call), call.get("num_heads"), call.get("kv_num_heads")
    besides = ("head_sink", "k_scale", "v_scale", "query_seqlens")
    unusual = call.get("smooth_softmax") or call.get("qk_output") or call.has(*besides) or call.makes("output_qk")
    if unusual or not heads or not kv_heads or len(call.shape("query")) != 3 or call.has("key") != call.has("value"):
        return ""
    (_, tokens, width), names = call.shape("query"), ["query", "key", "value"]
    past, window = call.shape("past_key")[2] if call.has("past_key") else 0, call.get("local_window_size", -1)
    slides = call.get("sliding_window_cache")
    if slides and past != window:
        return ""
    features = width // (heads if call.has("key") else heads + 2 * kv_heads)
    if not call.has("key"):
        names = ["q", "k", "v"]
        body.split("query", [count * features for count in (heads, kv_heads, kv_heads)], ", ".join(names))
    parts = [body.in_heads(name, count) for name, count in zip(names, (heads, kv_heads, kv_heads), strict=True)]
    for place, side in enumerate("qk"):
        if call.has(f"{side}_norm_weight"):
            epsilon = call.get(f"{side}_norm_epsilon", call.get("qk_norm_epsilon", 1e-6))
            norm = f"RMSNormalization <axis = -1, epsilon = {epsilon}> ({parts[place]}, {side}_norm_weight)"
            body.add(f"{side}_normed = {norm}")
            parts[place] = f"{side}_normed"
    if call.get("do_rotary"):
        places = "position_ids" if call.has("position_ids") else "places"
        if places == "places":
            body.add(counted(places, past, past + tokens))
        tables = body.looked_up(places, (2,) if places == "position_ids" else (0, 2))
        sizes = 2 * call.shape("cos_cache")[1], features
        parts[:2] = [body.rotated(part, sizes, tables, bool(call.get("rotary_interleaved"))) for part in parts[:2]]
    if call.get("causal", 1):
        body.causal(tokens, past + tokens, window)
    body.attended_after(["past_key", "past_value"] if past else [], parts, (heads, kv_heads))
    if slides:  # the oldest keys leave the cache
        kept = f"[{tokens}], [{past + tokens}], [2]"
        body.add(f"present_key = Slice(all_k, {kept}) present_value = Slice(all_v, {kept})")
    else:
        body.add("present_key = Identity(all_k) present_value = Identity(all_v)")
    return body.text


def _rotary(call: Call) -> str:
    """Rotary positions of ``[batch, tokens, heads * features]``, or of values by head."""
    body, shape = _Body(call), call.shape("input")
    if call.get("scale", 1.0) != 1.0 or call.get("is_packed_batching") or len(shape) not in (3, 4):
        return ""
    is_by_head = len(shape) == 4
    width = call.get("rotary_embedding_dim") or 2 * call.shape("cos_cache")[-1]
    heads = call.get("num_heads") or (shape[1] if is_by_head else shape[2] // width)
    x, tokens, axis = ("input", shape[2], 1) if is_by_head else (body.in_heads("input", heads), shape[1], 2)
    if not call.has("position_ids"):
        body.add(f"cos = Unsqueeze(cos_cache, [{axis}]) sin = Unsqueeze(sin_cache, [{axis}])")
    elif call.shape("position_ids") == (1,):
        body.add(f"{counted('from_zero', 0, tokens)} places = Add(position_ids, from_zero)")
        body.looked_up("places", (0, axis))
    else:
        body.looked_up("position_ids", (axis,))
    features = shape[3] if is_by_head else shape[2] // heads
    made = body.rotated(x, (width, features), ["cos", "sin"], bool(call.get("interleaved")))
    body.add(f"output = Identity({made if is_by_head else body.reshaped(made, (0, 0, -1), 'joined')})")
    return body.text


RUNTIME: dict[str, Written] = {
    "Attention": (
        "input weights bias mask_index past attention_bias past_sequence_length -> output present",
        _self_attention,
    ),
    "MultiHeadAttention": (
        "query key value bias key_padding_mask attention_bias past_key past_value past_sequence_length "
        "cache_indirection -> output present_key present_value qk",
        _multi_head,
    ),
    "GroupQueryAttention": (
        "query key value past_key past_value seqlens_k total_sequence_length cos_cache sin_cache position_ids "
        "attention_bias head_sink k_scale v_scale q_norm_weight k_norm_weight query_seqlens "
        "-> output present_key present_value output_qk",
        _grouped_queries,
    ),
    "RotaryEmbedding": ("input position_ids cos_cache sin_cache -> output", _rotary),
}
STANDARD: dict[str, Written] = {
    "Attention": ("Q K V mask past_key past_value nonpad -> Y present_key present_value qk", _standard),
    "RotaryEmbedding": ("input cos_cache sin_cache position_ids -> output", _rotary),
}
