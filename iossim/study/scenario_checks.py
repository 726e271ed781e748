"""Checks of a scenario beyond the types of its fields: names are known, files exist, and the axes form points."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from iossim.base.errors import DeviceError, IossimError, ModelError, OptionError, ScenarioError, did_you_mean
from iossim.base.located_yaml import Location
from iossim.cost.create import cost_model_names
from iossim.execution.engine import Engine
from iossim.hardware.names import device_names
from iossim.ir.types import Precision
from iossim.models.catalogue import zoo_models
from iossim.models.passes.unit_fusion import unit_policy
from iossim.search.scheduler import scheduler_names
from iossim.study.axes import AXES, CHOSEN, KIND_OF_METRIC, KINDS, METRICS, Device, Model, Rewrite, file_of_cost_model
from iossim.study.points import device_of_kind, labels_of, points_of
from iossim.study.question import Labels, Question, condition_words, in_words, label_of_axis, place_of, values_of
from iossim.study.report.plots import plots
from iossim.study.scenario import Fault, Scenario
from iossim.study.study_kind import StudyKind, label_of
from iossim.study.table import meets
from iossim.transforms.rewriting.rule_sets import rules_named


def faults_of(scenario: Scenario) -> Iterator[Fault]:
    """All faults in the values of a scenario, each of the right type; loads no model."""
    for check in (_faults_of_values, _faults_of_kind, _faults_of_points):
        if found := list(check(scenario)):
            yield from found
            return


def _faults_of_values(scenario: Scenario) -> Iterator[Fault]:
    if found := _asked(("units",), _CHECKS["model"]["units"], scenario):
        yield from found
        return
    kind = scenario.kind
    of_devices: _Checks = {"device": partial(_device, kind), "set": partial(device_of_kind, kind)}
    checks: dict[str, _Checks] = {**_CHECKS, "device": of_devices}
    for name, axis in AXES.items():
        listed: Sequence[object] = getattr(scenario, axis.field)
        labels = list(map(label_of, listed))
        for index, value in enumerate(listed):
            asked = (_asked((axis.field, index, field), ask, value) for field, ask in checks.get(name, {}).items())
            yield from next(filter(None, asked), [])
        yield from _twice(labels, axis.field, takes_label=labels != listed)
    schedulers = scheduler_names() if kind is None else kind.schedulers(getattr(scenario, kind.axis.field))
    for field, what, known in (
        ("schedulers", "unknown scheduler {!r}", schedulers),
        ("plots", "plot {!r} is not known", plots() if scenario.plots else ()),
    ):
        for index, name in enumerate(getattr(scenario, field) or ()):
            if name not in known:
                yield Fault((field, index), f"{what.format(name)}; {did_you_mean(name, known)}")
    yield from _twice(scenario.schedulers, "schedulers")
    yield from _twice(list(map(in_words, scenario.questions)), "questions")


def _faults_of_kind(scenario: Scenario) -> Iterator[Fault]:
    """Faults of a study of its kind of devices: axes that these lack, and values that they do not take."""
    if (kind := scenario.kind) is None:
        return
    own = kind.axis
    listed: Sequence[object] = getattr(scenario, own.field)
    for index, each in enumerate(listed):
        if not kind.is_asked(each):
            said = f"a study is of {kind.plural} or of others"
            yield Fault((own.field, index), f"{said}; list no {kind.examples[0]!r} beside policies in {own.field!r}")
    others = f"leave it or {own.field!r} out"
    for axis in AXES.values():
        if not axis.of_all_kinds and list(map(label_of, getattr(scenario, axis.field))) != [axis.usual]:
            yield Fault((axis.field,), f"says nothing of {kind.plural}; {others}")
    for device in scenario.devices:
        for index, each in enumerate(listed):
            yield from _asked((own.field, index), kind.check, device.device, device.set, each)


def _faults_of_points(scenario: Scenario) -> Iterator[Fault]:
    """Faults in the combination of axes to points, checked once all values are valid."""
    for axis in AXES.values():
        if not getattr(scenario, axis.field):
            yield Fault((axis.field,), f"no {axis.name} is given; write '{axis.field}: [...]'", is_missing=True)
            return
    try:
        points_of(scenario)
    except IossimError as error:
        yield Fault(() if scenario.points is None else ("points",), str(error))
        return
    labels = labels_of(scenario)
    for index, asked in enumerate(scenario.questions):
        yield from _faults_of_question(asked, scenario, labels, ("questions", index))
    for index, published in enumerate(scenario.published):
        for place, claim in enumerate(published.claims):
            location = ("published", index, "claims", place)
            yield from _faults_of_question(claim, scenario, labels, location)
            if not claim.is_claim:
                remedy = "add 'expect: LABEL', or a bound as 'at_least: 1.1'"
                yield Fault(location, f"this is a question, and a claim holds or does not; {remedy}")


def _faults_of_question(asked: Question, scenario: Scenario, labels: Labels, place: Location) -> Iterator[Fault]:
    """Faults of a question or claim: unknown labels, and figures that the study cannot have."""
    try:
        place_of(asked.of, labels), place_of(asked.over, labels)
        if asked.expect is not None:
            label_of_axis(asked.axis, asked.expect, labels)
        for conditions in (asked.where, asked.where_not):
            for name, condition in conditions.items():
                for label in values_of(condition):
                    label_of_axis(name, label, labels)
                if not any(meets(condition, label) for label in labels[name]):
                    known = ", ".join(map(str, labels[name]))
                    raise ScenarioError(
                        f"no {name} of this study is {condition_words(name, condition)}; known: {known}"
                    )
    except ScenarioError as error:
        yield Fault(place, str(error))
    kind = scenario.kind
    for name in sorted(asked.metrics):
        own = KIND_OF_METRIC.get(name)
        if own is not None and own is not kind:
            yield Fault(place, f"{name} is known of {own.plural} alone; leave it out")
        elif kind is not None and METRICS[name].measure:
            yield Fault(place, f"{name} is known of GPUs and processors alone; leave it out")
    if (axis := asked.specialised_for) is None:
        return
    if kind is not None:
        yield Fault(place, f"schedules of {kind.plural} are priced at their own points alone; leave it out")
    elif len(labels[axis]) < 2:
        reason = f"{axis!r} has one value, so that there is nothing to price its schedules at"
        yield Fault(place, f"{reason}; give {AXES[axis].field} another, or leave it out")
    elif any(workspace.limit for workspace in scenario.workspace):
        yield Fault(place, "schedules are priced elsewhere without a limit on workspace; leave it or the limits out")


def _model(model: Model) -> None:
    if Path(model.model).suffix.lower() in (".onnx", ".json") or len(Path(model.model).parts) > 1:
        if not os.path.isfile(model.model):
            reason = "is a folder" if os.path.isdir(model.model) else "does not exist"
            raise ModelError(f"model file {model.model!r} {reason}; give an ONNX file, or a model of the zoo by name")
    elif model.model not in (names := [zoo.name for zoo in zoo_models()]):
        raise ModelError(f"unknown model {model.model!r}; {did_you_mean(model.model, names)}; or an .onnx file")


def _device(kind: StudyKind | None, device: Device) -> None:
    other = next((each for each in KINDS if device.device in each.device_names()), None)
    if kind is None and other is not None and device.device not in device_names():
        asks = f"write '{other.axis.field}: [{other.examples[1]}]' besides"
        raise DeviceError(f"device {device.device!r} is {other.noun}; {asks}")
    device_of_kind(kind, Device(device=device.device))


def _cost_model(spec: str) -> None:
    name, path = spec.partition(":")[0], file_of_cost_model(spec)
    if name not in cost_model_names():
        raise OptionError(f"unknown cost model {name!r}; {did_you_mean(name, cost_model_names())}")
    if path and not os.path.isfile(path):
        raise OptionError(f"file {path!r} does not exist; give the file of a {name}")


def _rules(rewrite: Rewrite) -> None:
    if rewrite.rewrites:
        rules_named(rewrite.rules)


#: Checks of a value, by the field that is at fault (the value itself where it has none): each raises an IossimError.
_Checks = dict[str, Callable[[Any], object]]
_CHECKS: dict[str, _Checks] = {
    "model": {"model": _model, "units": lambda given: given.units == CHOSEN or unit_policy(given.units)},
    "dtype": {"": Precision.named},
    "engine": {"": Engine.named},
    "cost_model": {"": _cost_model},
    "rewrite": {"rules": _rules},
    "workspace": {"limit": lambda given: given.limit_bytes, "total": lambda given: given.total_bytes},
}


def _asked(place: Location, ask: Callable[..., object], *given: object) -> list[Fault]:
    """The message of an IossimError that ``ask`` raises, as a fault of the value at ``place``."""
    try:
        ask(*given)
    except IossimError as error:
        return [Fault(place, str(error))]
    return []


def _twice(values: Sequence[object], field: str, takes_label: bool = False) -> Iterator[Fault]:
    """Repeated values in a list: their results would be indistinguishable."""
    places: dict[object, int] = {}
    for index, value in enumerate(values):
        first = places.setdefault(value, index)
        if first < index:
            remedy = "give one of them another 'label'" if takes_label else "leave one out"
            yield Fault((field, index), f"{value!r} is there twice, first as {field}[{first}]; {remedy}")
