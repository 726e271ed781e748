"""A study as people write it down: which models on which devices, how they vary, and what is asked of the results.

These are the values of a scenario's YAML file (:mod:`iossim.study.scenario_file` reads it), all defaults filled in. Nothing
here loads a model or a device: :mod:`iossim.study.points` does.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from iossim.base.memory_size import size_bytes
from iossim.base.values import Value
from iossim.edge.plan import Variant
from iossim.models.passes.unit_fusion import MODEL
from iossim.schedule.problem import MAX_UNITS
from iossim.search.options import StageSpace
from iossim.search.scheduler import scheduler_names
from iossim.transforms.rewriting.backtracking import ALPHA
from iossim.transforms.rewriting.joint import RewriteSearch

Axis = Literal[
    "model", "device", "batch", "dtype", "engine", "cost_model", "search", "rewrite", "workspace", "dataflow"
]
#: The plots that a report may be asked for; each is drawn by the module of its name in ``iossim.report.study.plots``.
PLOTS = (
    "overview", "speedup", "latency", "batch", "batch_specialisation", "device_specialisation", "pruning", "active_warps",
    "peak_memory", "blocks", "kinds", "timeline", "roofline", "alpha", "rules", "micro_batches", "largest_gain",
)  # fmt: skip
#: The axes of a study, in the order in which points are counted: the last varies fastest.
AXES: tuple[Axis, ...] = (
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
)

#: What stands for schedulers on edge devices.
VARIANTS = tuple(map(str, Variant))

#: Values that go without saying, of the axes that have one.
USUAL: dict[Axis, str] = {
    "dtype": "fp32", "engine": "paper", "cost_model": "simulator", "search": "exact", "rewrite": "as given",
    "workspace": "any workspace", "dataflow": "no dataflow",
}  # fmt: skip


#: Axes that say nothing of edge devices.
OF_OTHERS: tuple[Axis, ...] = ("engine", "cost_model", "search", "rewrite", "workspace")


class Model(Value):
    """A network of the zoo or an ONNX file, and how it is read; in a file a name alone will do."""

    model: str = Field(min_length=1)
    #: What reports call it.
    label: str = ""
    #: Whole shapes of inputs by name, and sizes of named dimensions, as of ``--shape`` and ``--dim``.
    shapes: dict[str, list[int]] = Field(default_factory=dict)
    dims: dict[str, int] = Field(default_factory=dict)
    units: str = MODEL
    max_block: int = Field(default=MAX_UNITS, ge=1, le=MAX_UNITS)
    #: One block alone, by its name, or its number: 1 is the first, -1 the last.
    block: str | int | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, given: Any) -> Any:
        return {"model": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _labelled(self) -> Self:
        name = PurePath(self.model).stem if self.model.endswith((".onnx", ".json")) else self.model
        _label(self, name if self.block is None else f"{name}, block {self.block}")
        return self


class Device(Value):
    """A device by name or profile file, and what is replaced of it; in a file a name alone will do."""

    device: str = Field(min_length=1)
    label: str = ""
    #: Facts of the datasheet, costs of the engine or parameters of the simulator by name, and their new values.
    set: dict[str, float] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, given: Any) -> Any:
        return {"device": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _labelled(self) -> Self:
        name = PurePath(self.device).stem if self.device.endswith((".yaml", ".yml")) else self.device
        changes = ", ".join(f"{key}={value:g}" for key, value in self.set.items())
        _label(self, f"{name} ({changes})" if changes else name)
        return self


class Search(Value):
    """How far the schedulers of IOS search: the definition of stages, and the pruning r and s."""

    label: str = ""
    stages: Literal["general", "paper"] = "general"
    max_group_size: int | None = Field(default=None, ge=1)
    max_groups: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _labelled(self) -> Self:
        limits = (("r", self.max_group_size), ("s", self.max_groups))
        parts = [f"{name}={limit}" for name, limit in limits if limit is not None]
        parts += ["paper's stages"] if self.stages == "paper" else []
        _label(self, " ".join(parts) or "exact")
        return self

    @property
    def space(self) -> StageSpace:
        """The stages that the search may form."""
        return StageSpace(self.stages, self.max_group_size, self.max_groups)


class Rewrite(Value):
    """Rules by which the network is rewritten before all schedulers have it; in a file the rules alone will do."""

    #: Sets and files, separated by commas; ``default``; ``none`` for the network as given.
    rules: str = Field(min_length=1)
    label: str = ""
    #: Whose schedule is to be the fastest: of ``sequential`` the least sum of operators is searched, of the others jointly.
    scheduler: Literal["sequential", "ios-merge", "ios-parallel", "ios-both"] = "ios-both"
    #: ``joint`` is the above; the others search for the least sum of operators, whatever the scheduler, in one way alone.
    search: RewriteSearch = "joint"
    alpha: float = Field(default=ALPHA, ge=1)
    #: How many graphs are searched on.
    graphs: int = Field(default=200, ge=1)
    #: Whether rules are used that are not proved.
    unproved: bool = False

    @model_validator(mode="before")
    @classmethod
    def _from_rules(cls, given: Any) -> Any:
        return {"rules": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _labelled(self) -> Self:
        rewritten = "rewritten" if self.rules == "default" else f"rewritten by {self.rules}"
        made_for = f"for {self.scheduler}" if self.search == "joint" else f"by {self.search}"
        _label(self, f"{rewritten} {made_for}" if self.rewrites else USUAL["rewrite"])
        return self

    @property
    def rewrites(self) -> bool:
        return self.rules != "none"


class Workspace(Value):
    """What kernels may need besides their tensors; in a file a size alone (``64MiB``), or ``none``, will do."""

    label: str = ""
    #: Of each kernel by itself, and in schedules of all that runs at the same time.
    limit: str | None = None
    #: Of all convolutions together, if each has a workspace of its own: of micro-batches alone.
    total: str | None = None
    #: What sizes micro-batches may have, and whether those of the gradients are divided as well.
    policy: Literal["all", "power-of-two", "undivided"] = "all"
    training: bool = False

    @model_validator(mode="before")
    @classmethod
    def _from_limit(cls, given: Any) -> Any:
        return {"limit": None if given == "none" else given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _labelled(self) -> Self:
        parts = [self.limit] if self.limit else []
        parts += [f"{self.total} in all"] if self.total else []
        parts += [f"micro-batches {self.policy}"] if self.policy != "all" else []
        parts += ["training"] if self.training else []
        _label(self, ", ".join(parts) or USUAL["workspace"])
        return self

    @property
    def limit_bytes(self) -> int | None:
        """Raises OptionError for what is no size."""
        return None if self.limit is None else size_bytes(self.limit, "limit")

    @property
    def total_bytes(self) -> int | None:
        """Raises OptionError for what is no size."""
        return None if self.total is None else size_bytes(self.total, "total")


class Dataflow(Value):
    """How networks run on edge devices; in a file a policy alone (``priority``, ``exhaustive``), or ``none``, will do."""

    policy: Literal["none", "priority", "exhaustive"] = "priority"
    label: str = ""
    #: So many of the device, joined by ``link`` (by default its first).
    devices: int = Field(default=1, ge=1, le=1024)
    link: str | None = None
    sync: Literal["ring", "server"] = "ring"
    #: How operators are divided among them: as is best for each, or all alike.
    mix: Literal["mix", "outC", "inH", "inW"] = "mix"

    @model_validator(mode="before")
    @classmethod
    def _from_policy(cls, given: Any) -> Any:
        return {"policy": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _labelled(self) -> Self:
        parts = ["1 device"] if self.devices == 1 else [f"{self.devices} devices", self.sync, self.mix]
        parts += [self.link] if self.link and self.devices > 1 else []
        parts += [self.policy] if self.policy != "priority" else []
        _label(self, ", ".join(parts) if self.plans else USUAL["dataflow"])
        return self

    @property
    def plans(self) -> bool:
        return self.policy != "none"


class PointValues(Value):
    """One explicit point: a value for some of the axes. An axis that is left out takes its list's only value.

    A model, device, search, rewriting, workspace or dataflow may be told by its label, where the scenario lists it.
    """

    model: Model | None = None
    device: Device | None = None
    batch: int | None = Field(default=None, ge=1)
    dtype: str | None = None
    engine: str | None = None
    cost_model: str | None = None
    search: Search | str | None = None
    rewrite: Rewrite | None = None
    workspace: Workspace | None = None
    dataflow: Dataflow | str | None = None


class Published(Value):
    """What a publication says, beside which the report puts what was found here."""

    #: One sentence, with its figures.
    says: str
    source: str
    #: A claim about the results that has the same meaning (:mod:`iossim.study.questions`), which holds or does not.
    claim: str | None = None


class Scenario(Value):
    """A study. Every axis is a list; ``combine`` says how they make points."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    title: str = ""
    #: Why one would want to know, for a reader of the file and the report.
    description: str = ""
    models: list[Model] = Field(default_factory=list)
    devices: list[Device] = Field(default_factory=list)
    batch_sizes: list[Annotated[int, Field(ge=1)]] = Field(default_factory=lambda: [1], min_length=1)
    dtypes: list[str] = Field(default_factory=lambda: ["fp32"], min_length=1)
    engines: list[str] = Field(default_factory=lambda: ["paper"], min_length=1)
    cost_models: list[str] = Field(default_factory=lambda: ["simulator"], min_length=1)
    searches: list[Search] = Field(default_factory=lambda: [Search()], min_length=1)
    rewrites: list[Rewrite] = Field(default_factory=lambda: [Rewrite(rules="none")], min_length=1)
    workspace: list[Workspace] = Field(default_factory=lambda: [Workspace()], min_length=1)
    #: Of edge devices, which need it, and no others.
    dataflow: list[Dataflow] = Field(default_factory=lambda: [Dataflow(policy="none")], min_length=1)
    #: All combinations of the axes; the first of each, the second of each ... (an axis of one value stands for all); or ``points`` alone.
    combine: Literal["grid", "zip", "points"] = "grid"
    #: Explicit points; where there are some, ``combine`` is ``points``.
    points: list[PointValues] = Field(default_factory=list)
    #: What makes the schedules of each point, side by side; of edge devices the plans vanilla, horizontal and full, of several full.
    schedulers: list[str] = Field(default_factory=lambda: list(scheduler_names()), min_length=1)
    #: Price the schedules of each point at all others that differ in this axis alone: the specialisation matrix.
    cross_evaluate: list[Literal["device", "batch"]] = Field(default_factory=list)
    #: What the event-driven simulator, the planner or the division of batches must tell besides: it takes longer.
    measures: list[Literal["active_warps", "peak_memory", "micro_batches"]] = Field(default_factory=list)
    #: Conditions on columns, which rows meet or not.
    constraints: list[str] = Field(default_factory=list)
    questions: list[str] = Field(default_factory=list)
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


def _label(value: Model | Device | Search | Rewrite | Workspace | Dataflow, label: str) -> None:
    """Call a value that has no label so."""
    if not value.label:
        object.__setattr__(value, "label", label)
