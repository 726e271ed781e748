"""Costs of a launch that a device borrows: nearly none has networks measured on it that tell them.

What the host takes to launch was fitted on one device. Others take it, with the spread of hosts, so that intervals know how
little is known; their provenance says from where.
"""

from __future__ import annotations

from pydantic import Field

from iossim.base.values import Value
from iossim.hardware.provenance import Borrowed, Provenance


class Concurrency(Value):
    """What the profile of ``device`` says of launches."""

    device: str
    values: dict[str, float] = Field(min_length=1)
    spread: dict[str, float] = Field(default_factory=dict)
    resamples: dict[str, list[float]] = Field(default_factory=dict)

    def lent_to(self, provenance: Provenance) -> Provenance:
        """The provenance of a device that takes these."""
        own = {name: values for name, values in provenance.resamples.items() if name not in self.values}
        count = min((len(values) for values in (*own.values(), *self.resamples.values())), default=0)
        resamples = {name: values[:count] for name, values in (own | self.resamples).items()}
        others = [one for one in provenance.borrowed if not set(one.parameters) & set(self.values)]
        return provenance.model_copy(
            update={
                "spread": {k: v for k, v in provenance.spread.items() if k not in self.values} | self.spread,
                "resamples": resamples,
                "borrowed": [*others, Borrowed(device=self.device, parameters=list(self.values))],
            }
        )
