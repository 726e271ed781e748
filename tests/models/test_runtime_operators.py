"""ONNX Runtime's own operators are decomposed at import: what is left computes what ONNX Runtime does."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto
from onnx_models import write_onnx
from onnx_of_op import run_onnxruntime
from scipy.special import ndtr

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import ModelError
from iossim.ir.op import Array
from iossim.models.load import load

RUNTIME = "com.microsoft"
BATCH, TOKENS, PAST, WIDTH, HEADS = 2, 6, 4, 64, 4
#: Shapes of operands; of one that is followed by a number, its whole values are below it.
SHAPES: dict[str, Sequence[int]] = {
    "x": (BATCH, TOKENS, WIDTH), "z": (BATCH, TOKENS, WIDTH), "k": (BATCH, TOKENS, WIDTH), "v": (BATCH, TOKENS, WIDTH),
    "matrix": (5, WIDTH), "image": (1, 8, 6, 6), "added": (1, 4, 6, 6), "kernel": (4, 8, 3, 3), "four": (4,),
    "w": (WIDTH, 3 * WIDTH), "b": (3 * WIDTH,), "scale": (WIDTH,), "shift": (WIDTH,), "bias": (WIDTH,),
    "by_head": (BATCH, HEADS, TOKENS, 16), "score_bias": (BATCH, HEADS, TOKENS, TOKENS),
    "past": (2, BATCH, HEADS, PAST, 16), "past_k": (BATCH, HEADS, PAST, 16), "past_v": (BATCH, HEADS, PAST, 16),
    "grouped_k": (BATCH, TOKENS, WIDTH // 2), "grouped_past": (BATCH, 2, PAST, 16), "packed": (BATCH, TOKENS, 2 * WIDTH),
    "one": (BATCH, 1, WIDTH), "one_k": (BATCH, 1, WIDTH // 2), "cos": (16, 8), "sin": (16, 8),
    "short_cos": (16, 1), "short_sin": (16, 1), "words": (9, WIDTH), "places": (TOKENS, WIDTH), "kinds": (2, WIDTH),
    "short": (3, 40), "tokens": (6, 8), "batches": (2, 3, 8), "router": (6, 5),
}  # fmt: skip
WHOLE: dict[str, tuple[Sequence[int], type, int, int]] = {
    "by_key": ((BATCH, TOKENS), np.int32, 0, 2), "by_pair": ((BATCH, TOKENS, TOKENS), np.int32, 0, 2),
    "counts": ((BATCH,), np.int32, 1, TOKENS), "by_all": ((BATCH, TOKENS + PAST), np.int32, 0, 2),
    "ids": ((BATCH, TOKENS), np.int32, 0, 9), "parts": ((BATCH, TOKENS), np.int32, 0, 2),
    "positions": ((BATCH, TOKENS), np.int64, 0, 16), "some": ((3, 2), np.int64, 0, 9),
    "few": ((3, WIDTH), np.uint8, 0, 256),
}  # fmt: skip
LAST, WHOLE_CACHE = np.array([PAST, PAST], np.int32), np.array([PAST + TOKENS - 1] * 2, np.int32)
CONSTANTS: dict[str, Array] = {
    "whole": np.full(BATCH, TOKENS - 1, np.int32), "six": np.array(TOKENS, np.int32),
    "last": LAST, "five": np.array(PAST + 1, np.int32), "all": WHOLE_CACHE, "ten": np.array(PAST + TOKENS, np.int32),
    "from_two": np.array([2], np.int64), "step": np.array(0.05, np.float32), "zero": np.array(3, np.uint8),
}  # fmt: skip
#: Further results of an operator that has this in its text.
RESULTS = {"EmbedLayer": "index", " past)": "present", "past_v)": "keys, values", "Group": "keys, values"}
GROUPED = "GroupQueryAttention <num_heads=4, kv_num_heads=2"

CASES = {
    "a convolution": 'FusedConv <activation="Relu", pads=[1,1,1,1]> (image, kernel, four)',
    "a convolution and a sum": 'FusedConv <pads=[1,1,1,1]> (image, kernel, , added)',
    "leaky": 'FusedConv <activation="LeakyRelu", activation_params=[0.1]> (image, kernel)',
    "clipped": 'FusedConv <activation="Clip", activation_params=[-0.5, 0.5], strides=[2,2]> (image, kernel)',
    "hard": 'FusedConv <activation="HardSigmoid", activation_params=[0.3, 0.4]> (image, kernel)',
    "a gemm": 'FusedGemm <activation="Tanh", alpha=0.5, transB=1> (matrix, matrix)',
    "a leaky gemm": 'FusedGemm <activation="LeakyRelu", activation_alpha=0.1> (matrix, w, b)',
    "a product": "FusedMatMul <alpha=0.25, transB=1> (x, z)",
    "a product of turned batches": "FusedMatMul <transBatchA=1, transA=1, transBatchB=1> (by_head, by_head)",
    "gelu": "Gelu (x)", "gelu of a sum": "BiasGelu (x, bias)", "fast gelu": "FastGelu (x)",
    "fast gelu of a sum": "FastGelu (x, bias)", "quick gelu": "QuickGelu <alpha=1.702> (x)",
    "a norm of a sum": "SkipLayerNormalization <epsilon=0.001> (x, z, scale, shift)",
    "a norm of three": "SkipLayerNormalization (x, z, scale, shift, bias)",
    "a root mean square norm": "SkipSimplifiedLayerNormalization <epsilon=0.001> (x, z, scale)",
    "embeddings": "EmbedLayerNormalization (ids, parts, words, places, kinds, scale, shift)",
    "embeddings without segments": "EmbedLayerNormalization (ids, , words, places, , scale, shift, by_key)",
    "rotary positions": "RotaryEmbedding (x, positions, cos, sin)",
    "interleaved from a place": "RotaryEmbedding <interleaved=1> (by_head, from_two, cos, sin)",
    "of some features": "RotaryEmbedding <num_heads=4, rotary_embedding_dim=2> (x, positions, short_cos, short_sin)",
    "attention": "Attention <num_heads=4> (x, w, b)", "scaled": "Attention <num_heads=4, scale=0.5> (x, w)",
    "causal": "Attention <num_heads=4, unidirectional=1> (x, w, b)",
    "masked by keys": "Attention <num_heads=4, mask_filter_value=-5.0> (x, w, b, by_key)",
    "masked by pairs": "Attention <num_heads=4> (x, w, b, by_pair)", "counted": "Attention <num_heads=4> (x, w, b, counts)",
    "masked, biased, causal": "Attention <num_heads=4, unidirectional=1> (x, w, b, by_key, , score_bias)",
    "with a cache": "Attention <num_heads=4, unidirectional=1> (x, w, b, by_all, past)",
    "several heads": "MultiHeadAttention <num_heads=4> (x, k, v)",
    "biased heads": "MultiHeadAttention <num_heads=4> (x, k, v, b, by_key, score_bias)",
    "heads with a cache": "MultiHeadAttention <num_heads=4> (x, k, v, b, , , past_k, past_v)",
    "keys by head": "MultiHeadAttention <num_heads=4> (x, by_head, by_head)",
    "groups": f"{GROUPED}> (x, grouped_k, grouped_k, , , whole, six)",
    "packed groups": f"{GROUPED}> (packed, , , , , whole, six)",
    "a window": f"{GROUPED}, local_window_size=3> (x, grouped_k, grouped_k, , , whole, six)",
    "a sliding cache": f"{GROUPED}, local_window_size=4, sliding_window_cache=1> "
    "(one, one_k, one_k, grouped_past, grouped_past, last, five)",
    "capped": f"{GROUPED}, softcap=2.0, scale=0.3> (x, grouped_k, grouped_k, , , whole, six)",
    "one more token": f"{GROUPED}, do_rotary=1> (one, one_k, one_k, grouped_past, grouped_past, last, five, cos, sin)",
    "interleaved groups": f"{GROUPED}, do_rotary=1, rotary_interleaved=1> (x, grouped_k, grouped_k, , , whole, six, cos, sin)",
}  # fmt: skip


def compared(folder: Path, text: str, opset: int, weights: Mapping[str, Array] | None = None) -> list[str]:
    """The kinds of units of a model of one operator and a ReLU of its first result, which equals ONNX Runtime's."""
    read = [name for name in text[text.rindex("(") + 1 : -1].replace(" ", "").split(",") if name]
    random = np.random.default_rng(0)
    feeds = {name: random.standard_normal(SHAPES[name]).astype(np.float32) for name in read if name in SHAPES}
    for name in filter(WHOLE.__contains__, read):
        shape, dtype, low, high = WHOLE[name]
        feeds[name] = random.integers(low, high, shape).astype(dtype)
    fixed = {name: array for name, array in feeds.items() if name in ("w", "kernel", "cos", "sin", "words", "places")}
    fixed |= {name: CONSTANTS[name] for name in read if name in CONSTANTS} | {**(weights or {})}
    feeds = {name: array for name, array in feeds.items() if name not in fixed}
    declared = {
        name: (np_code(array), array.shape) if array.dtype != np.float32 else array.shape
        for name, array in feeds.items()
    }
    caches = [name for name in RESULTS if name in text]
    results = ", ".join(["a", *(RESULTS[name] for name in caches)])
    output = {"y": None} | {name.strip(): None for name in results.split(",")[1:]}
    if "index" in output:
        output["index"] = (TensorProto.INT32, None)
    nodes = f"[op] {results} = {RUNTIME}.{text}; y = Relu(a)"
    path = write_onnx(folder / "m.onnx", nodes, declared, fixed, output=output, opset=opset, domains=[RUNTIME])
    network = load(path, strict=True)
    made = evaluate_graph(network.graph, feeds).values()
    for ours, expected in zip(made, run_onnxruntime(str(path), feeds), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)
    assert any("GroupQueryAttention" in each for each in network.reading) is ("GroupQueryAttention" in text)
    return [unit.kind for unit in network.units]


