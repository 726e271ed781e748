"""Checks of a scenario beyond the types of its fields: names are known, files exist, and the axes form points."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from iossim.base.errors import IossimError, ScenarioError, did_you_mean
from iossim.base.located_yaml import Location
from iossim.cost.create import cost_model_names
from iossim.execution.engine import Engine
from iossim.ir.types import Precision
from iossim.models.catalogue import zoo_models
from iossim.models.passes.unit_fusion import unit_policy
from iossim.search.scheduler import scheduler_names
from iossim.study.axes import AXES, KIND_OF_METRIC, KINDS, METRICS, Device, Model, Workspace
from iossim.study.points import device_of_kind, labels_of, points_of
from iossim.study.question import Conditions, Labels, Question, Range, in_words, label_of_axis, place_of
from iossim.study.report.plots import plots
from iossim.study.scenario import Fault, Scenario
from iossim.study.scenario_paths import file_of_cost_model
from iossim.study.study_kind import StudyKind, label_of
from iossim.transforms.rewriting.rule_sets import rules_named


def faults_of(scenario: Scenario) -> Iterator[Fault]:
    """All faults in the values of a scenario, each of the right type; loads no model."""
    for check in (_faults_of_values, _faults_of_kind, _faults_of_points):
        if found := list(check(scenario)):
            yield from found
            return


def _faults_of_values(scenario: Scenario) -> Iterator[Fault]:
    kind = scenario.kind
    checks: dict[str, _Check] = {**_CHECKS, "device": partial(_device, kind)}
    for name, axis in AXES.items():
        check: _Check = checks.get(name) or (lambda value, place: ())
        listed: Sequence[Any] = getattr(scenario, axis.field)
        for index, value in enumerate(listed):
            yield from check(value, (axis.field, index))
        labels = list(map(label_of, listed))
        yield from _twice(labels, axis.field, takes_label=labels != listed)
        for index, point in enumerate(scenario.points):
            value = getattr(point, name)
            if value is not None and label_of(value) not in labels:
                yield from check(value, ("points", index, name))
    schedulers = scheduler_names() if kind is None else kind.schedulers
    for field, what, known in (
        ("schedulers", "unknown scheduler {!r}", schedulers),
        ("plots", "plot {!r} is not known", plots() if scenario.plots else ()),
    ):
        for index, name in enumerate(getattr(scenario, field) or ()):
            if name not in known:
                yield Fault((field, index), f"{what.format(name)}; {did_you_mean(name, known)}")
    for field in ("schedulers", "cross_evaluate", "measures"):
        yield from _twice(getattr(scenario, field), field)
    for field in ("constraints", "questions"):
        yield from _twice(list(map(in_words, getattr(scenario, field))), field)


def _faults_of_kind(scenario: Scenario) -> Iterator[Fault]:
    """Faults of a study of its kind of devices: axes and measures that these lack, and values that they do not take."""
    if (kind := scenario.kind) is None:
        return
    own = kind.axis
    listed: dict[Location, Any] = {(own.field, index): each for index, each in enumerate(getattr(scenario, own.field))}
    for index, point in enumerate(scenario.points):
        if isinstance(given := getattr(point, own.name), type(own.default)):
            listed["points", index, own.name] = given
    for place, each in listed.items():
        if not kind.is_asked(each):
            said = f"a study is of {kind.plural} or of others"
            yield Fault(place, f"{said}; list no {kind.examples[0]!r} beside policies in {own.field!r}")
    others = f"leave it or {own.field!r} out"
    for axis in AXES.values():
        if not axis.of_all_kinds and list(map(label_of, getattr(scenario, axis.field))) != [axis.usual]:
            yield Fault((axis.field,), f"says nothing of {kind.plural}; {others}")
    for field in ("cross_evaluate", "measures"):
        if getattr(scenario, field):
            yield Fault((field,), f"is of GPUs and processors; {others}")
    if reason := kind.refuses(scenario.schedulers, list(listed.values())):
        yield Fault(("schedulers",), reason)
    listed_by_points = (device for point in scenario.points if (device := vars(point)["device"]))
    for device in [*scenario.devices, *listed_by_points]:
        for place, each in listed.items():
            yield from _asked(partial(kind.check, device.device, device.set, each), place)


def _faults_of_points(scenario: Scenario) -> Iterator[Fault]:
    """Faults in the combination of axes to points, checked once all values are valid."""
    if scenario.combine != "points":
        if scenario.points:
            yield Fault(("combine",), f"is {scenario.combine!r}, and points are listed; leave one of them out")
            return
        for axis in AXES.values():
            if not getattr(scenario, axis.field):
                yield Fault((axis.field,), f"no {axis.name} is given; write '{axis.field}: [...]'", is_missing=True)
                return
    try:
        points_of(scenario)
    except IossimError as error:
        field = "points" if scenario.combine == "points" else "combine"
        yield Fault((field,), str(error))
        return
    yield from _faults_of_labels(scenario)
    labels = labels_of(scenario)
    for index, crossed in enumerate(scenario.cross_evaluate):
        if len(labels[crossed]) < 2:
            reason = f"{crossed!r} has one value, so that there is nothing to price its schedules at"
            remedy = f"give {AXES[crossed].field} another, or leave it out"
            yield Fault(("cross_evaluate", index), f"{reason}; {remedy}")
    if scenario.cross_evaluate and any(workspace.limit for workspace in scenario.workspace):
        yield Fault(("cross_evaluate",), "prices schedules without a limit on workspace; leave it or the limits out")
    yield from _faults_of_sentences(scenario, labels)


def _faults_of_labels(scenario: Scenario) -> Iterator[Fault]:
    """Listed points whose models, devices or searches differ but have the same label."""
    called: dict[tuple[str, str], Any] = {}
    for index, point in enumerate(points_of(scenario) if scenario.points else ()):
        for axis in AXES:
            value = getattr(point, axis)
            if hasattr(value, "label") and called.setdefault((axis, value.label), value) != value:
                reason = f"another {axis} is called {value.label!r} too; give one of them a 'label'"
                yield Fault(("points", index, axis), reason)


def _faults_of_sentences(scenario: Scenario, labels: Labels) -> Iterator[Fault]:
    """Faults of constraints, questions and claims: unknown labels, and metrics that are not made."""
    asked: list[tuple[Location, Question]] = []
    for index, each in enumerate(scenario.constraints):
        asked.append((("constraints", index), each))
        if each.kind != "figure" or each.of is not None or each.aggregate or _bounds_of_labels(each):
            reason = "a constraint is about each row by itself; write a metric with bounds of numbers"
            yield Fault(("constraints", index), reason)
    asked += [(("questions", index), each) for index, each in enumerate(scenario.questions)]
    claims = [
        (("published", index, "claim"), claim)
        for index, published in enumerate(scenario.published)
        for claim in published.claims
    ]
    for place, question in [*asked, *claims]:
        for reason in _faults_of_question(question, scenario, labels):
            yield Fault(place, reason)
    for place, claim in claims:
        if not claim.is_claim:
            remedy = "add 'expect: LABEL', or a bound as 'at_least: 1.1'"
            yield Fault(place, f"this is a question, and a claim holds or does not; {remedy}")


def _bounds_of_labels(asked: Question) -> list[str | dict[str, str | int]]:
    return [bound for _, bound in asked.bounds if not isinstance(bound, int | float)]


def _faults_of_question(asked: Question, scenario: Scenario, labels: Labels) -> Iterator[str]:
    places = [asked.of, asked.over, *_bounds_of_labels(asked)]
    wanted = [] if asked.expect is None else [(asked.axis, asked.expect)]
    for conditions in (asked.having, asked.where, asked.where_not):
        wanted += _labels_in(conditions)
    try:
        for at in places:
            place_of(at, labels)
        for axis, label in wanted:
            label_of_axis(axis, label, labels)
    except ScenarioError as error:
        yield str(error)
    for name in sorted(asked.metrics):
        metric = METRICS[name]
        kind = KIND_OF_METRIC.get(name)
        if kind is not None and kind is not scenario.kind:
            yield f"{name} is known of {kind.plural} alone; leave it out"
        elif metric.measure and metric.measure not in scenario.measures:
            yield f"{name} is known only where it is asked for; write 'measures: [{metric.measure}]'"
    if asked.specialised_for and asked.specialised_for not in scenario.cross_evaluate:
        yield f"no schedules are priced across; write 'cross_evaluate: [{asked.specialised_for}]'"


def _labels_in(conditions: Conditions) -> list[tuple[str, Any]]:
    return [
        (name, label)
        for name, condition in conditions.items()
        if name not in METRICS and not isinstance(condition, Range)
        for label in (condition if isinstance(condition, list) else [condition])
    ]


def _model(model: Model, place: Location) -> Iterator[Fault]:
    at = (*place, "model")
    if Path(model.model).suffix.lower() in (".onnx", ".json") or len(Path(model.model).parts) > 1:
        if not os.path.isfile(model.model):
            reason = "is a folder" if os.path.isdir(model.model) else "does not exist"
            yield Fault(at, f"model file {model.model!r} {reason}; give an ONNX file, or a model of the zoo by name")
    else:
        names = [zoo.name for zoo in zoo_models()]
        if model.model not in names:
            yield Fault(at, f"unknown model {model.model!r}; {did_you_mean(model.model, names)}; or an .onnx file")
    yield from _asked(lambda: unit_policy(model.units), (*place, "units"))


def _device(kind: StudyKind | None, device: Device, place: Location) -> Iterator[Fault]:
    other = next((each for each in KINDS if device.device in each.device_names()), None)
    if kind is None and other is not None:
        asks = f"write '{other.axis.field}: [{other.examples[1]}]' besides"
        yield Fault((*place, "device"), f"device {device.device!r} is {other.noun}; {asks}")
        return
    faults = list(_asked(lambda: device_of_kind(kind, Device(device=device.device)), (*place, "device")))
    yield from faults or _asked(lambda: device_of_kind(kind, device), (*place, "set"))


def _cost_model(spec: str, place: Location) -> Iterator[Fault]:
    name, path = spec.partition(":")[0], file_of_cost_model(spec)
    if name not in cost_model_names():
        yield Fault(place, f"unknown cost model {name!r}; {did_you_mean(name, cost_model_names())}")
    elif path and not os.path.isfile(path):
        yield Fault(place, f"file {path!r} does not exist; give the file of a {name}")


def _workspace(workspace: Workspace, place: Location) -> Iterator[Fault]:
    yield from _asked(lambda: workspace.limit_bytes, (*place, "limit"))
    yield from _asked(lambda: workspace.total_bytes, (*place, "total"))


_Check = Callable[[Any, Location], Iterable[Fault]]
_CHECKS: dict[str, _Check] = {
    "model": _model,
    "dtype": lambda dtype, place: _asked(lambda: Precision.named(dtype), place),
    "engine": lambda engine, place: _asked(lambda: Engine.named(engine), place),
    "cost_model": _cost_model,
    "rewrite": lambda rewrite, place: _asked(
        lambda: rewrite.rewrites and rules_named(rewrite.rules), (*place, "rules")
    ),
    "workspace": _workspace,
}


def _asked(ask: Any, place: Location) -> Iterator[Fault]:
    """The message of an IossimError that ``ask`` raises, as a fault of the value at ``place``."""
    try:
        ask()
    except IossimError as error:
        yield Fault(place, str(error))


def _twice(values: Sequence[Any], field: str, takes_label: bool = False) -> Iterator[Fault]:
    """Repeated values in a list: their results would be indistinguishable."""
    places: dict[Any, int] = {}
    for index, value in enumerate(values):
        first = places.setdefault(value, index)
        if first < index:
            remedy = "give one of them another 'label'" if takes_label else "leave one out"
            yield Fault((field, index), f"{value!r} is there twice, first as {field}[{first}]; {remedy}")
