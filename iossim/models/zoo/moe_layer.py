"""A mixture of experts (Jacobs et al., 1991, "Adaptive mixtures of local experts"): feed-forward parts side by side.

A gate weighs eight experts for each token, and all of them are computed: the sum of their outputs by these weights is
the layer's. So the work is the same for any input, and experts are what can run at once. Each expert is twice as wide
inside as its tokens, which are 512 wide.
"""

from __future__ import annotations

from iossim.ir.builder import GraphBuilder
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.slice import Slice
from iossim.ir.ops.softmax import Softmax
from iossim.ir.ops.unary import Unary
from iossim.models.catalogue import ZooModel

EXPERTS = 8


def build(b: GraphBuilder, tokens: str) -> str:
    width = b.types[tokens].shape[2]
    with b.block("experts"):
        with b.unit("gate", "Matmul"):
            weight = b.constant("gate.weight", (width, EXPERTS))
            scores = b.add(MatMul(), tokens, weight, name="gate.matmul")
        with b.unit("gate.softmax", "Softmax"):
            shares = b.add(Softmax(), scores, name="gate.softmax")
        weighed = [_expert(b, f"expert{index}", index, tokens, shares, width) for index in range(EXPERTS)]
        with b.unit("sum", "Add"):
            return b.add(Add(), *weighed, name="sum.add")


def _expert(b: GraphBuilder, name: str, index: int, tokens: str, shares: str, width: int) -> str:
    """What an expert adds to the layer's output."""
    with b.unit(f"{name}.inner", "Matmul-Bias-Gelu"):
        inner = b.add(Unary("gelu"), _linear(b, f"{name}.inner", tokens, 2 * width), name=f"{name}.inner.gelu")
    with b.unit(f"{name}.outer", "Matmul-Bias"):
        outer = _linear(b, f"{name}.outer", inner, width)
    with b.unit(f"{name}.weighed", "Slice-Mul"):
        share = b.add(Slice((index,), (index + 1,), (2,), (1,)), shares, name=f"{name}.share")
        return b.add(Mul(), outer, share, name=f"{name}.mul")


def _linear(b: GraphBuilder, name: str, x: str, features: int) -> str:
    weight = b.constant(f"{name}.weight", (b.types[x].shape[-1], features))
    bias = b.constant(f"{name}.bias", (features,))
    return b.add(Add(), b.add(MatMul(), x, weight, name=f"{name}.matmul"), bias, name=f"{name}.add")


MODELS = (
    ZooModel(
        "moe_layer",
        "A mixture of 8 experts, all computed, 128 tokens of 512",
        (128, 512),
        build,
        input_name="tokens",
        axes="batch x length x width",
    ),
)
