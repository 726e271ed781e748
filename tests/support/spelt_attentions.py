"""Networks of one attention, spelt in the ways in which exporters spell it."""

import numpy as np

from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Add, Mul, Where
from iossim.ir.ops.reshape import Expand, Reshape, Transpose
from iossim.ir.ops.softmax import Softmax
from iossim.ir.ops.unary import Cast, Relu
from iossim.ir.types import DType, Precision

LENGTH, HEADS, FEATURES = 6, 2, 8


def attention(
    precision: Precision = Precision.BF16,
    *,
    scaled: str = "scores",
    mask: tuple[int, ...] | None = None,
    scaled_mask: bool = False,
    casts: bool = False,
    joined: bool = True,
    features: int = FEATURES,
    before: bool = False,
    shared: int = 1,
    checked: bool = False,
    capped: bool = False,
    grouped: bool = False,
) -> Network:
    """One unit of heads split, an attention, and heads joined; ``before``: a ReLU of the queries in the same unit;
    ``shared``: how many heads of queries share one of keys and values, which is repeated for them; ``checked``: the first
    query sees no key, and what its softmax makes of that is replaced by zeros; ``capped``: scores are within 3;
    ``grouped``: the products have batch and heads in one axis.
    """
    b = GraphBuilder("attention", precision)
    given = {"query": HEADS, "key": HEADS // shared, "value": HEADS // shared}
    tokens = [b.input(name, (2, LENGTH, heads * features)) for name, heads in given.items()]
    seen = b.input("mask", mask) if mask else None

    def number(name: str, value: float) -> str:
        return b.constant(name, (1,), value=value)

    def repeated(heads: str) -> str:
        one = b.add(Reshape((2, HEADS // shared, 1, LENGTH, features)), heads)
        several = b.add(Expand((2, HEADS // shared, shared, LENGTH, features)), one)
        return b.add(Reshape((2, HEADS, LENGTH, features)), several)

    with b.block("only"), b.unit("attention", "Attention"):
        if before:
            tokens[0] = b.add(Relu(), tokens[0])
        split = [b.add(Reshape((2, LENGTH, -1, features)), each) for each in tokens]
        if shared == 1:
            q, v = (b.add(Transpose((0, 2, 1, 3)), split[index]) for index in (0, 2))
            k = b.add(Transpose((0, 2, 3, 1)), split[1])
        else:
            q, *others = (b.add(Transpose((0, 2, 1, 3)), each) for each in split)
            k, v = map(repeated, others)
            k = b.add(Transpose((0, 1, 3, 2)), k)
        if scaled == "operands":
            q, k = b.add(Mul(), q, number("of_q", 0.5)), b.add(Nary("div"), k, number("of_k", 1.5))
        if scaled == "values":
            v = b.add(Mul(), v, number("of_v", 3.0))
        if grouped:
            q, k, v = (b.add(Reshape((2 * HEADS, *b.types[each].shape[-2:])), each) for each in (q, k, v))
        scores = b.add(MatMul(), q, k)
        if scaled == "scores":
            scores = b.add(Nary("div"), scores, number("of_scores", 2.5))
        if capped:
            cap = number("cap", 3.0)
            scores = b.add(Mul(), b.add(Unary("tanh"), b.add(Nary("div"), scores, cap)), cap)
        if grouped:
            scores = b.add(Reshape((2, HEADS, LENGTH, LENGTH)), scores)
        if seen is not None:
            scores = b.add(Add(), seen, scores)
        if scaled_mask:
            scores = b.add(Mul(), scores, number("of_all", 0.3))
        if checked:
            first = np.where(np.arange(LENGTH)[:, None] == 0, -np.inf, np.zeros(LENGTH))
            scores = b.add(Add(), scores, b.numbers("hidden", first.astype(precision.storage.numpy)))
        if casts:
            scores = b.add(Cast(str(DType.FLOAT32)), scores)
        weights = b.add(Softmax(), scores)
        if checked:
            zero = b.constant("zero", (), b.types[weights].dtype, value=0.0)
            weights = b.add(Where(), b.add(Unary("is_nan"), weights), zero, weights)
        if casts:
            weights = b.add(Cast(str(precision.storage)), weights)
        if grouped:
            weights = b.add(Reshape((2 * HEADS, LENGTH, LENGTH)), weights)
        y = b.add(MatMul(), weights, v)
        if grouped:
            y = b.add(Reshape((2, HEADS, LENGTH, features)), y)
        if joined:
            y = b.add(Reshape((2, LENGTH, HEADS * features)), b.add(Transpose((0, 2, 1, 3)), y))
    return b.network([y])
