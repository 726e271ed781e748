"""The small language of constraints, questions and claims over the rows of a study, and its parser.

A *constraint* is conditions that each row meets or not; a *question* asks for the best of something; a *claim* holds or does
not. In full, with columns those of :class:`~iossim.study.study_run.Row`::

    constraint = conditions [where]
    question   = ("smallest" | "largest") AXIS ["by" ("board_power_w" | "peak_tflops")] tail
               | "fastest" AXIS tail
               | ("best" | "highest" | "lowest") quotient tail
    claim      = conditions tail
               | VALUE "is" ("fastest" | ("best" | "highest" | "lowest") quotient) tail
               | quantity ("rises" | "falls") "over" AXIS tail
               | "each" "diagonal" "is" "best" "over" ("device" | "batch") tail
    tail       = ["with" conditions | limit] [where] ["for" "each" AXIS {"and" AXIS}]
    where      = "where" conditions
    conditions = comparison {"and" comparison}
    comparison = limit | side ("<" | "<=" | ">" | ">=" | "=" | "!=") side
    limit      = "under" NUMBER "ms"
    side       = NUMBER | VALUE | quantity ["/" (quantity | [AXIS] VALUE)]
    quotient   = COLUMN ["per" COLUMN]
    quantity   = ["mean" | "geomean" | "min" | "max"] COLUMN {"of" VALUE | "at" AXIS VALUE}

An AXIS is ``model``, ``device``, ``batch``, ``dtype``, ``engine``, ``cost_model``, ``search``, ``rewrite``, ``workspace``,
``dataflow`` or ``scheduler``; a VALUE is a label of one, in quotes where it holds more than letters, digits and ``. _ - +``. A NUMBER may be a percentage: ``2%`` is 0.02.

What it means:

- ``where`` says which rows are looked at, ``with`` what a row must have to be an answer (an answer then says how far the next
  one is from it), ``under 10 ms`` is ``latency_ms <= 10``.
- The smallest device is the one of least board power, of equals that of the lowest fp32 peak: the boards of a few tens of watts
  come first, whatever their generation computes. ``smallest device by peak_tflops`` goes by the fp32 peak, and so does a trend
  over devices. Batches are ordered by number. ``best`` knows which columns are better low.
- ``latency_ms of ios-both`` and ``stages at batch 32`` fix an axis; a claim compares for every combination of the other axes.
  After ``/`` a VALUE alone stands for the same quantity of that value: ``active_warps of ios-both / sequential >= 1.2``.
- ``mean`` and its like take all rows that are looked at together, or those of each value ``for each`` names.
- A question is answered for each model on its own, unless it asks for models.
- A claim of who is fastest or best holds where the others tie within the noise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from iossim.base.errors import ScenarioError, did_you_mean
from iossim.study.sentences import (
    DEVICE_SIZES,
    NUMBERS,
    QUESTION_AXES,
    BestOf,
    Claim,
    ComparisonSentence,
    Conditions,
    DiagonalIsBest,
    EndOfAxis,
    Holds,
    IsBest,
    Labels,
    Quantity,
    Question,
    Quotient,
    Ratio,
    Sentence,
    Side,
    Trend,
    Value,
)

_S = TypeVar("_S", bound=Sentence)
#: What people write for them.
_SYNONYMS = {
    "latency": "latency_ms", "throughput": "throughput_per_s", "speed-up": "speedup", "memory": "peak_memory_mib",
    "watt": "board_power_w", "power": "board_power_w", "peak": "peak_tflops", "warps": "active_warps",
}  # fmt: skip
_OPERATORS = ("<=", ">=", "!=", "<", ">", "=", "==")
_AGGREGATES = ("mean", "geomean", "min", "max")
_SUPERLATIVES = ("smallest", "largest", "fastest", "best", "highest", "lowest")
_TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>"[^"]*"|'[^']*')|(?P<sign><=|>=|!=|==|[<>=/])|(?P<word>[\w.+%-][\w.+:%-]*))"""
)
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?%?")


