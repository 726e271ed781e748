"""Points of a study: combinations of the axes' values, their networks and devices, and the number of schedules."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from iossim._version import __version__
from iossim.base.errors import ModelError, ScenarioError, did_you_mean
from iossim.hardware.load import device as load_device
from iossim.hardware.override import overridden
from iossim.hardware.profile import Device as AnyDevice
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.models.load import load
from iossim.models.passes.unit_fusion import MODEL
from iossim.study.axes import (
    AXES,
    CHOSEN,
    KINDS,
    Device,
    MicroBatches,
    Model,
    Rewrite,
    Search,
    Workspace,
    file_of_cost_model,
    kind_among,
)
from iossim.study.scenario import Scenario
from iossim.study.study_kind import Label, StudyKind, add_fields, label_of
from iossim.transforms.rewriting.rule_sets import rules_named
from iossim.transforms.rewriting.verdict import trusted

#: A study of more points is a mistake.
MAX_POINTS = 100_000


@dataclass(frozen=True)
class Point:
    """One combination of the axes' values."""

    #: Counted from 0 in the scenario's order.
    index: int
    model: Model
    device: Device
    batch: int
    dtype: str
    engine: str
    cost_model: str
    search: Search
    rewrite: Rewrite
    micro_batch: MicroBatches
    workspace: Workspace
    add_fields(vars(), {kind.axis.name: Any for kind in KINDS})
    #: Seed of random weights, graphs and cost models.
    seed: int = 0
    #: Hash of all that the point's results depend on, the same in every process: results are reused by it.
    key: str = ""

    @property
    def labels(self) -> dict[str, Label]:
        return {axis: label_of(getattr(self, axis)) for axis in AXES}

    @property
    def kind(self) -> StudyKind | None:
        """Kind of its study; None if its device is a GPU or processor."""
        return kind_among(lambda axis: [getattr(self, axis)])

    @property
    def file_stem(self) -> str:
        """A unique name of its files that identifies it; usual values are left out."""
        unusual = ((axis, label) for axis, label in self.labels.items() if label != AXES[axis].usual)
        told = [f"b{label}" if axis == "batch" else str(label) for axis, label in unusual]
        return f"{self.index:04d}-{slug('-'.join(told))[:120].strip('-')}"


def slug(text: str) -> str:
    """A text as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_.=+]+", "-", text).strip("-.")


def hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def points_of(scenario: Scenario) -> tuple[Point, ...]:
    """Points in order: in a grid the last axis varies fastest.

    Reads the profiles of the devices and the files of the models, for the keys; loads no network. Raises ScenarioError
    if the axes form no points, and DeviceError or ModelError if a device or file cannot be read.
    """
    points = [Point(index, *values) for index, values in enumerate(_combinations(scenario))]
    read = cache(_file_print), cache(_device_print), cache(_rules_print)  # each model, device and file once
    common = [__version__, scenario.seed, sorted(scenario.schedulers), sorted(scenario.measures)]
    texts = (json.dumps([*common, *_fingerprint(point, *read)], sort_keys=True) for point in points)
    keys = (hash_of(text.encode()) for text in texts)
    return tuple(replace(point, seed=scenario.seed, key=key) for point, key in zip(points, keys, strict=True))


def device_of(device: Device) -> DeviceProfile:
    """Profile of a scenario's GPU or processor, with its replaced values; raises DeviceError."""
    return overridden(load_device(device.device), device.set)


def device_of_kind(kind: StudyKind | None, device: Device) -> AnyDevice:
    """:func:`device_of`, or a scenario's device of a kind."""
    return device_of(device) if kind is None else kind.device(device.device, device.set)


def network_of(point: Point) -> Network:
    """Network of a point before its transforms, loaded; a single block if its model names one. Raises the errors of
    ``iossim.load``.
    """
    model = point.model
    return load(
        model.model,
        batch=point.batch,
        dtype=point.dtype,
        shapes=model.shapes,
        dimensions=model.dims,
        units=MODEL if model.units == CHOSEN else model.units,
        max_block=model.max_block,
        seed=point.seed,
        block=model.block,
    )


def count_points(scenario: Scenario) -> int:
    """Number of points; reads no files. Raises ScenarioError if the axes form none."""
    return sum(1 for _ in _combinations(scenario))


def labels_of(scenario: Scenario) -> dict[str, list[Label]]:
    """Labels of each axis that occur, and the schedulers; reads no files."""
    listed: Iterable[Iterable[Any]] = (getattr(scenario, axis.field) for axis in AXES.values())
    if scenario.points is not None:
        listed = zip(*_combinations(scenario), strict=True)
    found = {axis: list(dict.fromkeys(map(label_of, values))) for axis, values in zip(AXES, listed, strict=True)}
    return {**found, "scheduler": list(scenario.schedulers)}


