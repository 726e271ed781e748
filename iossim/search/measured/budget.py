"""How much a measured search may measure."""

from __future__ import annotations

from dataclasses import dataclass

from iossim.base.errors import OptionError

_REMEDY = "give a number of measurements (1000), seconds (60s), or all"


@dataclass(frozen=True, slots=True)
class Budget:
    """At most so many measurements, or seconds from the first of them on; None for no limit. ``everything``: measure every stage there is."""

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
            raise OptionError(f"`budget` {text!r} is no budget; {_REMEDY}") from None
        if not 0 < value < float("inf"):
            raise OptionError(f"`budget` {text!r} leaves nothing to measure; {_REMEDY}")
        return Budget(seconds=value) if text.endswith("s") else Budget(measurements=int(value))

    def __str__(self) -> str:
        if self.everything:
            return "all"
        if self.seconds is not None:
            return f"{self.seconds:g}s"
        return "none" if self.measurements is None else str(self.measurements)
