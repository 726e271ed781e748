"""A study as people write it down: models and devices, how they vary, and questions about the results.

These are the values of a scenario's YAML file (:mod:`iossim.study.scenario_file` reads it), all defaults filled in.
Nothing here loads a model or a device: :mod:`iossim.study.points` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import ErrorDetails

from iossim.base.errors import did_you_mean
from iossim.base.located_yaml import Location
from iossim.base.shipped_yaml import shipped
from iossim.base.values import Value
from iossim.report.schemas import Schema
from iossim.search.scheduler import scheduler_names
from iossim.study.axes import (
    AXES,
    CHOSEN,
    KINDS,
    METRICS,
    CostModelName,
    Device,
    Model,
    Rewrite,
    Search,
    Workspace,
    kind_among,
)
from iossim.study.question import BOUNDS, LIST, MAPPING, VALUE, Question
from iossim.study.study_kind import Label, StudyKind, add_fields


class PointLabels(Value):
    """One point of a list: labels of listed values. An axis that is left out takes its list's only value."""

    add_fields(vars(), dict.fromkeys(AXES, Label | None), dict.fromkeys(AXES))


def _listed(axis: str) -> Any:
    """Field of an axis that has a usual value."""
    return Field(default_factory=lambda: [AXES[axis].default], min_length=1)


class Published(Value):
    """A statement of a publication, which the report compares with this study's findings."""

    #: One sentence, with its figures.
    says: str
    source: str
    #: Claims about the results with the same meaning, which must all hold.
    claims: list[Question] = Field(default_factory=list)


#: An axis along which schedules are also priced at other points.
CrossAxis = Literal["device", "batch"]


class Scenario(Value):
    """A study. Every axis is a list; all their combinations are points, unless ``points`` lists some."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    title: str = ""
    #: Motivation of the study, for a reader of the file and the report.
    description: str = ""
    models: list[Model] = Field(default_factory=list)
    #: Unit policy of models that name none, or ``chosen``: the model's units, with joins chosen for the schedule by
    #: ``ios-both``.
    units: str = CHOSEN
    devices: list[Device] = Field(default_factory=list)
    batch_sizes: list[Annotated[int, Field(ge=1)]] = _listed("batch")
    dtypes: list[str] = _listed("dtype")
    engines: list[str] = _listed("engine")
    cost_models: list[CostModelName] = _listed("cost_model")
    searches: list[Search] = _listed("search")
    rewrites: list[Rewrite] = _listed("rewrite")
    workspace: list[Workspace] = _listed("workspace")
    add_fields(
        vars(),
        {kind.axis.field: list[type(kind.axis.default)] for kind in KINDS},  # type: ignore[misc]
        {kind.axis.field: _listed(kind.axis.name) for kind in KINDS},
    )
    #: The points, if these are not all combinations of the axes' values.
    points: list[PointLabels] | None = Field(default=None, min_length=1)
    #: Schedulers that every point has; edge devices have the plans vanilla, horizontal and full, several devices full.
    schedulers: list[str] = Field(default_factory=lambda: list(scheduler_names()), min_length=1)
    #: Questions that the report answers first; a claim is one, too.
    questions: list[Question] = Field(default_factory=list)
    published: list[Published] = Field(default_factory=list)
    #: Plots of the report (:mod:`iossim.study.report.plots`), by name; by default those that fit the axes.
    plots: list[str] | None = None
    #: Seed of random weights, graphs and cost models.
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _filled(self) -> Self:
        filled = [model.model_copy(update={"units": model.units or self.units}) for model in self.models]
        object.__setattr__(self, "models", filled)
        if "schedulers" not in self.model_fields_set and (kind := self.kind) is not None:
            object.__setattr__(self, "schedulers", list(kind.schedulers(getattr(self, kind.axis.field))))
        return self

    @property
    def asked(self) -> list[Question]:
        """Questions, and the claims of publications."""
        return [*self.questions, *(claim for each in self.published for claim in each.claims)]

    @property
    def cross_evaluate(self) -> list[CrossAxis]:
        """Axes that claims of specialisation are about: schedules are also priced at all other points that differ in
        one of these alone.
        """
        return list(dict.fromkeys(each.specialised_for for each in self.asked if each.specialised_for))

    @property
    def measures(self) -> list[str]:
        """Measures that make the figures that are asked for, beyond those of every study: the event-driven
        simulator, the memory planner, or a guest.
        """
        asked = sorted(set().union(*(each.metrics for each in self.asked)))
        return [measure for measure in dict.fromkeys(METRICS[name].measure for name in asked) if measure]

    @property
    def kind(self) -> StudyKind | None:
        """Kind of study; None if it is of GPUs and processors."""
        return kind_among(lambda axis: getattr(self, AXES[axis].field))


@dataclass(frozen=True)
class Fault:
    """A fault of the value at a place of a scenario: the reason, with the remedy."""

    location: Location
    reason: str
    #: True where the value is missing: the place is then where it belongs.
    is_missing: bool = False


def fault_of_field(problem: ErrorDetails) -> Fault:
    """One of pydantic's errors about a scenario, as a fault."""
    location: Location = tuple(part for part in problem["loc"] if part not in (MAPPING, LIST, VALUE))
    if problem["type"] == "missing":
        return Fault(location, f"is missing; write '{location[-1]}: ...'", is_missing=True)
    if problem["type"] == "extra_forbidden":
        if location[-1] in (gone := shipped(__package__, "remedies.yaml")["gone"]):
            return Fault(location, f"is no longer a field; {gone[location[-1]]}")
        return Fault(location, f"is not known; {did_you_mean(location[-1], _fields(location[:-1]))}")
    if problem["type"] == "float_type" and isinstance(problem["input"], str | dict) and location[-1] in BOUNDS:
        return Fault(location, f"is {_shown(problem['input'])}; write a number, and labels to compare with in 'over'")
    return Fault(location, _reason(problem["type"], problem["input"], problem.get("ctx", {}), problem["msg"]))