def np_code(array: Array) -> int:
    return {np.dtype(np.int32): 6, np.dtype(np.int64): 7, np.dtype(np.uint8): 2}[array.dtype]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("opset", [12, 21])
def test_computes_what_onnxruntime_does(case: str, opset: int, tmp_path: Path) -> None:
    kinds = compared(tmp_path, CASES[case], opset)
    is_attention = CASES[case].startswith(("Attention", "MultiHead", "Group"))
    assert ("Attention" in " ".join(kinds)) is is_attention


def noise(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def random_bytes(*shape: int) -> Array:
    return np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)


def steps(*shape: int) -> Array:
    return np.random.default_rng(2).uniform(0.01, 0.1, shape).astype(np.float32)


PRODUCT = "MatMulNBits <N=5, block_size=32, K"
FEW_BITS = {
    f"{PRODUCT}=64, bits=4> (x, packed4, scales2)": {"packed4": random_bytes(5, 2, 16), "scales2": steps(5, 2)},
    f"{PRODUCT}=64, bits=8> (x, packed8, scales2)": {"packed8": random_bytes(5, 2, 32), "scales2": steps(5, 2)},
    f"{PRODUCT}=64, bits=4> (x, packed4, scales2, zeros, , five_terms)": {
        "packed4": random_bytes(5, 2, 16), "scales2": steps(5, 2), "zeros": random_bytes(5, 1), "five_terms": steps(5),
    },
    f"{PRODUCT}=40, bits=4> (short, packed4, scales2, float_zeros)": {
        "packed4": random_bytes(5, 2, 16), "scales2": steps(5, 2), "float_zeros": 90 * steps(5, 2),
    },
    f"{PRODUCT}=64, bits=4> (x, packed4, scales2, , in_order)": {
        "packed4": random_bytes(5, 2, 16), "scales2": steps(5, 2),
        "in_order": np.arange(64, dtype=np.int32) // 32,
    },
    "GatherBlockQuantized <block_size=32, bits=4> (table, some, scales9)": {
        "table": random_bytes(9, 32), "scales9": steps(9, 2),
    },
    "GatherBlockQuantized <block_size=32, quantize_axis=-1> (table, some, scales9, zeros9)": {
        "table": (random_bytes(9, 64) % 16).astype(ml_dtypes.uint4), "scales9": steps(9, 2),
        "zeros9": (random_bytes(9, 2) % 16).astype(ml_dtypes.uint4),
    },
    "DynamicQuantizeMatMul (x, bytes, step, zero, bias)": {"bytes": random_bytes(64, 64)},
    "MatMulIntegerToFloat (few, bytes, step, step, zero, zero)": {"bytes": random_bytes(64, 7)},
}  # fmt: skip


