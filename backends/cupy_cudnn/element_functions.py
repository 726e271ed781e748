"""Functions of numbers that kernels compute, as C++: those of :mod:`iossim.ir.ops.unary` and :mod:`iossim.ir.ops.nary`.

A function is defined before the kernel that calls it, so that its argument, which may be a long expression, is computed
once. ``p0`` and ``p1`` are its parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Functions that C++ names as iossim does.
_NAMED_ALIKE = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "exp", "floor", "log", "sin", "sinh",
    "sqrt", "tan", "tanh",
)  # fmt: skip
BODIES = {
    **{name: f"{name}f(x)" for name in _NAMED_ALIKE},
    "abs": "fabsf(x)",
    "celu": "fmaxf(x, 0.0f) + fminf(p0 * expm1f(x / p0), 0.0f)",
    "elu": "x > 0.0f ? x : p0 * expm1f(x)",
    "erf": "erff(x)",
    "gelu": "0.5f * x * (1.0f + erff(x * 0.70710678f))",
    "gelu_tanh": "0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)))",
    "hard_sigmoid": "fminf(fmaxf(p0 * x + p1, 0.0f), 1.0f)",
    "hard_swish": "x * fminf(fmaxf(x / 6.0f + 0.5f, 0.0f), 1.0f)",
    "is_inf": "(x == __int_as_float(0x7f800000) && p1 != 0.0f) || (x == -__int_as_float(0x7f800000) && p0 != 0.0f)",
    "is_nan": "x != x",
    "leaky_relu": "x < 0.0f ? p0 * x : x",
    "mish": "x * tanhf(fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))))",
    "neg": "-x",
    "not": "x == 0.0f",
    "reciprocal": "1.0f / x",
    "round": "rintf(x)",
    "selu": "p1 * (x > 0.0f ? x : p0 * expm1f(x))",
    "shrink": "x < -p0 ? x + p1 : x > p0 ? x - p1 : 0.0f",
    "sign": "(float)(x > 0.0f) - (float)(x < 0.0f)",
    "softplus": "fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)))",
    "softsign": "x / (1.0f + fabsf(x))",
    "swish": "x / (1.0f + expf(-p0 * x))",
    "thresholded_relu": "x > p0 ? x : 0.0f",
}
#: Those whose parameter is another number: ``x`` and ``p0`` as functions of two.
_PAIRS = {"mod": "fmodf(x, p0) + ((x < 0.0f) != (p0 < 0.0f) && fmodf(x, p0) != 0.0f ? p0 : 0.0f)"}
#: Of two numbers, from left to right where there are more.
OF_TWO = {
    "sub": "({} - {})", "div": "({} / {})", "min": "fminf({}, {})", "max": "fmaxf({}, {})", "pow": "powf({}, {})",
    "mean": "({} + {})", "mod": "of_mod({}, {})", "fmod": "fmodf({}, {})",
    "equal": "({} == {})", "less": "({} < {})", "less_or_equal": "({} <= {})", "greater": "({} > {})",
    "greater_or_equal": "({} >= {})", "and": "({} && {})", "or": "({} || {})", "xor": "(({} != 0) != ({} != 0))",
}  # fmt: skip
#: Those of whole numbers of 32 and 64 bits, which no float holds: as above, or as here.
WHOLE = {
    **{name: OF_TWO[name] for name in ("sub", "equal", "less", "less_or_equal", "greater", "greater_or_equal")},
    **{name: OF_TWO[name] for name in ("and", "or", "xor")},
    "div": "({1} == 0 ? 0 : {0} / {1})",
    "mod": "({1} == 0 ? 0 : ({0} % {1} + {1}) % {1})",
    "min": "({0} < {1} ? {0} : {1})",
    "max": "({0} < {1} ? {1} : {0})",
}


def called(name: str, value: str, parameters: Sequence[str]) -> str:
    """A call of a function."""
    return f"of_{name}({', '.join([value, *parameters])})"


def of_two(name: str, values: Sequence[str], whole: bool = False) -> str:
    """A function of two numbers, or of two ``whole`` ones; from left to right."""
    found = values[0]
    for value in values[1:]:
        found = (WHOLE if whole else OF_TWO)[name].format(found, value)
    return f"({found} / {len(values)}.0f)" if name == "mean" else found


def functions_of(expression: str) -> str:
    """The definitions of all functions that an expression calls."""
    text = ""
    for name, body in (*sorted(BODIES.items()), *_PAIRS.items()):
        if f"of_{name}(" in expression:
            parameters = "".join(f", float {parameter}" for parameter in ("p0", "p1") if parameter in body)
            text += f"static __device__ float of_{name}(float x{parameters}) {{ return {body}; }}\n"
    return text