def _reason(kind: str, given: object, context: Mapping[str, Any], message: str) -> str:
    shown = _shown(given)
    if kind == "told":
        return str(context["reason"])
    if kind == "list_type":
        return f"is {shown}, not a list; write {'- value' if isinstance(given, dict) else f'[{shown}]'}"
    if (told := shipped(__package__, "remedies.yaml").get(kind)) is not None:
        return str(told).format(shown=shown, **context)
    if kind == "literal_error":
        known = [part.strip(" '") for part in context["expected"].replace(" or ", ", ").split(",")]
        return f"is {shown}; {did_you_mean(given, known)}"
    return f"is {shown}: {message.removeprefix('Value error, ')}; correct it"


def _shown(given: object) -> str:
    """A value in a few characters, as the file might have it."""
    if given is None:
        return "empty"
    if isinstance(given, dict):
        return "a mapping"
    if isinstance(given, list):
        return "a list"
    text = {True: "true", False: "false"}[given] if isinstance(given, bool) else str(given)
    return repr(text[:60] + "..." * (len(text) > 60)) if isinstance(given, str) else text[:60]


def _fields(location: Location) -> list[str]:
    """Names of the fields that a scenario may have at a place."""
    schema = Scenario.model_json_schema()

    def forms(of: Schema) -> list[Schema]:
        if "$ref" in of:
            return forms(schema["$defs"][of["$ref"].rpartition("/")[2]])
        several = of.get("anyOf") or of.get("oneOf") or []
        return [form for each in several for form in forms(each)] or [of]

    found = [schema]
    for part in location:
        # pydantic's location also contains the alternative of a union, which is in no schema.
        inside = (
            of.get("properties", {}).get(part) or of.get("items") or of.get("additionalProperties") for of in found
        )
        found = [form for each in inside if isinstance(each, dict) for form in forms(each)] or found
    return [name for of in found for name in of.get("properties", {})]