def _combinations(scenario: Scenario) -> Iterable[Sequence[Any]]:
    """Values of each point, in the order of the axes."""
    lists: dict[str, list[Any]] = {name: getattr(scenario, axis.field) for name, axis in AXES.items()}
    if scenario.points is not None:
        return [
            [_value(axis, listed, getattr(values, axis), f"points[{index}]") for axis, listed in lists.items()]
            for index, values in enumerate(scenario.points)
        ]
    for axis, values in lists.items():
        if not values:
            raise ScenarioError(f"field {AXES[axis].field}: is empty; give at least one")
    count = prod(map(len, lists.values()))
    if count > MAX_POINTS:
        raise ScenarioError(f"the axes make {count:,} points, more than {MAX_POINTS:,}; shorten the lists")
    return product(*lists.values())


def _value(axis: str, listed: Sequence[Any], given: Label | None, place: str) -> Any:
    """The listed value that a point gives by its label, or the only one."""
    if given is None:
        if len(listed) != 1:
            reason = f"has no {axis!r}, and {AXES[axis].field} lists {len(listed)}"
            raise ScenarioError(f"field {place}: {reason}; write '{axis}: ...'")
        return listed[0]
    called = {label_of(value): value for value in listed}
    if given not in called:
        remedy = f"list it in {AXES[axis].field}; {did_you_mean(str(given), map(str, called))}"
        raise ScenarioError(f"field {place}.{axis}: no {axis} is called {given!r}; {remedy}")
    return called[given]


def families(points: Sequence[Point], axis: str) -> Iterator[tuple[Point, ...]]:
    """Points that differ in ``axis`` alone, two or more together, in order."""
    found: dict[str, list[Point]] = {}
    for point in points:
        common = [repr(getattr(point, name)) for name in AXES if name != axis]
        found.setdefault(repr(common), []).append(point)
    yield from (tuple(family) for family in found.values() if len(family) > 1)


def _fingerprint(
    point: Point, file: Callable[[str], str], device: Callable[..., Any], rules: Callable[..., Any]
) -> list[Any]:
    """JSON values of everything that a point's results depend on, except what the whole study shares; files, devices
    and rules are read by functions.

    A zoo name counts as it is (the version of iossim defines it), a file by its contents. Weights beside an ONNX file
    do not count: no schedule depends on them.
    """
    model, rewrite = point.model, point.rewrite
    is_file = Path(model.model).suffix.lower() in (".onnx", ".json")
    prices = file_of_cost_model(point.cost_model)
    return [
        file(model.model) if is_file else model.model,
        model.model_dump(mode="json", exclude={"label", "model"}),
        device(point.device.device, tuple(point.device.set.items()), point.kind),
        point.batch,
        point.dtype,
        point.engine,
        [point.cost_model, file(prices) if Path(prices).is_file() else ""],
        point.search.model_dump(mode="json", exclude={"label"}),
        rules(rewrite.rules, rewrite.unproved) if rewrite.rewrites else None,
        rewrite.model_dump(mode="json", exclude={"label", "rules", "unproved"}) if rewrite.rewrites else None,
        *([] if point.micro_batch == 1 else [{"micro_batch": point.micro_batch}]),
        point.workspace.model_dump(mode="json", exclude={"label"}),
        *(getattr(point, kind.axis.name).model_dump(mode="json", exclude={"label"}) for kind in KINDS),
    ]


def _device_print(device: str, changes: tuple[tuple[str, float], ...], kind: StudyKind | None) -> list[str]:
    profile = device_of_kind(kind, Device(device=device, set=dict(changes)))
    return [profile.name, hashlib.sha256(profile.model_dump_json().encode()).hexdigest()]


def _rules_print(names: str, unproved: bool) -> list[str]:
    """Fingerprint of the rules' content, and of the used ones, which depend on the verdicts at hand."""
    return [rule.hash for rule in trusted(rules_named(names), unproved)[0]]


def _file_print(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}; give an existing file") from None


def work_of(scenario: Scenario) -> dict[str, int]:
    """Work of a study: its points, a schedule for each scheduler, and prices of schedules at other points.

    Raises the errors of :func:`points_of`.
    """
    points, schedulers = points_of(scenario), len(scenario.schedulers)
    # Cross prices are of ordered pairs of points that differ in one axis alone.
    sizes = [len(family) for axis in scenario.cross_evaluate for family in families(points, axis)]
    crossed = sum(size * (size - 1) for size in sizes) * schedulers
    return {"points": len(points), "schedules": len(points) * schedulers, "cross_prices": crossed}
