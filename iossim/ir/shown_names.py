"""The names by which people read units: a unit that is named by its last op, an activation or a sum, is shown by its op
of the most work, its convolution. Files, and options that name units, keep the names that units have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from pydantic import BaseModel

from iossim.ir.network import Network, Unit

T = TypeVar("T")


def shown_names(network: Network) -> dict[str, str]:
    """The shown names of units and blocks that have others, by the names that they have."""
    units = [_shown(network, unit) for unit in network.units]
    found = {unit.name: shown for unit, shown in zip(network.units, units, strict=True)}
    for block in network.blocks:
        ends = f"{network.units[block.units[0]].name}..{network.units[block.units[-1]].name}"
        if block.name == ends:
            found[ends] = f"{units[block.units[0]]}..{units[block.units[-1]]}"
    return {name: shown for name, shown in found.items() if name != shown}


def _shown(network: Network, unit: Unit) -> str:
    nodes = network.unit_nodes(unit)
    work = [network.graph.work(node).flops for node in nodes]
    main = nodes[work.index(max(work))].name
    # An author's name is of no op, or begins those of the unit's ops.
    is_own = unit.name != nodes[-1].name or main.startswith(unit.name)
    return unit.name if is_own or not any(work) else main


def renamed(value: T, names: Mapping[str, str]) -> T:
    """A value with other names of units and blocks wherever it holds them, those of merged units joined by ``+``."""
    return cast("T", _renamed(value, names)) if names else value


def _renamed(value: object, names: Mapping[str, str]) -> object:
    if isinstance(value, str):
        shown = names.get(value) or "+".join(names.get(part, part) for part in value.split("+"))
        return value if shown == value else shown  # members of enumerations stay such
    if isinstance(value, Network):
        units = tuple(replace(unit, name=names.get(unit.name, unit.name)) for unit in value.units)
        blocks = tuple(replace(block, name=names.get(block.name, block.name)) for block in value.blocks)
        return replace(value, units=units, blocks=blocks, interchangeable=(), clusters=())
    if isinstance(value, BaseModel):
        fields_of: dict[str, Any] = {name: _renamed(getattr(value, name), names) for name in type(value).model_fields}
        return type(value).model_construct(None, **fields_of)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: _renamed(getattr(value, each.name), names) for each in fields(value)})
    if isinstance(value, Mapping):
        return {_renamed(key, names): _renamed(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, names) for each in value]
    return tuple(_renamed(each, names) for each in value) if type(value) is tuple else value
