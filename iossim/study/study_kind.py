"""Kinds of studies beside those of GPUs and processors: each has an axis of its own, and what its rows say besides.

A kind is ``KIND`` of a room's module ``NAME_study``, or an entry point of another package in ``iossim.study_kinds``.
Likewise ``MEASURE`` adds figures to the rows of GPUs and processors.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

from pydantic import model_validator

from iossim.base.registry import Extension, Group, Plugin, guest_modules, guest_part
from iossim.base.tables import Column
from iossim.base.values import Value
from iossim.hardware.profile import Device
from iossim.ir.network import Network


class Labelled(Value):
    """A value that reports refer to by its ``label``; in a file its field ``_ALONE`` suffices, if there is one."""

    _ALONE: ClassVar[str] = ""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, given: object) -> object:
        return {cls._ALONE: given} if cls._ALONE and isinstance(given, str) else given

    @model_validator(mode="after")
    def _labelled(self) -> Self:
        if not vars(self)["label"]:
            object.__setattr__(self, "label", self._own_label())
        return self

    @abstractmethod
    def _own_label(self) -> str:
        """Label of a value that was given none."""


#: Value of a row on an axis: a label, or a batch size.
Label = str | int


#: A value on an axis: each axis has a class of values of its own, and that of a kind only the kind knows.
AxisValue = Any


def label_of(value: Any) -> Label:
    """Label of an axis's value in reports."""
    label: Label = getattr(value, "label", value)
    return label


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: its name, the field of a scenario that lists its values, and its wording in reports."""

    name: str
    field: str
    #: Phrase for a row's place on the axis.
    phrase: str
    #: The lower rank makes the better groups of bars, and the better columns of a heat map.
    group_rank: int
    column_rank: int
    #: Only value of a scenario that lists none; None where a scenario must list some.
    default: AxisValue = None
    #: True where studies of every kind have the axis, not only those of GPUs and processors.
    of_all_kinds: bool = True

    @property
    def usual(self) -> Label | None:
        """Label that is left unsaid; None where every value is mentioned."""
        return None if self.default is None or self.name == "batch" else label_of(self.default)


Direction = Literal["lowest", "highest"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a row; ``name`` is its field in ``Row``, and its column in results.csv."""

    name: str
    words: str
    #: Unit as it follows a figure, including the space.
    unit: str = ""
    better: Direction = "lowest"
    #: Column in the table of a report; None where it has none.
    column: Column | None = None
    #: Unit when another figure is given per this one.
    per: str = ""
    #: Measure that makes it where it is asked for; empty where every study has it.
    measure: str = ""


class Planned(NamedTuple):
    """A row of a point: its scheduler and latency, the latency that its speed-up refers to, and its further figures."""

    scheduler: str
    latency_us: float
    baseline_us: float
    figures: Mapping[str, object]


@dataclass(frozen=True)
class StudyKind:
    """A kind of study. A study is of this kind if ``is_asked`` of any of its values on ``axis``."""

    axis: Axis
    metrics: tuple[Metric, ...]
    #: One device of these, and several, in words.
    noun: str
    plural: str
    #: Values of the axis by name alone, for editors and remedies; the last but one asks for a study of the kind.
    examples: tuple[str, ...]
    is_asked: Callable[[AxisValue], bool]
    #: Names of its devices; those of GPUs and processors are of other studies, too.
    device_names: Callable[[], Collection[str]]
    #: The device of a name with values replaced; raises DeviceError.
    device: Callable[[str, Mapping[str, float]], Device]
    #: Schedulers that a study with these values on the axis may have; by default it has all.
    schedulers: Callable[[Sequence[AxisValue]], Sequence[str]]
    #: Raises an IossimError if a device of a name, with values replaced, cannot be studied at a value of the axis.
    check: Callable[[str, Mapping[str, float], AxisValue], None]
    #: Rows of a network on a device, at a value of the axis and by schedulers, and the seconds of each search.
    rows: Callable[[Network, Any, AxisValue, Sequence[str]], tuple[list[Planned], dict[str, float]]]
    #: The baseline of speed-ups in words, for values of the axis and schedulers; empty if it is the slowest schedule.
    baseline: Callable[[Sequence[AxisValue], Collection[str]], str]


@dataclass(frozen=True)
class Measure:
    """Figures of GPUs and processors that a guest adds where a question asks for them."""

    metrics: tuple[Metric, ...]
    #: Their values at a point, an :class:`~iossim.study.evaluate.EvaluationContext`; raises an IossimError.
    figures: Callable[[Any], Mapping[str, object]]


def guest_parts(attribute: str) -> dict[str, Any]:
    """The attribute of each guest's module ``NAME_study`` that has it, by NAME."""
    found = {name: guest_part("study", name, attribute) for name in guest_modules("study")}
    return {name: each for name, each in found.items() if each is not None}


def _guarded(plugin: Plugin, kind: StudyKind) -> StudyKind:
    return replace(kind, device=plugin.guarded(kind.device), rows=plugin.guarded(kind.rows))


#: Kinds by name, for ``iossim doctor`` as well.
GROUP: Group[StudyKind] = Group(
    "no kind of study {!r}",
    lambda: guest_parts("KIND"),
    lambda name: guest_part("study", name, "KIND"),
    Extension("iossim.study_kinds", "a StudyKind", _guarded, lambda kind: isinstance(kind, StudyKind)),
)


def add_fields(body: dict[str, Any], types: Mapping[str, object], defaults: Mapping[str, object] | None = None) -> None:
    """Add fields to the class whose body calls this with its ``vars()``, at that place: types and defaults by name."""
    body["__annotations__"] = body.get("__annotations__", {}) | types
    body |= defaults or {}
