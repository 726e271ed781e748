"""What a scenario's fields cannot say alone: that names are known, files there, and that the axes make points."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from iossim.base.errors import IossimError, ScenarioError, did_you_mean
from iossim.base.located_yaml import Location
from iossim.cost.create import cost_model_names
from iossim.edge.distributed import link_of
from iossim.edge.plan import Variant
from iossim.execution.engine import Engine
from iossim.hardware.edge import edge_device
from iossim.hardware.edge_names import edge_names
from iossim.ir.types import Precision
from iossim.models.catalogue import zoo_models
from iossim.models.passes.unit_fusion import unit_policy
from iossim.search.scheduler import scheduler_names
from iossim.study.points import FIELD_OF_AXIS, device_of, edge_device_of, labels_of, points_of
from iossim.study.question_grammar import parse_claim, parse_constraint, parse_question
from iossim.study.scenario import (
    AXES,
    OF_OTHERS,
    PLOTS,
    USUAL,
    VARIANTS,
    Axis,
    Dataflow,
    Device,
    Model,
    Rewrite,
    Scenario,
    Workspace,
)
from iossim.study.scenario_faults import Fault
from iossim.study.sentences import DiagonalIsBest, Labels, Sentence, columns_of
from iossim.transforms.rewriting.rule_sets import rules_named

#: The cost models whose argument is a file.
FILE_COST_MODELS = ("table", "replay")


def faults_of(scenario: Scenario) -> Iterator[Fault]:
    """All that is wrong with the values of a scenario, each of the right type; loads no model."""
    found = False
    for fault in _faults_of_values(scenario):
        found = True
        yield fault
    if not found:
        for fault in _faults_of_dataflow(scenario):
            found = True
            yield fault
    if not found:
        yield from _faults_of_points(scenario)


def _faults_of_values(scenario: Scenario) -> Iterator[Fault]:
    checks = _CHECKS | ({"device": _edge_device} if scenario.plans_dataflow else {})
    for axis in AXES:
        check = checks.get(axis, _nothing)
        listed: Sequence[Any] = getattr(scenario, FIELD_OF_AXIS[axis])
        for index, value in enumerate(listed):
            yield from check(value, (FIELD_OF_AXIS[axis], index))
        yield from _twice([getattr(value, "label", value) for value in listed], FIELD_OF_AXIS[axis])
        labels = [getattr(value, "label", value) for value in listed]
        for index, point in enumerate(scenario.points):
            value = getattr(point, axis)
            if value is not None and getattr(value, "label", value) not in labels:
                yield from check(value, ("points", index, axis))
    names = VARIANTS if scenario.plans_dataflow else scheduler_names()
    for index, name in enumerate(scenario.schedulers):
        if name not in names:
            yield Fault(("schedulers", index), f"unknown scheduler {name!r}; {did_you_mean(name, names)}")
    for index, name in enumerate(scenario.plots or ()):
        if name not in PLOTS:
            yield Fault(("plots", index), f"plot {name!r} is not known; {did_you_mean(name, PLOTS)}")
    for field in ("schedulers", "cross_evaluate", "measures", "constraints", "questions"):
        yield from _twice(getattr(scenario, field), field)


def _faults_of_dataflow(scenario: Scenario) -> Iterator[Fault]:
    """What a study of edge devices cannot vary or ask, and how many devices there may be, and joined by what."""
    listed: list[tuple[tuple[str | int, ...], Dataflow]] = [
        (("dataflow", index), each) for index, each in enumerate(scenario.dataflow)
    ]
    listed += [
        (("points", index, "dataflow"), each.dataflow)
        for index, each in enumerate(scenario.points)
        if isinstance(each.dataflow, Dataflow)
    ]
    for place, each in listed:
        if each.plans is not scenario.plans_dataflow:
            yield Fault(
                place, "a study is of edge devices or of others; list no 'none' beside policies in 'dataflow'"
            )
    if not scenario.plans_dataflow:
        return
    for axis in OF_OTHERS:
        field = FIELD_OF_AXIS[axis]
        labels = [getattr(value, "label", value) for value in getattr(scenario, field)]
        if labels != [USUAL[axis]]:
            yield Fault((field,), "says nothing of edge devices; leave it or 'dataflow' out")
    for field in ("cross_evaluate", "measures"):
        if getattr(scenario, field):
            yield Fault((field,), "is of GPUs and processors; leave it or 'dataflow' out")
    several = {place: each for place, each in listed if each.devices > 1}
    if several and scenario.schedulers != [Variant.FULL]:
        yield Fault(("schedulers",), "several devices run full plans alone; write 'schedulers: [full]'")
    for device in [*scenario.devices, *(each.device for each in scenario.points if each.device)]:
        for place, each in several.items():
            yield from _asked(lambda device=device, each=each: link_of(edge_device_of(device), each.link), place)


def _faults_of_points(scenario: Scenario) -> Iterator[Fault]:
    """Whether the axes make points: looked at once all values are right."""
    if scenario.combine != "points":
        if scenario.points:
            yield Fault(("combine",), f"is {scenario.combine!r}, and points are listed; leave one of them out")
            return
        for axis in ("model", "device"):
            if not getattr(scenario, FIELD_OF_AXIS[axis]):
                field = FIELD_OF_AXIS[axis]
                yield Fault((field,), f"no {axis} is given; write '{field}: [...]'", is_missing=True)
                return
    try:
        points_of(scenario)
    except IossimError as error:
        field = "points" if scenario.combine == "points" else "combine"
        yield Fault((field,), str(error))
        return
    yield from _faults_of_labels(scenario)
    labels = labels_of(scenario)
    for index, axis in enumerate(scenario.cross_evaluate):
        if len(labels[axis]) < 2:
            yield Fault(
                ("cross_evaluate", index),
                f"{axis!r} has one value, so that there is nothing to price its schedules at; give {FIELD_OF_AXIS[axis]} "
                "another, or leave it out",
            )
    if scenario.cross_evaluate and any(workspace.limit for workspace in scenario.workspace):
        yield Fault(("cross_evaluate",), "prices schedules without a limit on workspace; leave it or the limits out")
    yield from _faults_of_sentences(scenario, labels)


def _faults_of_labels(scenario: Scenario) -> Iterator[Fault]:
    """Listed points whose models, devices or searches differ and are called the same."""
    called: dict[tuple[str, str], Any] = {}
    for index, point in enumerate(points_of(scenario) if scenario.points else ()):
        for axis in ("model", "device", "search", "rewrite", "workspace", "dataflow"):
            value = getattr(point, axis)
            if called.setdefault((axis, value.label), value) != value:
                yield Fault(
                    ("points", index, axis),
                    f"another {axis} is called {value.label!r} too; give one of them a 'label'",
                )


#: The columns that are there only where the scenario asks for what makes them.
_MEASURES = {"active_warps": "active_warps", "peak_memory_mib": "peak_memory"} | dict.fromkeys(
    ("convolutions_ms", "undivided_ms", "micro_batch_gain", "largest_gain", "workspace_mib"), "micro_batches"
)

#: The columns that are there only in studies of edge devices.
_OF_EDGE_DEVICES = {"private_mib", "shared_mib", "external_mib", "sent_mib", "waited_ms"}


def _faults_of_sentences(scenario: Scenario, labels: Labels) -> Iterator[Fault]:
    """Whether constraints, questions and claims can be read, and the columns that they name are made."""
    sentences: list[tuple[Location, str, Callable[[str, Labels], Sentence]]] = [
        *((("constraints", index), text, parse_constraint) for index, text in enumerate(scenario.constraints)),
        *((("questions", index), text, parse_question) for index, text in enumerate(scenario.questions)),
        *(
            (("published", index, "claim"), each.claim, parse_claim)
            for index, each in enumerate(scenario.published)
            if each.claim is not None
        ),
    ]
    for place, text, parse in sentences:
        try:
            sentence = parse(text, labels)
        except ScenarioError as error:
            yield Fault(place, str(error))
            continue
        for column in sorted(columns_of(sentence) & _OF_EDGE_DEVICES if not scenario.plans_dataflow else ()):
            yield Fault(place, f"{column} is known of edge devices alone; leave it out")
        for column in sorted(columns_of(sentence) & set(_MEASURES)):
            if _MEASURES[column] not in scenario.measures:
                yield Fault(
                    place, f"{column} is known only where it is asked for; write 'measures: [{_MEASURES[column]}]'"
                )
        if isinstance(sentence, DiagonalIsBest) and sentence.axis not in scenario.cross_evaluate:
            yield Fault(place, f"no schedules are priced across; write 'cross_evaluate: [{sentence.axis}]'")


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


def _device(device: Device, place: Location) -> Iterator[Fault]:
    if device.device in edge_names():
        yield Fault(
            (*place, "device"), f"device {device.device!r} is an edge device; write 'dataflow: [priority]' besides"
        )
        return
    faults = list(_asked(lambda: device_of(Device(device=device.device)), (*place, "device")))
    yield from faults
    if not faults and device.set:
        yield from _asked(lambda: device_of(device), (*place, "set"))


def _edge_device(device: Device, place: Location) -> Iterator[Fault]:
    faults = list(_asked(lambda: edge_device(device.device), (*place, "device")))
    yield from faults or _asked(lambda: edge_device_of(device), (*place, "set"))


def _dtype(dtype: str, place: Location) -> Iterator[Fault]:
    yield from _asked(lambda: Precision.named(dtype), place)


def _engine(engine: str, place: Location) -> Iterator[Fault]:
    yield from _asked(lambda: Engine.named(engine), place)


def _cost_model(spec: str, place: Location) -> Iterator[Fault]:
    name, _, argument = spec.partition(":")
    if name not in cost_model_names():
        yield Fault(place, f"unknown cost model {name!r}; {did_you_mean(name, cost_model_names())}")
    elif name in FILE_COST_MODELS and argument:
        path = argument.rpartition("#")[0] or argument if name == "replay" else argument
        if not os.path.isfile(path):
            yield Fault(place, f"file {path!r} does not exist; give the file of a {name}")


def _rewrite(rewrite: Rewrite, place: Location) -> Iterator[Fault]:
    if rewrite.rewrites:
        yield from _asked(lambda: rules_named(rewrite.rules), (*place, "rules"))


def _workspace(workspace: Workspace, place: Location) -> Iterator[Fault]:
    yield from _asked(lambda: workspace.limit_bytes, (*place, "limit"))
    yield from _asked(lambda: workspace.total_bytes, (*place, "total"))


def _nothing(value: Any, place: Location) -> Iterator[Fault]:
    """Their types say all."""
    return iter(())


_CHECKS: dict[Axis, Callable[[Any, Location], Iterator[Fault]]] = {
    "model": _model,
    "device": _device,
    "dtype": _dtype,
    "engine": _engine,
    "cost_model": _cost_model,
    "rewrite": _rewrite,
    "workspace": _workspace,
}


def _asked(ask: Any, place: Location) -> Iterator[Fault]:
    """What an error of ours says, as a fault of the value at ``place``."""
    try:
        ask()
    except IossimError as error:
        yield Fault(place, str(error))


def _twice(values: Sequence[Any], field: str) -> Iterator[Fault]:
    """Values that stand in a list twice: their results could not be told apart."""
    places: dict[Any, int] = {}
    for index, value in enumerate(values):
        first = places.setdefault(value, index)
        if first < index:
            takes_label = field in ("models", "devices", "searches", "rewrites", "workspace", "dataflow")
            remedy = "give one of them another 'label'" if takes_label else "leave one out"
            yield Fault((field, index), f"{value!r} is there twice, first as {field}[{first}]; {remedy}")
