"""The names by which people read units: a unit that is named by its last op, an activation or a sum, is shown by its op
of the most work, its convolution. Files, and options that name units, keep the names that units have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from pydantic import BaseModel

from iossim.ir.network import Network, Unit

T = TypeVar("T")


@dataclass(frozen=True)
class ShownNames:
    """The shown names of units and blocks that have others, by the names that they have."""

    names: Mapping[str, str]

    def __call__(self, value: T) -> T:
        """The value with the shown names wherever it holds the others, those of merged units joined by ``+``."""
        return cast("T", self._renamed(value)) if self.names else value

    def _renamed(self, value: Any) -> object:
        if isinstance(value, str):
            shown = self.names.get(value) or "+".join(self.names.get(part, part) for part in value.split("+"))
            return value if shown == value else shown  # members of enumerations stay such
        if isinstance(value, Network):
            units = tuple(replace(unit, name=self(unit.name)) for unit in value.units)
            blocks = tuple(replace(block, name=self(block.name)) for block in value.blocks)
            return replace(value, units=units, blocks=blocks, interchangeable=())
        if isinstance(value, BaseModel):
            own = {name: self._renamed(getattr(value, name)) for name in type(value).model_fields}
            return type(value).model_construct(None, **own)
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{each.name: self._renamed(getattr(value, each.name)) for each in fields(value)})
        if isinstance(value, Mapping):
            return {self._renamed(key): self._renamed(each) for key, each in value.items()}
        return type(value)(map(self._renamed, value)) if type(value) in (list, tuple) else value


def shown_names(*networks: Network) -> ShownNames:
    """The names by which the units and blocks of networks are shown."""
    found: dict[str, str] = {}
    for network in networks:
        units = {unit.name: _shown(network, unit) for unit in network.units}
        for block in network.blocks:
            first, last = network.units[block.units[0]].name, network.units[block.units[-1]].name
            found |= {f"{first}..{last}": f"{units[first]}..{units[last]}"}
        found |= units
    return ShownNames({name: shown for name, shown in found.items() if name != shown})


def _shown(network: Network, unit: Unit) -> str:
    nodes = network.unit_nodes(unit)
    work = [network.graph.work(node).flops for node in nodes]
    main = nodes[work.index(max(work))].name
    # A name that an author gave is no op's, or begins those of the unit's ops.
    is_own = unit.name != nodes[-1].name or main.startswith(unit.name)
    return unit.name if is_own or not any(work) else main