SWIGLU = 'MoE <k=2, activation_type="swiglu", swiglu_fusion'
#: Biases are given where their names are.
EXPERTS = [
    'MoE <k=2, activation_type="relu", normalize_routing_weights=1> (tokens, router, up, , down)',
    'MoE <k=3, activation_type="gelu"> (tokens, router, up, up_bias, down, down_bias)',
    'MoE <activation_type="silu"> (tokens, router, up, , down, down_bias)',
    'MoE <k=2, activation_type="identity"> (batches, router, up, up_bias, down)',
    f"{SWIGLU}=1, activation_alpha=1.7, activation_beta=1.0, swiglu_limit=0.7> (tokens, router, up, up_bias, half)",
    f"{SWIGLU}=1> (tokens, router, up, , half)",
]


@pytest.mark.parametrize("text", EXPERTS)
def test_rows_are_routed_to_experts_as_onnxruntime_does(text: str, tmp_path: Path) -> None:
    weights = {
        **{"up": noise(5, 12, 8), "up_bias": noise(5, 12), "down": noise(5, 8, 12), "down_bias": noise(5, 8)},
        "half": noise(5, 8, 6),
    }
    kinds = compared(tmp_path, text, 17, {name: array for name, array in weights.items() if name in text})
    assert sum("Grouped-Matmul" in kind for kind in kinds) == 2


