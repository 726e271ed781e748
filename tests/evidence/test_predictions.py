"""What the simulator says is what the checked-in table says, or the table is written anew and the change says what moved."""

from __future__ import annotations

import pytest

from evidence.predictions import DEVICES, computed, moved, read
from iossim.hardware.load import device_names


def test_no_prediction_moves_unnoticed() -> None:
    lines = moved(read(), computed())
    assert not lines, "\n".join(["run: python -m evidence predictions", *lines])


def test_what_moved_is_said() -> None:
    before = {("t4", "a", "x"): 100.0, ("t4", "b", "x"): 100.0, ("t4", "c", "x"): 5.0}
    now = {("t4", "a", "x"): 100.5, ("t4", "b", "x"): 110.0, ("t4", "d", "x"): 7.0}
    assert moved(before, now) == ["t4, c, x: gone", "t4, b, x: 100 -> 110 us (+10.0%)", "t4, d, x: new, 7 us"]


@pytest.mark.parametrize("name", DEVICES)
def test_devices_ship(name: str) -> None:
    assert name in device_names()
