"""An interrupt at a moment of one's choice: when so many functions of iossim were called."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Calls:
    """Counts calls of functions ``within`` a package; SIGINT arrives at the call of number ``at``."""

    at: int = 0
    within: str = "iossim."
    count: int = 0

    @property
    def interrupted(self) -> bool:
        return 0 < self.at <= self.count

    @contextmanager
    def counted(self) -> Iterator[Calls]:
        sys.setprofile(self._call)
        try:
            yield self
        finally:
            sys.setprofile(None)

    def _call(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_globals.get("__name__", "").startswith(self.within):
            self.count += 1
            if self.count == self.at:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)
