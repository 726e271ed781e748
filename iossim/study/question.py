"""Questions and claims of a study: mappings of a few keys over metrics and axes.

A *question* asks for the best of something or for a figure; a *claim* holds or does not. ``docs/detail/studies.md``
says what each key means, and ``questions.yaml`` which go together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from iossim.base.errors import ScenarioError, did_you_mean
from iossim.base.shipped_yaml import shipped
from iossim.base.values import Value
from iossim.report.figures.figure import title_of
from iossim.study.axes import DEVICE_SIZES, METRICS, ROW_AXES, Quantity, where_in_words
from iossim.study.study_kind import Label, add_fields

#: Labels of each axis, from :func:`iossim.study.points.labels_of`.
Labels = Mapping[str, Sequence[Label]]
#: Labels at which a figure is taken, by axis.
Place = dict[str, Label]
#: Bounds of a figure, with their comparisons.
BOUNDS = {"at_least": ">=", "at_most": "<=", "above": ">", "below": "<", "equals": "="}


#: pydantic's tags of a value's alternatives; no field has such a name.
MAPPING, LIST, VALUE = "<mapping>", "<list>", "<value>"


def told(reason: str) -> PydanticCustomError:
    """An error that already contains its reason and remedy."""
    return PydanticCustomError("told", "{reason}", {"reason": reason})


def _shape(given: object) -> str:
    return LIST if isinstance(given, list) else MAPPING if isinstance(given, dict | Value) else VALUE


def _known(kind: str, known: Collection[str]) -> AfterValidator:
    """Validator that refuses unknown names."""

    def check(name: str) -> str:
        if name not in known:
            other = "a metric, as of 'having', and " if name in METRICS else ""
            other = "an axis, as of 'where', and " if name in ROW_AXES else other
            raise told(f"is {name!r}, which is {other}no {kind}; {did_you_mean(name, known)}")
        return name

    return AfterValidator(check)


MetricName = TypeAliasType(
    "MetricName", Annotated[str, _known("metric", METRICS), Field(json_schema_extra={"enum": list(METRICS)})]
)
AxisName = TypeAliasType(
    "AxisName", Annotated[str, _known("axis", ROW_AXES), Field(json_schema_extra={"enum": list(ROW_AXES)})]
)
#: Labels by axis, or one label alone, whose axis is inferred.
At = TypeAliasType(
    "At",
    Annotated[Annotated[str, Tag(VALUE)] | Annotated[dict[AxisName, str | int], Tag(MAPPING)], Discriminator(_shape)],
)


class Range(Value):
    """Bounds of a number."""

    add_fields(vars(), dict.fromkeys(BOUNDS, float | None), dict.fromkeys(BOUNDS))

    @property
    def bounds(self) -> list[tuple[str, float]]:
        """Comparison and bound of each that is given."""
        return [(sign, bound) for name, sign in BOUNDS.items() if (bound := getattr(self, name)) is not None]

    @model_serializer(mode="wrap")
    def _given(self, dump: SerializerFunctionWrapHandler) -> dict[str, object]:
        """Given keys, as in a file."""
        return {name: value for name, value in dump(self).items() if value not in (None, {}, [])}

    @model_validator(mode="after")
    def _possible(self) -> Self:
        low, is_open = max(((bound, sign == ">") for sign, bound in self.bounds if "<" not in sign), default=(0, False))
        high, is_met = min(
            ((bound, sign != "<") for sign, bound in self.bounds if ">" not in sign), default=(inf, True)
        )
        if any(bound < 0 for _, bound in self.bounds) or low > high or (low == high and (is_open or not is_met)):
            bounds = _and(f"{_SIGNS[sign]} {bound:g}" for sign, bound in self.bounds)
            raise told(f"asks for {bounds}, and figures are numbers of 0 or more; correct the bounds")
        return self


#: A label, any of several labels, or bounds of a number.
Condition = TypeAliasType(
    "Condition",
    Annotated[
        Annotated[str | int, Tag(VALUE)]
        | Annotated[list[str | int], Tag(LIST), Field(min_length=1)]
        | Annotated[Range, Tag(MAPPING)],
        Discriminator(_shape),
    ],
)


def values_of(condition: Condition) -> list[str | int]:
    """The labels of a condition, any of which meets it; none for bounds."""
    return [] if isinstance(condition, Range) else condition if isinstance(condition, list) else [condition]


_KINDS: dict[str, dict[str, Any]] = shipped(__package__, "questions.yaml")


class Question(Range):
    """A question or claim: its ``kind`` is the key that says which."""

    metric: MetricName | None = None
    per: MetricName | None = None
    best: AxisName | None = None
    expect: str | int | None = None
    smallest: Literal["device", "batch"] | None = None
    largest: Literal["device", "batch"] | None = None
    by: Literal["board_power_w", "peak_tflops"] | None = None
    rises_over: AxisName | None = None
    falls_over: AxisName | None = None
    specialised_for: Literal["device", "batch"] | None = None
    aggregate: Literal["mean", "geomean", "min", "max"] | None = None
    of: At | None = None
    over: At | None = None
    having: dict[MetricName, Range] = Field(default_factory=dict)
    where: dict[AxisName, Condition] = Field(default_factory=dict)
    where_not: dict[AxisName, Condition] = Field(default_factory=dict)
    for_each: list[AxisName] = Field(default_factory=list)

    @field_validator("having", "where", "where_not")
    @classmethod
    def _bounded(cls, conditions: Mapping[str, Condition]) -> Mapping[str, Condition]:
        for name, condition in conditions.items():
            if isinstance(condition, Range) and name in ROW_AXES and name != "batch":
                raise told(f"labels of {name!r} have no order; write a label, or a list of labels")
            if isinstance(condition, Range) and not condition.bounds:
                raise told(f"{name!r} is bounded by nothing; write bounds, as in '{{at_most: 10}}'")
        return conditions

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name) not in (None, {}, [])]
        kinds = [kind for kind in _KINDS if kind in given and kind != "metric"]
        if len(kinds) > 1:
            raise told(f"{kinds[0]!r} and {kinds[1]!r} are two questions; leave one of them out")
        if not kinds and not set(given).intersection(_KINDS["figure"]["keys"]):
            raise told("asks nothing; write a 'metric', or one of 'best', 'smallest' and 'largest'")
        fitting = {self.kind, "where", "where_not", *_KINDS[self.kind]["keys"]}
        if (key := next((key for key in given if key not in fitting), None)) is not None:
            kind = "a metric alone" if self.kind == "metric" else f"{self.kind!r}"
            raise told(f"{key!r} does not go with {kind}; leave one of them out")
        if self.over is not None and self.of is None:
            raise told("'over' says what a figure is divided by; say 'of' which labels the figure is, too")
        if self.kind == "figure" and self.for_each and not self.aggregate:
            raise told("'for_each' goes with an 'aggregate': without one every case is looked at by itself")
        if self.per is not None and self.per == self.quantity.metric:
            raise told("'per' is the metric itself; leave it out")
        if self.by is not None and "batch" in (self.smallest, self.largest):
            raise told("'by' is the order of devices; leave it out")
        return self

    @property
    def kind(self) -> str:
        """Key that determines the kind of question; ``figure`` or ``metric`` where no other does."""
        named = (kind for kind in _KINDS if kind not in ("figure", "metric") and getattr(self, kind) is not None)
        is_figure = self.of is not None or self.over is not None or self.aggregate is not None or self.bounds
        return next(named, "figure" if is_figure else "metric")

    @property
    def is_claim(self) -> bool:
        """True for a claim, which holds or fails."""
        named = self.kind in ("rises_over", "falls_over", "specialised_for")
        return named or self.expect is not None or bool(self.bounds)

    @property
    def axis(self) -> str:
        """Axis of the question; empty if it concerns figures alone."""
        return "" if self.kind in ("figure", "metric") else str(getattr(self, self.kind))

    @property
    def quantity(self) -> Quantity:
        return Quantity(self.metric or "latency_ms", self.per)

    @property
    def is_low(self) -> bool:
        """True where the lowest figure is the best."""
        return METRICS[self.quantity.metric].better == "lowest"

    @property
    def size(self) -> str:
        """Metric of a device's size."""
        return self.by or DEVICE_SIZES[0]

    @property
    def metrics(self) -> set[str]:
        return {*self.having, self.quantity.metric} | ({self.per} if self.per else set())


