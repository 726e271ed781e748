"""The faults of a scenario's fields in words with a remedy, made from the errors of pydantic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from typing_extensions import TypeAliasType

from iossim.base.errors import did_you_mean
from iossim.base.located_yaml import Location
from iossim.study.question import LIST, MAPPING, VALUE


@dataclass(frozen=True)
class Fault:
    """A fault of the value at a place of a scenario: the reason, with the remedy."""

    location: Location
    reason: str
    #: Whether there is no such value: the place is where it should stand.
    is_missing: bool = False


def fault_of_field(problem: Mapping[str, Any], of: type[BaseModel]) -> Fault:
    """One of pydantic's complaints about a value of the class ``of``."""
    location: Location = tuple(part for part in problem["loc"] if part not in (MAPPING, LIST, VALUE))
    kind, given, context = problem["type"], problem["input"], problem.get("ctx", {})
    if kind == "missing":
        return Fault(location, f"is missing; write '{location[-1]}: ...'", is_missing=True)
    if kind == "extra_forbidden":
        known = _fields(of, location[:-1])
        return Fault(location, f"is not known; {did_you_mean(location[-1], known)}")
    return Fault(location, _reason(kind, given, context, problem["msg"]))


#: The remedy for each type of pydantic's errors.
_REMEDIES = {
    "string_type": "write text, in quotes if it looks like a number or a date",
    "int_type": "write a whole number",
    "int_from_float": "write a whole number",
    "float_type": "write a number",
    "finite_number": "write a finite number",
    "dict_type": "write a mapping, 'name: value'",
    "model_type": "write a name, or a mapping of fields",
    "model_attributes_type": "write a mapping, 'name: value'",
    "union_tag_invalid": "write a label, or a mapping 'axis: label'",
}


def _reason(kind: str, given: Any, context: Mapping[str, Any], message: str) -> str:
    shown = _shown(given)
    if kind == "told":
        return str(context["reason"])
    if kind == "list_type":
        return f"is {shown}, not a list; write {'- value' if isinstance(given, dict) else f'[{shown}]'}"
    if kind in _REMEDIES:
        return f"is {shown}; {_REMEDIES[kind]}"
    if kind == "literal_error":
        known = [part.strip(" '") for part in context["expected"].replace(" or ", ", ").split(",")]
        return f"is {shown}; {did_you_mean(given, known)}"
    if kind == "string_pattern_mismatch":
        return f"is {shown}; write small letters, digits, dashes and underscores alone: it names files"
    if kind in ("too_short", "string_too_short"):
        return "is empty; give at least one, or leave the field out"
    for bound, words in (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than")):
        if bound in context:
            return f"is {shown}; give {words} {context[bound]}"
    return f"is {shown}: {message.removeprefix('Value error, ')}; correct it"


def _shown(given: Any) -> str:
    """A value in a few characters, as it might stand in the file."""
    if given is None:
        return "empty"
    if isinstance(given, dict):
        return "a mapping"
    if isinstance(given, list):
        return "a list"
    text = {True: "true", False: "false"}[given] if isinstance(given, bool) else str(given)
    return repr(text[:60] + "..." * (len(text) > 60)) if isinstance(given, str) else text[:60]


def _fields(of: type[BaseModel], location: Location) -> list[str]:
    """The fields of the value at a place."""
    kind: Any = of
    for part in location:
        holders = [each for each in _alternatives(kind) if isinstance(each, type) and issubclass(each, BaseModel)]
        if isinstance(part, str) and holders:
            field = holders[0].model_fields.get(part)
            # A union's alternative is named in pydantic's place too.
            kind = field.annotation if field else kind
        elif isinstance(part, str):
            kind = next((get_args(each)[1] for each in _alternatives(kind) if get_origin(each) is dict), kind)
        elif isinstance(part, int):
            kind = next((get_args(each)[0] for each in _alternatives(kind) if get_origin(each) is list), kind)
    for each in _alternatives(kind):
        if isinstance(each, type) and issubclass(each, BaseModel):
            return list(each.model_fields)
    return []


def _alternatives(kind: Any) -> list[Any]:
    """The types that a type may be."""
    if isinstance(kind, TypeAliasType):
        return _alternatives(kind.__value__)
    if get_origin(kind) is Annotated:
        return _alternatives(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [each for part in get_args(kind) for each in _alternatives(part)]
    return [] if get_origin(kind) is Literal else [kind]
