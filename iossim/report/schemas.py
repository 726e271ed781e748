"""JSON schemas of the files that people write and exchange, for editors and for programs that check them.

They are made from the classes that read the files, and those of outputs from the short form of ``outputs.yaml`` in each
room; an entry of a room's ``schemas.yaml`` with a title is a schema as it is. A test holds the copies of all of them in
``docs/schemas``. Conditions on several fields at once (facts that agree, a schedule that fits its network) are checked
by the reader alone.

In ``outputs.yaml`` a command's entry (its words joined by hyphens) has ``about`` and ``json``. The latter is ``text``,
``int``, ``number``, ``bool``, ``us`` (microseconds, not negative), ``object`` or ``any``, each with ``~`` if it may be
null; a list of the form of its items; ``{either: FORMS}``; ``{or_null: FORM}``; or the keys of an object, where a key
with ``~`` may be missing and the key ``*`` gives the form of all others. Objects may gain keys in later versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iossim.base.registry import Group, guest_modules, guest_part
from iossim.base.shipped_yaml import read_shipped, shipped

if TYPE_CHECKING:
    from iossim.measurements.kinds import Column, OperatorKind

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
#: JSON Schema, whose grammar only its own schema defines.
Schema = dict[str, Any]
Titled = tuple[str, Callable[[], Schema]]


def schema(name: str) -> Schema:
    """The JSON schema of a file; raises OptionError for an unknown one."""
    title, make = SCHEMAS.find(name)
    return {"$schema": _DIALECT, **make(), "title": title}


def _profile() -> Schema:
    """A profile, which may leave parameters out: their defaults depend on its facts."""
    from iossim.hardware.kind import DEVICE_KINDS, device_kind
    from iossim.hardware.profile import DeviceProfile
    from iossim.ir.types import Precision

    made = DeviceProfile.model_json_schema()
    made["required"] = [name for name in made["required"] if name not in ("parameters", "engine")]
    for name in ("ModelParameters", "EngineOverheads"):
        for parameter in made["$defs"][name]["properties"].values():
            parameter.pop("default")
    for name in ("parameters", "engine"):
        made["properties"][name].pop("default", None)
    sheet = made["$defs"]["Datasheet"]["properties"]
    for fact in sheet.values():
        fact.pop("default", None)
    capabilities = [name for kind in DEVICE_KINDS.names() for name in device_kind(kind).limits if name]
    sheet["compute_capability"]["properties"] = {"value": {"enum": capabilities}}
    made["properties"]["kind"]["enum"] = DEVICE_KINDS.names()
    rates = [str(precision) for precision in Precision if precision is not Precision.FP32]
    sheet["reduced_precision_tflops"]["properties"] = {"value": {"propertyNames": {"enum": rates}}}
    made["properties"]["provenance"] = {"$ref": "#/$defs/Provenance"}
    return made


def _schedule() -> Schema:
    """Schedules of stages, or of streams: one version of the format each."""
    from pydantic import TypeAdapter

    from iossim.schedule.schedule import AnySchedule

    made = TypeAdapter(AnySchedule).json_schema()
    for kind in ("Schedule", "StreamSchedule"):
        version = made["$defs"][kind]["properties"]["format_version"]
        version["const"] = version["default"]
    return made


def _table() -> Schema:
    from iossim.cost.table import PriceTable

    return PriceTable.model_json_schema()


def _measurement() -> Schema:
    """One line of a measurement set as JSON lines: the header, a measurement, or a stage."""
    from iossim.ir.types import Precision
    from iossim.measurements.formats.json_lines import COUNTS
    from iossim.measurements.measurement import Header
    from iossim.measurements.operator_kinds import KINDS

    header = Header.model_json_schema(by_alias=True)
    definitions = header.pop("$defs", {})
    header["properties"] |= {count: {"type": "integer", "minimum": 0} for count in COUNTS}
    header["required"] = sorted({"schema", *header["required"]})
    operators: Schema = {}
    # Kinds of the same columns share one definition, called as the first of them.
    by_columns: dict[tuple[Column, ...], list[OperatorKind]] = {}
    for kind in KINDS.values():
        by_columns.setdefault(kind.columns, []).append(kind)
    for columns, kinds in by_columns.items():
        spellings = [name for kind in kinds for name in (kind.name, *kind.aliases)]
        operators[kinds[0].name] = _operator(spellings, columns)
    lines = _written("measurement")
    either = [{"$ref": f"#/$defs/{name}"} for name in operators]
    for line in lines.values():
        line["properties"]["precision"] = {"enum": [str(precision) for precision in Precision]}
    lines["measurement"]["oneOf"] = lines["stage"]["properties"]["stage"]["items"]["items"]["oneOf"] = either
    return {
        "description": " ".join((_measurement.__doc__ or "").split()),
        "$defs": {**definitions, "header": header, **operators, **lines},
        "anyOf": [{"$ref": f"#/$defs/{name}"} for name in ("header", *lines)],
    }


def _rule() -> Schema:
    from iossim.transforms.rewriting.rule_file import NAME

    made = _written("rule")
    made["properties"]["rule"]["pattern"] = f"^{NAME.pattern}$"
    return made


def _written(name: str) -> Schema:
    made: Schema = shipped(__package__, "schemas.yaml")[name]
    return made


def _operator(spellings: list[str], columns: Iterable[Column]) -> Schema:
    """An operator by its columns: height and width, or one column for both."""
    properties: Schema = {"op": {"enum": spellings}}
    required, either = ["op"], []
    pairs: dict[str, list[str]] = {}
    for column in columns:
        size: Schema = {"type": "integer", "minimum": column.smallest}
        properties[column.name] = {"enum": ["N", "T", "n", "t"]} if column.is_transposition else size
        if column.square:
            properties[column.square] = size
            if column.default is None:
                pairs.setdefault(column.square, []).append(column.name)
        elif column.default is None:
            required.append(column.name)
    for square, names in pairs.items():
        either.append({"anyOf": [{"required": [square]}, {"required": names}]})
    made: Schema = {"type": "object", "properties": properties, "required": required}
    return made | ({"allOf": either} if either else {})


_PLAIN: dict[str, Schema] = {
    "text": {"type": "string"},
    "int": {"type": "integer"},
    "number": {"type": "number"},
    "bool": {"type": "boolean"},
    "us": {"type": "number", "minimum": 0},
    "object": {"type": "object"},
    "any": {},
}


@cache
def outputs() -> dict[str, Titled]:
    """Titles and makers of the schemas of all rooms, by name."""
    return {name: _output(name, **entry) for name, entry in _entries("outputs.yaml") if not name.startswith("_")}


@cache
def written() -> dict[str, Titled]:
    """Titles and makers of the schemas that stand in a room's ``schemas.yaml`` as they are, by name."""
    entries = [(name, dict(entry)) for name, entry in _entries("schemas.yaml") if "title" in entry]
    return {name: (entry.pop("title"), partial(dict, entry)) for name, entry in entries}


