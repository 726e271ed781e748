"""Explanation of plans of dataflow, those in files as well, for which ``iossim explain`` looks here."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError
from pydantic_core import from_json

from iossim.base.errors import PlanError
from iossim.base.user_files import read_text
from iossim.base.values import first_problem
from iossim.cli.outputs import present
from iossim.edge.explain import explain_dataflow
from iossim.edge.planned import Dataflow, dataflow
from iossim.edge.words import explanation_lines, explanation_overview
from iossim.models.load import load_source
from iossim.schedule.schedule import ModelReference

#: This many operators are explained where neither --operator nor --all asks for others.
_FEW = 8
_REMEDY = "give a plan.json that 'iossim dataflow optimize' wrote"


def explain_file(path: Path, device: str | None, model: str | None, all_operators: bool, as_json: bool) -> bool:
    """Explain a saved plan; False if the file holds none."""
    if not _is_saved_plan(path):
        return False
    tell_explained(_planned_again(path, device, model), [], all_operators, as_json)
    return True


def tell_explained(found: Dataflow, operators: list[str], all_operators: bool, as_json: bool) -> None:
    """Print why the operators are as they are; for named ones, price every split."""
    explained = explain_dataflow(found, operators)
    ordered = [one for one in explained.by_importance if not operators or one.operator in operators]
    shown = ordered if all_operators or operators else ordered[:_FEW]
    lines = explanation_overview(explained)
    for one in shown:
        lines += ["", *explanation_lines(one)]
    if len(shown) < len(ordered):
        rest = sum(one.share for one in ordered[len(shown) :])
        more = f"{len(ordered) - len(shown)} more operators take {rest:.1%}"
        lines.append(f"\n{more} (--all; --operator NAME prices every split)")
    present(explained.to_json, lines, as_json)


def _is_saved_plan(path: Path) -> bool:
    """Whether a file holds a plan of dataflow; errors in other files are left to their readers."""
    try:
        document = from_json(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and {"variant", "buffers"} <= document.keys()


def _planned_again(path: Path, device: str | None = None, model: str | None = None) -> Dataflow:
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
