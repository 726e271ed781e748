"""Points of a study: combinations of the axes' values, their networks and devices, and the number of schedules."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
    Model,
    Rewrite,
    Search,
    Workspace,
    file_of_cost_model,
    kind_among,
)
from iossim.study.scenario import Scenario
from iossim.study.study_kind import AxisValue, Label, Labelled, StudyKind, add_fields, label_of
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
    workspace: Workspace
    add_fields(vars(), {kind.axis.name: object for kind in KINDS})
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
    points = _unkeyed(scenario)
    common = [__version__, scenario.seed, sorted(scenario.schedulers), sorted(scenario.measures)]
    known: dict[int, object] = {}  # points share their values: each model, device and file is read once
    found = []
    for point in points:
        values = [getattr(point, axis) for axis in AXES]
        known |= {id(value): _fingerprint(value, point.kind) for value in values if id(value) not in known}
        text = json.dumps([*common, *(known[id(value)] for value in values)], sort_keys=True)
        found.append(replace(point, seed=scenario.seed, key=hash_of(text.encode())))
    return tuple(found)


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


def labels_of(scenario: Scenario) -> dict[str, list[Label]]:
    """Labels of each axis that occur, and the schedulers; reads no files."""
    listed: Iterable[Iterable[AxisValue]] = (getattr(scenario, axis.field) for axis in AXES.values())
    if scenario.points is not None:
        listed = zip(*_combinations(scenario), strict=True)
    found = {axis: list(dict.fromkeys(map(label_of, values))) for axis, values in zip(AXES, listed, strict=True)}
    return {**found, "scheduler": list(scenario.schedulers)}


def _unkeyed(scenario: Scenario) -> list[Point]:
    return [Point(index, *values) for index, values in enumerate(_combinations(scenario))]


def _combinations(scenario: Scenario) -> Iterable[Sequence[AxisValue]]:
    """Values of each point, in the order of the axes."""
    lists: dict[str, list[AxisValue]] = {name: getattr(scenario, axis.field) for name, axis in AXES.items()}
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


def _value(axis: str, listed: Sequence[AxisValue], given: Label | None, place: str) -> AxisValue:
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


def _fingerprint(value: AxisValue, kind: StudyKind | None) -> object:
    """JSON value of everything that results depend on in the value of an axis.

    A zoo name counts as it is (the version of iossim defines it), a file by its contents. Weights beside an ONNX file
    do not count: no schedule depends on them.
    """
    told: Any = value.model_dump(mode="json", exclude={"label"}) if isinstance(value, Labelled) else [value]
    if isinstance(value, Model) and Path(value.model).suffix.lower() in (".onnx", ".json"):
        return told | {"model": _file_print(value.model)}
    if isinstance(value, Device):
        profile = device_of_kind(kind, value)
        return [profile.name, hash_of(profile.model_dump_json().encode())]
    if isinstance(value, Rewrite):
        if not value.rewrites:
            return None
        used, *_ = trusted(rules_named(value.rules), value.unproved)  # they depend on the verdicts at hand
        return told | {"rules": [rule.hash for rule in used]}
    prices = file_of_cost_model(value) if isinstance(value, str) else ""
    return [value, _file_print(prices)] if Path(prices).is_file() else told


def _file_print(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}; give an existing file") from None


def work_of(scenario: Scenario) -> dict[str, int]:
    """Work of a study: its points, a schedule for each scheduler, and prices of schedules at other points.

    Reads no files. Raises ScenarioError if the axes form no points.
    """
    points, schedulers = _unkeyed(scenario), len(scenario.schedulers)
    # Cross prices are of ordered pairs of points that differ in one axis alone.
    sizes = [len(family) for axis in scenario.cross_evaluate for family in families(points, axis)]
    crossed = sum(size * (size - 1) for size in sizes) * schedulers
    return {"points": len(points), "schedules": len(points) * schedulers, "cross_prices": crossed}