def parse_constraint(text: str, labels: Labels | None) -> Holds:
    """Conditions on a row; raises ScenarioError naming the position and the remedy. Without ``labels`` any will do."""
    parser = _Parser(text, labels)
    conditions = parser.conditions()
    parsed = parser.tail(Holds(conditions=conditions), ("where",))
    for comparison in conditions:
        if any(quantity.at or quantity.aggregate for quantity in comparison.quantities):
            raise parser.fault(0, "a constraint is about one row: leave 'of', 'at' and aggregates out")
    return parsed


def parse_question(text: str, labels: Labels) -> Question | Claim:
    """A question; a claim is one too: does it hold? Raises ScenarioError naming the position and the remedy."""
    parser = _Parser(text, labels)
    return parser.question() if parser.peek() in _SUPERLATIVES else parser.claim()


def parse_claim(text: str, labels: Labels) -> Claim:
    """A claim; raises ScenarioError naming the position and the remedy."""
    parser = _Parser(text, labels)
    if parser.peek() in _SUPERLATIVES:
        raise parser.fault(
            0, "this is a question, and a claim holds or does not; write 'VALUE is fastest', or a comparison"
        )
    return parser.claim()


@dataclass(frozen=True)
class _Token:
    text: str
    position: int
    quoted: bool = False