def place_of(at: str | Place | None, labels: Labels) -> Place:
    """Labels at which a figure is taken, by axis; raises ScenarioError if this study has no such label."""
    if at is None:
        return {}
    if isinstance(at, str):
        axes = [axis for axis, values in labels.items() if at in map(str, values)]
        if len(axes) > 1:
            raise ScenarioError(f"{at!r} is a label of {' and '.join(axes)}; write '{{{axes[0]}: {at}}}'")
        if not axes:
            known = dict.fromkeys(str(value) for values in labels.values() for value in values)
            raise ScenarioError(f"{at!r} is no label of this study; {did_you_mean(at, known)}")
        return {axes[0]: label_of_axis(axes[0], at, labels)}
    return {axis: label_of_axis(axis, label, labels) for axis, label in at.items()}


def label_of_axis(axis: str, label: Label | float, labels: Labels) -> Label:
    """Label of an axis with this spelling; raises ScenarioError if there is none."""
    for known in labels[axis]:
        if str(known) == str(label):
            return known
    raise ScenarioError(
        f"{str(label)!r} is no {axis} of this study; {did_you_mean(str(label), map(str, labels[axis]))}"
    )


_AGGREGATES = {"mean": "mean", "geomean": "geometric mean", "min": "minimum", "max": "maximum"}
_SIGNS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than", "=": "equal to"}


