"""The axes of a study, declared once: points, answers, figures and the JSON schema derive from this table.

A new axis is a line here, a list in :class:`~iossim.study.scenario.Scenario`, and the field of its name in
:class:`~iossim.study.points.Point` and :class:`~iossim.study.study_run.Row`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from iossim.study.axis_values import Dataflow, Device, MicroBatches, Model, Rewrite, Search, Workspace

#: The value of a row on an axis: a label, or a batch size.
Label = str | int


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: its name, the field of a scenario that lists its values, and how reports speak of it."""

    name: str
    field: str
    #: The type of a value where a point is written out; a label stands for a listed value.
    kind: Any
    #: How a sentence says where a row stands on the axis.
    phrase: str
    #: The lower rank makes the better groups of bars, and the better columns of a heat map.
    group_rank: int
    column_rank: int
    #: The only value of a scenario that lists none; None where a scenario must list some.
    default: Any = None
    #: Whether edge devices have it; whether only they have it.
    of_edge_devices: bool = True
    only_of_edge_devices: bool = False

    @property
    def usual(self) -> Label | None:
        """The label that goes without saying; None where every value is told."""
        return None if self.default is None or self.name == "batch" else label_of(self.default)


def label_of(value: Any) -> Label:
    """What reports call a value of an axis."""
    label: Label = getattr(value, "label", value)
    return label


#: The axes by name, in the order in which points are counted: the last varies fastest.
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
        Axis("dataflow", "dataflow", Dataflow | str, "with dataflow {}", 6, 5, Dataflow(policy="none"), only_of_edge_devices=True),
    )
}  # fmt: skip
#: The axes of rows: every point is scheduled by each scheduler.
ROW_AXES: dict[str, Axis] = {
    **AXES,
    "scheduler": Axis("scheduler", "schedulers", str, "with {}", 10, 10),
}
#: The order in which a sentence says where a row stands.
_SPOKEN = ("model", "device", "scheduler", *(axis for axis in AXES if axis not in ("model", "device")))


def where_in_words(labels: Mapping[str, Label], axes: Collection[str]) -> str:
    """Where a row stands on some axes: ``with ios-both at batch 8``."""
    return " ".join(ROW_AXES[axis].phrase.format(labels[axis]) for axis in _SPOKEN if axis in axes)


def name_of(axis: str, label: object) -> str:
    """A value by itself: a bare number would not say what it is."""
    return f"batch {label}" if axis == "batch" else str(label)
