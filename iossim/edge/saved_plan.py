"""A plan of dataflow that was saved, made again: plans follow from network, device and policy, so that these say all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from iossim.base.errors import PlanError
from iossim.base.user_files import read_text
from iossim.base.values import first_problem
from iossim.edge.plan_json import plan_to_json
from iossim.edge.planned import Dataflow, dataflow
from iossim.hardware.edge import edge_device
from iossim.models.load import load_source
from iossim.schedule.schedule import ModelReference

_REMEDY = "give a plan.json that 'iossim dataflow optimize' wrote"


def saved_plan(found: Dataflow) -> dict[str, Any]:
    """What is written of a network's plans, the last of them, as JSON, and what it was made of."""
    *_, (plan, _) = found.runs.values()
    source = plan.network.source
    made_of = ModelReference(model=source.model, batch=source.batch, options=dict(source.options))
    told = {"policy": found.policy, "in_parts": found.parts is not None, "source": made_of.model_dump(mode="json")}
    return {**plan_to_json(plan), **told}


def is_saved_plan(path: Path) -> bool:
    """Whether a file holds a plan of dataflow; what is wrong with another is for whoever reads it."""
    try:
        document = from_json(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and {"variant", "buffers"} <= document.keys()


def planned_again(path: Path, device: str | None = None, model: str | None = None) -> Dataflow:
    """What a saved plan was of; ``device`` is another, or where its profile is, ``model`` where the model is now.

    Raises PlanError where the file tells too little, and where the model is no longer the same.
    """
    document = from_json(read_text(path, "plan", _REMEDY, PlanError))
    try:
        reference = ModelReference.model_validate(document["source"])
        policy, name, graph = (str(document[key]) for key in ("policy", "device", "graph"))
    except KeyError as error:
        raise PlanError(f"plan {path} has no field {error.args[0]!r}; {_REMEDY}, of one device") from None
    except ValidationError as error:
        raise PlanError(f"plan {path} is not valid: {first_problem(error)}; {_REMEDY}") from None
    if document.get("in_parts"):
        raise PlanError(
            f"plan {path} has branches on parts of the units, and explain tells of all units; leave out `parts`"
        )
    network = load_source(reference.to_source(model))
    if network.graph.hash != graph:
        raise PlanError(f"plan {path} is of another model than {reference.model} is now; write it again")
    return dataflow(network, edge_device(device or name), policy)
