"""Common properties of devices of every kind: a name, facts with their sources, and a hierarchy of memories.

A GPU, a processor and an edge device each have units that compute in parallel, a clock, memory private to each
unit, on-chip memory shared by all units, and external memory with a bandwidth. On a GPU and a processor caches
move data (:class:`~iossim.hardware.profile.DeviceProfile`), and a schedule only says when ops run. On an edge device
the program does: a plan gives the bytes in each memory (:class:`~iossim.hardware.edge.EdgeDevice`).
"""

from __future__ import annotations

from typing import Any, Generic, Self, TypeVar

from pydantic import Field, model_validator

from iossim.base.values import Value

T = TypeVar("T")


class Fact(Value, Generic[T]):
    """A datasheet fact; ``source`` is a key of the profile's ``sources``."""

    value: T
    source: str


class Device(Value):
    """Fields at the start of a profile, for any kind of device."""

    name: str = Field(min_length=1)
    kind: str
    title: str
    #: Short names accepted for it: those of the family whose most common board it is.
    aliases: list[str] = Field(default_factory=list)
    sources: dict[str, str]

    @model_validator(mode="after")
    def _sources_exist(self) -> Self:
        for where, fact in self.facts().items():
            if fact.source not in self.sources:
                raise ValueError(f"{where}: source {fact.source!r} is not among the profile's sources")
        return self

    def facts(self) -> dict[str, Fact[Any]]:
        """All facts of the profile, by their path in it."""
        return dict(_facts(self, ""))


def _facts(value: Value, where: str) -> list[tuple[str, Fact[Any]]]:
    found: list[tuple[str, Fact[Any]]] = []
    for name in type(value).model_fields:
        inner, place = getattr(value, name), f"{where}{name}"
        parts = {f"{place}.{key}": part for key, part in inner.items()} if isinstance(inner, dict) else {place: inner}
        for key, part in parts.items():
            if isinstance(part, Fact):
                found.append((key, part))
            elif isinstance(part, Value):
                found += _facts(part, f"{key}.")
    return found
