"""Values that are read from files: every field is checked, and the first error is reported in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


_MEMBERS = {name: getattr(member, "__func__", member) for name, member in vars(BaseModel).items()}
_DEPRECATED = {name for name, member in _MEMBERS.items() if hasattr(member, "__deprecated__")}
#: Attributes of classes that pydantic deprecates on instances.
_OF_CLASSES = {"model_fields", "model_computed_fields"}


class _Class(ModelMetaclass):
    """The metaclass of values, whose ``dir`` omits the names that pydantic keeps from its first version."""

    def __dir__(self) -> list[str]:
        return sorted(set(super().__dir__()) - _DEPRECATED)


class Value(BaseModel, metaclass=_Class):
    """An immutable value of a file: no field missing, surplus or of another type, all numbers finite."""

    # Most value classes are parts of others, and never validated by themselves: each is built on first use.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)

    def __dir__(self) -> list[str]:
        """Names for completion in a notebook: without those that pydantic keeps from its first version."""
        return sorted(set(super().__dir__()) - _DEPRECATED - _OF_CLASSES)


V = TypeVar("V", bound=Value)


def validated(of: type[V], data: object, what: str, remedy: str, error: type[Exception]) -> V:
    """The value of a class, by its fields or as JSON; raises an ``error``: ``what``, an invalid field, and a remedy."""
    try:
        return of.model_validate_json(data) if isinstance(data, str) else of.model_validate(data)
    except ValidationError as problem:
        raise error(f"{what}: {first_problem(problem)}; {remedy}") from None


#: Upper limit of every measured, priced or scheduled time, in microseconds: eleven days.
LONGEST_US = 1e12
#: A time in microseconds, as in a file.
TimeUs = Annotated[float, Field(ge=0, le=LONGEST_US)]


def first_problem(error: ValidationError) -> str:
    """The first of pydantic's errors as one line that names the field and a short value in it, and the number of
    further ones.
    """
    problems = error.errors()
    first = problems[0]
    where = ".".join(str(part) for part in first["loc"])
    field = f"field {where!r}: " if where else ""  # if several fields disagree, the message names them
    found = repr(first["input"]) if isinstance(first["input"], str | int | float) else ""
    given = f", not {found}" if found and len(found) <= 40 and first["msg"].startswith("Input should") else ""
    more = f" (other mistakes: {len(problems) - 1})" if len(problems) > 1 else ""
    return f"{field}{first['msg'].removeprefix('Value error, ')}{given}{more}".replace("\n", " ")
