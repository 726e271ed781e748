"""JSON schema of a scenario's file."""

from __future__ import annotations

from iossim.execution.engine import Engine
from iossim.hardware.names import shipped_names
from iossim.ir.types import Precision
from iossim.models.catalogue import zoo_models
from iossim.report.schemas import Schema
from iossim.search.scheduler import scheduler_names
from iossim.study.axes import KINDS
from iossim.study.scenario import Scenario


def _scenario() -> Schema:
    """A scenario, whose axes may have a single name as value. Shipped names are examples: a user may add others."""
    made = Scenario.model_json_schema()
    definitions, fields = made["$defs"], made["properties"]
    alone = {
        "Model": [model.name for model in zoo_models()],
        "Device": shipped_names(),
        "Rewrite": ["none", "default"],
        "Workspace": ["none", "64MiB"],
        **{type(kind.axis.default).__name__: list(kind.examples) for kind in KINDS},
    }
    for name, examples in alone.items():
        by_name = {"type": "string", "minLength": 1, "examples": examples}
        definitions[name] = {"anyOf": [by_name, definitions[name]], "title": name}
    fields["dtypes"]["items"] = {"enum": [str(precision) for precision in Precision]}
    fields["engines"]["items"] = {"enum": [str(engine) for engine in Engine]}
    fields["schedulers"]["items"] = {"enum": list(scheduler_names())}
    return made


SCHEMA = ("A scenario of a study for iossim (YAML)", _scenario)
