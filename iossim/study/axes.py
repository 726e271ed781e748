"""The axes of a study and the figures of its rows, declared once each: points, answers, reports and the JSON schema
derive from these.

A new axis is an entry of :data:`AXES`, a list in :class:`~iossim.study.scenario.Scenario`, and the field of its name in
:class:`~iossim.study.points.Point`; that of a kind of study (:mod:`iossim.study.study_kind`) is in both by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from iossim.base.errors import warn_once
from iossim.base.memory import size_bytes
from iossim.base.registry import PluginError
from iossim.base.shipped_yaml import shipped
from iossim.base.tables import Column
from iossim.search.options import StageSpace
from iossim.study.study_kind import GROUP, Axis, Label, Labelled, Measure, Metric, StudyKind, guest_parts
from iossim.transforms.rewriting.backtracking import ALPHA
from iossim.transforms.rewriting.scheduled import RewriteSearch

#: Key of a validation's context: the folder of the file that is read.
FOLDER = "folder"
#: Units of a model whose joins are fused or apart as its schedule is faster, as ``iossim compare`` has them.
CHOSEN = "chosen"
#: Cost models whose argument is a file.
_FILE_COST_MODELS = ("table", "replay")


def file_or_name(*endings: str) -> AfterValidator:
    """Validator of a path or a name: a text with a folder, or with one of the endings, is a path."""

    def whole(text: str, info: ValidationInfo) -> str:
        is_path = PurePath(text).suffix.lower() in endings or len(PurePath(text).parts) > 1
        return _whole(text, info) if is_path else text

    return AfterValidator(whole)


def _whole(path: str, info: ValidationInfo) -> str:
    folder = (info.context or {}).get(FOLDER)
    return path if folder is None else os.path.abspath(folder / os.path.expanduser(path))


def _whole_cost_model(text: str, info: ValidationInfo) -> str:
    name, _, argument = text.partition(":")
    return f"{name}:{_whole(argument, info)}" if name in _FILE_COST_MODELS and argument else text


#: A cost model by name, with an argument, which may be a file.
CostModelName = Annotated[str, AfterValidator(_whole_cost_model)]


def file_of_cost_model(spec: str) -> str:
    """File that a cost model reads, for a replay without the context after ``#``; empty where it reads none."""
    name, _, argument = spec.partition(":")
    if name not in _FILE_COST_MODELS:
        return ""
    return argument.rpartition("#")[0] or argument if name == "replay" else argument


class Model(Labelled):
    """A network of the zoo or an ONNX file, and how it is read; in a file a name alone suffices."""

    _ALONE = "model"
    model: Annotated[str, file_or_name(".onnx", ".json")] = Field(min_length=1)
    #: Name in reports.
    label: str = ""
    #: Complete shapes of inputs by name, and sizes of named dimensions, as in ``--shape`` and ``--dim``.
    shapes: dict[str, list[int]] = Field(default_factory=dict)
    dims: dict[str, int] = Field(default_factory=dict)
    #: Unit policy, as the field of the same name of a study; empty for the study's own.
    units: str = ""
    max_block: int | None = Field(default=None, ge=1)
    #: A single block, by its name, or its number: 1 is the first, -1 the last.
    block: str | int | None = None

    def _own_label(self) -> str:
        name = PurePath(self.model).stem if self.model.endswith((".onnx", ".json")) else self.model
        return name if self.block is None else f"{name}, block {self.block}"


class Device(Labelled):
    """A device by name or profile file, with replaced values; in a file a name alone suffices."""

    _ALONE = "device"
    device: Annotated[str, file_or_name(".yaml", ".yml")] = Field(min_length=1)
    label: str = ""
    #: Facts of the datasheet, costs of the engine or parameters of the simulator by name, and their new values.
    set: dict[str, float] = Field(default_factory=dict)

    def _own_label(self) -> str:
        name = PurePath(self.device).stem if self.device.endswith((".yaml", ".yml")) else self.device
        changes = ", ".join(f"{key}={value:g}" for key, value in self.set.items())
        return f"{name} ({changes})" if changes else name


class Search(Labelled):
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


class Rewrite(Labelled):
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
    #: True where unproved rules are used, too.
    unproved: bool = False

    def _own_label(self) -> str:
        rewritten = "rewritten" if self.rules == "default" else f"rewritten by {self.rules}"
        made_for = f"for {self.scheduler}" if self.search == "joint" else f"by {self.search}"
        return f"{rewritten} {made_for}" if self.rewrites else "as given"

    @property
    def rewrites(self) -> bool:
        return self.rules != "none"


class Workspace(Labelled):
    """Memory of kernels besides their tensors; in a file a size alone (``64MiB``), or ``none``, suffices."""

    _ALONE = "limit"
    label: str = ""
    #: Limit on each kernel alone; in schedules, on all kernels that run concurrently.
    limit: Annotated[str | None, BeforeValidator(lambda given: None if given == "none" else given)] = None
    #: Limit on all convolutions together, each with its own workspace; it applies to micro-batches only.
    total: str | None = None
    #: Admissible sizes of micro-batches, and whether the batches of gradients are divided as well.
    policy: Literal["all", "power-of-two", "undivided"] = "all"
    training: bool = False

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


def find_kinds() -> Iterable[StudyKind]:
    """The kinds that are installed; a plugin that does not work is one line on standard error."""
    for name in GROUP.names():
        try:
            yield GROUP.find(name)
        except PluginError as error:
            warn_once(str(error))


