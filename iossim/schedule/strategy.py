"""How the units of a stage run."""

from __future__ import annotations

from enum import StrEnum


class Strategy(StrEnum):
    """The two strategies of a stage (IOS thesis, section 3.1)."""

    CONCURRENT = "concurrent"  #: groups (connected components) side by side, the units of a group one after another
    MERGE = "merge"  #: all units as one stacked convolution

    @property
    def code(self) -> int:
        """The strategy as a number, for arrays of many stages (:class:`iossim.schedule.batch.StageBatch`)."""
        return _CODES[self]

    @staticmethod
    def of_code(code: int) -> Strategy:
        return _STRATEGIES[code]


_STRATEGIES = tuple(Strategy)
_CODES = {strategy: code for code, strategy in enumerate(_STRATEGIES)}
