"""The measured search: the best schedule at measured prices, for a fraction of the measurements.

``planner`` enumerates a block's states and stages once, and finds the best path at any prices; ``stage_classes`` groups
stages that share a measurement, ``correction`` learns from measurements, and ``search`` is the loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from iossim.base.errors import OptionError

_REMEDY = "give a number of measurements (1000), seconds (60s), or all"


@dataclass(frozen=True, slots=True)
class Budget:
    """Limit of measurements, or of seconds since the first; None: no limit. ``everything``: all stages."""

    measurements: int | None = None
    seconds: float | None = None
    everything: bool = False

    @staticmethod
    def parse(text: str) -> Budget:
        """``1000``, ``60s`` or ``all``; raises OptionError for anything else."""
        if text == "all":
            return Budget(everything=True)
        number = text.removesuffix("s")
        try:
            value = float(number) if text.endswith("s") else int(number)
        except ValueError:
            raise OptionError(f"`budget` {text!r} is not a budget; {_REMEDY}") from None
        if not 0 < value < float("inf"):
            raise OptionError(f"`budget` {text!r} leaves nothing to measure; {_REMEDY}")
        return Budget(seconds=value) if text.endswith("s") else Budget(measurements=int(value))

    def __str__(self) -> str:
        if self.everything:
            return "all"
        if self.seconds is not None:
            return f"{self.seconds:g}s"
        return "none" if self.measurements is None else str(self.measurements)
