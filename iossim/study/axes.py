"""The axes of a study and their values, declared once: points, answers, figures and the JSON schema derive from these.

A new axis is an entry of :data:`AXES`, a list in :class:`~iossim.study.scenario.Scenario`, and the field of its name in
:class:`~iossim.study.points.Point` and :class:`~iossim.study.study_run.Row`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from iossim.base.memory import size_bytes
from iossim.base.values import Value
from iossim.models.passes.unit_fusion import MODEL
from iossim.search.options import StageSpace
from iossim.transforms.rewriting.backtracking import ALPHA
from iossim.transforms.rewriting.scheduled import RewriteSearch


class _Labelled(Value):
    """A value that reports refer to by its ``label``; in a file its field ``_ALONE`` suffices, if there is one."""

    _ALONE: ClassVar[str] = ""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, given: Any) -> Any:
        return {cls._ALONE: given} if cls._ALONE and isinstance(given, str) else given

    @model_validator(mode="after")
    def _labelled(self) -> Self:
        if not vars(self)["label"]:
            object.__setattr__(self, "label", self._own_label())
        return self

    @abstractmethod
    def _own_label(self) -> str:
        """Label of a value that was given none."""


class Model(_Labelled):
    """A network of the zoo or an ONNX file, and how it is read; in a file a name alone suffices."""

    _ALONE = "model"
    model: str = Field(min_length=1)
    #: Name in reports.
    label: str = ""
    #: Complete shapes of inputs by name, and sizes of named dimensions, as in ``--shape`` and ``--dim``.
    shapes: dict[str, list[int]] = Field(default_factory=dict)
    dims: dict[str, int] = Field(default_factory=dict)
    units: str = MODEL
    max_block: int | None = Field(default=None, ge=1)
    #: A single block, by its name, or its number: 1 is the first, -1 the last.
    block: str | int | None = None

    def _own_label(self) -> str:
        name = PurePath(self.model).stem if self.model.endswith((".onnx", ".json")) else self.model
        return name if self.block is None else f"{name}, block {self.block}"


class Device(_Labelled):
    """A device by name or profile file, with replaced values; in a file a name alone suffices."""

    _ALONE = "device"
    device: str = Field(min_length=1)
    label: str = ""
    #: Facts of the datasheet, costs of the engine or parameters of the simulator by name, and their new values.
    set: dict[str, float] = Field(default_factory=dict)

    def _own_label(self) -> str:
        name = PurePath(self.device).stem if self.device.endswith((".yaml", ".yml")) else self.device
        changes = ", ".join(f"{key}={value:g}" for key, value in self.set.items())
        return f"{name} ({changes})" if changes else name


class Search(_Labelled):
    """Extent of the search by schedulers of IOS: the definition of stages, and the pruning r and s."""

    label: str = ""
    stages: Literal["general", "paper"] = "general"
    max_group_size: int | None = Field(default=None, ge=1)
    max_groups: int | None = Field(default=None, ge=1)

    def _own_label(self) -> str:
        limits = (("r", self.max_group_size), ("s", self.max_groups))
        parts = [f"{name}={limit}" for name, limit in limits if limit is not None]
        parts += ["paper's stages"] if self.stages == "paper" else []
        return " ".join(parts) or "exact"

    @property
    def space(self) -> StageSpace:
        """Stages that the search may form."""
        return StageSpace(self.stages, self.max_group_size, self.max_groups)


class Rewrite(_Labelled):
    """Rules by which the network is rewritten before all schedulers see it; in a file the rules alone suffice."""

    _ALONE = "rules"
    #: Rule sets and files, separated by commas; ``default``; ``none`` for the network as given.
    rules: str = Field(min_length=1)
    label: str = ""
    #: The scheduler whose schedule is minimised; with ``sequential`` the search minimises the sum of operators.
    scheduler: Literal["sequential", "ios-merge", "ios-parallel", "ios-both"] = "ios-both"
    #: ``joint`` searches graph and schedule together; the others minimise the sum of operators first, then the
    #: schedule.
    search: RewriteSearch = "joint"
    alpha: float = Field(default=ALPHA, ge=1)
    #: The most graphs that the search expands.
    graphs: int = Field(default=200, ge=1)
    #: Whether unproved rules are used.
    unproved: bool = False

    def _own_label(self) -> str:
        rewritten = "rewritten" if self.rules == "default" else f"rewritten by {self.rules}"
        made_for = f"for {self.scheduler}" if self.search == "joint" else f"by {self.search}"
        return f"{rewritten} {made_for}" if self.rewrites else "as given"

    @property
    def rewrites(self) -> bool:
        return self.rules != "none"


#: Number of micro-batches that blocks are divided into; ``auto`` chooses for each block, 1 leaves the batch whole.
MicroBatches = Annotated[int, Field(ge=1)] | Literal["auto"]


class Workspace(_Labelled):
    """Memory of kernels besides their tensors; in a file a size alone (``64MiB``), or ``none``, suffices."""

    label: str = ""
    #: Limit on each kernel alone; in schedules, on all kernels that run concurrently.
    limit: str | None = None
    #: Limit on all convolutions together, each with its own workspace; it applies to micro-batches only.
    total: str | None = None
    #: Admissible sizes of micro-batches, and whether the batches of gradients are divided as well.
    policy: Literal["all", "power-of-two", "undivided"] = "all"
    training: bool = False

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, given: Any) -> Any:
        return {"limit": None if given == "none" else given} if isinstance(given, str) else given

    def _own_label(self) -> str:
        parts = [self.limit] if self.limit else []
        parts += [f"{self.total} in all"] if self.total else []
        parts += [f"micro-batches {self.policy}"] if self.policy != "all" else []
        parts += ["training"] if self.training else []
        return ", ".join(parts) or "any workspace"

    @property
    def limit_bytes(self) -> int | None:
        """Limit in bytes; raises OptionError for an invalid size."""
        return None if self.limit is None else size_bytes(self.limit, "limit")

    @property
    def total_bytes(self) -> int | None:
        """Total limit in bytes; raises OptionError for an invalid size."""
        return None if self.total is None else size_bytes(self.total, "total")


class Dataflow(_Labelled):
    """Planning for edge devices; in a file a policy alone (``priority``, ``exhaustive``, ``none``) suffices."""

    _ALONE = "policy"
    policy: Literal["none", "priority", "exhaustive"] = "priority"
    label: str = ""
    #: Number of devices, joined by ``link`` (by default the first that the device has).
    devices: int = Field(default=1, ge=1, le=1024)
    link: str | None = None
    sync: Literal["ring", "server"] = "ring"
    #: Division of operators among the devices: the best for each (``mix``), or all alike.
    mix: Literal["mix", "outC", "inH", "inW"] = "mix"

    def _own_label(self) -> str:
        parts = ["1 device"] if self.devices == 1 else [f"{self.devices} devices", self.sync, self.mix]
        parts += [self.link] if self.link and self.devices > 1 else []
        parts += [self.policy] if self.policy != "priority" else []
        return ", ".join(parts) if self.plans else "no dataflow"

    @property
    def plans(self) -> bool:
        return self.policy != "none"


#: Value of a row on an axis: a label, or a batch size.
Label = str | int


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: its name, the field of a scenario that lists its values, and its wording in reports."""

    name: str
    field: str
    #: Type of a value in a point that is written out; a label stands for a listed value.
    kind: Any
    #: Phrase for a row's place on the axis.
    phrase: str
    #: The lower rank makes the better groups of bars, and the better columns of a heat map.
    group_rank: int
    column_rank: int
    #: Only value of a scenario that lists none; None where a scenario must list some.
    default: Any = None
    #: Whether edge devices have the axis; whether only they have it.
    of_edge_devices: bool = True
    only_of_edge_devices: bool = False

    @property
    def usual(self) -> Label | None:
        """Label that is left unsaid; None where every value is mentioned."""
        return None if self.default is None or self.name == "batch" else label_of(self.default)


