"""Questions, constraints and claims of a study as values: what :mod:`iossim.study.question_grammar` reads them into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Value = str | int
#: The values of each axis by their labels.
Labels = Mapping[str, Sequence[Value]]

QUESTION_AXES = (
    "model",
    "device",
    "batch",
    "dtype",
    "engine",
    "cost_model",
    "search",
    "rewrite",
    "workspace",
    "dataflow",
    "scheduler",
)
#: Columns that hold numbers, other than ``batch``: whether low ones are better.
NUMBERS: dict[str, bool] = {
    "latency_ms": True, "low_ms": True, "high_ms": True, "published_ms": True, "stages": True, "streams": True,
    "merged_stages": True, "gap": True, "weights_mib": True, "peak_memory_mib": True, "board_power_w": True,
    "kernels": True, "gmacs": True, "traffic_mib": True, "convolutions_ms": True, "undivided_ms": True, "workspace_mib": True,
    "private_mib": True, "shared_mib": True, "external_mib": True, "sent_mib": True, "waited_ms": True,
    "throughput_per_s": False, "speedup": False, "active_warps": False, "micro_batch_gain": False, "largest_gain": False, "peak_tflops": False,
}  # fmt: skip


#: The columns by which devices are small or large; the first by default.
DEVICE_SIZES = ("board_power_w", "peak_tflops")


@dataclass(frozen=True)
class Quantity:
    """A column of the rows at some values of axes, or its mean (or other aggregate) over all that are looked at."""

    column: str
    at: tuple[tuple[str, Value], ...] = ()
    aggregate: str | None = None


@dataclass(frozen=True)
class Ratio:
    """One quantity over another."""

    over: Quantity
    under: Quantity


Side = Quantity | Ratio | float | str


@dataclass(frozen=True)
class ComparisonSentence:
    """Two sides, of which one may be a number or a label."""

    left: Side
    operator: str
    right: Side

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        parts: list[Quantity] = []
        for side in (self.left, self.right):
            if isinstance(side, Ratio):
                parts += [side.over, side.under]
            elif isinstance(side, Quantity):
                parts.append(side)
        return tuple(parts)


Conditions = tuple[ComparisonSentence, ...]


@dataclass(frozen=True)
class Quotient:
    """A column, or one column per another."""

    column: str
    per: str | None = None

    @property
    def is_better_low(self) -> bool:
        return NUMBERS[self.column]


@dataclass(frozen=True)
class Sentence:
    """What all have: conditions on what is looked at and on the answer, and the axes whose values are told apart."""

    where: Conditions = ()
    having: Conditions = ()
    for_each: tuple[str, ...] = ()


@dataclass(frozen=True)
class EndOfAxis(Sentence):
    """``smallest device``, ``largest batch``; devices are ordered by the column ``by``."""

    axis: str = ""
    is_largest: bool = False
    by: str = DEVICE_SIZES[0]


@dataclass(frozen=True)
class BestOf(Sentence):
    """``fastest scheduler``; ``best throughput_per_s per board_power_w``, where the axis is empty."""

    quotient: Quotient = Quotient("latency_ms")
    is_low: bool = True
    axis: str = ""


@dataclass(frozen=True)
class Holds(Sentence):
    """``speedup >= 1.1``: comparisons that hold everywhere."""

    conditions: Conditions = ()


@dataclass(frozen=True)
class IsBest(Sentence):
    """``ios-both is fastest``."""

    axis: str = ""
    value: Value = ""
    quotient: Quotient = Quotient("latency_ms")
    is_low: bool = True


@dataclass(frozen=True)
class Trend(Sentence):
    """``speedup falls over batch``."""

    quantity: Quantity = Quantity("latency_ms")
    rises: bool = True
    axis: str = ""


@dataclass(frozen=True)
class DiagonalIsBest(Sentence):
    """``each diagonal is best over batch``: no schedule is faster at a point than the one made for it."""

    axis: str = ""


Question = EndOfAxis | BestOf
Claim = Holds | IsBest | Trend | DiagonalIsBest


def columns_of(sentence: Sentence) -> set[str]:
    """The columns that a sentence looks at."""
    comparisons = [*sentence.where, *sentence.having, *(sentence.conditions if isinstance(sentence, Holds) else ())]
    found = {quantity.column for comparison in comparisons for quantity in comparison.quantities}
    if isinstance(sentence, BestOf | IsBest):
        found |= {sentence.quotient.column} | ({sentence.quotient.per} if sentence.quotient.per else set())
    if isinstance(sentence, Trend):
        found.add(sentence.quantity.column)
    return found
