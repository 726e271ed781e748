"""Values that are read from files: every field checked, and what is wrong told in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from iossim.base.numbers import LONGEST_US

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


_MEMBERS = {name: getattr(member, "__func__", member) for name, member in vars(BaseModel).items()}
_DEPRECATED = {name for name, member in _MEMBERS.items() if hasattr(member, "__deprecated__")}
#: What a class has, and what pydantic no longer wants read from an instance.
_OF_CLASSES = {"model_fields", "model_computed_fields"}


class _Class(ModelMetaclass):
    """The class of values, which completes without the names that pydantic keeps from its first version, too."""

    def __dir__(self) -> list[str]:
        return sorted(set(super().__dir__()) - _DEPRECATED)


class Value(BaseModel, metaclass=_Class):
    """An immutable value of a file: no field missing, surplus or of another type, all numbers finite."""

    # Most classes of values are parts of others, and never checked by themselves: none is completed before it is.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)

    def __dir__(self) -> list[str]:
        """What a notebook completes to: without the names that pydantic keeps from its first version."""
        return sorted(set(super().__dir__()) - _DEPRECATED - _OF_CLASSES)


#: A time in microseconds, as a file may have one.
TimeUs = Annotated[float, Field(ge=0, le=LONGEST_US)]


def first_problem(error: ValidationError) -> str:
    """The first of pydantic's complaints as one line that names the field, and how many more there are."""
    problems = error.errors()
    first = problems[0]
    where = ".".join(str(part) for part in first["loc"])
    field = f"field {where!r}: " if where else ""  # of several fields that disagree the message names them
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{field}{first['msg'].removeprefix('Value error, ')}{more}".replace("\n", " ")