def _entries(file: str) -> list[tuple[str, Any]]:
    """The entries of the files of that name in all rooms, sorted by their names."""
    files = sorted(each for folder in import_module("iossim").__path__ for each in Path(folder).glob(f"*/{file}"))
    return sorted(entry for each in files for entry in read_shipped(each.read_text(encoding="utf-8")).items())


def _output(name: str, about: str, json: object, command: str = "") -> Titled:
    """``command`` differs from the name where a file's schema has that name."""
    group, _, rest = name.partition("-")
    words = command or (f"{group} {rest}" if group in _GROUPS else name)
    return f"Output of iossim {words} --json", lambda: {"description": about, **expanded(json)}


_GROUPS = frozenset({"dataflow", "devices", "measurements", "models", "rules", "study"})


def expanded(form: Any) -> Schema:
    """The JSON schema of a short form."""
    match form:
        case str():
            plain = _PLAIN[form.removesuffix("~")]
            return plain | {"type": [plain["type"], "null"]} if form.endswith("~") else plain
        case [items]:
            return {"type": "array", "items": expanded(items)}
        case {"either": list(forms)}:
            return {"anyOf": [expanded(each) for each in forms]}
        case {"or_null": other}:
            return {"anyOf": [expanded(other), {"type": "null"}]}
    keys = {key.removesuffix("~"): expanded(each) for key, each in form.items()}
    rest = keys.pop("*", None)
    made: Schema = {"type": "object"} if not keys else {"type": "object", "properties": keys}
    made |= {} if rest is None else {"additionalProperties": rest}
    required = [key for key in form if key != "*" and not key.endswith("~")]
    return made | ({"required": required} if required else {})


_SCHEMAS: dict[str, Titled] = {
    "profile": ("A device profile of iossim (YAML)", _profile),
    "schedule": ("A schedule of iossim (schedule.json)", _schedule),
    "table": ("A table of stage prices for iossim (JSON)", _table),
    "measurement": ("A line of a measurement set of iossim (JSON lines)", _measurement),
    "rule": ("A graph substitution for iossim (YAML)", _rule),
}


#: A schema's title, and what makes it; a guest's is in its ``schemas.yaml``, or ``SCHEMA`` of a module ``NAME_schema``.
SCHEMAS: Group[Titled] = Group(
    "no schema {!r}",
    lambda: [*_SCHEMAS, *sorted({*written(), *guest_modules("schema")}), *outputs()],
    lambda name: (_SCHEMAS | written() | outputs()).get(name) or guest_part("schema", name, "SCHEMA"),
)
