"""A plan as JSON: the place of all data, and every transfer of each unit with bytes and addresses.

A transfer has ``moved_bytes`` if that differs from the requested size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from iossim.base.errors import PlanError
from iossim.base.user_files import read_text
from iossim.base.values import first_problem
from iossim.edge.distribution import Distribution, Exchange
from iossim.edge.linking import MemoryKind
from iossim.edge.plan import EdgePlan, OperatorStep, OutputSlice, Staged, Transfer, Work, unit_work
from iossim.edge.planned import Dataflow, dataflow
from iossim.execution.box import Box
from iossim.models.load import load_source
from iossim.schedule.schedule import ModelReference

VERSION = 2


def plan_to_json(plan: EdgePlan) -> dict[str, Any]:
    """All of a plan; commands of a step are in ``units``, between barriers."""
    return {
        "version": VERSION,
        "model": plan.network.source.model or plan.network.name,
        "graph": plan.network.graph.hash,
        "device": plan.device.name,
        "precision": str(plan.precision),
        "variant": str(plan.variant),
        "parameters": dict(plan.parameters),
        "buffers": [
            {
                "value": each.value,
                "memory": str(each.memory),
                "address": each.address,
                "bytes": each.bytes,
                "first_stage": each.first,
                "last_stage": each.last,
                "axes": list(each.layout.axes) if each.layout.axes else None,
                "rows_per_band": each.layout.bands.rows if each.layout.bands else None,
            }
            for each in plan.buffers.values()
        ],
        "links": [
            {
                "value": each.value,
                "readers": list(each.readers),
                "bytes": each.bytes,
                "unlinked_bytes": each.unlinked_bytes,
            }
            for each in plan.links
        ],
        "steps": [
            {
                "operator": step.operator.name,
                "stage": stage,
                "first_unit": lane.first_unit,
                "units": lane.units,
                "whole": step.whole,
                "slices": [_slice(plan, step, part) for part in step.slices],
            }
            for index, (stage, lane) in plan.places.items()
            for step in [plan.steps[index]]
        ],
    }


def distribution_to_json(found: Distribution) -> list[dict[str, Any]]:
    """Steps of all devices: the messages before each operator, and the box that each device computes."""
    steps: list[dict[str, Any]] = [
        {
            "operator": step.operator.name,
            "mode": str(step.mode),
            "boxes": [_box(box) for box in step.boxes],
            "exchanges": [_exchange(each) for each in step.exchanges],
        }
        for step in found.steps
    ]
    return [*steps, {"operator": None, "exchanges": [_exchange(each) for each in found.gathers]}]


def _exchange(exchange: Exchange) -> dict[str, Any]:
    return {
        "value": exchange.value,
        "messages": [
            {
                "round": each.round,
                "source": each.source,
                "target": each.target,
                "boxes": [_box(box) for box in each.boxes],
            }
            for each in exchange.collective.messages
        ],
    }


def _box(box: Box) -> dict[str, Any]:
    return {"from": list(box.starts), "shape": list(box.shape)}


def _slice(plan: EdgePlan, step: OperatorStep, part: OutputSlice) -> dict[str, Any]:
    units = ((unit, unit_work(plan, step, part, unit)) for unit in range(part.partition.units))
    return {
        "partition": [[step.operator.axis_name(axis), parts] for axis, parts in part.partition.words],
        "bring": [_staged(each) for each in part.inputs],
        "units": [{"unit": unit, "chunks": [_work(each) for each in works]} for unit, works in units if works],
        "take": None if part.output is None else _staged(part.output),
    }


def _staged(staged: Staged) -> dict[str, Any]:
    return {"value": staged.value, **_box(staged.box), "shared_address": staged.address, "bytes": staged.bytes}


def _work(work: Work) -> dict[str, Any]:
    return {
        **_box(work.chunk.demand.box),
        "dma" if work.by_dma else "parameters": [_transfer(each) for each in work.parameters],
        "private_address": work.private_address,
        "private_bytes": work.private_bytes,
        "load": [_transfer(each) for each in work.reads],
        "compute_us": work.compute_us,
        "store": [_transfer(each) for each in work.writes],
    }


def _transfer(each: Transfer) -> dict[str, Any]:
    told: dict[str, Any] = {"what": each.what, "memory": str(each.memory), "address": each.address, "bytes": each.size}
    if each.bytes != each.size:
        told["moved_bytes"] = each.bytes
    return told if each.memory is MemoryKind.PRIVATE or each.streamed else told | {"waits": True}


_REMEDY = "give a plan.json that 'iossim dataflow optimize' wrote"


def saved_plan(found: Dataflow) -> dict[str, Any]:
    """JSON of a network's plans: the last of them in full, and its inputs."""
    *_, (plan, _) = found.runs.values()
    source = plan.network.source
    made_of = ModelReference(model=source.model, batch=source.batch, options=dict(source.options))
    told = {"policy": found.policy, "in_parts": found.parts is not None, "source": made_of.model_dump(mode="json")}
    return {**plan_to_json(plan), **told}


def is_saved_plan(path: Path) -> bool:
    """Whether a file holds a plan of dataflow; errors in other files are left to their readers."""
    try:
        document = from_json(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and {"variant", "buffers"} <= document.keys()


def planned_again(path: Path, device: str | None = None, model: str | None = None) -> Dataflow:
    """Inputs of a saved plan, planned again; ``device`` is another one, or the path of its profile, ``model`` the
    current path of the model. Raises PlanError if the file lacks information, or the model has changed.
    """
    document = from_json(read_text(path, "plan", _REMEDY, PlanError))
    try:
        reference = ModelReference.model_validate(document["source"]).found_from(path)
        policy, name, graph = (str(document[key]) for key in ("policy", "device", "graph"))
    except KeyError as error:
        raise PlanError(f"plan {path} has no field {error.args[0]!r}; {_REMEDY}, of one device") from None
    except ValidationError as error:
        raise PlanError(f"plan {path} is not valid: {first_problem(error)}; {_REMEDY}") from None
    if document.get("in_parts"):
        raise PlanError(
            f"plan {path} has branches on parts of the units, and explain covers all units; leave out `parts`"
        )
    network = load_source(reference.to_source(model))
    if network.graph.hash != graph:
        raise PlanError(f"plan {path} is of another model than {reference.model} is now; write it again")
    return dataflow(network, device or name, policy)
