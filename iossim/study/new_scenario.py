"""A new scenario: the requested values, and a comment on all else that it can express."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from math import inf
from pathlib import Path
from string import Template
from textwrap import indent
from typing import Any

import yaml

from iossim.base.errors import ScenarioError
from iossim.base.located_yaml import Dumper
from iossim.base.user_files import user_data, write_atomically
from iossim.study.scenario import Scenario
from iossim.study.scenario_file import MODELINE, parse_scenario


def write_new_scenario(
    path: Path,
    schema: Mapping[str, Any],
    fields: Mapping[str, Any],
    questions: Sequence[str] = (),
    replace: bool = False,
) -> Scenario:
    """Write a commented scenario, whole or not at all, and the JSON ``schema`` that its first line names for editors.

    ``fields`` are its name, title, models, devices, batch sizes and schedulers; ``questions`` are in YAML. Raises
    ScenarioError if they form no scenario, or the file exists and is not to be replaced.
    """
    if path.suffix not in (".yaml", ".yml"):
        raise ScenarioError(f"scenario {path}: the name must end in .yaml: 'iossim study run' takes it as a file then")
    if path.exists() and not replace:
        raise ScenarioError(f"scenario {path} is there already; choose another name, or give `force` to replace it")
    schema_path = user_data() / "schemas" / "scenario.json"
    template = (resources.files("iossim.study") / "new_scenario.txt").read_text(encoding="utf-8")
    text = Template(template).substitute(
        modeline=MODELINE,
        schema=schema_path,
        file=path,
        name=fields["name"],
        title=_yaml({"title": fields["title"]}),
        **{name: indent(_yaml(list(fields[name])), "  ") for name in ("models", "devices")},
        **{name: f"[{', '.join(map(str, fields[name]))}]" for name in ("batch_sizes", "schedulers")},
        questions="\n".join(f"  - {question}" for question in questions) or "  []",
    )
    scenario = parse_scenario(text, path)
    try:
        schema_path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(schema_path, json.dumps(schema, indent=1, ensure_ascii=False) + "\n")
        write_atomically(path, text)
    except OSError as error:
        raise ScenarioError(f"cannot write scenario {path}: {error.strerror}; choose another file") from None
    return scenario


def _yaml(value: Any) -> str:
    return yaml.dump(value, Dumper=Dumper, allow_unicode=True, width=inf).rstrip("\n")