def swiglu(gate: Array, up: Array) -> Array:
    return np.asarray(gate / (1 + np.exp(-gate)) * up)


@pytest.mark.parametrize(
    ("attributes", "operands", "inside"),
    [
        ('"swiglu"', "up, , down, , third", swiglu),
        ('"relu"', "up, , down, , third", lambda up, third: np.maximum(up, 0) * third),
        ('"swiglu", swiglu_fusion=2', "both, , down", lambda both: swiglu(*np.split(both, 2, axis=-1))),
    ],
)
def test_gates_of_experts_that_onnxruntime_has_on_gpus_alone(
    attributes: str, operands: str, inside: Callable[..., Array], tmp_path: Path
) -> None:
    """Every token has all experts: the sum by the router's weights, as the operator's schema says it."""
    weights = {"up": noise(3, 12, 8), "third": noise(3, 12, 8), "both": noise(3, 24, 8), "down": noise(3, 8, 12)}
    given = {name: weights[name] for name in re.findall(r"\w+", operands)}
    nodes = f"[op] y = {RUNTIME}.MoE <k=3, activation_type={attributes}> (x, router, {operands})"
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": (4, 8), "router": (4, 3)}, given, domains=[RUNTIME])
    x, router, network = noise(4, 8), noise(4, 3), load(path)
    assert any("routed evenly" in remark for remark in network.reading)
    (made,) = evaluate_graph(network.graph, {"x": x, "router": router}).values()
    shares = np.exp(router) / np.exp(router).sum(1, keepdims=True)
    first = [np.einsum("th,eih->tei", x, array) for name, array in given.items() if name != "down"]
    np.testing.assert_allclose(
        made, np.einsum("tei,ehi,te->th", inside(*first), weights["down"], shares), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("count", [-1, 0, 4, 2**40])
def test_experts_that_there_are_not_are_refused(count: int, tmp_path: Path) -> None:
    weights = {"up": noise(3, 12, 8), "down": noise(3, 8, 12), "router": noise(4, 3)}
    nodes = f"[op] y = {RUNTIME}.MoE <k={count}> (x, router, up, , down)"
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": (4, 8)}, weights, domains=[RUNTIME])
    with pytest.raises(ModelError, match=r"operators that iossim cannot take: com\.microsoft\.MoE"):
        load(path)
    if count > 3:
        nodes = f"n = Constant <value_ints=[{count}]> (); best, p = TopK(router, n); y = MatMul(best, x)"
        path = write_onnx(tmp_path / "m.onnx", nodes, {"x": (4, 8)}, {"router": weights["router"]})
        with pytest.raises(ModelError, match=f"there are no {count} elements along axis 1"):
            load(path)


@pytest.mark.parametrize(("count", "read"), [(3, "x5"), (2, "x, x5"), (2, "x, x5, , , by_key, score_bias")])
def test_packed_heads_of_an_attention(count: int, read: str, tmp_path: Path) -> None:
    """What the optimiser makes of Stable Diffusion; ONNX Runtime unpacks it on GPUs alone: here, its values are split."""
    feeds = {"x": noise(BATCH, TOKENS, WIDTH), "x5": noise(BATCH, TOKENS, HEADS, count, WIDTH // HEADS)}
    feeds |= {"by_key": np.eye(2, TOKENS, 1, dtype=np.int32), "score_bias": noise(*SHAPES["score_bias"])}
    feeds = {name: array for name, array in feeds.items() if name in re.findall(r"\w+", read)}
    declared = {
        name: (TensorProto.INT32 if array.dtype == np.int32 else TensorProto.FLOAT, array.shape)
        for name, array in feeds.items()
    }
    op = f"y = {RUNTIME}.MultiHeadAttention <num_heads=4>"
    path = write_onnx(tmp_path / "m.onnx", f"{op} ({read})", declared, opset=17, domains=[RUNTIME])
    made = evaluate_graph(load(path, strict=True).graph, feeds)["y"]
    split = {f"part{at}": feeds["x5"][:, :, :, at].reshape(BATCH, TOKENS, WIDTH) for at in range(count)}
    feeds = split | {name: array for name, array in feeds.items() if name != "x5"}
    declared = {name: (declared.get(name, (TensorProto.FLOAT,))[0], array.shape) for name, array in feeds.items()}
    text = f"{op} ({read.replace('x5', ', '.join(split)).replace(', , , ', ', , ')})"
    path = write_onnx(tmp_path / "split.onnx", text, declared, opset=17, domains=[RUNTIME])
    np.testing.assert_allclose(made, run_onnxruntime(str(path), feeds)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", FEW_BITS)
def test_dequantises_weights_of_a_few_bits(case: str, tmp_path: Path) -> None:
    kinds = compared(tmp_path, case, 17, FEW_BITS[case])
    assert sum("Matmul" in kind for kind in kinds) == ("MatMul" in case)
    assert any("Dequantized" in kind for kind in kinds) is (case.startswith(PRODUCT) and "float_zeros" not in case)


def test_columns_in_the_order_of_their_activations_are_refused(tmp_path: Path) -> None:
    weights = {"w": random_bytes(5, 2, 16), "s": steps(5, 2), "g": np.arange(64, dtype=np.int32)[::-1] // 32}
    node = f"y = {RUNTIME}.{PRODUCT}=64, bits=4> (x, w, s, , g)"
    path = write_onnx(tmp_path / "m.onnx", node, {"x": (3, 64)}, weights, opset=17, domains=[RUNTIME])
    with pytest.raises(ModelError, match="g_idx orders columns by their activation; quantise without"):
        load(path)


def test_group_norms_of_images_whose_channels_are_last(tmp_path: Path) -> None:
    """ONNX Runtime computes them on a GPU alone."""
    nodes = """[n] a, s = com.microsoft.SkipGroupNorm <groups=2, activation=1, epsilon=0.01> (x, g, b, skip, more)
        t = Transpose <perm=[0,3,1,2]> (s); y = com.microsoft.GroupNorm <groups=4, channels_last=0> (t, g, b); [b] c = com.microsoft.BiasAdd(a, b, x)
        z = com.microsoft.BiasSplitGelu(c, g); o = com.microsoft.NhwcConv <pads=[0,1,0,1]> (x, kernel)"""
    random = np.random.default_rng(0)
    shapes = {"x": (2, 3, 5, 8), "skip": (2, 8), "g": (8,), "b": (8,), "more": (8,), "kernel": (2, 1, 3, 8)}
    feeds = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    path = write_onnx(tmp_path / "m.onnx", nodes, shapes, output="y z o", opset=17, domains=[RUNTIME])
    x, skip, gain, bias, more, kernel = feeds.values()
    total = x + skip[:, None, None] + more

    def normed(image: Array, groups: int, epsilon: float) -> Array:
        parts = image.reshape(*image.shape[:3], groups, -1)
        centred = parts - parts.mean(axis=(1, 2, 4), keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=(1, 2, 4), keepdims=True) + epsilon)
        return scaled.reshape(image.shape) * gain + bias

    silu = normed(total, 2, 0.01)
    left, right = np.split(silu / (1 + np.exp(-silu)) + bias + x + gain, 2, axis=-1)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)))
    windows = np.stack([padded[:, :, at : at + 5] for at in range(3)], -2)
    expected = {"o": np.einsum("nhwkc,okc->nhwo", windows, kernel[:, 0])}
    expected |= {"y": normed(total, 4, 1e-5).transpose(0, 3, 1, 2), "z": left * right * ndtr(right)}
    made = evaluate_graph(load(path, strict=True).graph, feeds)
    for name, array in expected.items():
        np.testing.assert_allclose(made[name], array, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("nodes", "opset"),
    [
        ("y = LayerNormalization <axis=-1> (x, scale, shift)", 12),
        ("y = SimplifiedLayerNormalization <axis=-1, epsilon=0.001, stash_type=1> (x, scale)", 14),
        ("y = RotaryEmbedding <num_heads=4> (x, cos, sin, positions)", 23),
    ],
)
def test_operators_beyond_the_set_of_their_file(nodes: str, opset: int, tmp_path: Path) -> None:
    """ONNX Runtime's optimiser writes norms into files of any operator set; nothing of them is foreign."""
    feeds = {
        name: np.random.default_rng(0).standard_normal(SHAPES[name]).astype(np.float32)
        for name in ("x", "scale", "shift", "cos", "sin")
        if name in nodes
    }
    declared = {name: array.shape for name, array in feeds.items()}
    if "positions" in nodes:
        feeds["positions"] = np.random.default_rng(0).integers(0, 16, (BATCH, TOKENS))
        declared["positions"] = (TensorProto.INT64, (BATCH, TOKENS))
    path = write_onnx(tmp_path / "m.onnx", nodes, declared, opset=opset)
    network = load(path, strict=True)
    (made,) = evaluate_graph(network.graph, feeds).values()
    np.testing.assert_allclose(made, run_onnxruntime(str(path), feeds)[0], rtol=1e-4, atol=1e-4)


def test_a_file_for_one_processor_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """ONNX Runtime reorders weights for the processor that it optimises on."""
    node = "y = com.microsoft.nchwc.Conv (x, w)"
    path = write_onnx(
        tmp_path / "m.onnx",
        node,
        {"x": [1, 8, 4, 4]},
        {"w": np.ones((8, 8, 1, 1), np.float32)},
        domains=["com.microsoft.nchwc"],
    )
    with pytest.raises(ModelError, match="ORT_ENABLE_EXTENDED"):
        load(path)


@pytest.mark.parametrize(
    "node",
    [
        "y, n = com.microsoft.EmbedLayerNormalization (ids, , words, places, , scale, shift)",
        "y = com.microsoft.RotaryEmbedding <num_heads=4> (x, at, cos, sin)",
        "y = com.microsoft.MultiHeadAttention <num_heads=4> (x, x, x, , lengths)",
    ],
)
def test_a_length_in_a_file_of_a_few_bytes_is_not_counted_out(node: str, tmp_path: Path) -> None:
    """Positions of 2**30 tokens, written out, took all memory."""
    inputs = {"ids": (TensorProto.INT32, (1, 2**30)), "x": (1, 2**30, 64), "lengths": (TensorProto.INT32, (1,))}
    inputs = {name: declared for name, declared in inputs.items() if name in node}
    known = {name: np.ones(SHAPES[name], np.float32) for name in SHAPES if f" {name}," in node or f" {name})" in node}
    known = {name: array for name, array in known.items() if name not in inputs} | {"at": np.array([3])}
    path = write_onnx(tmp_path / "m.onnx", node, inputs, known, opset=17, domains=[RUNTIME])
    assert set(load(path).graph.inputs) == set(inputs)


def test_places_of_one_number_are_a_lookup(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", "[t] y = GatherND(x, at)", {"x": (4, 3), "at": (7, (2, 5, 1))})
    graph = load(path).graph
    x, places = noise(4, 3), np.array([[[0], [-1], [2], [2], [3]], [[1], [0], [-4], [1], [2]]])
    assert [node.op.kind for node in graph.nodes] == ["reshape", "gather"]
    np.testing.assert_array_equal(evaluate_graph(graph, {"x": x, "at": places})["y"], x[places[..., 0]])