def in_words(asked: Question) -> str:
    """The question in words, with a question mark; a claim is a statement."""
    axis = _named(asked.axis)
    direction, quantity = "lowest" if asked.is_low else "highest", asked.quantity.words
    said = str(_KINDS[asked.kind]["says"]).format(
        axis=axis, direction=direction, quantity=quantity, metric=_at(asked.of, quantity), figure=_figure(asked)
    )
    if asked.expect is not None:
        said = f"The {axis} of the {direction} {quantity} is {asked.expect}"
    if asked.kind in ("smallest", "largest") and axis == "device":
        said += f" by {METRICS[asked.size].words}"
    if asked.having:
        conditions = (f"{_article(name)} of {condition_words(name, each)}" for name, each in asked.having.items())
        said += f" with {_and(conditions)}"
    if asked.for_each:
        said += f" for each {_and(map(_named, asked.for_each))}"
    rows = [
        f"the {_named(name)} {verb} {condition_words(name, each)}"
        for conditions_of, verb in ((asked.where, "is"), (asked.where_not, "is not"))
        for name, each in conditions_of.items()
    ]
    said += f", where {_and(rows)}" if rows else ""
    return f"{said}{'' if asked.is_claim else '?'}"


def _figure(asked: Question) -> str:
    said = _at(asked.of, asked.quantity.words)
    if asked.aggregate:
        said = f"{_AGGREGATES[asked.aggregate]} of the {said}"
    over = "" if asked.over is None else _place(asked.over)
    if not asked.bounds:
        return f"What is the {said}" + (f", as a multiple of that {over}" if over else "")
    bounds = [f"{_SIGNS[sign]} {_bound(asked, bound, over)}" for sign, bound in asked.bounds]
    if over and any(bound != 1 for _, bound in asked.bounds):
        bounds[-1] += f" times that {over}"
    return f"The {said} is {_and(bounds)}"


def _bound(asked: Question, bound: float, over: str) -> str:
    if not over:
        return asked.quantity.exact(bound)
    return f"that {over}" if all(each == 1 for _, each in asked.bounds) else f"{bound:g}"


def _at(at: str | Place | None, quantity: str) -> str:
    return quantity if at is None else f"{quantity} {_place(at)}"


def _place(at: str | Place) -> str:
    return f"of {at}" if isinstance(at, str) else where_in_words(at, set(at))


def condition_words(name: str, condition: Condition) -> str:
    if not isinstance(condition, Range):
        return " or ".join(map(str, values_of(condition)))
    exact = Quantity(name).exact if name in METRICS else "{:g}".format
    return _and(f"{_SIGNS[sign]} {exact(bound)}" for sign, bound in condition.bounds)


def _named(name: str) -> str:
    """A metric or an axis in words."""
    return METRICS[name].words if name in METRICS else title_of(name)


def _article(name: str) -> str:
    return f"{'an' if _named(name).startswith(('a', 'e', 'i', 'o', 'upper', 'fp')) else 'a'} {_named(name)}"


def _and(parts: Iterable[str]) -> str:
    return " and ".join(parts)