def label_of(value: Any) -> Label:
    """Label of an axis's value in reports."""
    label: Label = getattr(value, "label", value)
    return label


#: Axes by name, in the order in which points are counted: the last varies fastest.
AXES: dict[str, Axis] = {
    axis.name: axis
    for axis in (
        Axis("model", "models", Model, "of {}", 0, 6),
        Axis("device", "devices", Device, "on {}", 1, 9),
        Axis("batch", "batch_sizes", Annotated[int, Field(ge=1)], "at batch {}", 9, 0, 1),
        Axis("dtype", "dtypes", str, "in {}", 2, 1, "fp32"),
        Axis("engine", "engines", str, "with engine {}", 3, 7, "paper", of_edge_devices=False),
        Axis("cost_model", "cost_models", str, "priced by {}", 8, 8, "simulator", of_edge_devices=False),
        Axis("search", "searches", Search | str, "with search {}", 7, 2, Search(), of_edge_devices=False),
        Axis("rewrite", "rewrites", Rewrite, "with rewrite {}", 4, 3, Rewrite(rules="none"), of_edge_devices=False),
        Axis("micro_batch", "micro_batches", MicroBatches, "with micro-batches {}", 11, 11, 1, of_edge_devices=False),
        Axis("workspace", "workspace", Workspace, "under {}", 5, 4, Workspace(), of_edge_devices=False),
        Axis("dataflow", "dataflow", Dataflow | str, "with dataflow {}", 6, 5, Dataflow(policy="none"),
             only_of_edge_devices=True),
    )
}  # fmt: skip
#: Axes of rows: every point is scheduled by each scheduler.
ROW_AXES: dict[str, Axis] = {**AXES, "scheduler": Axis("scheduler", "schedulers", str, "with {}", 10, 10)}
#: Order of the axes in a sentence.
_SPOKEN = ("model", "device", "scheduler", *(axis for axis in AXES if axis not in ("model", "device")))


def where_in_words(labels: Mapping[str, Label], axes: Collection[str]) -> str:
    """Place of a row on some axes: ``with ios-both at batch 8``."""
    return " ".join(ROW_AXES[axis].phrase.format(labels[axis]) for axis in _SPOKEN if axis in axes)


def name_of(axis: str, label: object) -> str:
    """Name of a value alone: a bare number would be ambiguous."""
    return f"batch {label}" if axis == "batch" else str(label)
