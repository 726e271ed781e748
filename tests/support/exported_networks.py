"""Networks as exporters write them, small: what the importer meets beyond chains of convolutions.

Each is a model with seeded weights, in the operators and the shape arithmetic of PyTorch's exporter.
"""

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from iossim.ir.op import Array


class Writer:
    """Adds nodes and weights; returns the names of values."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self._nodes: list[NodeProto] = []
        self._weights: list[TensorProto] = []

    def node(self, op_type: str, *inputs: str, **attributes: object) -> str:
        return self.nodes(op_type, *inputs, count=1, **attributes)[0]

    def nodes(self, op_type: str, *inputs: str, count: int, **attributes: object) -> list[str]:
        index = len(self._nodes)
        outputs = [f"{op_type.lower()}_{index}" + (f".{place}" if place else "") for place in range(count)]
        self._nodes.append(helper.make_node(op_type, inputs, outputs, f"/{op_type}_{index}", **attributes))
        return outputs

    def array(self, array: Array) -> str:
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(array, name))
        return name

    def ints(self, *values: int) -> str:
        return self.array(np.array(values, dtype=np.int64))

    def number(self, value: float) -> str:
        return self.array(np.array(value, dtype=np.float32))

    def noise(self, *shape: int, scale: float | None = None) -> str:
        spread = scale if scale is not None else 1 / max(1, int(np.prod(shape[1:]))) ** 0.5
        return self.array((self._random.standard_normal(shape) * spread).astype(np.float32))

    def conv(self, x: str, filters: int, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> str:
        weight, bias = self.noise(filters, channels // groups, kernel, kernel), self.noise(filters, scale=0.1)
        pads = [kernel // 2] * 4
        return self.node(
            "Conv", x, weight, bias, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads, group=groups
        )

    def linear(self, x: str, size: int, features: int) -> str:
        """A dense layer as exporters write it for inputs of rank 3: a product and a sum."""
        product = self.node("MatMul", x, self.noise(size, features, scale=1 / size**0.5))
        return self.node("Add", self.noise(features, scale=0.1), product)

    def layer_norm(self, x: str, size: int) -> str:
        return self.node("LayerNormalization", x, self.noise(size), self.noise(size), axis=-1, epsilon=1e-5)

    def gelu(self, x: str) -> str:
        """The error function's form, op by op."""
        scaled = self.node("Erf", self.node("Div", x, self.number(2**0.5)))
        return self.node("Mul", self.node("Mul", x, self.node("Add", scaled, self.number(1.0))), self.number(0.5))

    def model(
        self, inputs: dict[str, tuple[int, Sequence[int | str]]], outputs: Sequence[str], opset: int = 17
    ) -> onnx.ModelProto:
        graph = helper.make_graph(
            self._nodes,
            "network",
            [helper.make_tensor_value_info(name, code, shape) for name, (code, shape) in inputs.items()],
            [helper.make_empty_tensor_value_info(name) for name in outputs],
            self._weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def bert_encoder(layers: int = 2, size: int = 32, heads: int = 4) -> onnx.ModelProto:
    """Embeddings, attention with a mask, GELU; sequence length and batch are named dimensions."""
    w = Writer()
    words = w.node("Gather", w.noise(50, size), "ids")
    length = w.node("Gather", w.node("Shape", "ids"), w.array(np.array(1)), axis=0)
    positions = w.node("Range", w.array(np.array(0)), length, w.array(np.array(1)))
    x = w.layer_norm(w.node("Add", words, w.node("Gather", w.noise(16, size), positions)), size)
    expanded = w.node("Unsqueeze", "mask", w.ints(1, 2))
    wide = w.node("Cast", expanded, to=TensorProto.FLOAT)
    mask = w.node("Mul", w.node("Sub", w.number(1.0), wide), w.number(-1e4))
    for _ in range(layers):
        batch = w.node("Unsqueeze", w.node("Gather", w.node("Shape", x), w.array(np.array(0)), axis=0), w.ints(0))
        shape = w.node("Concat", batch, w.ints(-1), w.ints(heads), w.ints(size // heads), axis=0)
        q, k, v = (w.node("Reshape", w.linear(x, size, size), shape) for _ in range(3))
        q, v = (w.node("Transpose", each, perm=[0, 2, 1, 3]) for each in (q, v))
        k = w.node("Transpose", k, perm=[0, 2, 3, 1])
        scores = w.node("Div", w.node("MatMul", q, k), w.number((size // heads) ** 0.5))
        weights = w.node("Softmax", w.node("Add", scores, mask), axis=-1)
        mixed = w.node("Transpose", w.node("MatMul", weights, v), perm=[0, 2, 1, 3])
        joined = w.node("Reshape", mixed, w.node("Concat", batch, w.ints(-1), w.ints(size), axis=0))
        x = w.layer_norm(w.node("Add", x, w.linear(joined, size, size)), size)
        inner = w.linear(w.gelu(w.linear(x, size, 4 * size)), 4 * size, size)
        x = w.layer_norm(w.node("Add", x, inner), size)
    first = w.node("Gather", x, w.array(np.array(0)), axis=1)
    pooled = w.node("Tanh", w.node("Gemm", first, w.noise(size, size), w.noise(size), transB=1))
    shape = ("batch", "length")
    return w.model({"ids": (TensorProto.INT64, shape), "mask": (TensorProto.INT64, shape)}, [x, pooled])


def decoder(layers: int = 2, size: int = 32, heads: int = 4, shared: int = 2) -> onnx.ModelProto:
    """A decode step: keys and values of ``past`` tokens come in and go out with one more, two heads share each."""
    w = Writer()
    x, head, kept = "token", size // heads, []
    inputs: dict[str, tuple[int, Sequence[int | str]]] = {"token": (TensorProto.FLOAT, ("batch", 1, size))}
    for layer in range(layers):
        normed = w.layer_norm(x, size)
        present = []
        for side in ("key", "value"):
            inputs[f"past.{layer}.{side}"] = (TensorProto.FLOAT, ("batch", heads // shared, "past", head))
            new = w.node("Reshape", w.linear(normed, size, size // shared), w.ints(0, 1, heads // shared, head))
            new = w.node("Transpose", new, perm=[0, 2, 1, 3])
            present.append(w.node("Concat", f"past.{layer}.{side}", new, axis=2))
        q = w.node("Reshape", w.linear(normed, size, size), w.ints(0, heads // shared, shared, head))
        scores = w.node("MatMul", q, w.node("Transpose", present[0], perm=[0, 1, 3, 2]))
        weights = w.node("Softmax", w.node("Div", scores, w.number(head**0.5)), axis=-1)
        mixed = w.node("Reshape", w.node("MatMul", weights, present[1]), w.ints(0, 1, size))
        x = w.node("Add", x, w.linear(mixed, size, size))
        inner = w.linear(w.gelu(w.linear(w.layer_norm(x, size), size, 4 * size)), 4 * size, size)
        x = w.node("Add", x, inner)
        kept += present
    return w.model(inputs, [w.layer_norm(x, size), *kept])


def language_model(size: int = 32, heads: int = 4, shared: int = 2, tokens: int = 6) -> onnx.ModelProto:
    """A layer as Llama's code has it: RMS norms, halves rotated by tables, keys repeated for the heads that share them,
    and, as in GPT-2's, scores selected by a causal mask.
    """
    w = Writer()
    head, kept = size // heads, heads // shared
    angles = np.outer(np.arange(tokens), 1e2 ** (-np.arange(0, head, 2) / head))
    cosine, sine = (
        w.array(function(np.tile(angles, 2)).astype(np.float32)[None, None]) for function in (np.cos, np.sin)
    )

    def rms_norm(x: str) -> str:
        mean = w.node("ReduceMean", w.node("Pow", x, w.number(2.0)), axes=[-1])
        return w.node("Mul", w.node("Div", x, w.node("Sqrt", w.node("Add", mean, w.number(1e-6)))), w.noise(size))

    def split(x: str, count: int) -> str:
        product = w.node("MatMul", x, w.noise(size, count * head, scale=size**-0.5))
        return w.node("Transpose", w.node("Reshape", product, w.ints(0, 0, count, head)), perm=[0, 2, 1, 3])

    def rotated(x: str) -> str:
        first, second = (
            w.node("Slice", x, w.ints(a), w.ints(b), w.ints(3)) for a, b in ((0, head // 2), (head // 2, head))
        )
        turned = w.node("Concat", w.node("Neg", second), first, axis=-1)
        return w.node("Add", w.node("Mul", x, cosine), w.node("Mul", turned, sine))

    def repeated(x: str) -> str:
        several = w.node("Expand", w.node("Unsqueeze", x, w.ints(2)), w.ints(1, kept, shared, tokens, head))
        return w.node("Reshape", several, w.ints(1, heads, tokens, head))

    x = rms_norm("embedded")
    q, k, v = (split(x, count) for count in (heads, kept, kept))
    k = w.node("Transpose", repeated(rotated(k)), perm=[0, 1, 3, 2])
    scores = w.node("Div", w.node("MatMul", rotated(q), k), w.number(head**0.5))
    scores = w.node("Where", w.array(np.tri(tokens, dtype=bool)), scores, w.number(-1e4))
    mixed = w.node("MatMul", w.node("Softmax", scores, axis=-1), repeated(v))
    joined = w.node("Reshape", w.node("Transpose", mixed, perm=[0, 2, 1, 3]), w.ints(0, 0, size))
    x = w.node("Add", "embedded", w.node("MatMul", joined, w.noise(size, size)))
    normed = rms_norm(x)
    gate, up = (w.node("MatMul", normed, w.noise(size, 2 * size)) for _ in range(2))
    inner = w.node("Mul", w.node("Mul", gate, w.node("Sigmoid", gate)), up)
    y = w.node("Add", x, w.node("MatMul", inner, w.noise(2 * size, size)))
    return w.model({"embedded": (TensorProto.FLOAT, (1, tokens, size))}, [y])


def vision_transformer(size: int = 32, heads: int = 4) -> onnx.ModelProto:
    """Patches by a convolution, a class token, one block with tanh-GELU as an operator."""
    w = Writer()
    patches = w.node("Conv", "image", w.noise(size, 3, 8, 8), strides=[8, 8], kernel_shape=[8, 8])
    tokens = w.node("Transpose", w.node("Reshape", patches, w.ints(1, size, -1)), perm=[0, 2, 1])
    x = w.node("Add", w.node("Concat", w.noise(1, 1, size), tokens, axis=1), w.noise(1, 17, size))
    whole = w.linear(w.layer_norm(x, size), size, 3 * size)
    split = w.node("Reshape", whole, w.ints(1, 17, 3, heads, size // heads))
    q, k, v = (
        w.node("Gather", w.node("Transpose", split, perm=[2, 0, 3, 1, 4]), w.array(np.array(index)), axis=0)
        for index in range(3)
    )
    scores = w.node("MatMul", q, w.node("Transpose", k, perm=[0, 1, 3, 2]))
    weights = w.node("Softmax", w.node("Mul", scores, w.number((size // heads) ** -0.5)), axis=-1)
    mixed = w.node("Transpose", w.node("MatMul", weights, v), perm=[0, 2, 1, 3])
    x = w.node("Add", x, w.linear(w.node("Reshape", mixed, w.ints(1, 17, size)), size, size))
    inner = w.node("Gelu", w.linear(w.layer_norm(x, size), size, 2 * size), approximate="tanh")
    x = w.node("Add", x, w.linear(inner, 2 * size, size))
    token = w.node("Squeeze", w.node("Slice", x, w.ints(0), w.ints(1), w.ints(1)), w.ints(1))
    return w.model({"image": (TensorProto.FLOAT, (1, 3, 32, 32))}, [w.linear(token, size, 10)], 20)


def unet(width: int = 8) -> onnx.ModelProto:
    """Down by pooling, up by a transposed convolution and by resizing, skips by concatenation; instance norms."""
    w = Writer()

    def double(x: str, channels: int, filters: int) -> str:
        for before in (channels, filters):
            x = w.node("InstanceNormalization", w.conv(x, filters, before, 3), w.noise(filters), w.noise(filters))
            x = w.node("LeakyRelu", x, alpha=0.1)
        return x

    top = double("image", 3, width)
    middle = double(w.node("MaxPool", top, kernel_shape=[2, 2], strides=[2, 2]), width, 2 * width)
    bottom = double(w.node("AveragePool", middle, kernel_shape=[2, 2], strides=[2, 2]), 2 * width, 4 * width)
    weight = w.noise(4 * width, 2 * width, 2, 2)
    up = w.node("ConvTranspose", bottom, weight, w.noise(2 * width), kernel_shape=[2, 2], strides=[2, 2])
    x = double(w.node("Concat", middle, up, axis=1), 4 * width, 2 * width)
    scales = w.array(np.array([1, 1, 2, 2], dtype=np.float32))
    larger = w.node("Resize", x, "", scales, mode="linear", coordinate_transformation_mode="half_pixel")
    x = double(w.node("Concat", top, larger, axis=1), 3 * width, width)
    return w.model({"image": (TensorProto.FLOAT, ("batch", 3, 32, 32))}, [w.conv(x, 2, width, 1)])


def mobile_net(width: int = 16) -> onnx.ModelProto:
    """Hard swish, squeeze and excitation by ReduceMean, depthwise convolutions, clips."""
    w = Writer()
    x = w.node("HardSwish", w.conv("image", width, 3, 3, 2))
    for stride in (1, 2):
        wide = w.node("HardSwish", w.conv(x, 4 * width, width, 1))
        deep = w.node("Clip", w.conv(wide, 4 * width, 4 * width, 3, stride, 4 * width), w.number(0), w.number(6))
        mean = w.node("ReduceMean", deep, axes=[2, 3], keepdims=1)
        gate = w.node("HardSigmoid", w.conv(w.node("Relu", w.conv(mean, width, 4 * width, 1)), 4 * width, width, 1))
        narrow = w.conv(w.node("Mul", deep, gate), width, 4 * width, 1)
        x = w.node("Add", x, narrow) if stride == 1 else narrow
    flat = w.node("Flatten", w.node("GlobalAveragePool", x), axis=1)
    return w.model({"image": (TensorProto.FLOAT, (1, 3, 32, 32))}, [w.node("Gemm", flat, w.noise(width, 10))])


def tagger(hidden: int = 16) -> onnx.ModelProto:
    """Embeddings, a bidirectional LSTM, a GRU, a layer of scores."""
    w = Writer()
    x = w.node("Transpose", w.node("Gather", w.noise(40, 12), "words"), perm=[1, 0, 2])
    weights = [w.noise(2, 4 * hidden, 12), w.noise(2, 4 * hidden, hidden), w.noise(2, 8 * hidden, scale=0.1)]
    y = w.nodes("LSTM", x, *weights, count=3, hidden_size=hidden, direction="bidirectional")[0]
    flat = w.node("Reshape", w.node("Transpose", y, perm=[0, 2, 1, 3]), w.ints(0, 0, -1))
    weights = [w.noise(1, 3 * hidden, 2 * hidden), w.noise(1, 3 * hidden, hidden), w.noise(1, 6 * hidden, scale=0.1)]
    states = w.nodes("GRU", flat, *weights, count=2, hidden_size=hidden, linear_before_reset=1)
    scores = w.linear(w.node("Squeeze", states[0], w.ints(1)), hidden, 5)
    best = w.node("ArgMax", scores, axis=-1, keepdims=0)
    return w.model({"words": (TensorProto.INT64, (3, 7))}, [w.node("LogSoftmax", scores, axis=-1), best])


def detection_head(width: int = 16, classes: int = 3) -> onnx.ModelProto:
    """A pyramid of two levels with three branches each, decoded boxes, the best of all: several outputs."""
    w = Writer()
    levels = [w.conv("image", width, 3, 3, 4)]
    levels.append(w.conv(w.node("Sigmoid", levels[0]), width, width, 3, 2))
    boxes, scores = [], []
    for level in levels:
        branch = {}
        for name, filters in (("box", 4), ("class", classes), ("object", 1)):
            x = w.conv(level, width, width, 3)
            x = w.node("Mul", x, w.node("Sigmoid", x))
            y = w.node("Reshape", w.conv(x, filters, width, 1), w.ints(1, filters, -1))
            branch[name] = w.node("Transpose", y, perm=[0, 2, 1])
        centre, size = w.nodes("Split", branch["box"], w.ints(2, 2), count=2, axis=2)
        half = w.node("Div", w.node("Exp", size), w.number(2.0))
        boxes.append(w.node("Concat", w.node("Sub", centre, half), w.node("Add", centre, half), axis=2))
        scores.append(w.node("Mul", w.node("Sigmoid", branch["class"]), w.node("Sigmoid", branch["object"])))
    every, score = w.node("Concat", *boxes, axis=1), w.node("Concat", *scores, axis=1)
    best, place = w.nodes("TopK", w.node("ReduceMax", score, axes=[2], keepdims=0), w.ints(5), count=2, axis=1)
    index = w.node("Expand", w.node("Unsqueeze", place, w.ints(2)), w.ints(1, 5, 4))
    return w.model(
        {"image": (TensorProto.FLOAT, (1, 3, 32, 32))}, [w.node("GatherElements", every, index, axis=1), best]
    )


def quantised(width: int = 8) -> onnx.ModelProto:
    """A quantised convolution between ordinary ones, and a quantised dense layer.

    Weights have 7 bits: with more, ONNX Runtime saturates on processors without VNNI (its ``reduce_range``).
    """
    w = Writer()
    random = np.random.default_rng(1)

    def scale(value: float) -> str:
        return w.number(value)

    zero, middle = w.array(np.array(0, np.int8)), w.array(np.array(128, np.uint8))
    x = w.node("QuantizeLinear", w.conv("image", width, 3, 3, 2), scale(0.03), middle)
    weight = w.array(random.integers(-64, 64, (width, width, 3, 3)).astype(np.int8))
    bias = w.array(random.integers(-99, 99, width).astype(np.int32))
    x = w.node(
        "QLinearConv", x, scale(0.03), middle, weight, scale(0.01), zero, scale(0.05), middle, bias, pads=[1] * 4
    )
    x = w.node("Relu", w.node("DequantizeLinear", x, scale(0.05), middle))
    small, small_scale, small_zero = w.nodes(
        "DynamicQuantizeLinear", w.node("Flatten", w.node("GlobalAveragePool", x)), count=3
    )
    weight = w.array(random.integers(-64, 64, (width, 10)).astype(np.int8))
    whole = w.node("Cast", w.node("MatMulInteger", small, weight, small_zero, zero), to=TensorProto.FLOAT)
    return w.model(
        {"image": (TensorProto.FLOAT, (1, 3, 16, 16))}, [w.node("Mul", whole, w.node("Mul", small_scale, scale(0.01)))]
    )


#: By name: the model, and how its named dimensions are bound.
NETWORKS: dict[str, tuple[Callable[[], onnx.ModelProto], dict[str, int]]] = {
    "bert_encoder": (bert_encoder, {"batch": 2, "length": 6}),
    "decoder": (decoder, {"batch": 2, "past": 5}),
    "language_model": (language_model, {}),
    "vision_transformer": (vision_transformer, {}),
    "unet": (unet, {"batch": 2}),
    "mobile_net": (mobile_net, {}),
    "tagger": (tagger, {}),
    "detection_head": (detection_head, {}),
    "quantised": (quantised, {}),
}


def assert_equal_outputs(made: dict[str, Array], expected: Sequence[Array], names: Sequence[str]) -> None:
    """Within 1e-4 of the largest number of each output."""
    for name, array in zip(names, expected, strict=True):
        assert made[name].dtype == array.dtype
        assert np.abs(made[name] - array).max() <= 1e-4 * np.abs(array).max(), name
