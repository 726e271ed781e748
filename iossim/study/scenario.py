"""A study as people write it down: which models on which devices, how they vary, and what is asked of the results.

These are the values of a scenario's YAML file (:mod:`iossim.study.scenario_file` reads it), all defaults filled in.
Nothing here loads a model or a device: :mod:`iossim.study.points` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, create_model, model_validator

from iossim.base.values import Value
from iossim.edge.plan import Variant
from iossim.search.scheduler import scheduler_names
from iossim.study.axes import AXES
from iossim.study.axis_values import Dataflow, Device, MicroBatches, Model, Rewrite, Search, Workspace
from iossim.study.question import LIST, MAPPING, Question

#: The plots that a report may be asked for; the modules of ``iossim.report.study.plots`` draw them.
PLOTS = (
    "overview", "speedup", "latency", "batch", "batch_specialisation", "device_specialisation", "pruning", "active_warps",
    "peak_memory", "blocks", "kinds", "timeline", "roofline", "alpha", "rules", "micro_batches", "largest_gain",
)  # fmt: skip
#: The plans of edge devices, which take the place of schedulers.
VARIANTS = tuple(map(str, Variant))

if TYPE_CHECKING:
    PointValues = Any
else:
    PointValues = create_model(
        "PointValues",
        __base__=Value,
        __module__=__name__,
        __doc__="""One explicit point: a value for some of the axes. An axis that is left out takes its list's only value.

    A value may be told by its label, where the scenario lists it.
    """,
        **{axis.name: (axis.kind | None, None) for axis in AXES.values()},
    )


def _listed(axis: str) -> Any:
    """The field of an axis that has a usual value."""
    return Field(default_factory=lambda: [AXES[axis].default], min_length=1)


def _one_or_more(given: Any) -> str:
    return LIST if isinstance(given, list) else MAPPING


class Published(Value):
    """A statement of a publication, which the report puts beside what was found here."""

    #: One sentence, with its figures.
    says: str
    source: str
    #: A claim about the results that has the same meaning, which holds or does not; or several that must all hold.
    claim: (
        Annotated[
            Annotated[Question, Tag(MAPPING)] | Annotated[list[Question], Tag(LIST)], Discriminator(_one_or_more)
        ]
        | None
    ) = None

    @property
    def claims(self) -> list[Question]:
        return [] if self.claim is None else self.claim if isinstance(self.claim, list) else [self.claim]


class Scenario(Value):
    """A study. Every axis is a list; ``combine`` says how they make points."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    title: str = ""
    #: Why one would want to know, for a reader of the file and the report.
    description: str = ""
    models: list[Model] = Field(default_factory=list)
    devices: list[Device] = Field(default_factory=list)
    batch_sizes: list[Annotated[int, Field(ge=1)]] = _listed("batch")
    dtypes: list[str] = _listed("dtype")
    engines: list[str] = _listed("engine")
    cost_models: list[str] = _listed("cost_model")
    searches: list[Search] = _listed("search")
    rewrites: list[Rewrite] = _listed("rewrite")
    micro_batches: list[MicroBatches] = _listed("micro_batch")
    workspace: list[Workspace] = _listed("workspace")
    #: Edge devices need one, and no others have any.
    dataflow: list[Dataflow] = _listed("dataflow")
    #: All combinations of the axes (grid); the first values, the second ones and so on (zip); or the listed
    #: ``points``.
    combine: Literal["grid", "zip", "points"] = "grid"
    #: Explicit points; where there are some, ``combine`` is ``points``.
    points: list[PointValues] = Field(default_factory=list)
    #: The schedulers that every point has; edge devices have the plans vanilla, horizontal and full, several devices
    #: full.
    schedulers: list[str] = Field(default_factory=lambda: list(scheduler_names()), min_length=1)
    #: Price the schedules of each point at all others that differ in this axis alone: the specialisation matrix.
    cross_evaluate: list[Literal["device", "batch"]] = Field(default_factory=list)
    #: Figures that the event-driven simulator, the memory planner or the division of batches adds; they take longer.
    measures: list[Literal["active_warps", "peak_memory", "micro_batches"]] = Field(default_factory=list)
    #: A metric and its bounds, which each row by itself meets or not.
    constraints: list[Question] = Field(default_factory=list)
    #: The questions that the report answers first; a claim is one, too.
    questions: list[Question] = Field(default_factory=list)
    published: list[Published] = Field(default_factory=list)
    #: The plots of the report, by name; by default those that fit the axes.
    plots: list[str] | None = None
    #: The seed of random weights, graphs and cost models.
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _of_points(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("points") and "combine" not in given:
            return {**given, "combine": "points"}
        return given

    @model_validator(mode="after")
    def _with_plans(self) -> Self:
        if "schedulers" not in self.model_fields_set and self.plans_dataflow:
            several = any(each.devices > 1 for each in self.dataflow)
            object.__setattr__(self, "schedulers", ["full"] if several else list(VARIANTS))
        return self

    @property
    def plans_dataflow(self) -> bool:
        """Whether it is a study of edge devices."""
        return any(each.plans for each in self.dataflow)