class _Parser:
    """Reads one sentence from left to right, one token ahead."""

    def __init__(self, text: str, labels: Labels | None) -> None:
        self.text = text
        self.takes_any = labels is None
        self.labels: Labels = labels or dict.fromkeys(QUESTION_AXES, ())
        self.tokens: list[_Token] = []
        self.next = 0
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                at = position + len(text[position:]) - len(text[position:].lstrip())
                raise self.fault_at(at, f"{text[at]!r} is not understood; put a label that holds it in quotes")
            found = match.group(match.lastgroup or "word")
            quoted = match.lastgroup == "quoted"
            self.tokens.append(
                _Token(found[1:-1] if quoted else found, match.start(match.lastgroup or "word"), quoted)
            )
            position = match.end()
        if not self.tokens:
            raise ScenarioError("is empty; write a condition, a question or a claim, or leave it out")

    def fault_at(self, position: int, reason: str) -> ScenarioError:
        return ScenarioError(f"{self.text!r}, character {position + 1}: {reason}")

    def fault(self, index: int, reason: str) -> ScenarioError:
        position = self.tokens[index].position if index < len(self.tokens) else len(self.text)
        return self.fault_at(position, reason)

    def here(self, reason: str) -> ScenarioError:
        return self.fault(self.next, reason)

    def peek(self, ahead: int = 0) -> str:
        """The word that comes, or nothing where a quoted label or the end does."""
        index = self.next + ahead
        return "" if index >= len(self.tokens) or self.tokens[index].quoted else self.tokens[index].text

    def take(self, *words: str) -> bool:
        """Pass the words, if they come next."""
        if all(self.peek(ahead) == word for ahead, word in enumerate(words)):
            self.next += len(words)
            return True
        return False

    def expect(self, *words: str) -> None:
        for word in words:
            if not self.take(word):
                raise self.here(f"{self.shown()} where {word!r} is expected; write {' '.join(words)!r}")

    def shown(self) -> str:
        return repr(self.tokens[self.next].text) if self.next < len(self.tokens) else "the end"

    def question(self) -> Question:
        word = self.peek()
        self.next += 1
        if word in ("smallest", "largest"):
            axis = self.axis(("device", "batch"), remedy="; of others ask for the 'fastest'")
            by = self.column(DEVICE_SIZES) if axis == "device" and self.take("by") else DEVICE_SIZES[0]
            return self.tail(EndOfAxis(axis=axis, is_largest=word == "largest", by=by))
        if word == "fastest":
            return self.tail(BestOf(axis=self.axis(QUESTION_AXES)))
        quotient, is_low = self.superlative(word)
        return self.tail(BestOf(quotient=quotient, is_low=is_low))

    def superlative(self, word: str) -> tuple[Quotient, bool]:
        """What comes behind ``best``, ``highest`` or ``lowest``."""
        column = self.column()
        quotient = Quotient(column, self.column() if self.take("per") else None)
        return quotient, word == "lowest" or (word == "best" and quotient.is_better_low)

    def claim(self) -> Claim:
        if self.take("each"):
            self.expect("diagonal", "is", "best", "over")
            return self.tail(DiagonalIsBest(axis=self.axis(("device", "batch"))))
        if self.peek(1) == "is" or (self.peek() in QUESTION_AXES and self.peek(2) == "is"):
            axis, value = self.axis_and_value(self.peek(1) != "is")
            self.expect("is")
            self.take("the")
            word = self.peek()
            if word not in ("fastest", "best", "highest", "lowest"):
                raise self.here(
                    f"{self.shown()} where 'fastest', 'best', 'highest' or 'lowest' is expected; write one"
                )
            self.next += 1
            if word == "fastest":
                self.take(axis)
                return self.tail(IsBest(axis=axis, value=value))
            quotient, is_low = self.superlative(word)
            return self.tail(IsBest(axis=axis, value=value, quotient=quotient, is_low=is_low))
        start = self.next
        if self.peek() in (*_AGGREGATES, *self.all_columns()):
            quantity = self.quantity()
            if self.peek() in ("rises", "falls"):
                rises = self.peek() == "rises"
                self.next += 1
                self.expect("over")
                return self.tail(Trend(quantity=quantity, rises=rises, axis=self.axis(QUESTION_AXES)))
            self.next = start
        return self.tail(Holds(conditions=self.conditions()))

    def tail(self, sentence: _S, parts: Iterable[str] = ("with", "where", "for")) -> _S:
        """The sentence with what is said behind it."""
        left = list(parts)
        while self.next < len(self.tokens):
            word = "with" if self.peek() == "under" else self.peek()
            if word not in left:
                hint = f"write {', '.join(map(repr, left))}, or end here" if left else "end here"
                raise self.here(f"{self.shown()} is not expected; {hint}")
            left.remove(word)
            self.next += self.peek() == word
            if word == "for":
                self.expect("each")
                axes = [self.axis(QUESTION_AXES)]
                while self.take("and"):
                    axes.append(self.axis(QUESTION_AXES))
                sentence = replace(sentence, for_each=tuple(dict.fromkeys(axes)))
                continue
            start = self.next
            conditions = self.conditions()
            if any(quantity.at or quantity.aggregate for each in conditions for quantity in each.quantities):
                raise self.fault(start, f"behind {word!r} columns stand alone; leave 'of', 'at' and aggregates out")
            of_answer = word == "with"
            sentence = replace(sentence, having=conditions) if of_answer else replace(sentence, where=conditions)
        return sentence

    def conditions(self) -> Conditions:
        found = [self.comparison()]
        while self.take("and"):
            found.append(self.comparison())
        return tuple(found)

    def comparison(self) -> ComparisonSentence:
        if self.take("under"):
            number = self.number()
            if number is None:
                raise self.here(f"{self.shown()} where a number of ms is expected; write 'under 10 ms'")
            self.expect("ms")
            return ComparisonSentence(Quantity("latency_ms"), "<=", number)
        start = self.next
        left = self.side(None)
        operator = self.peek()
        if operator not in _OPERATORS:
            raise self.here(
                f"{self.shown()} where a comparison is expected; write one of {', '.join(_OPERATORS[:6])}"
            )
        self.next += 1
        comparison = ComparisonSentence(left, "=" if operator == "==" else operator, self.side(left))
        if not comparison.quantities:
            raise self.fault(start, f"compares no column; known: {', '.join(sorted(self.all_columns()))}")
        for one, other in ((comparison.left, comparison.right), (comparison.right, comparison.left)):
            if isinstance(one, Quantity) and one.column in QUESTION_AXES and one.column != "batch":
                if not isinstance(other, str):
                    raise self.fault(
                        start, f"{one.column!r} holds labels, not numbers; compare it with one of its labels"
                    )
                if comparison.operator not in ("=", "!="):
                    raise self.fault(start, f"labels have no order; write '{one.column} = ...' or '!='")
        if len({quantity.aggregate is None for quantity in comparison.quantities}) > 1:
            raise self.fault(start, "one side is over many rows and the other is not; give both a 'mean' or its like")
        return comparison

    def side(self, other: Side | None) -> Side:
        """One side of a comparison; a label stands only opposite to the axis that has it."""
        if other is not None and isinstance(other, Quantity) and other.column in QUESTION_AXES and not other.at:
            value = self.value(other.column)
            return float(value) if isinstance(value, int) else value
        number = self.number()
        if number is not None:
            return number
        quantity = self.quantity()
        if not self.take("/"):
            return quantity
        is_axis_told = self.peek() in dict(quantity.at)  # 'latency_ms at batch 32 / batch 1'
        if not is_axis_told and self.peek() in (*_AGGREGATES, *self.all_columns()):
            return Ratio(quantity, self.quantity())
        if not quantity.at:
            raise self.here(f"{self.shown()} is no column; write 'latency_ms of greedy / latency_ms of sequential'")
        axis, value = self.axis_and_value(is_axis_told)
        kept = tuple((other_axis, at) for other_axis, at in quantity.at if other_axis != axis)
        return Ratio(quantity, replace(quantity, at=(*kept, (axis, value))))

    def quantity(self) -> Quantity:
        aggregate = None
        if self.peek() in _AGGREGATES:
            aggregate = self.peek()
            self.next += 1
        column = self.column((*NUMBERS, *(QUESTION_AXES if aggregate is None else ())))
        at: dict[str, Value] = {}
        while self.peek() in ("of", "at"):
            start = self.next
            is_axis_told = self.peek() == "at" or self.peek(1) in QUESTION_AXES
            self.next += 1
            axis, value = self.axis_and_value(is_axis_told)
            if axis in at:
                raise self.fault(start, f"a second {axis}; leave one out")
            at[axis] = value
        return Quantity(column, tuple(at.items()), aggregate)

    def axis_and_value(self, is_axis_told: bool) -> tuple[str, Value]:
        """``batch 32``, or ``ios-both`` alone, whose axis is found."""
        if is_axis_told:
            axis = self.axis(QUESTION_AXES)
            return axis, self.value(axis)
        if self.next >= len(self.tokens):
            raise self.here(f"the end where a value of an axis is expected; {self.all_values()}")
        text = self.tokens[self.next].text
        axes = [axis for axis, values in self.labels.items() if axis != "batch" and text in values]
        if len(axes) > 1:
            raise self.here(f"{text!r} is a value of {' and '.join(axes)}; write '{axes[0]} {text}'")
        if not axes:
            hint = f"write 'batch {text}'" if text.isdecimal() else self.all_values(text)
            raise self.here(f"{text!r} is no value of an axis; {hint}")
        self.next += 1
        return axes[0], text

    def all_values(self, near: str = "") -> str:
        return did_you_mean(
            near, [str(value) for axis in self.labels if axis != "batch" for value in self.labels[axis]]
        )

    def value(self, axis: str) -> Value:
        """A value that the axis has in this scenario."""
        if self.next >= len(self.tokens):
            raise self.here(f"the end where a {axis} is expected; known: {', '.join(map(str, self.labels[axis]))}")
        text = self.tokens[self.next].text
        value: Value = int(text) if axis == "batch" and text.isdecimal() else text
        # Any number may bound the batch size.
        is_bound = isinstance(value, int) and self.peek(-1) in ("<=", ">=", "<", ">")
        if value not in self.labels[axis] and not (is_bound or self.takes_any):
            hint = did_you_mean(text, map(str, self.labels[axis]))
            raise self.here(f"{text!r} is no {axis} of this scenario; {hint}")
        self.next += 1
        return value

    def axis(self, known: Sequence[str], remedy: str = "") -> str:
        text = self.peek()
        if text not in known:
            axes = [axis for axis in known if text and text in map(str, self.labels[axis])]
            hint = f"write '{axes[0]} {text}'" if axes else did_you_mean(text, known)
            raise self.here(f"{self.shown()} where an axis is expected; {hint}{remedy}")
        self.next += 1
        return text

    def column(self, known: Sequence[str] = tuple(NUMBERS)) -> str:
        text = _SYNONYMS.get(self.peek(), self.peek())
        if text not in known:
            words = (*known, *(_SUPERLATIVES if self.next == 0 else ()))
            raise self.here(f"{self.shown()} where a column is expected; {did_you_mean(self.peek(), words)}")
        self.next += 1
        return text

    def all_columns(self) -> tuple[str, ...]:
        return (*NUMBERS, *QUESTION_AXES, *_SYNONYMS)

    def number(self) -> float | None:
        text = self.peek()
        if not _NUMBER.fullmatch(text):
            return None
        self.next += 1
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