KINDS = tuple(find_kinds())
MEASURES: dict[str, Measure] = guest_parts("MEASURE")
#: Axes by name, in the order in which points are counted: the last varies fastest.
AXES: dict[str, Axis] = {
    axis.name: axis
    for axis in (
        Axis("model", "models", "of {}", 0, 6),
        Axis("device", "devices", "on {}", 1, 9),
        Axis("batch", "batch_sizes", "at batch {}", 9, 0, 1),
        Axis("dtype", "dtypes", "in {}", 2, 1, "fp32"),
        Axis("engine", "engines", "with engine {}", 3, 7, "paper", of_all_kinds=False),
        Axis("cost_model", "cost_models", "priced by {}", 8, 8, "simulator", of_all_kinds=False),
        Axis("search", "searches", "with search {}", 7, 2, Search(), of_all_kinds=False),
        Axis("rewrite", "rewrites", "with the network {}", 4, 3, Rewrite(rules="none"), of_all_kinds=False),
        Axis("workspace", "workspace", "with workspace {}", 5, 4, Workspace(), of_all_kinds=False),
        *(kind.axis for kind in KINDS),
    )
}
#: Axes of rows: every point is scheduled by each scheduler.
ROW_AXES: dict[str, Axis] = {**AXES, "scheduler": Axis("scheduler", "schedulers", "with {}", 10, 10)}
#: Order of the axes in a sentence.
_SPOKEN = ("model", "device", "scheduler", *(axis for axis in AXES if axis not in ("model", "device")))


def where_in_words(labels: Mapping[str, Label], axes: Collection[str]) -> str:
    """Place of a row on some axes: ``with ios-both at batch 8``."""
    return " ".join(_phrase(axis, str(labels[axis])) for axis in _SPOKEN if axis in axes)


def _phrase(axis: str, label: str) -> str:
    """A value in a sentence; one that ends with its axis follows the preposition alone: ``with any workspace``."""
    phrase = ROW_AXES[axis].phrase
    return f"{phrase.split()[0]} {label}" if label.endswith(axis) else phrase.format(label)


def name_of(axis: str, label: object) -> str:
    """Name of a value alone: a bare number would be ambiguous."""
    return f"batch {label}" if axis == "batch" else str(label)


def kind_among(values: Callable[[str], Iterable[object]]) -> StudyKind | None:
    """The kind of a study whose ``values`` on an axis are given by its name; None for GPUs and processors."""
    return next((kind for kind in KINDS if any(map(kind.is_asked, values(kind.axis.name)))), None)


#: Metrics of measures and kinds of guests by name.
GUESTS_METRICS = {
    metric.name: metric
    for metrics in (*(measure.metrics for measure in MEASURES.values()), *(kind.metrics for kind in KINDS))
    for metric in metrics
}


def _metrics() -> Iterable[Metric]:
    texts = shipped(__package__, "metrics.yaml")
    for name, options in texts.items():
        if options is None:
            yield from GUESTS_METRICS.values()
        else:
            column = options.pop("column", None)
            yield Metric(name, column=None if column is None else Column(**{"key": name} | column), **options)


#: All metrics by name, in the order of a report's columns.
METRICS = {metric.name: metric for metric in _metrics()}
#: The kind of study that alone has a metric, by the metric's name.
KIND_OF_METRIC = {metric.name: kind for kind in KINDS for metric in kind.metrics}
#: Metrics of a device's size; the first is the default.
DEVICE_SIZES = ("board_power_w", "peak_tflops")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A metric, or one metric per another."""

    metric: str = "latency_ms"
    per: str | None = None

    def of(self, row: object) -> float | None:
        """Value in a row; None if unknown."""
        over: float | None = getattr(row, self.metric)
        under: float | None = getattr(row, self.per) if self.per else 1.0
        return None if over is None or not under else over / under

    @property
    def words(self) -> str:
        """Name in a sentence."""
        per = "" if self.per is None else METRICS[self.per].per or METRICS[self.per].words
        return METRICS[self.metric].words + (f" per {per}" if per else "")

    def amount(self, value: float) -> str:
        if self.metric == "gap":
            told = f"{number(float(f'{100 * value:.2g}'))}% above the bound"
        else:
            unit = METRICS[self.metric].unit
            told = f"{number(value)}{unit.removesuffix('s') if value == 1 and self._is_count else unit}"
        return told if self.per is None else f"{told} per {METRICS[self.per].per or self.per}"

    def told(self, row: object) -> str:
        """Value in a row with its unit."""
        value = self.of(row)
        return "nothing" if value is None else self.amount(value)

    def exact(self, bound: float) -> str:
        """A bound as it was given, with as much of its unit as the name of the metric before it does not say."""
        if self.metric == "gap":
            return f"{100 * bound:,g}%"
        words = METRICS[self.metric].unit.split(" ")
        return f"{bound:,g}{' '.join(words[: 1 if self._is_count else 2])}"

    @property
    def _is_count(self) -> bool:
        return METRICS[self.metric].words.startswith("number of ")

    def span(self, values: list[float]) -> str:
        """Range of several figures: ``1.2 to 1.6x``."""
        low, high = min(values), max(values)
        return self.amount(low) if number(low) == number(high) else f"{number(low)} to {self.amount(high)}"


def number(value: float) -> str:
    """Three significant digits, or all digits before the point: ``0.00123``, ``4.31``, ``1,234``."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
