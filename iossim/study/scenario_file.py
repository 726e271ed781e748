"""Reader and writer of a study's YAML file, and of a commented one to fill in.

A mistake is one line with file, line, field and remedy. A file's paths (of models, devices and tables of prices) are
relative to the file; the reader makes them absolute.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from string import Template

import yaml
from pydantic import ValidationError

from iossim.base.errors import ScenarioError, did_you_mean
from iossim.base.located_yaml import Dumper, LocatedYaml, LocatedYamlError, Location, read_located
from iossim.base.shipped_yaml import shipped_files
from iossim.base.user_files import read_text, write_atomically
from iossim.base.user_folders import user_data
from iossim.report.schemas import schema
from iossim.study.axes import FOLDER
from iossim.study.scenario import Fault, Scenario, fault_of_field
from iossim.study.scenario_checks import faults_of

_FOLDER = "iossim.scenarios"
_REMEDY = "give a scenario's YAML file, or the name of one that ships (see 'iossim study list')"
#: Editor directive that names the schema of the file's fields; the schema's path or address follows.
MODELINE = "# yaml-language-server: $schema="


def scenario_names() -> list[str]:
    """Names of the scenarios that ship, sorted."""
    return shipped_files(_FOLDER)


def scenario_path(name_or_path: str | Path) -> Path:
    """File of a shipped scenario, by its name, or the path itself; an unknown name or type of file raises
    ScenarioError.
    """
    path, name = Path(name_or_path), str(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        return path
    if name in scenario_names():  # first: results are often in a folder of this name
        return Path(str(resources.files(_FOLDER) / f"{name}.yaml"))
    if path.suffix or path.exists() or len(path.parts) != 1:
        kind = "a folder" if path.is_dir() else "no .yaml file" if path.exists() else "neither a name nor a .yaml file"
        raise ScenarioError(f"scenario {name!r} is {kind}; {_REMEDY}")
    raise ScenarioError(f"unknown scenario {name!r}; {did_you_mean(name, scenario_names())}; or give a .yaml file")


def read_scenario(name_or_path: str | Path) -> Scenario:
    """Read a scenario from its file, or a shipped one by name; checks all that needs no loaded model.

    Raises ScenarioError naming file, line and field.
    """
    path = scenario_path(name_or_path)
    return parse_scenario(read_text(path, "scenario", _REMEDY, ScenarioError), path)


def parse_scenario(text: str, path: Path) -> Scenario:
    """Parse a scenario from YAML text; ``path`` names it in errors, and paths are relative to its folder."""
    try:
        located = read_located(text)
    except LocatedYamlError as fault:
        raise _error(path, fault.line, fault.location, fault.reason) from None
    if not isinstance(located.values, dict):
        raise ScenarioError(f"scenario {path}, line 1: is not a mapping of fields; begin with 'name: ...'")
    try:
        scenario = Scenario.model_validate(located.values, context={FOLDER: path.parent})
    except ValidationError as error:
        found = [fault_of_field(problem) for problem in error.errors()]
        raise _first(path, located, found) from None
    if faults := list(faults_of(scenario)):
        raise _first(path, located, faults)
    return scenario


def write_scenario(scenario: Scenario, path: Path) -> None:
    """Write a scenario with all defaults filled in, which :func:`read_scenario` reads back as the same value."""
    data = scenario.model_dump(mode="json", exclude_none=True)
    write_atomically(path, yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=118))


def _first(path: Path, located: LocatedYaml, faults: Iterable[Fault]) -> ScenarioError:
    """The first fault in the file, and the number of others."""
    found = [(located.lines[located.nearest(fault.location)], fault) for fault in faults]
    line, fault = min(found, key=lambda each: each[0])
    location = fault.location if fault.is_missing else located.nearest(fault.location)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return _error(path, line, location, fault.reason + more)


def _error(path: Path, line: int, location: Location, reason: str) -> ScenarioError:
    """An error that names the field: ``devices[0].set`` for ``("devices", 0, "set")``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    field = f", field {text.removeprefix('.')}" if location else ""
    return ScenarioError(" ".join(f"scenario {path}, line {line}{field}: {reason}".split()))


def write_new_scenario(path: Path, name: str) -> None:
    """Write a commented scenario, whole or not at all, and the JSON schema that its first line names for editors.

    Raises ScenarioError for an invalid name. An existing file is replaced.
    """
    if path.suffix not in (".yaml", ".yml"):
        raise ScenarioError(f"scenario {path}: the name must end in .yaml: 'iossim study run' takes it as a file then")
    schema_path = user_data() / "schemas" / "scenario.json"
    template = (resources.files("iossim.study") / "new_scenario.txt").read_text(encoding="utf-8")
    title = name.replace("_", " ").replace("-", " ").capitalize()
    text = Template(template).substitute(
        modeline=MODELINE, schema=schema_path, file=path, name=name, title=json.dumps(title)
    )
    parse_scenario(text, path)
    schema_path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(schema_path, json.dumps(schema("scenario"), indent=1, ensure_ascii=False) + "\n")
    write_atomically(path, text, "scenario", ScenarioError)
