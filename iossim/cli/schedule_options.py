"""Options of commands that read, search, run or time a single schedule."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.base.errors import OptionError
from iossim.cli.option_groups import ReadingOptions
from iossim.cli.options import OptionGroup, with_flags

if TYPE_CHECKING:
    from iossim.execution.backend import Timing
    from iossim.ir.network import Network
    from iossim.schedule.schedule import AnySchedule


@dataclass(frozen=True)
class TimingOptions(OptionGroup):
    """Options of timing."""

    PANEL = "Timing"
    rounds: int = 30
    warm_up: int = 3
    seed: int = 0
    cold: bool = False

    def timing(self) -> Timing:
        """Raises OptionError for an invalid number of rounds or seed."""
        from iossim.execution.backend import Timing

        for name, least in (("rounds", 1), ("warm_up", 0), ("seed", 0)):
            if (value := getattr(self, name)) < least:
                raise OptionError(with_flags(f"`{name}` {value} is too few; give {least} or more"))
        return Timing(self.rounds, self.warm_up, self.seed, self.cold)


def schedule_or_network(
    target: str, model: str | None, reading: ReadingOptions, batch: int | None = None
) -> tuple[AnySchedule | None, Network]:
    """Saved schedule and its network, at another ``batch`` if given; for a model, None and its network. Raises
    OptionError for options that do not apply.
    """
    from iossim import api
    from iossim.schedule.schedule import is_schedule

    if is_schedule(Path(target)):
        if reading != type(reading)():
            raise OptionError(
                f"{target} is a saved schedule, whose model is read as it was; give no options of reading"
            )
        return api.read_any_schedule(target, model, batch)
    if model is not None:
        raise OptionError(f"--model is for a schedule, and {target!r} is none; leave it out")
    return None, reading.network_of_batch(target, batch)
