"""One colour for each kind of op and each scheduler, in every picture of every network, study and trace.

A family of kinds (convolutions, products, pooling, ...) has a hue, and its kinds have shades of it. Convolutions and
products, which take most of the time, have the colours of Okabe and Ito (2008) that differ most. The colours of
schedulers have a contrast of 3 or more to white and to the dark page, as WCAG 2.2 asks of graphics (1.4.11).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from iossim.prediction.schedule_interval import BOUNDARIES

#: Colour of kinds that have none of their own.
REST = "#999999"


@dataclass(frozen=True, slots=True)
class _Family:
    """A family of kinds: ``kinds`` take ``shades`` in turn, cyclically where there are more kinds; ``reserved`` is the
    nearest of the colour names that chrome://tracing defines.
    """

    shades: tuple[str, ...]
    reserved: str
    kinds: tuple[str, ...]


_FAMILIES = (
    _Family(
        ("#0072b2", "#4b93c9", "#004a77"),
        "rail_response",
        ("conv", "conv_backward_data", "conv_backward_filter", "quantized_conv", "integer_conv", "conv_transpose",
         "conv_nhwc"),
    ),
    _Family(
        ("#d55e00", "#ec9a5c", "#943f00"),
        "rail_animation",
        ("gemm", "matmul", "quantized_matmul", "integer_matmul", "lstm", "gru", "rnn"),
    ),
    _Family(
        ("#e69f00", "#b57b00", "#f2c866", "#8f6a1f"),
        "rail_idle",
        (
            "max_pool", "average_pool", "global_average_pool", "global_max_pool",
            "max_pool_backward", "average_pool_backward",
            "max_pool_nhwc", "average_pool_nhwc", "global_average_pool_nhwc", "global_max_pool_nhwc",
        ),
    ),
    _Family(
        ("#009e73", "#63c7a9", "#00684b", "#9adbc6"),
        "rail_load",
        (
            "concat", "transpose", "split", "slice", "gather", "gather_elements", "pad", "expand", "tile", "resize",
            "reshape", "flatten", "depth_to_space", "space_to_depth", "gather_backward",
        ),
    ),
    _Family(
        ("#cc79a7", "#e3aecb", "#9c4a78"),
        "thread_state_uninterruptible",
        ("relu", "add", "mul", "unary", "sigmoid", "clip", "prelu", "nary", "where", "cast", "quantize", "dequantize",
         "dynamic_quantize"),
    ),
    _Family(
        ("#7566c9", "#a99fe0", "#4c3f9c"),
        "thread_state_runnable",
        (
            "softmax", "layer_norm", "reduce", "batch_norm", "group_norm", "instance_norm", "rms_norm", "log_softmax",
            "local_response_norm", "hardmax", "arg_extreme", "top_k",
        ),
    ),
    _Family(("#6b7280",), "generic_work", (BOUNDARIES,)),
)  # fmt: skip
_COLOURS = {
    kind: family.shades[place % len(family.shades)] for family in _FAMILIES for place, kind in enumerate(family.kinds)
}
_RESERVED = {kind: family.reserved for family in _FAMILIES for kind in family.kinds}
#: Below this relative luminance, text on a colour is white (WCAG 2.2: white then has the higher contrast).
_DARK = 0.179


def kind_colour(kind: str) -> str:
    """Colour of a kind of ops; grey for one that has none of its own."""
    return _COLOURS.get(kind, REST)


def kind_colours(kinds: Iterable[str]) -> dict[str, str]:
    """Colour of each kind, family by family, whatever the order in which they are given."""
    wanted = set(kinds)
    known = [kind for kind in _COLOURS if kind in wanted]
    return {kind: kind_colour(kind) for kind in (*known, *sorted(wanted - set(known)))}


def reserved_colour(kind: str) -> str:
    """Nearest of the colours that a Chrome trace event may name."""
    return _RESERVED.get(kind, "grey")


def text_on(colour: str) -> str:
    """Black or white, whichever is more legible on a colour (``#rrggbb``)."""
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    linear = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    luminance = sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return "white" if luminance < _DARK else "black"


_SCHEDULERS = {
    "sequential": ("#808080", "square"),
    "greedy": ("#d55e00", "triangle-up"),
    "ios-merge": ("#009e73", "diamond"),
    "ios-parallel": ("#c2629a", "cross"),
    "ios-both": ("#0072b2", "circle"),
    # Plans on edge devices never appear beside those above.
    "vanilla": ("#808080", "square"),
    "horizontal": ("#009e73", "diamond"),
    "full": ("#0072b2", "circle"),
}
#: Marks of schedulers added by other packages, assigned in the order of their names.
_OTHER_SCHEDULERS = (("#8a6d00", "triangle-down"), ("#7566c9", "triangle-right"), ("#2f8f9d", "triangle-left"))


def scheduler_marks(schedulers: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and Vega shape of each scheduler by name, in the order given."""
    foreign = sorted(name for name in schedulers if name not in _SCHEDULERS)
    others = {name: _OTHER_SCHEDULERS[number % len(_OTHER_SCHEDULERS)] for number, name in enumerate(foreign)}
    return {name: _SCHEDULERS[name] if name in _SCHEDULERS else others[name] for name in schedulers}
